//! Which queued rows want a message: tenants in turn, oldest first within a tenant.

use std::collections::VecDeque;

use async_trait::async_trait;
use contract::{JobId, QueueId, Wake};
use sqlx::Row as _;

use super::MESSAGE_LIFE_MS;
use super::fault::Fault;
use super::row::{column, number};
use super::writer::{Tx, Write};

/// Takes due rows of a queue.
pub(super) struct TakeDue {
    pub(super) queue: QueueId,
    pub(super) limit: u32,
}

/// A row that was picked.
struct Picked {
    seq: i64,
    wake: Wake,
    /// How many of its tenant were picked before it.
    rank: usize,
    tenant: String,
}

/// How far a tenant was read.
struct Turn {
    tenant: String,
    after_seq: i64,
    picked: usize,
}

#[async_trait]
impl Write for TakeDue {
    type Answer = Vec<Wake>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Wake>, Fault> {
        let picked = self.pick(tx).await?;
        for row in &picked {
            sqlx::query(include_str!("sql/due_again.sql"))
                .bind(row.seq)
                .bind(tx.now + MESSAGE_LIFE_MS)
                .execute(&mut *tx.conn)
                .await?;
        }
        if let Some(last) = picked.last() {
            sqlx::query(include_str!("sql/keep_turn.sql"))
                .bind(self.queue.release.as_str())
                .bind(self.queue.class.as_str())
                .bind(&last.tenant)
                .execute(&mut *tx.conn)
                .await?;
        }
        Ok(picked.into_iter().map(|row| row.wake).collect())
    }
}

impl TakeDue {
    async fn pick(&self, tx: &mut Tx<'_>) -> Result<Vec<Picked>, Fault> {
        let limit = self.limit as usize;
        let mut turns = self.turns(tx).await?;
        // Small bites, so that reading stays near what is taken however long a tenant's backlog is.
        let bite = (limit / turns.len().max(1)).max(1);
        let mut picked: Vec<Picked> = Vec::new();
        while picked.len() < limit
            && let Some(mut turn) = turns.pop_front()
        {
            let want = bite.min(limit - picked.len());
            let rows = sqlx::query(include_str!("sql/due_of_tenant.sql"))
                .bind(self.queue.release.as_str())
                .bind(self.queue.class.as_str())
                .bind(&turn.tenant)
                .bind(turn.after_seq)
                .bind(tx.now)
                .bind(i64::try_from(want).unwrap_or(i64::MAX))
                .fetch_all(&mut *tx.conn)
                .await?;
            for row in &rows {
                turn.after_seq = column(row, "seq")?;
                picked.push(Picked {
                    seq: turn.after_seq,
                    wake: Wake { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? },
                    rank: turn.picked,
                    tenant: turn.tenant.clone(),
                });
                turn.picked += 1;
            }
            if rows.len() == want {
                turns.push_back(turn);
            }
        }
        // Stable: among rows of the same rank the turn stays.
        picked.sort_by_key(|row| row.rank);
        Ok(picked)
    }

    /// The queue's waiting tenants, beginning after the one that was served last.
    async fn turns(&self, tx: &mut Tx<'_>) -> Result<VecDeque<Turn>, Fault> {
        let names = sqlx::query(include_str!("sql/due_tenants.sql"))
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str())
            .fetch_all(&mut *tx.conn)
            .await?;
        let mut turns = VecDeque::with_capacity(names.len());
        for name in &names {
            turns.push_back(Turn { tenant: column(name, "tenant")?, after_seq: i64::MIN, picked: 0 });
        }
        if turns.len() > 1 {
            let last = sqlx::query(include_str!("sql/last_turn.sql"))
                .bind(self.queue.release.as_str())
                .bind(self.queue.class.as_str())
                .fetch_optional(&mut *tx.conn)
                .await?;
            if let Some(last) = last {
                let last: String = last.try_get("tenant")?;
                let served = turns.iter().take_while(|turn| turn.tenant <= last).count();
                turns.rotate_left(served % turns.len());
            }
        }
        Ok(turns)
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
