//! Which queued rows want a message: tenants in turn by weight, oldest first within a tenant.

use std::collections::{HashSet, VecDeque};

use async_trait::async_trait;
use contract::{JobId, JobState, QueueId, StoreError, Wake};
use uuid::Uuid;

use super::MESSAGE_LIFE_MS;
use super::db::{Db, Tx, Write, answer};
use super::fault::Fault;
use super::row::{column, number};
use crate::fair::Turns;

/// Picks due rows of a queue and makes them due again later. The picking is not locked: the write looks again.
pub(super) async fn take_due(db: &Db, queue: &QueueId, limit: u32) -> Result<Vec<Wake>, StoreError> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut depth = 1;
    let picked = loop {
        match db.read(&PickDue { queue, limit, depth }).await? {
            Some(picked) => break picked,
            // Tenants with few rows leave room for those with more: look deeper.
            None => depth *= 4,
        }
    };
    if picked.wakes.is_empty() {
        return Ok(Vec::new());
    }
    let taken = db.once(&TakeDue { queue, picked: &picked }).await?;
    Ok(picked.wakes.into_iter().filter(|wake| taken.contains(wake)).collect())
}

struct PickDue<'a> {
    queue: &'a QueueId,
    limit: u32,
    /// How many times more rows to look at of each tenant than make the limit if all have so many.
    depth: i64,
}

/// Rows by whose turn it is, and where that leaves the turns.
struct Picked {
    wakes: Vec<Wake>,
    turns: Turns,
}

/// The rows of a tenant that were looked at.
#[derive(Default)]
struct Seen {
    wakes: VecDeque<Wake>,
    /// There may be more than were looked at.
    is_cut: bool,
}

#[async_trait]
impl Write for PickDue<'_> {
    /// `None` when only a deeper look can tell.
    type Answer = Option<Picked>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let query = sqlx::query(include_str!("sql/pick_due.sql"))
            .bind(tx.fixed)
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .bind(i64::from(self.limit))
            .bind(self.depth);
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let clock = rows.first().map(|row| column(row, "clock")).transpose()?.unwrap_or(0);
        let (mut turns, mut seen) = (Turns::at(clock), Vec::<Seen>::new());
        for row in &rows {
            let (rank, bite): (i64, i64) = (column(row, "rank")?, column(row, "bite")?);
            if rank == 1 {
                turns.add(column(row, "tenant")?, column(row, "weight")?, column(row, "next")?);
                seen.push(Seen::default());
            }
            if let Some(of_tenant) = seen.last_mut() {
                let wake = Wake { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? };
                of_tenant.wakes.push_back(wake);
                of_tenant.is_cut = rank == bite && bite < i64::from(self.limit);
            }
        }
        let mut wakes = Vec::with_capacity(self.limit as usize);
        while wakes.len() < self.limit as usize
            && let Some(place) = turns.first()
        {
            match seen[place].wakes.pop_front() {
                Some(wake) => {
                    wakes.push(wake);
                    turns.given();
                }
                None if seen[place].is_cut => return Ok(None),
                None => turns.has_no_more(),
            }
        }
        Ok(Some(Picked { wakes, turns }))
    }
}

struct TakeDue<'a> {
    queue: &'a QueueId,
    picked: &'a Picked,
}

#[async_trait]
impl Write for TakeDue<'_> {
    type Answer = HashSet<Wake>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let jobs: Vec<Uuid> = self.picked.wakes.iter().map(|wake| wake.job.0).collect();
        let (tenants, next): (Vec<&str>, Vec<i64>) = self.picked.turns.moved().unzip();
        let query = sqlx::query(include_str!("sql/take_due.sql"))
            .bind(tx.fixed)
            .bind(jobs)
            .bind(MESSAGE_LIFE_MS)
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .bind(self.picked.turns.clock())
            .bind(JobState::Queued.as_str())
            .bind(tenants)
            .bind(next);
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok(Wake { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? })).collect()
    }
}

/// Forgets tenants that are not ahead of their queue's clock: [`Turns::add`] puts whoever is not known there. The clock
/// only goes on, so an old reading of it forgets nobody who is ahead.
pub(super) struct ForgetShares {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for ForgetShares {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let query = sqlx::query(include_str!("sql/forget_shares.sql")).bind(i64::from(self.limit));
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected())
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
