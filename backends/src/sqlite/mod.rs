//! Jobs in one SQLite file: the store of embedded mode.
//!
//! One task writes, in grouped transactions that are synced before anybody is answered; a few connections read beside
//! it. The clock is the process's, read once per transaction.

mod accept;
mod archive;
mod audit;
mod batches;
mod change;
mod due;
mod emptying;
mod fault;
mod files;
mod finish;
mod keys;
mod lead;
mod lease;
mod ledger;
mod progress;
mod read;
mod reap;
mod row;
mod schedules;
mod sequences;
mod tenants;
mod webhooks;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use contract::webhook::WebhookRefused;
use contract::{
    Accepted, AdminStore, AttemptEnd, Batch, BatchCancel, BatchEnd, BatchError, BatchId, BatchProgress, CancelAnswer,
    Cursor, DeliveryAttempt, DeliveryFilter, DeliveryId, DueDelivery, ExpiredJob, FileDeletion, FileFilter, FileId,
    Filter, FoundKey, IdempotencyKey, Job, JobError, JobId, JobState, JobStore, Key, KeyId, KeyReused, Lease,
    LeaseLost, Leased, Line, LineId, LineSet, Made, NewBatch, NewFile, NewJob, NewKey, NewWebhook, Outcome, Page,
    QueueId, Reaped, Refused, RefusedLine, Resumed, SegmentPlace, Sequence, ServedModel, StoreError, StoredFile,
    Tenant, TenantChange, TenantId, Unarchived, Usage, Wake, Webhook, WebhookChange, WebhookDelivery, WebhookId,
    WorkerId,
};
use contract::{Audit, AuditFilter, UsageFilter, UsageLine};
use serde_json::Value;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, SqlitePool};
use uuid::Uuid;

use self::fault::Fault;
use self::writer::Writer;

/// How long a wake-up may be on its way before the row is due again.
const MESSAGE_LIFE_MS: i64 = 60_000;
/// How long an idempotency key is kept.
const KEY_LIFE_MS: i64 = 24 * 3_600 * 1_000;
/// Connections that read.
const READERS: u32 = 4;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/sqlite");

/// The store's clock: milliseconds since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// How to open a [`SqliteStore`].
#[derive(Clone)]
pub struct SqliteOptions {
    /// The database file; it and its tables are made if missing, its folder is not.
    pub path: PathBuf,
    /// Where times come from.
    pub clock: Clock,
    /// Largest size of the file in bytes, rounded up to whole pages of 4 KiB; writes beyond it fail like those on a
    /// full disk.
    pub max_bytes: Option<u64>,
}

impl SqliteOptions {
    /// The file at `path`, the system's clock, no limit.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), clock: Arc::new(system_millis), max_bytes: None }
    }
}

/// The database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SqliteOpenError {
    /// The file cannot be opened or is no database.
    #[error("the job database {} cannot be opened", .path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// Its tables are not those of this build, and could not be brought there.
    #[error("the tables of the job database {} cannot be brought up to date", .path.display())]
    Migrate {
        /// Which file.
        path: PathBuf,
        /// Why: a migration failed, or a newer build wrote the file.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
}

/// The [`JobStore`] in a SQLite file.
pub struct SqliteStore {
    writer: Writer,
    readers: SqlitePool,
    clock: Clock,
}

impl SqliteStore {
    /// Opens the file with the usual options. See [`SqliteStore::open_with`].
    ///
    /// # Errors
    /// [`SqliteOpenError`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, SqliteOpenError> {
        Self::open_with(SqliteOptions::new(path.as_ref())).await
    }

    /// Opens the file, brings its tables up to date, and starts the writer's task on the current runtime. The task
    /// ends, and the file is closed, once the store is dropped and what was submitted is done.
    ///
    /// # Errors
    /// [`SqliteOpenError`].
    pub async fn open_with(options: SqliteOptions) -> Result<Self, SqliteOpenError> {
        let failed = |source| SqliteOpenError::Open { path: options.path.clone(), source };
        let base = SqliteConnectOptions::new()
            .filename(&options.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .foreign_keys(true)
            // 16 MiB of log between checkpoints: fewer syncs of the main file, and a page written often is copied once.
            .pragma("wal_autocheckpoint", "4000")
            .disable_statement_logging();
        let writing = match options.max_bytes {
            None => base.clone(),
            Some(bytes) => base.clone().pragma("max_page_count", bytes.div_ceil(4096).to_string()),
        };
        let mut conn = writing.connect().await.map_err(failed)?;
        MIGRATIONS
            .run_direct(None, &mut conn, false)
            .await
            .map_err(|source| SqliteOpenError::Migrate { path: options.path.clone(), source })?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(Duration::from_secs(5))
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(base.pragma("query_only", "1"));
        let writer = Writer::start(conn, writing, options.clock.clone());
        Ok(Self { writer, readers, clock: options.clock })
    }

    /// Ends all leases as those of dead workers, whether they ran out or not, makes every published row due again and
    /// frees the lead: for a start at which no other process of this store can be alive, and whose queue is empty.
    /// Passed deadlines are ended on the way.
    ///
    /// # Errors
    /// [`StoreError`]; then some leases may be left, and calling again is safe.
    pub async fn end_leases(&self) -> Result<Reaped, StoreError> {
        self.writer.submit(reap::Reap { dead: reap::Dead::All, limit: u32::MAX }).await
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }
}

