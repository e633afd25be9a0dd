//! Which queued rows want a message: tenants in turn by weight, oldest first within a tenant.

use std::collections::VecDeque;

use async_trait::async_trait;
use contract::{JobId, QueueId, Wake};

use super::MESSAGE_LIFE_MS;
use super::fault::Fault;
use super::row::{column, number};
use super::writer::{Tx, Write};
use crate::fair::Turns;

/// Takes due rows of a queue.
pub(super) struct TakeDue {
    pub(super) queue: QueueId,
    pub(super) limit: u32,
}

/// How far a tenant was read.
struct Reading {
    tenant: String,
    after_seq: i64,
    /// Rows to read at once: small bites, so that reading stays near what is taken however long a backlog is.
    bite: i64,
    /// Rows that were read and not yet picked.
    read: VecDeque<(i64, Wake)>,
    /// There is nothing after them.
    is_done: bool,
}

#[async_trait]
impl Write for TakeDue {
    type Answer = Vec<Wake>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Wake>, Fault> {
        let (mut turns, mut readings) = self.waiting(tx).await?;
        let mut picked = Vec::new();
        while picked.len() < self.limit as usize
            && let Some(place) = turns.first()
        {
            let reading = &mut readings[place];
            if reading.read.is_empty() && !reading.is_done {
                self.read_on(tx, reading).await?;
            }
            match reading.read.pop_front() {
                Some((seq, wake)) => {
                    sqlx::query(include_str!("sql/due_again.sql"))
                        .bind(seq)
                        .bind(tx.now + MESSAGE_LIFE_MS)
                        .execute(&mut *tx.conn)
                        .await?;
                    picked.push(wake);
                    turns.given();
                }
                None => turns.has_no_more(),
            }
        }
        if !picked.is_empty() {
            self.keep(tx, &turns).await?;
        }
        Ok(picked)
    }
}

impl TakeDue {
    /// The queue's waiting tenants.
    async fn waiting(&self, tx: &mut Tx<'_>) -> Result<(Turns, Vec<Reading>), Fault> {
        let rows = sqlx::query(include_str!("sql/due_tenants.sql"))
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .fetch_all(&mut *tx.conn)
            .await?;
        let clock = rows.first().map(|row| column(row, "clock")).transpose()?.unwrap_or(0);
        let mut weights: Vec<i64> = Vec::with_capacity(rows.len());
        for row in &rows {
            weights.push(column(row, "weight")?);
        }
        let all = weights.iter().sum::<i64>().max(1);
        let (mut turns, mut readings) = (Turns::at(clock), Vec::with_capacity(rows.len()));
        for (row, weight) in rows.iter().zip(weights) {
            let tenant: String = column(row, "tenant")?;
            turns.add(tenant.clone(), weight, column(row, "next")?);
            let bite = (i64::from(self.limit) * weight / all).max(1);
            readings.push(Reading { tenant, after_seq: i64::MIN, bite, read: VecDeque::new(), is_done: false });
        }
        Ok((turns, readings))
    }

    async fn read_on(&self, tx: &mut Tx<'_>, reading: &mut Reading) -> Result<(), Fault> {
        let rows = sqlx::query(include_str!("sql/due_of_tenant.sql"))
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .bind(&reading.tenant)
            .bind(reading.after_seq)
            .bind(tx.now)
            .bind(reading.bite)
            .fetch_all(&mut *tx.conn)
            .await?;
        for row in &rows {
            reading.after_seq = column(row, "seq")?;
            let wake = Wake { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? };
            reading.read.push_back((reading.after_seq, wake));
        }
        reading.is_done = i64::try_from(rows.len()).unwrap_or(i64::MAX) < reading.bite;
        Ok(())
    }

    /// Keeps where the turns are.
    async fn keep(&self, tx: &mut Tx<'_>, turns: &Turns) -> Result<(), Fault> {
        let (release, class) = (self.queue.release.as_str(), self.queue.class.as_str());
        let keep_turn = sqlx::query(include_str!("sql/keep_turn.sql")).bind(release).bind(class);
        keep_turn.bind(turns.clock()).execute(&mut *tx.conn).await?;
        for (tenant, next) in turns.moved() {
            let keep_share = sqlx::query(include_str!("sql/keep_share.sql")).bind(release).bind(class);
            keep_share.bind(tenant).bind(next).execute(&mut *tx.conn).await?;
        }
        Ok(())
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
        Ok(query.execute(&mut *tx.conn).await?.rows_affected())
    }
}

/// Makes queued rows due at once.
pub(super) struct WakeNow {
    pub(super) jobs: Vec<JobId>,
}

#[async_trait]
impl Write for WakeNow {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        for job in &self.jobs {
            sqlx::query(include_str!("sql/wake_now.sql")).bind(job.0).bind(tx.now).execute(&mut *tx.conn).await?;
        }
        Ok(())
    }
}
