//! Jobs in Postgres: the store of many processes.
//!
//! Every process writes in groups (`group.rs`), one task for each kind of write, so that a group costs a few statements
//! however many jobs it has. Accepting, and whatever takes a job out of its state, is on the disk before anybody is
//! answered. Leases, renewals and wake-ups are not waited for: the fence `(job, attempt)` makes their loss harmless.
//! The clock is the database's, at the begin of each transaction.
//!
//! # The order of locks
//! 1. sequences (advisory locks, by hash), only of jobs that have a sequence key, and with them what blocks them;
//! 2. rows of jobs that exist, by id;
//! 3. counters, by name;
//! 4. new rows: jobs, then idempotency keys by tenant and key. Successors of sequences come last too; nobody else writes
//!    a held job without the lock of its sequence.
//!
//! Accepting skips 2. On its short way it writes new rows before it takes the counters; nobody waits for a row that is
//! not committed, except who accepts the same id at the same time. Should that ever close a circle, Postgres rolls one
//! transaction back, and it is tried again.

mod accept;
mod archive;
mod audit;
mod batches;
mod change;
mod db;
mod due;
mod emptying;
mod fault;
mod files;
mod finish;
mod group;
mod keys;
mod lease;
mod ledger;
mod migrate;
mod progress;
mod read;
mod reap;
mod row;
mod schedules;
mod sequences;
mod tenants;
mod webhooks;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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
use sqlx::ConnectOptions;
use uuid::Uuid;

pub use self::db::{SESSION_SETTINGS, log_bytes};
pub use self::migrate::{PostgresMigrateError, migrate};

use self::accept::{Accept, NearlyFull};
use self::db::{Db, Tx, answer};
use self::fault::Fault;
use self::finish::{Cancel, Endings, Finish, HandBack, Retry};
use self::group::Group;
use self::lease::{Leases, Renewals};

/// How long a wake-up may be on its way before the row is due again.
const MESSAGE_LIFE_MS: i64 = 60_000;
/// How long an idempotency key is kept.
const KEY_LIFE_MS: i64 = 24 * 3_600 * 1_000;
/// Longest wait for the first session.
const CONNECT: Duration = Duration::from_secs(5);

/// Where times come from.
#[derive(Clone)]
pub enum PostgresClock {
    /// The database: the only clock that several processes share.
    Database,
    /// This function, in milliseconds since the Unix epoch, read once per statement: for tests, which move it.
    Given(Arc<dyn Fn() -> i64 + Send + Sync>),
}