#[async_trait]
impl JobStore for SqliteStore {
    async fn accept(&self, jobs: &[NewJob]) -> Result<Vec<Result<Accepted, Refused>>, StoreError> {
        self.writer.submit(accept::Accept { jobs: jobs.to_vec() }).await
    }

    async fn accept_all(&self, jobs: &[NewJob]) -> Result<Result<Vec<Accepted>, (usize, Refused)>, StoreError> {
        self.writer.submit(accept::AcceptAll { jobs: jobs.to_vec() }).await
    }

    async fn due(&self, queue: &QueueId, limit: u32) -> Result<Vec<Wake>, StoreError> {
        self.writer.submit(due::TakeDue { queue: queue.clone(), limit }).await
    }

    async fn wake_now(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        self.writer.submit(due::WakeNow { jobs: jobs.to_vec() }).await
    }

    async fn queued(&self, queue: &QueueId) -> Result<u64, StoreError> {
        read::queued(&self.readers, queue).await.map_err(Fault::nothing_written)
    }

    async fn queues(&self) -> Result<Vec<QueueId>, StoreError> {
        read::queues(&self.readers).await.map_err(Fault::nothing_written)
    }

    async fn lease(&self, wakes: &[Wake], worker: &WorkerId, ttl: Duration) -> Result<Vec<Option<Leased>>, StoreError> {
        self.writer.submit(lease::TakeLeases { wakes: wakes.to_vec(), worker: worker.clone(), ttl }).await
    }

    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        self.writer.submit(lease::Renew { leases: leases.to_vec(), ttl }).await
    }

    async fn finish(&self, finished: &[(Lease, Outcome)]) -> Result<Vec<Result<(), LeaseLost>>, StoreError> {
        self.writer.submit(finish::Finish { finished: finished.to_vec() }).await
    }

    async fn retry(&self, lease: &Lease, error: &JobError) -> Result<Result<JobState, LeaseLost>, StoreError> {
        self.writer.submit(finish::Retry { lease: *lease, error: error.clone() }).await
    }

    async fn hand_back(&self, leases: &[Lease], delay: Duration) -> Result<(), StoreError> {
        self.writer.submit(lease::HandBack { leases: leases.to_vec(), delay }).await
    }

    async fn cancel(&self, tenant: &TenantId, job: &JobId) -> Result<CancelAnswer, StoreError> {
        self.writer.submit(finish::Cancel { tenant: tenant.clone(), job: *job }).await
    }

    async fn reap(&self, limit: u32) -> Result<Reaped, StoreError> {
        self.writer.submit(reap::Reap { dead: reap::Dead::RanOut, limit }).await
    }

    async fn usage(&self, lease: &Lease, usage: Usage) -> Result<(), StoreError> {
        self.writer.submit(finish::BookUsage { lease: *lease, usage }).await
    }

    async fn get(&self, tenant: &TenantId, job: &JobId) -> Result<Option<Job>, StoreError> {
        read::get(&self.readers, self.now(), tenant, job).await.map_err(Fault::nothing_written)
    }

    async fn list(&self, tenant: &TenantId, filter: &Filter) -> Result<Page, StoreError> {
        read::list(&self.readers, self.now(), tenant, filter).await.map_err(Fault::nothing_written)
    }

    async fn blocked_sequences(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<(Vec<Sequence>, bool), StoreError> {
        sequences::blocked(&self.readers, tenant, after, limit).await.map_err(Fault::nothing_written)
    }

    async fn sequence(&self, tenant: &TenantId, key: &str) -> Result<Option<Sequence>, StoreError> {
        sequences::get(&self.readers, tenant, key).await.map_err(Fault::nothing_written)
    }

    async fn resume_sequence(&self, tenant: &TenantId, key: &str) -> Result<Option<Resumed>, StoreError> {
        self.writer.submit(sequences::Resume { tenant: tenant.clone(), key: key.to_owned() }).await
    }

    async fn lead(&self, name: &str, holder: &WorkerId, ttl: Duration) -> Result<bool, StoreError> {
        self.writer.submit(lead::TakeLead { name: name.to_owned(), holder: holder.clone(), ttl }).await
    }

    async fn unarchived(&self, limit: u32) -> Result<Vec<Unarchived>, StoreError> {
        read::unarchived(&self.readers, self.now(), limit).await.map_err(Fault::nothing_written)
    }

    async fn archived(&self, places: &[(JobId, SegmentPlace)]) -> Result<Vec<bool>, StoreError> {
        self.writer.submit(archive::Archived { places: places.to_vec() }).await
    }

    async fn offer(&self, model: &ServedModel) -> Result<(), StoreError> {
        self.writer.submit(archive::Offer { model: model.clone() }).await
    }

    async fn offered(&self) -> Result<Vec<ServedModel>, StoreError> {
        read::offered(&self.readers).await.map_err(Fault::nothing_written)
    }
}

