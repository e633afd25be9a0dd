//! Which queued rows want a message: tenants in turn, oldest first within a tenant.

use std::collections::HashSet;

use async_trait::async_trait;
use contract::{JobId, JobState, QueueId, StoreError, Wake};
use uuid::Uuid;

use super::MESSAGE_LIFE_MS;
use super::db::{Db, Tx, Write, answer};
use super::fault::Fault;
use super::row::{column, number};

/// Picks due rows of a queue and makes them due again later. The picking is not locked: the write looks again.
pub(super) async fn take_due(db: &Db, queue: &QueueId, limit: u32) -> Result<Vec<Wake>, StoreError> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut bite = None;
    let picked = loop {
        let (picked, next) = db.read(&PickDue { queue, limit, bite }).await?;
        // Tenants with few rows leave room for those with more: look deeper.
        if next.is_none() || picked.len() >= limit as usize {
            break picked;
        }
        bite = next;
    };
    let Some((_, last)) = picked.last() else { return Ok(Vec::new()) };
    let jobs: Vec<Uuid> = picked.iter().map(|(wake, _)| wake.job.0).collect();
    let taken = db.once(&TakeDue { queue, jobs, last }).await?;
    Ok(picked.into_iter().map(|(wake, _)| wake).filter(|wake| taken.contains(wake)).collect())
}

struct PickDue<'a> {
    queue: &'a QueueId,
    limit: u32,
    /// Most rows to look at of each tenant; at first, as many as make the limit if all have so many.
    bite: Option<i64>,
}

#[async_trait]
impl Write for PickDue<'_> {
    /// The rows and their tenants in turn, and the next bite if a deeper look may find more.
    type Answer = (Vec<(Wake, String)>, Option<i64>);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let query = sqlx::query(include_str!("sql/pick_due.sql"))
            .bind(tx.fixed)
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .bind(i64::from(self.limit))
            .bind(self.bite);
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let mut next = None;
        let mut picked = Vec::with_capacity(rows.len());
        for row in &rows {
            let wake = Wake { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? };
            picked.push((wake, column(row, "tenant")?));
            let bite: i64 = column(row, "bite")?;
            if column::<i64>(row, "rank")? == bite {
                next = Some(bite.saturating_mul(4));
            }
        }
        Ok((picked, next))
    }
}

struct TakeDue<'a> {
    queue: &'a QueueId,
    jobs: Vec<Uuid>,
    last: &'a str,
}

#[async_trait]
impl Write for TakeDue<'_> {
    type Answer = HashSet<Wake>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let query = sqlx::query(include_str!("sql/take_due.sql"))
            .bind(tx.fixed)
            .bind(&self.jobs)
            .bind(MESSAGE_LIFE_MS)
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .bind(self.last)
            .bind(JobState::Queued.as_str());
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok(Wake { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? })).collect()
    }
}

/// Makes queued rows due at once.
pub(super) struct WakeNow {
    /// In order.
    pub(super) jobs: Vec<Uuid>,
}

#[async_trait]
impl Write for WakeNow {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/wake_now.sql"))
            .bind(tx.fixed)
            .bind(&self.jobs)
            .bind(JobState::Queued.as_str());
        answer(query.fetch_all(&mut *tx.conn)).await.map(|_| ())
    }
}
