//! The ports: what the rooms need of the outside world. Adapters live in `backends`, with one conformance suite per
//! port that defines the behaviour; the words here are its summary.

mod schedules;

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::audit::{Audit, AuditFilter};
use crate::batch::{
    Batch, BatchCancel, BatchEnd, BatchError, BatchId, BatchProgress, Cursor, Line, LineId, LineSet, NewBatch,
    RefusedLine,
};
use crate::event::{JobEvent, Signal, WorkerInfo};
use crate::file::{FileDeletion, FileFilter, FileId, KeyReused, Made, NewFile, StoredFile};
use crate::ids::{JobId, QueueId, TenantId, WorkerId};
use crate::job::{
    Accepted, CancelAnswer, Filter, IdempotencyKey, Job, Lease, Leased, NewJob, Page, Reaped, Refused, Unarchived, Wake,
};
use crate::key::{FoundKey, Key, KeyId, NewKey};
use crate::ledger::{UsageFilter, UsageLine};
use crate::life::JobState;
use crate::outcome::{JobError, Outcome, Usage};
use crate::record::SegmentPlace;
use crate::release::ServedModel;
use crate::retention::ExpiredJob;
use crate::sequence::{Resumed, Sequence};
use crate::tenant::{Tenant, TenantChange};
use crate::webhook::{
    AttemptEnd, DeliveryAttempt, DeliveryFilter, DeliveryId, DueDelivery, NewWebhook, Webhook, WebhookChange,
    WebhookDelivery, WebhookId, WebhookRefused,
};

