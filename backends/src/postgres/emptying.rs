//! Taking away what was kept for a time.

use async_trait::async_trait;
use contract::ports::SEGMENT_GRACE;
use contract::{ExpiredJob, JobId, RecordLocation};
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::millis;
use super::row::{column, number, of_job};

/// Jobs whose payload's time is over.
pub(super) struct Expired {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Expired {
    type Answer = Vec<ExpiredJob>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<ExpiredJob>, Fault> {
        let query = sqlx::query(include_str!("sql/expired_jobs.sql")).bind(tx.fixed).bind(i64::from(self.limit));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter()
            .map(|row| {
                let job = JobId(column::<Uuid>(row, "id")?);
                let read = || {
                    let reference: Option<String> = column(row, "record_ref")?;
                    let location = reference.map(RecordLocation::from_reference).transpose();
                    let location = location.map_err(|err| Fault::Corrupt(format!("column record_ref: {err}")))?;
                    let staged = match location {
                        Some(RecordLocation::Staged(key)) => Some(key),
                        Some(RecordLocation::Archived(_) | RecordLocation::Inline(_)) | None => None,
                    };
                    Ok(ExpiredJob { job, attempts: number(row, "attempt")?, staged })
                };
                read().map_err(|fault| of_job(job, fault))
            })
            .collect()
    }
}

/// Their objects are gone.
pub(super) struct Empty<'a> {
    pub(super) jobs: &'a [JobId],
}

#[async_trait]
impl Write for Empty<'_> {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let ids: Vec<Uuid> = self.jobs.iter().map(|job| job.0).collect();
        // In a statement of its own: the next one then sees every segment that a row was switched to before.
        let locks = sqlx::query(include_str!("sql/lock_expired_jobs.sql")).bind(&ids);
        answer(locks.fetch_all(&mut *tx.conn)).await?;
        let query = sqlx::query(include_str!("sql/empty_jobs.sql")).bind(tx.fixed).bind(ids);
        let row = answer(query.fetch_one(&mut *tx.conn)).await?;
        Ok(column::<i64>(&row, "n")?.unsigned_abs())
    }
}

/// Segments of which no job is kept.
pub(super) struct Unkept {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Unkept {
    type Answer = Vec<String>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, Fault> {
        let query = sqlx::query(include_str!("sql/unkept_segments.sql")).bind(i64::from(self.limit));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(|row| column(row, "key")).collect()
    }
}

/// Segments that were announced long ago and that no row was switched to.
pub(super) struct Unswitched {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Unswitched {
    type Answer = Vec<String>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, Fault> {
        let query = sqlx::query(include_str!("sql/unswitched_segments.sql"))
            .bind(tx.fixed)
            .bind(millis(SEGMENT_GRACE))
            .bind(i64::from(self.limit));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(|row| column(row, "key")).collect()
    }
}

/// Their objects are gone.
pub(super) struct Forget<'a> {
    pub(super) keys: &'a [String],
}

#[async_trait]
impl Write for Forget<'_> {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/forget_segments.sql")).bind(self.keys);
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}
