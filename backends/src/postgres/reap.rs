//! What nobody ends by itself: passed deadlines, and jobs whose worker died.

use std::collections::BTreeSet;

use async_trait::async_trait;
use contract::{JobId, JobState, Reaped, Transition};

use crate::transition::Change;

use super::KEY_LIFE_MS;
use super::change::{Busy, Rows};
use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::row::column;

/// Keys that are forgotten at one time.
const KEYS: i64 = 10_000;

/// Ends and requeues. Rows that somebody else is writing are left to the next time.
pub(super) struct Reap {
    pub(super) limit: u32,
}

/// A job of a worker with dead leases.
struct Orphan {
    id: JobId,
    /// No other job was leased by its worker.
    alone: bool,
}

#[async_trait]
impl Write for Reap {
    type Answer = Reaped;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Reaped, Fault> {
        // Who held what is counted before anything changes, or a worker's last job would look alone.
        let orphans = self.orphans(tx).await?;
        let late = self.late(tx).await?;
        let mut reaped = Reaped::default();
        if orphans.is_empty() && late.is_empty() {
            return Ok(reaped);
        }
        let ids: BTreeSet<JobId> = orphans.iter().map(|orphan| orphan.id).chain(late.iter().copied()).collect();
        let mut rows = Rows::lock(tx, &ids, Busy::Skip).await?;
        for id in late {
            if is_still(&rows, id, |rows, id| Ok(rows.get(&id)?.is_some_and(|row| row.deadline <= rows.now))) {
                step(&mut rows, id, Transition::DeadlinePassed, &mut reaped)?;
            }
        }
        for Orphan { id, alone } in orphans {
            let is_dead = |rows: &Rows, id| {
                Ok(rows.get(&id)?.is_some_and(|row| row.lease_until.is_some_and(|until| until <= rows.now)))
            };
            if is_still(&rows, id, is_dead) {
                step(&mut rows, id, Transition::WorkerLost { alone }, &mut reaped)?;
            }
        }
        rows.write(tx).await?;
        Ok(reaped)
    }

    fn wrote_nothing(reaped: &Reaped) -> bool {
        reaped.ended.is_empty() && reaped.requeued.is_empty()
    }
}

impl Reap {
    /// Jobs past their deadline, longest ago first.
    async fn late(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, Fault> {
        let query = sqlx::query(include_str!("sql/past_deadline.sql")).bind(tx.fixed).bind(i64::from(self.limit));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok(JobId(column(row, "id")?))).collect()
    }

    /// Jobs whose lease ran out, by workers, longest ago first. The jobs of one worker are judged together, so the limit
    /// is looked at between workers.
    async fn orphans(&self, tx: &mut Tx<'_>) -> Result<Vec<Orphan>, Fault> {
        let query = sqlx::query(include_str!("sql/dead_workers.sql")).bind(tx.fixed);
        let (mut workers, mut dead): (Vec<String>, i64) = (Vec::new(), 0);
        let mut holds_one = BTreeSet::new();
        for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
            if dead >= i64::from(self.limit) {
                break;
            }
            let worker: String = column(row, "worker")?;
            dead += column::<i64>(row, "dead")?;
            if column::<i64>(row, "held")? == 1 {
                holds_one.insert(worker.clone());
            }
            workers.push(worker);
        }
        if workers.is_empty() {
            return Ok(Vec::new());
        }
        let query = sqlx::query(include_str!("sql/dead_leases.sql")).bind(tx.fixed).bind(workers);
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter()
            .map(|row| {
                let only = holds_one.contains(column::<&str>(row, "worker")?);
                Ok(Orphan { id: JobId(column(row, "id")?), alone: only && !column::<bool>(row, "lost_beside")? })
            })
            .collect()
    }
}

/// Whether a row is still what it was picked for; false, with a log line, where it is damaged: it must not keep the
/// others from being reaped.
fn is_still(rows: &Rows, id: JobId, test: impl Fn(&Rows, JobId) -> Result<bool, Fault>) -> bool {
    test(rows, id).unwrap_or_else(|fault| {
        tracing::error!(error = %fault, "a job cannot be reaped because its row is damaged");
        false
    })
}

fn step(rows: &mut Rows, id: JobId, transition: Transition, reaped: &mut Reaped) -> Result<(), Fault> {
    match rows.change(&id, &Change::bare(transition)) {
        Ok(Some(next)) if next.state == JobState::Queued => {
            if let Some(row) = rows.get(&id)? {
                reaped.requeued.push((id, row.queue.clone()));
            }
        }
        Ok(Some(next)) => reaped.ended.push((id, next.state)),
        Ok(None) => {}
        // Only the history can be unreadable here.
        Err(Fault::Corrupt(what)) => {
            tracing::error!(error = what, "a job cannot be reaped because its row is damaged");
        }
        Err(fault) => return Err(fault),
    }
    Ok(())
}

/// Forgets idempotency keys that are older than they are kept.
pub(super) struct PurgeKeys;

#[async_trait]
impl Write for PurgeKeys {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/purge_keys.sql")).bind(tx.fixed).bind(KEY_LIFE_MS).bind(KEYS);
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}