pub use schedules::ScheduleStore;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached: surely nothing was written.
    #[error("the job store cannot be reached")]
    Unreachable(#[source] BoxError),
    /// It did not answer: nobody knows whether the write happened.
    #[error("the job store did not answer in time")]
    Unanswered(#[source] BoxError),
    /// A row is not what this build writes.
    #[error("the job store holds what this build cannot read: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// True when the write surely did not happen; false when nobody can know.
    pub fn surely_not_applied(&self) -> bool {
        match self {
            StoreError::Unreachable(_) | StoreError::Corrupt(_) => true,
            StoreError::Unanswered(_) => false,
        }
    }
}

/// The lease is no longer the live one: the job was cancelled, expired, reaped, or ended by another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease is no longer live")]
pub struct LeaseLost;

/// The truth about jobs. Times are the store's clock. Methods that take slices do all of it in one transaction and
/// answer item by item, in order.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Accepts jobs: room is taken in the counters, and key, job and event are written, in one transaction that is
    /// durable before this answers. A refused one writes nothing.
    async fn accept(&self, jobs: &[NewJob]) -> Result<Vec<Result<Accepted, Refused>>, StoreError>;
    /// Accepts all of the jobs or none of them: the place of the first that is refused, and why.
    async fn accept_all(&self, jobs: &[NewJob]) -> Result<Result<Vec<Accepted>, (usize, Refused)>, StoreError>;
    /// Up to `limit` rows of a queue that want a message now, tenants in turn by weight, oldest first within a tenant; each
    /// is due again 60 s on. Held rows are never due. The shares hold from call to call: of what a queue was given while
    /// several tenants waited, each has the part that its weight is of theirs. Who did not wait saves nothing up.
    async fn due(&self, queue: &QueueId, limit: u32) -> Result<Vec<Wake>, StoreError>;
    /// Makes queued rows due at once: their publish was not confirmed.
    async fn wake_now(&self, jobs: &[JobId]) -> Result<(), StoreError>;
    /// Queued rows of a queue, held ones left out.
    async fn queued(&self, queue: &QueueId) -> Result<u64, StoreError>;
    /// The queues that have unfinished jobs.
    async fn queues(&self) -> Result<Vec<QueueId>, StoreError>;
    /// Leases the jobs these wake-ups name: `None` where the row is not leasable any more (the caller drops the
    /// message). Never a job whose lease is live, never past its deadline.
    async fn lease(&self, wakes: &[Wake], worker: &WorkerId, ttl: Duration) -> Result<Vec<Option<Leased>>, StoreError>;
    /// Extends live leases; returns the lost ones.
    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError>;
    /// Ends jobs under their leases; durable before this answers. A job that ends as failed or expired, here or by any
    /// other method, and was accepted with [`crate::OnFailure::Block`] blocks its sequence with its end: what waits there
    /// is held, and so is what is accepted, until [`JobStore::resume_sequence`].
    async fn finish(&self, finished: &[(Lease, Outcome)]) -> Result<Vec<Result<(), LeaseLost>>, StoreError>;
    /// A transient failure: queued again after a backoff with full jitter, or failed when the budget is used up; answers
    /// which.
    async fn retry(&self, lease: &Lease, error: &JobError) -> Result<Result<JobState, LeaseLost>, StoreError>;
    /// Gives leased jobs back unharmed, due after `delay`; lost leases are passed over.
    async fn hand_back(&self, leases: &[Lease], delay: Duration) -> Result<(), StoreError>;
    /// Cancels a queued or running job. Acknowledged means that no result follows.
    async fn cancel(&self, tenant: &TenantId, job: &JobId) -> Result<CancelAnswer, StoreError>;
    /// Ends up to `limit` jobs past their deadline and requeues (or quarantines) up to `limit` jobs of dead leases.
    async fn reap(&self, limit: u32) -> Result<Reaped, StoreError>;
    /// Books tokens of an attempt that gave no result; allowed after the end of the job, once per attempt.
    async fn usage(&self, lease: &Lease, usage: Usage) -> Result<(), StoreError>;
    /// One job with its record's location; `None` also when it is another tenant's.
    async fn get(&self, tenant: &TenantId, job: &JobId) -> Result<Option<Job>, StoreError>;
    /// A page of a tenant's jobs, newest first.
    async fn list(&self, tenant: &TenantId, filter: &Filter) -> Result<Page, StoreError>;
    /// Up to `limit` blocked sequences of a tenant with keys behind `after`, by key; and whether more follow.
    async fn blocked_sequences(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<(Vec<Sequence>, bool), StoreError>;
    /// One sequence; `None` when it has no unfinished job and is not blocked, or is another tenant's.
    async fn sequence(&self, tenant: &TenantId, key: &str) -> Result<Option<Sequence>, StoreError>;
    /// Unblocks a sequence and makes its first waiting job due. One that is not blocked stays as it is. `None` as above.
    async fn resume_sequence(&self, tenant: &TenantId, key: &str) -> Result<Option<Resumed>, StoreError>;
    /// Takes or keeps the lead of singleton work for `ttl`; false while another holder has it. A `ttl` of zero gives it
    /// back.
    async fn lead(&self, name: &str, holder: &WorkerId, ttl: Duration) -> Result<bool, StoreError>;
    /// Up to `limit` jobs that succeeded and whose records wait to be archived, first ended first. Jobs that keep no
    /// trajectory are never among them.
    async fn unarchived(&self, limit: u32) -> Result<Vec<Unarchived>, StoreError>;
    /// The records were written to segments, whole and durable: from now on they are read there. A row that was
    /// switched before keeps its place; answers, item by item, whether this call switched it. With
    /// [`crate::TrajectoryMode::Full`] the row lets go of its own record, which the segment has; with
    /// [`crate::TrajectoryMode::Redacted`] it keeps it, since the segment has less.
    async fn archived(&self, places: &[(JobId, SegmentPlace)]) -> Result<Vec<bool>, StoreError>;
    /// Makes known that workers serve this model: whoever accepts jobs offers it from then on, also while no worker
    /// lives. The name means the newest release that was offered under it.
    async fn offer(&self, model: &ServedModel) -> Result<(), StoreError>;
    /// The models that were offered, one per name, first offered first.
    async fn offered(&self) -> Result<Vec<ServedModel>, StoreError>;
}

/// How long after its announcement a segment that no row was switched to may be removed. Whoever announced it switches
/// rows to it well before that, or never.
pub const SEGMENT_GRACE: Duration = Duration::from_secs(3_600);

/// Segments of trajectories from before a row is switched to them: so none is in the object store that nobody knows of.
#[async_trait]
pub trait SegmentStore: Send + Sync {
    /// A segment will be written under this key; durable before this answers. One that is known already stays as it is.
    async fn announce_segment(&self, key: &str) -> Result<(), StoreError>;
    /// Up to `limit` keys of segments that were announced at least [`SEGMENT_GRACE`] ago and that no row was ever
    /// switched to, first announced first.
    async fn unswitched_segments(&self, limit: u32) -> Result<Vec<String>, StoreError>;
}

/// What an installation is run with, beside its jobs. In the same place as the jobs.
#[async_trait]
pub trait AdminStore: ScheduleStore + SegmentStore {
    /// Keeps a new key; durable before this answers.
    async fn add_key(&self, key: &NewKey) -> Result<Key, StoreError>;
    /// The key of this prefix, good or not.
    async fn find_key(&self, prefix: &str) -> Result<Option<FoundKey>, StoreError>;
    /// All keys of a tenant, or of all tenants, newest first.
    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<Key>, StoreError>;
    /// Revokes a key; the first time counts. Answers the key as it then is.
    async fn revoke_key(&self, id: &KeyId) -> Result<Option<Key>, StoreError>;
    /// Whether a key was ever made: from then on calls need one.
    async fn has_keys(&self) -> Result<bool, StoreError>;

    /// What was said of a tenant, if anything was: else it has no limits and weight 1.
    async fn tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>, StoreError>;
    /// All tenants of which something was said, by name.
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;
    /// Changes a tenant's limits and weight. Weights count from the next [`JobStore::due`] on; the limits are for whoever
    /// accepts jobs to apply.
    async fn set_tenant(&self, tenant: &TenantId, change: &TenantChange) -> Result<Tenant, StoreError>;
    /// Forgets what was said of a tenant; false if nothing was.
    async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError>;
    /// Unfinished jobs of a tenant, batch lines left out.
    async fn unfinished_jobs(&self, tenant: &TenantId) -> Result<u64, StoreError>;
    /// Up to `limit` lines of the usage ledger, by day, tenant, release, model and class. Each change of a job is in it
    /// from the moment at which it is durable.
    async fn usage_lines(&self, filter: &UsageFilter) -> Result<Vec<UsageLine>, StoreError>;
    /// Puts up to `limit` changes of the ledger that wait, in stores where they do, into its days, so that reading stays
    /// short. Answers how many; what is read is the same before and after.
    async fn fold_usage(&self, limit: u32) -> Result<u64, StoreError>;
    /// Forgets up to `limit` places of tenants in queues that are not ahead of the queue's clock, where whoever has no place
    /// stands too. Answers how many; what [`JobStore::due`] gives is the same before and after.
    async fn forget_shares(&self, limit: u32) -> Result<u64, StoreError>;
    /// Holds what was accepted against what became of it, as it all was at one moment.
    async fn audit(&self, filter: &AuditFilter) -> Result<Audit, StoreError>;

    /// Keeps a file whose bytes are in the object store; durable before this answers. With an idempotency key that was
    /// used before, nothing is written.
    async fn add_file(&self, file: &NewFile) -> Result<Result<Made<StoredFile>, KeyReused>, StoreError>;
    /// One file, expired or not; `None` also when it is another tenant's.
    async fn file(&self, tenant: &TenantId, id: &FileId) -> Result<Option<StoredFile>, StoreError>;
    /// A page of a tenant's files, and whether more follow.
    async fn files(&self, tenant: &TenantId, filter: &FileFilter) -> Result<(Vec<StoredFile>, bool), StoreError>;
    /// Forgets a file; its bytes are the caller's to remove. Not while a batch that has not ended reads it,
    /// or an enabled schedule uses it.
    async fn delete_file(&self, tenant: &TenantId, id: &FileId) -> Result<FileDeletion, StoreError>;
    /// Up to `limit` files of all tenants that have expired, that no batch reads and no enabled schedule uses, and whose
    /// bytes may still be there, first expired first.
    async fn expired_files(&self, limit: u32) -> Result<Vec<FileId>, StoreError>;
    /// The bytes of these files are gone: only what there is to know of them stays.
    async fn files_emptied(&self, ids: &[FileId]) -> Result<(), StoreError>;

    /// Up to `limit` ended jobs of all tenants whose payload's time is over and that may still have it, first expired first.
    /// Never a line of a batch that has not ended. Where there are more than `limit`, lines are taken batch by batch,
    /// those of the batch whose first line expired first before others.
    async fn expired_jobs(&self, limit: u32) -> Result<Vec<ExpiredJob>, StoreError>;
    /// The objects of these jobs are gone: their rows let go of request, record, trajectory, metadata, sequence key and
    /// webhook. Only of those whose time is over; answers how many it emptied. A segment counts one job less for each.
    async fn empty_jobs(&self, jobs: &[JobId]) -> Result<u64, StoreError>;
    /// Up to `limit` keys of segments of which every job was emptied. Those that never had one are
    /// [`SegmentStore::unswitched_segments`].
    async fn unkept_segments(&self, limit: u32) -> Result<Vec<String>, StoreError>;
    /// The objects of these segments are gone: they are forgotten, if still no job is in them.
    async fn forget_segments(&self, keys: &[String]) -> Result<(), StoreError>;

    /// What an idempotency key made, if it was used; an error if that was with another body.
    async fn made_before(
        &self,
        tenant: &TenantId,
        key: &IdempotencyKey,
    ) -> Result<Result<Option<uuid::Uuid>, KeyReused>, StoreError>;
    /// Whether one of these keys was used with another body.
    async fn is_any_reused(&self, tenant: &TenantId, keys: &[String], body_hash: &[u8; 32])
    -> Result<bool, StoreError>;
    /// Accepts a batch, to be validated; durable before this answers. With an idempotency key that was used before,
    /// nothing is written.
    async fn add_batch(&self, batch: &NewBatch) -> Result<Result<Made<Batch>, KeyReused>, StoreError>;
    /// One batch with its counts; `None` also when it is another tenant's.
    async fn batch(&self, tenant: &TenantId, id: &BatchId) -> Result<Option<Batch>, StoreError>;
    /// Up to `limit` of a tenant's batches older than `after`, newest first, with their counts; and whether more follow.
    async fn batches(
        &self,
        tenant: &TenantId,
        after: Option<BatchId>,
        limit: u32,
    ) -> Result<(Vec<Batch>, bool), StoreError>;
    /// Asks a batch to end before its lines have. Its jobs are the caller's to cancel.
    async fn cancel_batch(&self, tenant: &TenantId, id: &BatchId) -> Result<BatchCancel, StoreError>;
    /// Up to `limit` batches of all tenants that have not ended, oldest first, without counts.
    async fn open_batches(&self, limit: u32) -> Result<Vec<Batch>, StoreError>;
    /// The file is good: its lines can run. False when the batch was not being validated any more.
    async fn begin_batch(&self, id: &BatchId, model: &str, total: u32) -> Result<bool, StoreError>;
    /// The file is wrong. False when the batch was not being validated any more.
    async fn fail_batch(&self, id: &BatchId, errors: &[BatchError]) -> Result<bool, StoreError>;
    /// The lines from one place of the file to another are jobs by now, except the refused ones, which are kept here.
    /// False when the batch does not stand at `from`, or is not in progress; then nothing is written.
    async fn batch_expanded(
        &self,
        id: &BatchId,
        refused: &[RefusedLine],
        from: Cursor,
        to: Cursor,
    ) -> Result<bool, StoreError>;
    /// From in progress to finalizing, if every line is expanded and has ended. False if not.
    async fn finalize_batch(&self, id: &BatchId) -> Result<bool, StoreError>;
    /// Up to `limit` jobs of a batch that have not ended.
    async fn unfinished_lines(&self, id: &BatchId, limit: u32) -> Result<Vec<JobId>, StoreError>;
    /// Up to `limit` lines of a batch from number `from` on, in order, with their records' locations. Lines that are not
    /// expanded are left out.
    async fn lines(&self, id: &BatchId, from: u32, limit: u32) -> Result<Vec<Line>, StoreError>;
    /// Up to `limit` lines of a batch that have ended, in the order in which they did, with their records' locations; and
    /// whether there are more. Lines that end later come later, so that reading on from the last one misses none. `None`
    /// when `after` is no line of this batch that has ended.
    async fn ended_lines(
        &self,
        id: &BatchId,
        after: Option<LineId>,
        limit: u32,
    ) -> Result<Option<(Vec<Line>, bool)>, StoreError>;
    /// Numbers of the lines of a batch that have a result, in order.
    async fn lines_with_result(&self, id: &BatchId) -> Result<Vec<u32>, StoreError>;
    /// The lines of its file that a batch is of; `None` when it is of all.
    async fn batch_lines(&self, id: &BatchId) -> Result<Option<LineSet>, StoreError>;
    /// How far a batch is.
    async fn batch_progress(&self, tenant: &TenantId, id: &BatchId) -> Result<Option<BatchProgress>, StoreError>;
    /// Makes a webhook. Of those without an address a tenant has one: then the answer is the first.
    async fn add_webhook(&self, webhook: &NewWebhook) -> Result<Result<Made<Webhook>, WebhookRefused>, StoreError>;
    /// One webhook.
    async fn webhook(&self, tenant: &TenantId, id: &WebhookId) -> Result<Option<Webhook>, StoreError>;
    /// All webhooks of a tenant that have an address, newest first.
    async fn webhooks(&self, tenant: &TenantId) -> Result<Vec<Webhook>, StoreError>;
    /// Changes a webhook.
    async fn change_webhook(
        &self,
        tenant: &TenantId,
        id: &WebhookId,
        change: &WebhookChange,
    ) -> Result<Option<Webhook>, StoreError>;
    /// Deletes a webhook that has an address; what waits for it is given up. False if there is none.
    async fn delete_webhook(&self, tenant: &TenantId, id: &WebhookId) -> Result<bool, StoreError>;
    /// A page of deliveries, newest first; and whether there are more.
    async fn deliveries(
        &self,
        tenant: &TenantId,
        filter: &DeliveryFilter,
    ) -> Result<(Vec<WebhookDelivery>, bool), StoreError>;
    /// One delivery with its last hundred attempts, newest first.
    async fn delivery(
        &self,
        tenant: &TenantId,
        id: &DeliveryId,
    ) -> Result<Option<(WebhookDelivery, Vec<DeliveryAttempt>)>, StoreError>;
    /// Tries a delivery again, from now, for as long as a new one.
    async fn redeliver(&self, tenant: &TenantId, id: &DeliveryId) -> Result<Option<WebhookDelivery>, StoreError>;
    /// Up to `each` due deliveries of every address but the `busy` ones, up to `limit` in all. For the next `hold` they are
    /// not due: if this process dies, another one sends them then.
    async fn due_deliveries(
        &self,
        busy: &[String],
        each: u32,
        limit: u32,
        hold: Duration,
    ) -> Result<Vec<DueDelivery>, StoreError>;
    /// Up to `limit` batches that run and whose progress somebody is told of, each `every` so often, with their counts.
    async fn batches_to_tell(&self, every: Duration, limit: u32) -> Result<Vec<Batch>, StoreError>;
    /// So many lines of a batch have ended, which is told as `data`; what was told before and is still on its way is left
    /// out. False when it was told of as many before, or has ended: then nobody is told.
    async fn tell_progress(&self, id: &BatchId, done: u64, data: &serde_json::Value) -> Result<bool, StoreError>;
    /// Keeps how an attempt ended. Nothing if the delivery has ended or is no longer there.
    async fn end_attempt(&self, id: &DeliveryId, end: &AttemptEnd) -> Result<(), StoreError>;
    /// Forgets up to `limit` deliveries that ended longer ago than this; answers how many.
    async fn forget_deliveries(&self, older: Duration, limit: u32) -> Result<u64, StoreError>;
    /// Ends a batch and keeps its files, in one transaction. `None` when it has ended, or has jobs that have not.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the lines of the files are not all lines.
    async fn end_batch(&self, id: &BatchId, end: &BatchEnd) -> Result<Option<Batch>, StoreError>;
}

/// What became of a published wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The queue has it.
    Confirmed,
    /// The queue is full: not now.
    Full,
    /// Nobody knows; the row must become due again.
    Unknown,
}

