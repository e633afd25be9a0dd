//! The ends that a worker or a client asks for.

use async_trait::async_trait;
use contract::{CancelAnswer, JobError, JobId, JobState, Lease, LeaseLost, Outcome, TenantId, Transition, Usage};

use crate::transition::Change;

use super::change::change;
use super::fault::Fault;
use super::lease::held;
use super::row::{JobRow, column, load, number, word};
use super::writer::{Tx, Write};

/// Ends jobs under their leases.
pub(super) struct Finish {
    pub(super) finished: Vec<(Lease, Outcome)>,
}

#[async_trait]
impl Write for Finish {
    type Answer = Vec<Result<(), LeaseLost>>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let mut answers = Vec::with_capacity(self.finished.len());
        for (lease, outcome) in &self.finished {
            answers.push(finish(tx, lease, outcome).await?);
        }
        Ok(answers)
    }
}

async fn finish(tx: &mut Tx<'_>, lease: &Lease, outcome: &Outcome) -> Result<Result<(), LeaseLost>, Fault> {
    let Some(row) = held(tx, lease).await? else { return Ok(Err(LeaseLost)) };
    let ending = match outcome {
        // A result after the deadline is none: the reaper says `expired`, and nothing else may be said before it.
        Outcome::Succeeded { .. } if row.deadline <= tx.now => return Ok(Err(LeaseLost)),
        Outcome::Succeeded { record, usage, first_token_ms } => Change {
            usage: Some(*usage),
            record: Some(record),
            first_token_at: first_token_at(&row, *first_token_ms),
            ..Change::bare(Transition::Succeeded)
        },
        Outcome::Failed { error, usage } => {
            Change { usage: Some(*usage), error: Some(error), ..Change::bare(Transition::FailedForGood) }
        }
        Outcome::Expired { usage } => Change { usage: Some(*usage), ..Change::bare(Transition::DeadlinePassed) },
    };
    Ok(change(tx, &row, &ending).await?.map(|_| ()).ok_or(LeaseLost))
}

/// The worker measures from the lease on, by its own clock.
fn first_token_at(row: &JobRow, after_ms: Option<u64>) -> Option<i64> {
    let after = i64::try_from(after_ms?).ok()?;
    row.started_at?.checked_add(after)
}

/// A transient failure of one attempt.
pub(super) struct Retry {
    pub(super) lease: Lease,
    pub(super) error: JobError,
}

#[async_trait]
impl Write for Retry {
    type Answer = Result<JobState, LeaseLost>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let Some(row) = held(tx, &self.lease).await? else { return Ok(Err(LeaseLost)) };
        let failure = Change { error: Some(&self.error), ..Change::bare(Transition::FailedForNow) };
        Ok(change(tx, &row, &failure).await?.map(|life| life.state).ok_or(LeaseLost))
    }
}

/// Somebody does not want a job any more.
pub(super) struct Cancel {
    pub(super) tenant: TenantId,
    pub(super) job: JobId,
}

#[async_trait]
impl Write for Cancel {
    type Answer = CancelAnswer;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<CancelAnswer, Fault> {
        let row = load(tx.conn, self.job).await?.filter(|row| row.tenant == self.tenant.0);
        let Some(row) = row else { return Ok(CancelAnswer::NotFound) };
        Ok(match change(tx, &row, &Change::bare(Transition::CancelAsked)).await? {
            Some(_) => CancelAnswer::Cancelled { was_running: row.life.state == JobState::Running },
            None if row.life.state == JobState::Cancelled => CancelAnswer::Cancelled { was_running: false },
            None => CancelAnswer::AlreadyEnded(row.life.state),
        })
    }
}

/// Tokens of an attempt that gave no result.
pub(super) struct BookUsage {
    pub(super) lease: Lease,
    pub(super) usage: Usage,
}

#[async_trait]
impl Write for BookUsage {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let found = sqlx::query(include_str!("sql/find_usage.sql"))
            .bind(self.lease.job.0)
            .fetch_optional(&mut *tx.conn)
            .await?;
        let Some(found) = found else { return Ok(()) };
        let booked_at_end: Option<i64> = column(&found, "usage_attempt")?;
        let attempt = self.lease.attempt;
        let existed = attempt >= 1 && attempt <= number(&found, "attempt")?;
        if !existed || booked_at_end == Some(i64::from(attempt)) {
            return Ok(());
        }
        let Usage { prompt_tokens, cached_tokens, output_tokens } = self.usage;
        let booked = sqlx::query(include_str!("sql/book_usage.sql"))
            .bind(self.lease.job.0)
            .bind(i64::from(attempt))
            .bind(i64::from(prompt_tokens))
            .bind(i64::from(cached_tokens))
            .bind(i64::from(output_tokens))
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
        // A result shows the tokens of its own attempt.
        if booked.rows_affected() == 1 && word::<JobState>(&found, "state")? != JobState::Succeeded {
            sqlx::query(include_str!("sql/add_usage.sql"))
                .bind(self.lease.job.0)
                .bind(i64::from(prompt_tokens))
                .bind(i64::from(cached_tokens))
                .bind(i64::from(output_tokens))
                .execute(&mut *tx.conn)
                .await?;
        }
        Ok(())
    }
}