/// How to connect a [`PostgresStore`].
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database`, with the driver's parameters (`sslmode` and so on).
    pub url: String,
    /// Most sessions of this process; at least 1. Writes use up to 5 at a time, reads the rest.
    pub max_connections: u32,
    /// Where times come from.
    pub clock: PostgresClock,
}

impl PostgresOptions {
    /// This database, up to 10 sessions, the database's clock.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), max_connections: 10, clock: PostgresClock::Database }
    }
}

/// The database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PostgresOpenError {
    /// The URL is none of a Postgres database. It may hold a password and is not shown.
    #[error("the URL of the job store is not valid; use postgres://user:password@host:port/database")]
    Url(#[source] sqlx::Error),
    /// The server refuses, or cannot be reached.
    #[error(
        "the job database of store.url cannot be opened; is the server up, and are host, port, user, password and \
         database right?"
    )]
    Connect(#[source] sqlx::Error),
    /// The server did not answer.
    #[error("the job database of store.url did not answer within 5 s")]
    Slow,
    /// Its tables are missing or old.
    #[error("the job database lacks {missing} of this build's migrations; run `penstock migrate`")]
    NotMigrated {
        /// How many.
        missing: usize,
    },
    /// A newer build has changed the tables.
    #[error("the job database was migrated by a newer build (version {version}); use that build")]
    Newer {
        /// A version that this build does not know.
        version: i64,
    },
}

/// The [`JobStore`] in a Postgres database.
pub struct PostgresStore {
    db: Db,
    nearly_full: NearlyFull,
    accepts: Group<Accept>,
    leases: Group<Leases>,
    renewals: Group<Renewals>,
    finishes: Group<Endings<Finish>>,
    retries: Group<Endings<Retry>>,
    hand_backs: Group<Endings<HandBack>>,
    cancels: Group<Endings<Cancel>>,
}

impl PostgresStore {
    /// Connects with the usual options. See [`PostgresStore::connect_with`].
    ///
    /// # Errors
    /// [`PostgresOpenError`].
    pub async fn connect(url: &str) -> Result<Self, PostgresOpenError> {
        Self::connect_with(PostgresOptions::new(url)).await
    }

    /// Connects, sees that the tables are those of this build, and starts the tasks that write on the current runtime.
    /// A task ends once the store is dropped and what was asked of it is done. Sessions that are cut later are opened
    /// anew by themselves.
    ///
    /// # Errors
    /// [`PostgresOpenError`], after 5 s at most.
    pub async fn connect_with(options: PostgresOptions) -> Result<Self, PostgresOpenError> {
        let session = db::session_options(&options.url).map_err(PostgresOpenError::Url)?;
        let first = async {
            let mut conn = session.connect().await.map_err(PostgresOpenError::Connect)?;
            migrate::check(&mut conn).await
        };
        tokio::time::timeout(CONNECT, first).await.map_err(|_| PostgresOpenError::Slow)??;
        let db = Db::new(session, options.max_connections.max(1), options.clock);
        let nearly_full = NearlyFull::default();
        Ok(Self {
            accepts: Group::start(Accept::new(db.clone(), nearly_full.clone())),
            nearly_full,
            leases: Group::start(Leases(db.clone())),
            renewals: Group::start(Renewals(db.clone())),
            finishes: Group::start(Endings::new(db.clone())),
            retries: Group::start(Endings::new(db.clone())),
            hand_backs: Group::start(Endings::new(db.clone())),
            cancels: Group::start(Endings::new(db.clone())),
            db,
        })
    }

    /// Closes the sessions once what is under way is done; afterwards every call fails as [`StoreError::Unreachable`].
    /// Dropping the store does the same later.
    pub async fn close(&self) {
        self.db.close().await;
    }
}

#[async_trait]
impl JobStore for PostgresStore {
    async fn accept(&self, jobs: &[NewJob]) -> Result<Vec<Result<Accepted, Refused>>, StoreError> {
        if let Some(refusals) = self.nearly_full.refusals(&self.db, jobs).await? {
            return Ok(refusals);
        }
        self.accepts.ask(jobs.to_vec()).await
    }

    async fn accept_all(&self, jobs: &[NewJob]) -> Result<Result<Vec<Accepted>, (usize, Refused)>, StoreError> {
        self.db.transact(&accept::AcceptAll { jobs }).await
    }

    async fn due(&self, queue: &QueueId, limit: u32) -> Result<Vec<Wake>, StoreError> {
        due::take_due(&self.db, queue, limit).await
    }

    async fn wake_now(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        let mut jobs: Vec<Uuid> = jobs.iter().map(|job| job.0).collect();
        jobs.sort_unstable();
        self.db.once(&due::WakeNow { jobs }).await
    }

    async fn queued(&self, queue: &QueueId) -> Result<u64, StoreError> {
        self.db.read(&read::Queued { queue }).await
    }

    async fn queues(&self) -> Result<Vec<QueueId>, StoreError> {
        self.db.read(&read::Queues).await
    }

    async fn lease(&self, wakes: &[Wake], worker: &WorkerId, ttl: Duration) -> Result<Vec<Option<Leased>>, StoreError> {
        self.leases.ask(lease::TakeLeases { wakes: wakes.to_vec(), worker: worker.clone(), ttl }).await
    }

    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        self.renewals.ask(lease::Renew { leases: leases.to_vec(), ttl }).await
    }

    async fn finish(&self, finished: &[(Lease, Outcome)]) -> Result<Vec<Result<(), LeaseLost>>, StoreError> {
        self.finishes.ask(Finish(finished.to_vec())).await
    }

    async fn retry(&self, lease: &Lease, error: &JobError) -> Result<Result<JobState, LeaseLost>, StoreError> {
        self.retries.ask(Retry { lease: *lease, error: error.clone() }).await
    }

    async fn hand_back(&self, leases: &[Lease], delay: Duration) -> Result<(), StoreError> {
        self.hand_backs.ask(HandBack { leases: leases.to_vec(), delay }).await
    }

    async fn cancel(&self, tenant: &TenantId, job: &JobId) -> Result<CancelAnswer, StoreError> {
        self.cancels.ask(Cancel { tenant: tenant.clone(), job: *job }).await
    }

    async fn reap(&self, limit: u32) -> Result<Reaped, StoreError> {
        let reaped = self.db.transact(&reap::Reap { limit }).await?;
        if let Err(err) = self.db.once(&reap::PurgeKeys).await {
            // What was reaped is told all the same: the next call tries again.
            tracing::warn!(error = %err, "old idempotency keys could not be forgotten");
        }
        Ok(reaped)
    }

    async fn usage(&self, lease: &Lease, usage: Usage) -> Result<(), StoreError> {
        self.db.once(&finish::BookUsage { lease: *lease, usage }).await
    }

    async fn get(&self, tenant: &TenantId, job: &JobId) -> Result<Option<Job>, StoreError> {
        self.db.read(&read::Get { tenant, job }).await
    }

    async fn list(&self, tenant: &TenantId, filter: &Filter) -> Result<Page, StoreError> {
        self.db.read(&read::List { tenant, filter }).await
    }

    async fn blocked_sequences(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: u32,
    ) -> Result<(Vec<Sequence>, bool), StoreError> {
        self.db.read(&sequences::Blocked { tenant, after, limit }).await
    }

    async fn sequence(&self, tenant: &TenantId, key: &str) -> Result<Option<Sequence>, StoreError> {
        self.db.read(&sequences::Get { tenant, key }).await
    }

    async fn resume_sequence(&self, tenant: &TenantId, key: &str) -> Result<Option<Resumed>, StoreError> {
        self.db.transact(&sequences::Resume { tenant, key }).await
    }

    async fn lead(&self, name: &str, holder: &WorkerId, ttl: Duration) -> Result<bool, StoreError> {
        self.db.once(&archive::TakeLead { name, holder, ttl }).await
    }

    async fn unarchived(&self, limit: u32) -> Result<Vec<Unarchived>, StoreError> {
        self.db.read(&read::ListUnarchived { limit }).await
    }

    async fn archived(&self, places: &[(JobId, SegmentPlace)]) -> Result<Vec<bool>, StoreError> {
        self.db.once(&archive::Archived { places }).await
    }

    async fn offer(&self, model: &ServedModel) -> Result<(), StoreError> {
        self.db.once(&archive::Offer { model }).await
    }

    async fn offered(&self) -> Result<Vec<ServedModel>, StoreError> {
        self.db.read(&read::Offered).await
    }
}

#[async_trait]
impl AdminStore for PostgresStore {
    async fn add_key(&self, key: &NewKey) -> Result<Key, StoreError> {
        self.db.once(&keys::Add { key }).await
    }

    async fn find_key(&self, prefix: &str) -> Result<Option<FoundKey>, StoreError> {
        self.db.read(&keys::Find { prefix }).await
    }

    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<Key>, StoreError> {
        self.db.read(&keys::List { tenant }).await
    }

    async fn revoke_key(&self, id: &KeyId) -> Result<Option<Key>, StoreError> {
        self.db.once(&keys::Revoke { id }).await
    }

    async fn has_keys(&self) -> Result<bool, StoreError> {
        self.db.read(&keys::HasAny).await
    }

    async fn tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>, StoreError> {
        self.db.read(&tenants::Get { tenant }).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.db.read(&tenants::List).await
    }

    async fn set_tenant(&self, tenant: &TenantId, change: &TenantChange) -> Result<Tenant, StoreError> {
        self.db.once(&tenants::Set { tenant, change }).await
    }

    async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        self.db.once(&tenants::Delete { tenant }).await
    }

    async fn unfinished_jobs(&self, tenant: &TenantId) -> Result<u64, StoreError> {
        self.db.read(&tenants::Unfinished { tenant }).await
    }

    async fn usage_lines(&self, filter: &UsageFilter) -> Result<Vec<UsageLine>, StoreError> {
        self.db.read(&ledger::Lines { filter }).await
    }

    async fn fold_usage(&self, limit: u32) -> Result<u64, StoreError> {
        self.db.once(&ledger::Fold { limit }).await
    }

    async fn forget_shares(&self, limit: u32) -> Result<u64, StoreError> {
        self.db.once(&due::ForgetShares { limit }).await
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Audit, StoreError> {
        self.db.transact(&audit::Run { filter }).await
    }

    async fn add_file(&self, file: &NewFile) -> Result<Result<Made<StoredFile>, KeyReused>, StoreError> {
        self.db.transact(&files::Add { file }).await
    }

    async fn file(&self, tenant: &TenantId, id: &FileId) -> Result<Option<StoredFile>, StoreError> {
        self.db.read(&files::Get { tenant, id }).await
    }

    async fn files(&self, tenant: &TenantId, filter: &FileFilter) -> Result<(Vec<StoredFile>, bool), StoreError> {
        self.db.read(&files::List { tenant, filter }).await
    }

    async fn delete_file(&self, tenant: &TenantId, id: &FileId) -> Result<FileDeletion, StoreError> {
        self.db.once(&files::Delete { tenant, id }).await
    }

    async fn expired_files(&self, limit: u32) -> Result<Vec<FileId>, StoreError> {
        self.db.read(&files::Expired { limit }).await
    }

    async fn files_emptied(&self, ids: &[FileId]) -> Result<(), StoreError> {
        self.db.once(&files::Emptied { ids }).await
    }

    async fn expired_jobs(&self, limit: u32) -> Result<Vec<ExpiredJob>, StoreError> {
        self.db.read(&emptying::Expired { limit }).await
    }

    async fn empty_jobs(&self, jobs: &[JobId]) -> Result<u64, StoreError> {
        self.db.transact(&emptying::Empty { jobs }).await
    }

    async fn unkept_segments(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        self.db.read(&emptying::Unkept { limit }).await
    }

    async fn forget_segments(&self, keys: &[String]) -> Result<(), StoreError> {
        self.db.once(&emptying::Forget { keys }).await
    }

    async fn made_before(
        &self,
        tenant: &TenantId,
        key: &IdempotencyKey,
    ) -> Result<Result<Option<Uuid>, KeyReused>, StoreError> {
        self.db.read(&files::MadeBefore { tenant, key }).await
    }

    async fn is_any_reused(
        &self,
        tenant: &TenantId,
        keys: &[String],
        body_hash: &[u8; 32],
    ) -> Result<bool, StoreError> {
        self.db.read(&files::AnyReused { tenant, keys, body_hash }).await
    }

    async fn add_batch(&self, batch: &NewBatch) -> Result<Result<Made<Batch>, KeyReused>, StoreError> {
        self.db.transact(&batches::Add { batch }).await
    }

    async fn batch(&self, tenant: &TenantId, id: &BatchId) -> Result<Option<Batch>, StoreError> {
        self.db.read(&batches::Get { tenant, id }).await
    }

    async fn batches(
        &self,
        tenant: &TenantId,
        after: Option<BatchId>,
        limit: u32,
    ) -> Result<(Vec<Batch>, bool), StoreError> {
        self.db.read(&batches::List { tenant, after, limit }).await
    }

    async fn cancel_batch(&self, tenant: &TenantId, id: &BatchId) -> Result<BatchCancel, StoreError> {
        self.db.transact(&batches::Cancel { tenant, id }).await
    }

    async fn open_batches(&self, limit: u32) -> Result<Vec<Batch>, StoreError> {
        self.db.read(&batches::Open { limit }).await
    }

    async fn begin_batch(&self, id: &BatchId, model: &str, total: u32) -> Result<bool, StoreError> {
        self.db.once(&batches::Begin { id, model, total }).await
    }

    async fn fail_batch(&self, id: &BatchId, errors: &[BatchError]) -> Result<bool, StoreError> {
        self.db.once(&batches::Fail { id, errors }).await
    }

    async fn batch_expanded(
        &self,
        id: &BatchId,
        refused: &[RefusedLine],
        from: Cursor,
        to: Cursor,
    ) -> Result<bool, StoreError> {
        self.db.transact(&batches::Expanded { id, refused, from, to }).await
    }

    async fn finalize_batch(&self, id: &BatchId) -> Result<bool, StoreError> {
        self.db.once(&batches::Finalize { id }).await
    }

    async fn unfinished_lines(&self, id: &BatchId, limit: u32) -> Result<Vec<JobId>, StoreError> {
        self.db.read(&batches::UnfinishedLines { id, limit }).await
    }

    async fn lines(&self, id: &BatchId, from: u32, limit: u32) -> Result<Vec<Line>, StoreError> {
        self.db.read(&batches::Lines { id, from, limit }).await
    }

    async fn ended_lines(
        &self,
        id: &BatchId,
        after: Option<LineId>,
        limit: u32,
    ) -> Result<Option<(Vec<Line>, bool)>, StoreError> {
        self.db.read(&batches::EndedLines { id, after, limit }).await
    }

    async fn lines_with_result(&self, id: &BatchId) -> Result<Vec<u32>, StoreError> {
        self.db.read(&batches::LinesWithResult { id }).await
    }

    async fn batch_lines(&self, id: &BatchId) -> Result<Option<LineSet>, StoreError> {
        self.db.read(&batches::OnlyLines { id }).await
    }

    async fn batch_progress(&self, tenant: &TenantId, id: &BatchId) -> Result<Option<BatchProgress>, StoreError> {
        self.db.read(&batches::Progress { tenant, id }).await
    }

    async fn add_webhook(&self, webhook: &NewWebhook) -> Result<Result<Made<Webhook>, WebhookRefused>, StoreError> {
        self.db.transact(&webhooks::Add { webhook }).await
    }

    async fn webhook(&self, tenant: &TenantId, id: &WebhookId) -> Result<Option<Webhook>, StoreError> {
        self.db.read(&webhooks::Get { tenant, id }).await
    }

    async fn webhooks(&self, tenant: &TenantId) -> Result<Vec<Webhook>, StoreError> {
        self.db.read(&webhooks::List { tenant }).await
    }

    async fn change_webhook(
        &self,
        tenant: &TenantId,
        id: &WebhookId,
        change: &WebhookChange,
    ) -> Result<Option<Webhook>, StoreError> {
        self.db.transact(&webhooks::Change { tenant, id, change }).await
    }

    async fn delete_webhook(&self, tenant: &TenantId, id: &WebhookId) -> Result<bool, StoreError> {
        self.db.transact(&webhooks::Delete { tenant, id }).await
    }

    async fn deliveries(
        &self,
        tenant: &TenantId,
        filter: &DeliveryFilter,
    ) -> Result<(Vec<WebhookDelivery>, bool), StoreError> {
        self.db.read(&webhooks::Deliveries { tenant, filter }).await
    }

    async fn delivery(
        &self,
        tenant: &TenantId,
        id: &DeliveryId,
    ) -> Result<Option<(WebhookDelivery, Vec<DeliveryAttempt>)>, StoreError> {
        self.db.read(&webhooks::Delivery { tenant, id }).await
    }

    async fn redeliver(&self, tenant: &TenantId, id: &DeliveryId) -> Result<Option<WebhookDelivery>, StoreError> {
        self.db.once(&webhooks::Redeliver { tenant, id }).await
    }

    async fn due_deliveries(
        &self,
        busy: &[String],
        each: u32,
        limit: u32,
        hold: Duration,
    ) -> Result<Vec<DueDelivery>, StoreError> {
        self.db.once(&webhooks::Due { busy, each, limit, hold }).await
    }

    async fn batches_to_tell(&self, every: Duration, limit: u32) -> Result<Vec<Batch>, StoreError> {
        self.db.read(&progress::ToTell { every, limit }).await
    }

    async fn tell_progress(&self, id: &BatchId, done: u64, data: &Value) -> Result<bool, StoreError> {
        self.db.transact(&progress::Tell { id, done, data }).await
    }

    async fn end_attempt(&self, id: &DeliveryId, end: &AttemptEnd) -> Result<(), StoreError> {
        self.db.transact(&webhooks::EndAttempt { id, end }).await
    }

    async fn forget_deliveries(&self, older: Duration, limit: u32) -> Result<u64, StoreError> {
        self.db.once(&webhooks::Forget { older, limit }).await
    }

    async fn end_batch(&self, id: &BatchId, end: &BatchEnd) -> Result<Option<Batch>, StoreError> {
        self.db.transact(&batches::End { id, end }).await
    }
}

/// Keeps everybody else from accepting and ending jobs of these sequences (tenant and key) until the transaction's end.
async fn lock_sequences(tx: &mut Tx<'_>, sequences: &BTreeSet<(String, String)>) -> Result<(), Fault> {
    if sequences.is_empty() {
        return Ok(());
    }
    let (tenants, keys): (Vec<&str>, Vec<&str>) =
        sequences.iter().map(|(tenant, key)| (tenant.as_str(), key.as_str())).unzip();
    let query = sqlx::query(include_str!("sql/lock_sequences.sql")).bind(tenants).bind(keys);
    answer(query.fetch_all(&mut *tx.conn)).await.map(|_| ())
}

/// A span in milliseconds, at most a hundred years.
fn millis(span: Duration) -> i64 {
    const CENTURY_MS: u128 = 100 * 365 * 24 * 3_600 * 1_000;
    i64::try_from(span.as_millis().min(CENTURY_MS)).unwrap_or(i64::MAX)
}