/// The queue could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// It cannot be reached now; jobs wait in the store.
    #[error("the queue cannot be reached")]
    Unreachable(#[source] BoxError),
}

/// A wake-up taken from the queue and not yet acknowledged. Dropping it unacknowledged makes it a loss the store mends
/// within 60 s.
#[derive(Debug)]
pub struct Delivery {
    /// What it says.
    pub wake: Wake,
    /// The adapter's own handle for it.
    pub tag: u64,
    /// Which queue it came from.
    pub queue: QueueId,
}

/// A bounded cache of wake-ups. It may lose, repeat and reorder; the store mends all of that.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Publishes, one answer each. Never waits for room.
    async fn publish(&self, wakes: &[(QueueId, Wake)]) -> Vec<Published>;
    /// Takes up to `max` wake-ups that are there now; never waits for one.
    async fn take(&self, queue: &QueueId, max: usize) -> Result<Vec<Delivery>, QueueError>;
    /// The wake-up is dealt with.
    async fn ack(&self, delivery: Delivery);
    /// The wake-up was not used: somebody else may have it.
    async fn put_back(&self, delivery: Delivery);
    /// Returns when wake-ups may have come to queues that [`Queue::take`] was asked about, perhaps for nothing. Waits for
    /// ever where only [`crate::Signal::Ready`] tells of them. Cancel safe.
    async fn arrived(&self);
    /// The caller takes nothing for now: what was fetched ahead for it goes back, so that others get it. The next
    /// [`Queue::take`] fetches again.
    async fn rest(&self);
    /// Wake-ups that wait in a queue.
    async fn ready(&self, queue: &QueueId) -> Result<u64, QueueError>;
    /// Most wake-ups a queue holds.
    fn limit(&self) -> u64;
    /// False while a publish would surely fail, since there is no way to the queue; true promises nothing. Asks nobody.
    fn is_reachable(&self) -> bool;
}

