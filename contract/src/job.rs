//! Jobs as the ports pass them: new, leased, and as they are shown.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Class, Fingerprint, JobId, QueueId, TenantId};
use crate::life::JobState;
use crate::outcome::{JobError, Usage};
use crate::record::{RecordLocation, SegmentPlace, TrajectoryMode};
use crate::request::{Kind, Request};
use crate::sequence::OnFailure;
use crate::time::Timestamp;
use crate::webhook::Hook;

/// A client's key that makes a repeated submit the same job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key, 1 to 255 characters; unique per tenant.
    pub key: String,
    /// SHA-256 of the canonical body: the same key with another body is refused.
    pub body_hash: [u8; 32],
}

/// A job to accept.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Its id, made by the server.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Which release answers it.
    pub release: Fingerprint,
    /// The model name the client used.
    pub route: String,
    /// How urgent it is.
    pub class: Class,
    /// Most unfinished jobs of this release and class; the store refuses the job that would be one more.
    /// Not applied to batch lines.
    pub bound: u64,
    /// Most unfinished jobs of its tenant that are no batch lines, where there is such a limit. Not applied to batch
    /// lines.
    pub tenant_bound: Option<u64>,
    /// It does not run before so long after acceptance.
    pub delay: Duration,
    /// From then to the deadline.
    pub deadline_in: Duration,
    /// The seed: the client's, or drawn for this job.
    pub seed: u64,
    /// What to do.
    pub request: Request,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// The batch and line (from 0) it belongs to; unique, so that expanding twice gives the same rows.
    pub batch_line: Option<(uuid::Uuid, u32)>,
    /// The client's name for that line.
    pub custom_id: Option<String>,
    /// Jobs of one key run one at a time in order of acceptance.
    pub sequence_key: Option<String>,
    /// What those behind it do when it fails; without a key, nothing.
    pub on_failure: OnFailure,
    /// W3C trace context of the submit.
    pub traceparent: Option<String>,
    /// Where it alone is told of.
    pub webhook: Option<Hook>,
    /// A client's key that makes a repeat the same job.
    pub idempotency: Option<IdempotencyKey>,
    /// The caller publishes the wake-up itself: the row becomes due only 60 s on, in case that fails.
    pub published_by_caller: bool,
    /// How much of it is kept as its trajectory.
    pub trajectory: TrajectoryMode,
    /// How long its payload is kept after its end; `None` is for ever.
    pub keep: Option<Duration>,
}

/// What was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The job: a new one, or the earlier one of the same idempotency key or batch line.
    pub job: JobId,
    /// It existed already; nothing was written.
    pub replayed: bool,
    /// It waits behind another job of its sequence, or the sequence is blocked: there is nothing to publish yet.
    pub held: bool,
    /// When it was accepted, by the store's clock; `None` if it existed already.
    pub at: Option<Timestamp>,
}

/// Why a job was not accepted. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The release has as many unfinished jobs of the class as it may have.
    #[error("{queue} is full: {bound} unfinished jobs")]
    QueueFull {
        /// Which queue.
        queue: QueueId,
        /// Its bound.
        bound: u64,
    },
    /// The tenant has as many unfinished jobs as it may have, batch lines left out.
    #[error("the tenant is full: {bound} unfinished jobs")]
    TenantFull {
        /// The limit.
        bound: u64,
    },
    /// The idempotency key was used with another body.
    #[error("the idempotency key was used before with another body")]
    KeyReused,
}

/// A wake-up: the whole content of a queue message. Says that a job at this attempt waits for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wake {
    /// The job.
    pub job: JobId,
    /// Its attempt when the wake-up was made; a lease needs the row to still have it.
    pub attempt: u32,
}

/// The right to run a job, and the fence of every write about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// The attempt this lease began.
    pub attempt: u32,
}

/// A leased job with what the worker needs to run it.
#[derive(Debug, Clone, PartialEq)]
pub struct Leased {
    /// The lease.
    pub lease: Lease,
    /// Whose it is.
    pub tenant: TenantId,
    /// How urgent it is.
    pub class: Class,
    /// What to do.
    pub request: Request,
    /// The seed to use.
    pub seed: u64,
    /// Workers that died under it: with 1 it runs only among its like, eight at most; with 2, alone.
    pub losses: u32,
    /// Time left to its deadline when the lease was taken.
    pub deadline_in: Duration,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// The answer to a cancel. Asking again gives the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAnswer {
    /// It is cancelled (now, or already was): no result follows.
    Cancelled {
        /// This call did it, and a worker may be running the job.
        was_running: bool,
    },
    /// It had ended otherwise before.
    AlreadyEnded(JobState),
    /// No such job of this tenant.
    NotFound,
}

