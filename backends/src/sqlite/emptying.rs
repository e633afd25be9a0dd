//! Taking away what was kept for a time.

use async_trait::async_trait;
use contract::ports::SEGMENT_GRACE;
use contract::{ExpiredJob, JobId, RecordLocation};
use sqlx::SqlitePool;
use uuid::Uuid;

use super::fault::Fault;
use super::millis;
use super::row::{column, number, of_job};
use super::writer::{Tx, Write};

/// Jobs whose payload's time is over.
pub(super) async fn expired(pool: &SqlitePool, now: i64, limit: u32) -> Result<Vec<ExpiredJob>, Fault> {
    let query = sqlx::query(include_str!("sql/expired_jobs.sql")).bind(now).bind(i64::from(limit));
    query
        .fetch_all(pool)
        .await?
        .iter()
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

/// Their objects are gone.
pub(super) struct Empty {
    pub(super) jobs: Vec<JobId>,
}

#[async_trait]
impl Write for Empty {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let mut n_emptied = 0;
        for job in &self.jobs {
            let query = sqlx::query(include_str!("sql/is_to_be_emptied.sql")).bind(job.0).bind(tx.now);
            if query.fetch_optional(&mut *tx.conn).await?.is_none() {
                continue;
            }
            // Its segment is known as long as the row says it.
            sqlx::query(include_str!("sql/leave_segment.sql")).bind(job.0).execute(&mut *tx.conn).await?;
            sqlx::query(include_str!("sql/empty_job.sql")).bind(job.0).bind(tx.now).execute(&mut *tx.conn).await?;
            n_emptied += 1;
        }
        Ok(n_emptied)
    }
}

/// Segments of which no job is kept.
pub(super) async fn unkept(pool: &SqlitePool, limit: u32) -> Result<Vec<String>, Fault> {
    let query = sqlx::query(include_str!("sql/unkept_segments.sql")).bind(i64::from(limit));
    query.fetch_all(pool).await?.iter().map(|row| column(row, "key")).collect()
}

/// Segments that were announced long ago and that no row was switched to.
pub(super) async fn unswitched(pool: &SqlitePool, now: i64, limit: u32) -> Result<Vec<String>, Fault> {
    let query = sqlx::query(include_str!("sql/unswitched_segments.sql"))
        .bind(now)
        .bind(millis(SEGMENT_GRACE))
        .bind(i64::from(limit));
    query.fetch_all(pool).await?.iter().map(|row| column(row, "key")).collect()
}

/// Their objects are gone.
pub(super) struct Forget {
    pub(super) keys: Vec<String>,
}

#[async_trait]
impl Write for Forget {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        for key in &self.keys {
            let query = sqlx::query("DELETE FROM segments WHERE key = ?1 AND jobs = 0").bind(key);
            query.execute(&mut *tx.conn).await?;
        }
        Ok(())
    }
}
