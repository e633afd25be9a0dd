//! Jobs in one SQLite file: the store of embedded mode.
//!
//! One task writes, in grouped transactions that are synced before anybody is answered; a few connections read beside
//! it. The clock is the process's, read once per transaction.

mod accept;
mod archive;
mod change;
mod due;
mod fault;
mod finish;
mod keys;
mod lead;
mod lease;
mod read;
mod reap;
mod row;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use contract::{
    Accepted, AdminStore, CancelAnswer, Filter, FoundKey, Job, JobError, JobId, JobState, JobStore, Key, KeyId, Lease,
    LeaseLost, Leased, NewJob, NewKey, Outcome, Page, QueueId, Reaped, Refused, SegmentPlace, ServedModel, StoreError,
    TenantId, Unarchived, Usage, Wake, WorkerId,
};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, SqlitePool};

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