/// What the reaper did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Jobs whose worker was lost, queued again.
    pub requeued: Vec<(JobId, QueueId)>,
    /// Jobs that ended: expired, or quarantined.
    pub ended: Vec<(JobId, JobState)>,
}

/// A job that succeeded and whose record waits to be archived.
#[derive(Debug, Clone, PartialEq)]
pub struct Unarchived {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What answered it.
    pub release: Fingerprint,
    /// How much of it is kept; never [`TrajectoryMode::Off`].
    pub trajectory: TrajectoryMode,
    /// Where its record is: in its row or staged.
    pub record: RecordLocation,
    /// Time since it ended, by the store's clock.
    pub ended_for: Duration,
}

/// A job as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Which release answers it.
    pub release: Fingerprint,
    /// The model name the client used.
    pub route: String,
    /// How urgent it is.
    pub class: Class,
    /// Chat, completion or embedding.
    pub kind: Kind,
    /// Where it stands.
    pub state: JobState,
    /// Leases so far.
    pub attempt: u32,
    /// Its own transient failures so far.
    pub errors: u32,
    /// Workers lost under it.
    pub losses: u32,
    /// The seed.
    pub seed: u64,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// The batch and line it belongs to.
    pub batch_line: Option<(uuid::Uuid, u32)>,
    /// Jobs of one key run one at a time in order of acceptance.
    pub sequence_key: Option<String>,
    /// What those behind it do when it fails; without a key, nothing.
    pub on_failure: OnFailure,
    /// Why it failed, or why its last attempt did.
    pub error: Option<JobError>,
    /// Earlier attempts: when and why each ended.
    pub history: Vec<serde_json::Value>,
    /// Tokens used, as far as known.
    pub usage: Usage,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When its last attempt was leased.
    pub started_at: Option<Timestamp>,
    /// When its first token came.
    pub first_token_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When it expires unless it ends before.
    pub deadline: Timestamp,
    /// Its record, once it succeeded. Absent from lists.
    pub record: Option<RecordLocation>,
    /// How much of it is kept as its trajectory.
    pub trajectory: TrajectoryMode,
    /// Where its trajectory was archived, if it was: for [`TrajectoryMode::Full`] the same place as its record.
    /// Absent from lists.
    pub segment: Option<SegmentPlace>,
    /// How long its payload is kept after its end; `None` is for ever.
    pub keep: Option<Duration>,
    /// When its payload's time is over, once it has ended.
    pub result_expires_at: Option<Timestamp>,
    /// When its payload was removed: it has no record, metadata or trajectory from then on.
    pub emptied_at: Option<Timestamp>,
    /// The store's clock when it answered.
    pub now: Timestamp,
}

impl Job {
    /// A job as it is right after its acceptance at `at`, without a look at the store.
    pub fn just_accepted(new: NewJob, at: Timestamp) -> Self {
        let deadline_ms = i64::try_from(new.delay.saturating_add(new.deadline_in).as_millis()).unwrap_or(i64::MAX);
        Self {
            id: new.id,
            tenant: new.tenant,
            release: new.release,
            route: new.route,
            class: new.class,
            kind: new.request.kind(),
            state: JobState::Queued,
            attempt: 0,
            errors: 0,
            losses: 0,
            seed: new.seed,
            metadata: new.metadata,
            batch_line: new.batch_line,
            sequence_key: new.sequence_key,
            on_failure: new.on_failure,
            error: None,
            history: Vec::new(),
            usage: Usage::default(),
            accepted_at: at,
            started_at: None,
            first_token_at: None,
            finished_at: None,
            deadline: Timestamp(at.0.saturating_add(deadline_ms)),
            record: None,
            trajectory: new.trajectory,
            segment: None,
            keep: new.keep,
            result_expires_at: None,
            emptied_at: None,
            now: at,
        }
    }

    /// Whether its payload's time is over. Its bytes may be there for some seconds more, and those of a batch's line until
    /// the batch has ended.
    pub fn is_gone(&self) -> bool {
        self.emptied_at.is_some() || self.result_expires_at.is_some_and(|end| end <= self.now)
    }
}

/// Which jobs to list; newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Only these states; empty: all.
    pub states: Vec<JobState>,
    /// Only this class.
    pub class: Option<Class>,
    /// Only lines of this batch.
    pub batch: Option<uuid::Uuid>,
    /// Only jobs that carry all of these pairs.
    pub metadata: BTreeMap<String, String>,
    /// Only jobs older than this one: the cursor.
    pub after: Option<JobId>,
    /// Most jobs to return, at least 1.
    pub limit: u32,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The jobs, newest first, without records.
    pub jobs: Vec<Job>,
    /// Whether older ones follow.
    pub has_more: bool,
}