#[async_trait]
impl AdminStore for SqliteStore {
    async fn add_key(&self, key: &NewKey) -> Result<Key, StoreError> {
        self.writer.submit(keys::Add { key: key.clone() }).await
    }

    async fn find_key(&self, prefix: &str) -> Result<Option<FoundKey>, StoreError> {
        keys::find(&self.readers, self.now(), prefix).await.map_err(Fault::nothing_written)
    }

    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<Key>, StoreError> {
        keys::list(&self.readers, tenant).await.map_err(Fault::nothing_written)
    }

    async fn revoke_key(&self, id: &KeyId) -> Result<Option<Key>, StoreError> {
        self.writer.submit(keys::Revoke { id: *id }).await
    }

    async fn has_keys(&self) -> Result<bool, StoreError> {
        keys::has_any(&self.readers).await.map_err(Fault::nothing_written)
    }

    async fn tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>, StoreError> {
        tenants::get(&self.readers, tenant).await.map_err(Fault::nothing_written)
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        tenants::list(&self.readers).await.map_err(Fault::nothing_written)
    }

    async fn set_tenant(&self, tenant: &TenantId, change: &TenantChange) -> Result<Tenant, StoreError> {
        self.writer.submit(tenants::Set { tenant: tenant.clone(), change: *change }).await
    }