/// The bus does not have the asked part of a job's events any more: read the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the events are no longer on the bus")]
pub struct Gone;

/// The bus could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// It cannot be reached now; readers fall back to the store.
    #[error("the bus cannot be reached")]
    Unreachable(#[source] BoxError),
}

/// Tokens while they come, and short signals. Best effort.
#[async_trait]
pub trait Bus: Send + Sync {
    /// Appends events of running jobs, in order. Old ones are dropped by count and age, never waited for.
    async fn append(&self, events: &[JobEvent]) -> Result<(), BusError>;
    /// The events of a job from its current attempt on whose token position is above `after`, gapless: the ones kept,
    /// then new ones as they come; the stream ends after [`crate::JobEventBody::Ended`], or with `Err(Gone)` when its
    /// reader was too slow. A job without events yet gives a stream that waits for them.
    ///
    /// # Errors
    /// [`Gone`] when events above `after` were dropped already.
    async fn events(&self, job: &JobId, after: u32) -> Result<BoxStream<'static, Result<JobEvent, Gone>>, Gone>;
    /// Tells whoever listens now.
    async fn tell(&self, signal: Signal);
    /// Everything told from now on; a slow reader misses some.
    async fn signals(&self) -> BoxStream<'static, Signal>;
    /// A worker's sign of life, good for `ttl`; with zero it is the last one.
    async fn beat(&self, worker: WorkerInfo, ttl: Duration) -> Result<(), BusError>;
    /// The workers that live now; an error while it cannot know.
    async fn workers(&self) -> Result<Vec<WorkerInfo>, BusError>;
}
