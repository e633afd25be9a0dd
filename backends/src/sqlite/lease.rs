//! Leases: taking, renewing, and giving back unharmed.

use async_trait::async_trait;
use contract::{Budgets, JobState, Lease, Leased, Request, TenantId, Transition, Wake, WorkerId, transition};
use std::time::Duration;

use crate::transition::Change;

use super::change::{change, event};
use super::fault::Fault;
use super::millis;
use super::row::{JobRow, column, json, load, of_job};
use super::writer::{Tx, Write};

/// Leases what some wake-ups name.
pub(super) struct TakeLeases {
    pub(super) wakes: Vec<Wake>,
    pub(super) worker: WorkerId,
    pub(super) ttl: Duration,
}

#[async_trait]
impl Write for TakeLeases {
    type Answer = Vec<Option<Leased>>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let mut answers = Vec::with_capacity(self.wakes.len());
        for wake in &self.wakes {
            answers.push(match self.lease(tx, *wake).await {
                // One damaged row must not keep its neighbours from running: its message is dropped, the job shows
                // what is wrong to whoever reads it, and its deadline ends it.
                Err(Fault::Corrupt(what)) => {
                    tracing::error!(job.id = %wake.job, error = what, "a job cannot be leased because its row is damaged");
                    None
                }
                answer => answer?,
            });
        }
        Ok(answers)
    }
}

impl TakeLeases {
    async fn lease(&self, tx: &mut Tx<'_>, wake: Wake) -> Result<Option<Leased>, Fault> {
        let found =
            sqlx::query(include_str!("sql/load_lease.sql")).bind(wake.job.0).fetch_optional(&mut *tx.conn).await?;
        let Some(found) = found else { return Ok(None) };
        let mut row = JobRow::read(&found)?;
        let is_leasable = row.life.attempt == wake.attempt && row.wake_at.is_some() && row.deadline > tx.now;
        let Ok(next) = transition(row.life, Transition::Leased, Budgets::default()) else { return Ok(None) };
        if !is_leasable {
            return Ok(None);
        }
        let request: Request = json("request", &column::<String>(&found, "request")?).map_err(|f| of_job(row.id, f))?;
        let leased = Leased {
            lease: Lease { job: row.id, attempt: next.attempt },
            tenant: TenantId(row.tenant.clone()),
            class: row.queue.class,
            request,
            seed: column::<i64>(&found, "seed")?.cast_unsigned(),
            losses: row.life.losses,
            deadline_in: Duration::from_millis(row.deadline.abs_diff(tx.now)),
            traceparent: column(&found, "traceparent")?,
        };
        let done = sqlx::query(include_str!("sql/lease.sql"))
            .bind(row.seq)
            .bind(i64::from(row.life.attempt))
            .bind(i64::from(next.attempt))
            .bind(self.worker.as_str())
            .bind(tx.now.saturating_add(millis(self.ttl)))
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
        if done.rows_affected() != 1 {
            return Ok(None);
        }
        row.worker = Some(self.worker.0.clone());
        event(tx, &row, Transition::Leased, next).await?;
        Ok(Some(leased))
    }
}

/// Extends leases.
pub(super) struct Renew {
    pub(super) leases: Vec<Lease>,
    pub(super) ttl: Duration,
}

#[async_trait]
impl Write for Renew {
    type Answer = Vec<Lease>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let mut lost = Vec::new();
        for lease in &self.leases {
            let done = sqlx::query(include_str!("sql/renew.sql"))
                .bind(lease.job.0)
                .bind(i64::from(lease.attempt))
                .bind(tx.now.saturating_add(millis(self.ttl)))
                .execute(&mut *tx.conn)
                .await?;
            if done.rows_affected() == 0 {
                lost.push(*lease);
            }
        }
        Ok(lost)
    }
}

/// Gives leased jobs back.
pub(super) struct HandBack {
    pub(super) leases: Vec<Lease>,
    pub(super) delay: Duration,
}

#[async_trait]
impl Write for HandBack {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        for lease in &self.leases {
            if let Some(row) = held(tx, lease).await? {
                let back = Change { delay_ms: millis(self.delay), ..Change::bare(Transition::HandedBack) };
                change(tx, &row, &back).await?;
            }
        }
        Ok(())
    }
}

/// The row that a lease is the live lease of.
pub(super) async fn held(tx: &mut Tx<'_>, lease: &Lease) -> Result<Option<JobRow>, Fault> {
    let row = load(tx.conn, lease.job).await?;
    Ok(row.filter(|row| row.life.state == JobState::Running && row.life.attempt == lease.attempt))
}