    async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        self.writer.submit(tenants::Delete { tenant: tenant.clone() }).await
    }

    async fn unfinished_jobs(&self, tenant: &TenantId) -> Result<u64, StoreError> {
        tenants::unfinished(&self.readers, tenant).await.map_err(Fault::nothing_written)
    }

    async fn usage_lines(&self, filter: &UsageFilter) -> Result<Vec<UsageLine>, StoreError> {
        ledger::lines(&self.readers, filter).await.map_err(Fault::nothing_written)
    }

    async fn fold_usage(&self, _limit: u32) -> Result<u64, StoreError> {
        // Its days are written with the jobs.
        Ok(0)
    }

    async fn forget_shares(&self, limit: u32) -> Result<u64, StoreError> {
        self.writer.submit(due::ForgetShares { limit }).await
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Audit, StoreError> {
        audit::run(&self.readers, filter).await.map_err(Fault::nothing_written)
    }

    async fn add_file(&self, file: &NewFile) -> Result<Result<Made<StoredFile>, KeyReused>, StoreError> {
        self.writer.submit(files::Add { file: file.clone() }).await
    }

    async fn file(&self, tenant: &TenantId, id: &FileId) -> Result<Option<StoredFile>, StoreError> {
        files::get(&self.readers, self.now(), tenant, id).await.map_err(Fault::nothing_written)
    }

    async fn files(&self, tenant: &TenantId, filter: &FileFilter) -> Result<(Vec<StoredFile>, bool), StoreError> {
        files::list(&self.readers, self.now(), tenant, filter).await.map_err(Fault::nothing_written)
    }

    async fn delete_file(&self, tenant: &TenantId, id: &FileId) -> Result<FileDeletion, StoreError> {
        self.writer.submit(files::Delete { tenant: tenant.clone(), id: *id }).await
    }

    async fn expired_files(&self, limit: u32) -> Result<Vec<FileId>, StoreError> {
        files::expired(&self.readers, self.now(), limit).await.map_err(Fault::nothing_written)
    }

    async fn files_emptied(&self, ids: &[FileId]) -> Result<(), StoreError> {
        self.writer.submit(files::Emptied { ids: ids.to_vec() }).await
    }

    async fn expired_jobs(&self, limit: u32) -> Result<Vec<ExpiredJob>, StoreError> {
        emptying::expired(&self.readers, self.now(), limit).await.map_err(Fault::nothing_written)
    }

    async fn empty_jobs(&self, jobs: &[JobId]) -> Result<u64, StoreError> {
        self.writer.submit(emptying::Empty { jobs: jobs.to_vec() }).await
    }

    async fn unkept_segments(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        emptying::unkept(&self.readers, limit).await.map_err(Fault::nothing_written)
    }

    async fn forget_segments(&self, keys: &[String]) -> Result<(), StoreError> {
        self.writer.submit(emptying::Forget { keys: keys.to_vec() }).await
    }

    async fn made_before(
        &self,
        tenant: &TenantId,
        key: &IdempotencyKey,
    ) -> Result<Result<Option<Uuid>, KeyReused>, StoreError> {
        files::find_made(&self.readers, self.now(), tenant, key).await.map_err(Fault::nothing_written)
    }

    async fn is_any_reused(
        &self,
        tenant: &TenantId,
        keys: &[String],
        body_hash: &[u8; 32],
    ) -> Result<bool, StoreError> {
        files::is_any_reused(&self.readers, self.now(), tenant, keys, body_hash).await.map_err(Fault::nothing_written)
    }

    async fn add_batch(&self, batch: &NewBatch) -> Result<Result<Made<Batch>, KeyReused>, StoreError> {
        self.writer.submit(batches::Add { batch: batch.clone() }).await
    }

    async fn batch(&self, tenant: &TenantId, id: &BatchId) -> Result<Option<Batch>, StoreError> {
        batches::find(&self.readers, self.now(), tenant, id).await.map_err(Fault::nothing_written)
    }

    async fn batches(
        &self,
        tenant: &TenantId,
        after: Option<BatchId>,
        limit: u32,
    ) -> Result<(Vec<Batch>, bool), StoreError> {
        batches::list(&self.readers, self.now(), tenant, after, limit).await.map_err(Fault::nothing_written)
    }

    async fn cancel_batch(&self, tenant: &TenantId, id: &BatchId) -> Result<BatchCancel, StoreError> {
        self.writer.submit(batches::Cancel { tenant: tenant.clone(), id: *id }).await
    }

    async fn open_batches(&self, limit: u32) -> Result<Vec<Batch>, StoreError> {
        batches::open(&self.readers, self.now(), limit).await.map_err(Fault::nothing_written)
    }

    async fn begin_batch(&self, id: &BatchId, model: &str, total: u32) -> Result<bool, StoreError> {
        self.writer.submit(batches::Begin { id: *id, model: model.to_owned(), total }).await
    }

    async fn fail_batch(&self, id: &BatchId, errors: &[BatchError]) -> Result<bool, StoreError> {
        self.writer.submit(batches::Fail { id: *id, errors: errors.to_vec() }).await
    }

    async fn batch_expanded(
        &self,
        id: &BatchId,
        refused: &[RefusedLine],
        from: Cursor,
        to: Cursor,
    ) -> Result<bool, StoreError> {
        self.writer.submit(batches::Expanded { id: *id, refused: refused.to_vec(), from, to }).await
    }

    async fn finalize_batch(&self, id: &BatchId) -> Result<bool, StoreError> {
        self.writer.submit(batches::Finalize { id: *id }).await
    }

    async fn unfinished_lines(&self, id: &BatchId, limit: u32) -> Result<Vec<JobId>, StoreError> {
        batches::unfinished_lines(&self.readers, id, limit).await.map_err(Fault::nothing_written)
    }

    async fn lines(&self, id: &BatchId, from: u32, limit: u32) -> Result<Vec<Line>, StoreError> {
        batches::lines(&self.readers, self.now(), id, from, limit).await.map_err(Fault::nothing_written)
    }

    async fn ended_lines(
        &self,
        id: &BatchId,
        after: Option<LineId>,
        limit: u32,
    ) -> Result<Option<(Vec<Line>, bool)>, StoreError> {
        batches::ended_lines(&self.readers, self.now(), id, after, limit).await.map_err(Fault::nothing_written)
    }

    async fn lines_with_result(&self, id: &BatchId) -> Result<Vec<u32>, StoreError> {
        batches::lines_with_result(&self.readers, id).await.map_err(Fault::nothing_written)
    }

    async fn batch_lines(&self, id: &BatchId) -> Result<Option<LineSet>, StoreError> {
        batches::only_lines(&self.readers, id).await.map_err(Fault::nothing_written)
    }

    async fn batch_progress(&self, tenant: &TenantId, id: &BatchId) -> Result<Option<BatchProgress>, StoreError> {
        batches::progress(&self.readers, self.now(), tenant, id).await.map_err(Fault::nothing_written)
    }

    async fn add_webhook(&self, webhook: &NewWebhook) -> Result<Result<Made<Webhook>, WebhookRefused>, StoreError> {
        self.writer.submit(webhooks::Add { webhook: webhook.clone() }).await
    }

    async fn webhook(&self, tenant: &TenantId, id: &WebhookId) -> Result<Option<Webhook>, StoreError> {
        webhooks::find(&self.readers, self.now(), tenant, id).await.map_err(Fault::nothing_written)
    }

    async fn webhooks(&self, tenant: &TenantId) -> Result<Vec<Webhook>, StoreError> {
        webhooks::list(&self.readers, self.now(), tenant).await.map_err(Fault::nothing_written)
    }

    async fn change_webhook(
        &self,
        tenant: &TenantId,
        id: &WebhookId,
        change: &WebhookChange,
    ) -> Result<Option<Webhook>, StoreError> {
        self.writer.submit(webhooks::Change { tenant: tenant.clone(), id: *id, change: change.clone() }).await
    }

    async fn delete_webhook(&self, tenant: &TenantId, id: &WebhookId) -> Result<bool, StoreError> {
        self.writer.submit(webhooks::Delete { tenant: tenant.clone(), id: *id }).await
    }

    async fn deliveries(
        &self,
        tenant: &TenantId,
        filter: &DeliveryFilter,
    ) -> Result<(Vec<WebhookDelivery>, bool), StoreError> {
        webhooks::deliveries(&self.readers, self.now(), tenant, filter).await.map_err(Fault::nothing_written)
    }

    async fn delivery(
        &self,
        tenant: &TenantId,
        id: &DeliveryId,
    ) -> Result<Option<(WebhookDelivery, Vec<DeliveryAttempt>)>, StoreError> {
        webhooks::find_delivery(&self.readers, self.now(), tenant, id).await.map_err(Fault::nothing_written)
    }

    async fn redeliver(&self, tenant: &TenantId, id: &DeliveryId) -> Result<Option<WebhookDelivery>, StoreError> {
        self.writer.submit(webhooks::Redeliver { tenant: tenant.clone(), id: *id }).await
    }

    async fn due_deliveries(
        &self,
        busy: &[String],
        each: u32,
        limit: u32,
        hold: Duration,
    ) -> Result<Vec<DueDelivery>, StoreError> {
        self.writer.submit(webhooks::Due { busy: busy.to_vec(), each, limit, hold }).await
    }

    async fn batches_to_tell(&self, every: Duration, limit: u32) -> Result<Vec<Batch>, StoreError> {
        progress::to_tell(&self.readers, self.now(), every, limit).await.map_err(Fault::nothing_written)
    }

    async fn tell_progress(&self, id: &BatchId, done: u64, data: &Value) -> Result<bool, StoreError> {
        self.writer.submit(progress::Tell { id: *id, done, data: data.clone() }).await
    }

    async fn end_attempt(&self, id: &DeliveryId, end: &AttemptEnd) -> Result<(), StoreError> {
        self.writer.submit(webhooks::EndAttempt { id: *id, end: end.clone() }).await
    }

    async fn forget_deliveries(&self, older: Duration, limit: u32) -> Result<u64, StoreError> {
        self.writer.submit(webhooks::Forget { older, limit }).await
    }

    async fn end_batch(&self, id: &BatchId, end: &BatchEnd) -> Result<Option<Batch>, StoreError> {
        self.writer.submit(batches::End { id: *id, end: end.clone() }).await
    }
}

/// A span in milliseconds, at most a hundred years.
fn millis(span: Duration) -> i64 {
    const CENTURY_MS: u128 = 100 * 365 * 24 * 3_600 * 1_000;
    i64::try_from(span.as_millis().min(CENTURY_MS)).unwrap_or(i64::MAX)
}

fn system_millis() -> i64 {
    // A clock before 1970 is a clock that is not set: time stands still at the epoch.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
