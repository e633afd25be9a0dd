//! Ends jobs in the store: what waits together is finished together, under the fence of each lease.
//!
//! At-least-once delivery, exactly-once effect: a result whose lease was lost is booked as waste and dropped.

use std::sync::Arc;
use std::time::Duration;

use contract::record::INLINE_BYTES;
use contract::{
    Bus, ErrorCode, Fingerprint, JobError, JobEvent, JobEventBody, JobState, JobStore, Lease, LeaseLost, Outcome,
    RecordLocation, Signal, StoreError, Usage,
};
use tokio::sync::mpsc;

use crate::collect::{Collected, Unfinished};
use crate::live::Live;
use crate::pump::EventBuffer;
use crate::stage::{Stager, Staging};

/// Jobs finished in one transaction at most.
const GROUP: usize = 64;

/// A job that is done with the engine, or never got there.
pub struct Finished {
    lease: Lease,
    usage: Usage,
    end: End,
}

enum End {
    Ran { job: Box<Collected> },
    Staged { record: RecordLocation, first_token_ms: Option<u64> },
    NotPrepared(JobError),
    NotWanted,
    DeadlinePassed,
}

impl Finished {
    /// A job that left the engine.
    pub fn from_engine(job: Collected) -> Self {
        Self { lease: job.lease(), usage: job.usage(), end: End::Ran { job: Box::new(job) } }
    }

    /// A job whose request the worker could not prepare.
    pub fn not_prepared(lease: Lease, error: JobError) -> Self {
        Self { lease, usage: Usage::default(), end: End::NotPrepared(error) }
    }

    /// A job that was cancelled or lost before it reached the engine.
    pub fn not_wanted(lease: Lease) -> Self {
        Self { lease, usage: Usage::default(), end: End::NotWanted }
    }

    /// A job whose record had to wait for the object store, which has it now.
    pub fn staged(lease: Lease, record: RecordLocation, usage: Usage, first_token_ms: Option<u64>) -> Self {
        Self { lease, usage, end: End::Staged { record, first_token_ms } }
    }

    /// A job whose lease was lost while its record waited.
    pub fn lost(lease: Lease, usage: Usage) -> Self {
        Self { lease, usage, end: End::NotWanted }
    }

    /// A job whose deadline passed while its record waited.
    pub fn expired(lease: Lease, usage: Usage) -> Self {
        Self { lease, usage, end: End::DeadlinePassed }
    }

    /// A job whose deadline passed before it reached the engine.
    pub fn deadline_passed(lease: Lease) -> Self {
        Self { lease, usage: Usage::default(), end: End::DeadlinePassed }
    }
}

/// What is to be written for one job.
enum Write {
    Finish(Outcome),
    Retry(JobError),
    UsageOnly,
    /// Nothing now: its record waits for the object store.
    Later,
}

/// What the committer needs.
pub struct Committer {
    /// Jobs to end.
    pub finished: mpsc::UnboundedReceiver<Finished>,
    /// Where they end.
    pub store: Arc<dyn JobStore>,
    /// Puts large records into the object store.
    pub stager: Stager,
    /// Who is told.
    pub bus: Arc<dyn Bus>,
    /// Where the last event of a job goes, after its tokens.
    pub events: Arc<EventBuffer>,
    /// The held jobs.
    pub live: Arc<Live>,
    /// What answered.
    pub release: Fingerprint,
}

impl Committer {
    /// Commits until nobody sends any more.
    pub async fn run(mut self) {
        let mut group = Vec::new();
        while self.finished.recv_many(&mut group, GROUP).await > 0 {
            self.commit(group.drain(..)).await;
        }
    }

    async fn commit(&self, group: impl Iterator<Item = Finished>) {
        let mut outcomes = Vec::new();
        for finished in group {
            let Finished { lease, usage, end } = finished;
            match self.prepare(end, usage) {
                Write::Finish(outcome) => outcomes.push((lease, outcome)),
                Write::Retry(error) => self.retry(lease, &error, usage).await,
                Write::UsageOnly => self.book(lease, usage).await,
                Write::Later => {}
            }
        }
        if !outcomes.is_empty() {
            self.finish(outcomes).await;
        }
    }

