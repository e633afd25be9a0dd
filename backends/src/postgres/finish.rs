//! What workers and clients ask for that takes jobs out of their state: results, failures, cancels, jobs given back.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use contract::{
    CancelAnswer, JobError, JobId, JobState, Lease, LeaseLost, Outcome, StoreError, TenantId, Transition, Usage,
};

use crate::transition::Change;

use super::change::{Busy, Rows};
use super::db::{Db, Tx, Write, answer};
use super::fault::Fault;
use super::group::Grouped;
use super::millis;
use super::row::{JobRow, attempt};

/// What one caller asks to be done with some jobs.
pub(super) trait Ending: Send + Sync + 'static {
    /// What the caller is told.
    type Answer: Send + 'static;

    /// The jobs it is about.
    fn jobs(&self) -> Vec<JobId>;

    /// Decides on the locked rows.
    fn decide(&self, rows: &mut Rows) -> Result<Self::Answer, Fault>;
}

/// Endings of one kind, a group in one transaction.
pub(super) struct Endings<E> {
    db: Db,
    kind: std::marker::PhantomData<E>,
}

impl<E> Endings<E> {
    pub(super) fn new(db: Db) -> Self {
        Self { db, kind: std::marker::PhantomData }
    }
}

#[async_trait]
impl<E: Ending> Grouped for Endings<E> {
    type Call = E;
    type Answer = E::Answer;

    fn items(call: &E) -> usize {
        call.jobs().len()
    }

    async fn write(&self, calls: &[E]) -> Result<Vec<Result<E::Answer, StoreError>>, StoreError> {
        let (answers, _) = self.db.transact(&EndingGroup { calls }).await?;
        Ok(answers.into_iter().map(|answer| answer.map_err(Fault::nothing_written)).collect())
    }
}

struct EndingGroup<'a, E> {
    calls: &'a [E],
}

#[async_trait]
impl<E: Ending> Write for EndingGroup<'_, E> {
    /// The answers, and whether something was written.
    type Answer = (Vec<Result<E::Answer, Fault>>, bool);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let ids: BTreeSet<JobId> = self.calls.iter().flat_map(Ending::jobs).collect();
        let mut rows = Rows::lock(tx, &ids, Busy::Wait).await?;
        let mut answers = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            let before = rows.decided();
            let answer = call.decide(&mut rows);
            if answer.is_err() {
                // A damaged row fails the call it is in, whole, and no other.
                rows.take_back(before);
            }
            answers.push(answer);
        }
        let writes = rows.decided() > 0;
        rows.write(tx).await?;
        Ok((answers, writes))
    }

    fn wrote_nothing((_, writes): &Self::Answer) -> bool {
        !writes
    }
}

/// Ends jobs under their leases.
pub(super) struct Finish(pub(super) Vec<(Lease, Outcome)>);

impl Ending for Finish {
    type Answer = Vec<Result<(), LeaseLost>>;

    fn jobs(&self) -> Vec<JobId> {
        self.0.iter().map(|(lease, _)| lease.job).collect()
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Answer, Fault> {
        self.0.iter().map(|(lease, outcome)| finish(rows, lease, outcome)).collect()
    }
}

fn finish(rows: &mut Rows, lease: &Lease, outcome: &Outcome) -> Result<Result<(), LeaseLost>, Fault> {
    let Some(row) = rows.held(lease)? else { return Ok(Err(LeaseLost)) };
    let ending = match outcome {
        // A result after the deadline is none: the reaper says `expired`, and nothing else may be said before it.
        Outcome::Succeeded { .. } if row.deadline <= rows.now => return Ok(Err(LeaseLost)),
        Outcome::Succeeded { record, usage, first_token_ms } => Change {
            usage: Some(*usage),
            record: Some(record),
            first_token_at: first_token_at(row, *first_token_ms),
            ..Change::bare(Transition::Succeeded)
        },
        Outcome::Failed { error, usage } => {
            Change { usage: Some(*usage), error: Some(error), ..Change::bare(Transition::FailedForGood) }
        }
        Outcome::Expired { usage } => Change { usage: Some(*usage), ..Change::bare(Transition::DeadlinePassed) },
    };
    Ok(rows.change(&lease.job, &ending)?.map(|_| ()).ok_or(LeaseLost))
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

impl Ending for Retry {
    type Answer = Result<JobState, LeaseLost>;

    fn jobs(&self) -> Vec<JobId> {
        vec![self.lease.job]
    }

    fn decide(&self, rows: &mut Rows) -> Result<Self::Answer, Fault> {
        if rows.held(&self.lease)?.is_none() {
            return Ok(Err(LeaseLost));
        }
        let failure = Change { error: Some(&self.error), ..Change::bare(Transition::FailedForNow) };
        Ok(rows.change(&self.lease.job, &failure)?.map(|life| life.state).ok_or(LeaseLost))
    }
}

/// Gives leased jobs back.
pub(super) struct HandBack {
    pub(super) leases: Vec<Lease>,
    pub(super) delay: Duration,
}

impl Ending for HandBack {
    type Answer = ();

    fn jobs(&self) -> Vec<JobId> {
        self.leases.iter().map(|lease| lease.job).collect()
    }

    fn decide(&self, rows: &mut Rows) -> Result<(), Fault> {
        for lease in &self.leases {
            if rows.held(lease)?.is_some() {
                let back = Change { delay_ms: millis(self.delay), ..Change::bare(Transition::HandedBack) };
                rows.change(&lease.job, &back)?;
            }
        }
        Ok(())
    }
}

/// Somebody does not want a job any more.
pub(super) struct Cancel {
    pub(super) tenant: TenantId,
    pub(super) job: JobId,
}

impl Ending for Cancel {
    type Answer = CancelAnswer;

    fn jobs(&self) -> Vec<JobId> {
        vec![self.job]
    }

    fn decide(&self, rows: &mut Rows) -> Result<CancelAnswer, Fault> {
        let row = rows.get(&self.job)?.filter(|row| row.tenant == self.tenant.0);
        let Some(state) = row.map(|row| row.life.state) else { return Ok(CancelAnswer::NotFound) };
        Ok(match rows.change(&self.job, &Change::bare(Transition::CancelAsked))? {
            Some(_) => CancelAnswer::Cancelled { was_running: state == JobState::Running },
            None if state == JobState::Cancelled => CancelAnswer::Cancelled { was_running: false },
            None => CancelAnswer::AlreadyEnded(state),
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
        let query = sqlx::query(include_str!("sql/book_usage.sql"))
            .bind(self.lease.job.0)
            .bind(attempt(self.lease.attempt))
            .bind(i64::from(self.usage.prompt_tokens))
            .bind(i64::from(self.usage.cached_tokens))
            .bind(i64::from(self.usage.output_tokens))
            .bind(tx.fixed);
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}
