//! What nobody ends by itself: passed deadlines, and jobs whose worker died.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use contract::{JobId, JobState, Reaped, Transition};
use sqlx::sqlite::SqliteRow;

use crate::transition::Change;

use super::KEY_LIFE_MS;
use super::change::{change_alone, wake_successor};
use super::fault::Fault;
use super::row::{JobRow, column, load};
use super::writer::{Tx, Write};

/// Which leases count as dead.
#[derive(Clone, Copy)]
pub(super) enum Dead {
    /// Those that ran out.
    RanOut,
    /// Every one: no worker of this store can be alive.
    All,
}

/// Ends and requeues.
pub(super) struct Reap {
    pub(super) dead: Dead,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Reap {
    type Answer = Reaped;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Reaped, Fault> {
        let mut done = Done::default();
        // Who held what is counted before anything changes, or a worker's last job would look alone.
        let workers = self.dead_workers(tx).await?;
        self.expire(tx, &mut done).await?;
        self.rescue(tx, &workers, &mut done).await?;
        for (tenant, key) in &done.sequences {
            wake_successor(tx, tenant, key).await?;
        }
        if matches!(self.dead, Dead::All) {
            // The queue died with its process, and so did whoever led: what was published is due again, and the lead free.
            sqlx::query(include_str!("sql/wake_all.sql")).bind(tx.now).execute(&mut *tx.conn).await?;
            sqlx::query(include_str!("sql/forget_leaders.sql")).execute(&mut *tx.conn).await?;
        }
        sqlx::query(include_str!("sql/purge_keys.sql")).bind(tx.now - KEY_LIFE_MS).execute(&mut *tx.conn).await?;
        Ok(done.reaped)
    }
}

/// What was done so far.
#[derive(Default)]
struct Done {
    reaped: Reaped,
    /// Tenant and key of the sequences of ended jobs, whose next ones are woken when all have ended.
    sequences: BTreeSet<(String, String)>,
}

impl Reap {
    /// Leases that end up to this time are dead.
    fn until(&self, now: i64) -> i64 {
        match self.dead {
            Dead::RanOut => now,
            Dead::All => i64::MAX,
        }
    }

    /// Workers with dead leases, in order, and how many jobs each runs.
    async fn dead_workers(&self, tx: &mut Tx<'_>) -> Result<Vec<(String, i64)>, Fault> {
        let rows =
            sqlx::query(include_str!("sql/dead_workers.sql")).bind(self.until(tx.now)).fetch_all(&mut *tx.conn).await?;
        rows.iter().map(|row| Ok((column(row, "worker")?, column(row, "held")?))).collect()
    }

    async fn expire(&self, tx: &mut Tx<'_>, done: &mut Done) -> Result<(), Fault> {
        let late = sqlx::query(include_str!("sql/past_deadline.sql"))
            .bind(tx.now)
            .bind(i64::from(self.limit))
            .fetch_all(&mut *tx.conn)
            .await?;
        for found in &late {
            let Some(row) = readable(tx, found).await? else { continue };
            step(tx, &row, Transition::DeadlinePassed, done).await?;
        }
        Ok(())
    }

    async fn rescue(&self, tx: &mut Tx<'_>, workers: &[(String, i64)], done: &mut Done) -> Result<(), Fault> {
        let mut judged = 0;
        for (worker, held) in workers {
            // The jobs of one worker are judged together, so the limit is looked at between workers.
            if judged >= self.limit as usize {
                break;
            }
            let dead = sqlx::query(include_str!("sql/dead_leases.sql"))
                .bind(worker)
                .bind(self.until(tx.now))
                .bind(tx.now)
                .fetch_all(&mut *tx.conn)
                .await?;
            let mut alone = HashMap::new();
            let mut rows = Vec::with_capacity(dead.len());
            for found in &dead {
                let Some(row) = readable(tx, found).await? else { continue };
                alone.insert(row.id, *held == 1 && !lost_beside(tx, worker, &row).await?);
                rows.push(row);
            }
            for row in &rows {
                let alone = alone.get(&row.id).copied().unwrap_or(false);
                step(tx, row, Transition::WorkerLost { alone }, done).await?;
                judged += 1;
            }
        }
        Ok(())
    }
}

/// Whether the worker lost another job since this attempt began. Leases of one worker can run out at different times,
/// and the last of them was not alone for that.
async fn lost_beside(tx: &mut Tx<'_>, worker: &str, row: &JobRow) -> Result<bool, Fault> {
    let found = sqlx::query(include_str!("sql/lost_beside.sql"))
        .bind(worker)
        .bind(row.started_at.unwrap_or(i64::MIN))
        .bind(row.id.0)
        .fetch_optional(&mut *tx.conn)
        .await?;
    Ok(found.is_some())
}

/// The row to decide on; `None`, with a log line, where it is damaged: it must not keep the others from being reaped.
async fn readable(tx: &mut Tx<'_>, found: &SqliteRow) -> Result<Option<JobRow>, Fault> {
    match load(tx.conn, JobId(column(found, "id")?)).await {
        Err(Fault::Corrupt(what)) => {
            tracing::error!(error = what, "a job cannot be reaped because its row is damaged");
            Ok(None)
        }
        row => row,
    }
}

async fn step(tx: &mut Tx<'_>, row: &JobRow, transition: Transition, done: &mut Done) -> Result<(), Fault> {
    match change_alone(tx, row, &Change::bare(transition)).await {
        Ok(Some(next)) if next.state == JobState::Queued => done.reaped.requeued.push((row.id, row.queue.clone())),
        Ok(Some(next)) => {
            done.reaped.ended.push((row.id, next.state));
            done.sequences.extend(row.sequence_key.clone().map(|key| (row.tenant.clone(), key)));
        }
        Ok(None) => {}
        // Only the history can be unreadable here, before anything is written.
        Err(Fault::Corrupt(what)) => {
            tracing::error!(error = what, "a job cannot be reaped because its row is damaged");
        }
        Err(fault) => return Err(fault),
    }
    Ok(())
}