    fn prepare(&self, end: End, usage: Usage) -> Write {
        match end {
            End::Ran { job } => {
                let (lease, first_token_ms, deadline) = (job.lease(), job.first_token_ms(), job.deadline());
                let record = match job.into_record(self.release.clone()) {
                    Ok(record) => record,
                    Err(Unfinished::Dropped) => return Write::UsageOnly,
                    Err(Unfinished::DeadlinePassed) => return Write::Finish(Outcome::Expired { usage }),
                    Err(Unfinished::Failed(error)) => return failed(error, usage),
                };
                let unstored = |what: String| Write::Retry(JobError::new(ErrorCode::StorageFailed, what));
                let bytes = match record.encode() {
                    Ok(bytes) => bytes,
                    Err(err) => return unstored(format!("the record could not be encoded: {err}")),
                };
                if bytes.len() <= INLINE_BYTES {
                    let record = RecordLocation::Inline(bytes);
                    return Write::Finish(Outcome::Succeeded { record, usage, first_token_ms });
                }
                match self.stager.stage(Staging { lease, bytes, deadline, usage, first_token_ms }) {
                    Ok(()) => Write::Later,
                    Err(err) => unstored(format!("the record could not be stored: {err}")),
                }
            }
            End::Staged { record, first_token_ms } => {
                Write::Finish(Outcome::Succeeded { record, usage, first_token_ms })
            }
            End::NotWanted => Write::UsageOnly,
            End::DeadlinePassed => Write::Finish(Outcome::Expired { usage }),
            End::NotPrepared(error) => failed(error, usage),
        }
    }

    /// Writes until the store answers: a result is not thrown away because the store was away for a while.
    async fn finish(&self, outcomes: Vec<(Lease, Outcome)>) {
        let Some(answers) = self.until_answered(|| self.store.finish(&outcomes)).await else {
            return self.finish_one_by_one(outcomes).await;
        };
        self.finished(&outcomes, answers).await;
    }

    async fn finished(&self, outcomes: &[(Lease, Outcome)], answers: Vec<Result<(), LeaseLost>>) {
        for ((lease, outcome), answer) in outcomes.iter().zip(answers) {
            match (answer, outcome) {
                (Ok(()), outcome) => self.ended(*lease, state_of(outcome)).await,
                (
                    Err(_),
                    Outcome::Succeeded { usage, .. } | Outcome::Failed { usage, .. } | Outcome::Expired { usage },
                ) => {
                    tracing::info!(job.id = %lease.job, attempt = lease.attempt, "a result came after its lease; dropped");
                    self.book(*lease, *usage).await;
                }
            }
        }
    }

    /// One of the rows is damaged: the others must not wait for it.
    async fn finish_one_by_one(&self, outcomes: Vec<(Lease, Outcome)>) {
        for (lease, outcome) in outcomes {
            let one = [(lease, outcome)];
            match self.until_answered(|| self.store.finish(&one)).await {
                Some(answers) => self.finished(&one, answers).await,
                None => {
                    tracing::error!(job.id = %lease.job, attempt = lease.attempt, "a result cannot be stored");
                    self.live.leave(lease);
                }
            }
        }
    }

    async fn ended(&self, lease: Lease, state: JobState) {
        tracing::debug!(job.id = %lease.job, attempt = lease.attempt, %state, release = self.release.short(), "job ended");
        self.live.leave(lease);
        let body = JobEventBody::Ended { state };
        self.events.push([JobEvent { job: lease.job, attempt: lease.attempt, body }]);
        self.bus.tell(Signal::Ended { job: lease.job, state }).await;
    }

    async fn retry(&self, lease: Lease, error: &JobError, usage: Usage) {
        tracing::warn!(job.id = %lease.job, attempt = lease.attempt, error = %error, "an attempt failed");
        // A job that may be retried has its tokens booked as those of an attempt without a result.
        let answer = self.until_answered(|| self.store.retry(&lease, error)).await;
        self.book(lease, usage).await;
        match answer {
            Some(Ok(state)) if state.is_terminal() => self.ended(lease, state).await,
            // Nothing is told of a job that is queued again: a signal would race with its next attempt.
            Some(Ok(_)) => {}
            Some(Err(_)) => {
                tracing::info!(job.id = %lease.job, attempt = lease.attempt, "the attempt's lease was lost before");
            }
            None => tracing::error!(job.id = %lease.job, "a failure cannot be stored: the job's row is damaged"),
        }
    }

    async fn book(&self, lease: Lease, usage: Usage) {
        if usage != Usage::default() {
            self.until_answered(|| self.store.usage(&lease, usage)).await;
        }
        self.live.leave(lease);
    }

    /// Asks until the store answers; `None` when it says that a row is damaged, which no other try mends.
    async fn until_answered<T, F>(&self, mut ask: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Duration::from_millis(50);
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(err @ StoreError::Corrupt(_)) => {
                    tracing::error!(error = &err as &dyn std::error::Error, "the store refuses a result");
                    return None;
                }
                Err(err) => {
                    tracing::warn!(error = &err as &dyn std::error::Error, "a result waits for the store");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(Duration::from_secs(1));
                }
            }
        }
    }
}

/// What is written for a job that failed.
fn failed(error: JobError, usage: Usage) -> Write {
    if error.code.is_transient() { Write::Retry(error) } else { Write::Finish(Outcome::Failed { error, usage }) }
}

fn state_of(outcome: &Outcome) -> JobState {
    match outcome {
        Outcome::Succeeded { .. } => JobState::Succeeded,
        Outcome::Failed { .. } => JobState::Failed,
        Outcome::Expired { .. } => JobState::Expired,
    }
}
