//! From URLs to adapters: the one place that knows which adapter serves which scheme.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::{AdminStore, Bus, JobStore, Queue, StoreError};
use object_store::ObjectStore;

use crate::objects::{ObjectsError, local_objects, look, s3_objects};
use crate::postgres::{self, PostgresMigrateError, PostgresOpenError, PostgresOptions, PostgresStore};
use crate::rabbitmq::{RabbitOpenError, RabbitOptions, RabbitQueue};
use crate::redis_bus::{RedisBus, RedisOpenError, RedisOptions};
use crate::sqlite::{SqliteOpenError, SqliteStore};
use crate::{InProcessBus, InProcessQueue};

/// Where the four backends are.
#[derive(Clone, PartialEq, Eq)]
pub struct BackendUrls {
    /// `postgres://user:password@host/database`, or `sqlite:///absolute/path/jobs.db`, the path as it is (no percent
    /// escapes), whose folder is the data folder.
    pub store: String,
    /// `amqp://user:password@host/vhost` (`amqps:` with TLS), or `memory:`.
    pub queue: String,
    /// Most wake-ups that wait in one queue.
    pub queue_limit: usize,
    /// What the names of the broker's queues begin with.
    pub queue_prefix: String,
    /// `redis://…` (`rediss:` with TLS), or `memory:`.
    pub bus: String,
    /// What the names of the bus's keys and channels begin with.
    pub bus_prefix: String,
    /// `s3://bucket/prefix`, with the usual `AWS_…` variables, or `file:///absolute/folder`, the path as it is.
    pub objects: String,
}

impl std::fmt::Debug for BackendUrls {
    /// Schemes only: the rest may hold passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { store, queue, queue_limit, queue_prefix, bus, bus_prefix, objects } = self;
        f.debug_struct("BackendUrls")
            .field("store", &scheme(store))
            .field("queue", &scheme(queue))
            .field("queue_limit", queue_limit)
            .field("queue_prefix", queue_prefix)
            .field("bus", &scheme(bus))
            .field("bus_prefix", bus_prefix)
            .field("objects", &scheme(objects))
            .finish()
    }
}

impl BackendUrls {
    /// The first backend that only one process can use, as `setting (scheme:)`.
    pub fn only_of_one_process(&self) -> Option<String> {
        let alone = [
            ("store.url", &self.store, "sqlite"),
            ("queue.url", &self.queue, "memory"),
            ("bus.url", &self.bus, "memory"),
        ];
        alone
            .into_iter()
            .find(|(_, url, alone)| scheme(url) == *alone)
            .map(|(setting, _, alone)| format!("{setting} ({alone}:)"))
    }
}

/// The open backends.
pub struct Backends {
    /// The truth about jobs.
    pub store: Arc<dyn JobStore>,
    /// What the installation is run with: keys. The same place as the store.
    pub admin: Arc<dyn AdminStore>,
    /// Wake-ups.
    pub queue: Arc<dyn Queue>,
    /// Tokens while they come, and signals.
    pub bus: Arc<dyn Bus>,
    /// Large things.
    pub objects: Arc<dyn ObjectStore>,
    /// Keeps other processes out of the data folder for as long as this value lives; there is one with SQLite.
    lock: Option<File>,
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backends").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// Further connections of the same process.
#[derive(Default)]
pub struct Again {
    /// The store, unless it is in this process.
    pub store: Option<Arc<dyn JobStore>>,
    /// The bus, unless it is in this process.
    pub bus: Option<Arc<dyn Bus>>,
}

/// The backends could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A URL whose scheme no adapter serves.
    #[error("{setting}.url cannot be `{scheme}:`; use {instead}")]
    Unsupported {
        /// Which setting: `store`, `queue`, `bus` or `objects`.
        setting: &'static str,
        /// The URL's scheme; the rest may hold a password.
        scheme: String,
        /// What works.
        instead: &'static str,
    },
    /// A URL that names no absolute path.
    #[error("{setting} needs an absolute path, as in `{instead}`")]
    Path {
        /// Which setting.
        setting: &'static str,
        /// What works.
        instead: &'static str,
    },
    /// Another process has the data folder.
    #[error(
        "the data folder {} is in use by another penstock process; stop that one or wait for it, or choose another place",
        .folder.display()
    )]
    Locked {
        /// Which folder.
        folder: PathBuf,
    },
    /// The data folder cannot be made or its lock file cannot be used.
    #[error("the data folder {} cannot be used", .folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The SQLite database cannot be opened.
    #[error(transparent)]
    Sqlite(#[from] SqliteOpenError),
    /// The Postgres database cannot be opened.
    #[error(transparent)]
    Postgres(#[from] PostgresOpenError),
    /// The tables in Postgres cannot be brought up to date.
    #[error(transparent)]
    Migrate(#[from] PostgresMigrateError),
    /// The broker cannot be used as asked.
    #[error(transparent)]
    Rabbit(#[from] RabbitOpenError),
    /// Redis cannot be used as asked.
    #[error(transparent)]
    Redis(#[from] RedisOpenError),
    /// The leases of the last run could not be ended.
    #[error("the jobs that ran when the last process ended could not be queued again")]
    Leases(#[source] StoreError),
    /// The object folder cannot be used.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
}

const STORE: &str = "postgres://user:password@host/database or sqlite:///absolute/path/jobs.db";
const QUEUE: &str = "amqp://user:password@host/vhost or memory:";
const BUS: &str = "redis://user:password@host or memory:";
const OBJECTS: &str = "s3://bucket/prefix or file:///absolute/folder";
const MEMORY: &str = "memory:";

/// Opens the backends. With SQLite: makes and locks the data folder, and ends the leases that a process which is gone
/// has left. Call it on the tokio runtime on which the adapters' tasks then run.
///
/// # Errors
/// [`OpenError`]; nothing stays locked then.
pub async fn open(urls: &BackendUrls) -> Result<Backends, OpenError> {
    let objects = open_objects(&urls.objects)?;
    if scheme(&urls.objects) == "s3" {
        look(&*objects).await?;
    }
    let queue = open_queue(urls).await?;
    let bus = open_bus(urls).await?;
    let Stores { store, admin, lock } = open_store(&urls.store, POSTGRES_SESSIONS).await?;
    Ok(Backends { store, admin, queue, bus, objects, lock })
}

/// Opens store and bus once more, with connections of their own on the runtime of the caller, where they are outside of
/// this process.
///
/// # Errors
/// [`OpenError`].
pub async fn open_again(urls: &BackendUrls) -> Result<Again, OpenError> {
    let mut again = Again::default();
    if scheme(&urls.store) != "sqlite" {
        again.store = Some(open_store(&urls.store, 1).await?.store);
    }
    if urls.bus != MEMORY {
        again.bus = Some(open_bus(urls).await?);
    }
    Ok(again)
}

/// Most sessions of one process.
const POSTGRES_SESSIONS: u32 = 10;

/// One store by both its ports.
struct Stores {
    store: Arc<dyn JobStore>,
    admin: Arc<dyn AdminStore>,
    lock: Option<File>,
}

impl Stores {
    fn of<S: JobStore + AdminStore + 'static>(store: S, lock: Option<File>) -> Self {
        let store = Arc::new(store);
        Self { store: store.clone(), admin: store, lock }
    }
}

async fn open_store(url: &str, sessions: u32) -> Result<Stores, OpenError> {
    match scheme(url) {
        "postgres" | "postgresql" => {
            let options = PostgresOptions { max_connections: sessions, ..PostgresOptions::new(url) };
            Ok(Stores::of(PostgresStore::connect_with(options).await?, None))
        }
        _ => open_sqlite(url).await,
    }
}

async fn open_sqlite(url: &str) -> Result<Stores, OpenError> {
    let database = local_path("store", url, "sqlite", STORE)?;
    let folder = database.parent().ok_or(OpenError::Path { setting: "store", instead: STORE })?;
    let lock = lock_folder(folder).await?;
    let store = SqliteStore::open(database).await?;
    let reaped = store.end_leases().await.map_err(OpenError::Leases)?;
    if !reaped.requeued.is_empty() || !reaped.ended.is_empty() {
        tracing::info!(
            requeued = reaped.requeued.len(),
            ended = reaped.ended.len(),
            "took over the jobs of the process before"
        );
    }
    Ok(Stores::of(store, Some(lock)))
}

async fn open_queue(urls: &BackendUrls) -> Result<Arc<dyn Queue>, OpenError> {
    match scheme(&urls.queue) {
        "amqp" | "amqps" => {
            let options = RabbitOptions {
                limit: urls.queue_limit as u64,
                prefix: urls.queue_prefix.clone(),
                ..RabbitOptions::new(&urls.queue)
            };
            Ok(Arc::new(RabbitQueue::connect(options).await?))
        }
        _ if urls.queue == MEMORY => Ok(Arc::new(InProcessQueue::new(urls.queue_limit))),
        other => Err(OpenError::Unsupported { setting: "queue", scheme: other.to_owned(), instead: QUEUE }),
    }
}

async fn open_bus(urls: &BackendUrls) -> Result<Arc<dyn Bus>, OpenError> {
    match scheme(&urls.bus) {
        "redis" | "rediss" => {
            let options = RedisOptions { prefix: urls.bus_prefix.clone(), ..RedisOptions::new(&urls.bus) };
            Ok(Arc::new(RedisBus::connect(options).await?))
        }
        _ if urls.bus == MEMORY => Ok(Arc::new(InProcessBus::default())),
        other => Err(OpenError::Unsupported { setting: "bus", scheme: other.to_owned(), instead: BUS }),
    }
}

fn open_objects(url: &str) -> Result<Arc<dyn ObjectStore>, OpenError> {
    if scheme(url) == "s3" {
        return Ok(s3_objects(url)?);
    }
    let folder = local_path("objects", url, "file", OBJECTS)?;
    Ok(Arc::new(local_objects(folder)?))
}

/// Opens the store alone, for what the installation is run with: keys.
///
/// # Errors
/// [`OpenError`].
pub async fn open_admin(urls: &BackendUrls) -> Result<AdminOnly, OpenError> {
    let Stores { admin, lock, .. } = open_store(&urls.store, 1).await?;
    Ok(AdminOnly { admin, _lock: lock })
}

/// What [`open_admin`] opens.
pub struct AdminOnly {
    /// The store.
    pub admin: Arc<dyn AdminStore>,
    _lock: Option<File>,
}

/// Brings the tables of the store up to date; answers how many migrations were applied.
///
/// # Errors
/// [`OpenError`].
pub async fn migrate(urls: &BackendUrls) -> Result<usize, OpenError> {
    match scheme(&urls.store) {
        "postgres" | "postgresql" => Ok(postgres::migrate(&urls.store).await?.len()),
        // Those of SQLite are brought up to date whenever it is opened.
        _ => open_sqlite(&urls.store).await.map(|_| 0),
    }
}

/// Bytes that the store has written to its log so far, where it can tell (Postgres): for benchmarks.
pub async fn log_bytes(urls: &BackendUrls) -> Option<u64> {
    match scheme(&urls.store) {
        "postgres" | "postgresql" => postgres::log_bytes(&urls.store).await.ok(),
        _ => None,
    }
}

/// The scheme of a URL: what stands before the first colon.
pub fn scheme(url: &str) -> &str {
    url.split_once(':').map_or(url, |(scheme, _)| scheme)
}

fn local_path<'u>(
    setting: &'static str,
    url: &'u str,
    expected: &str,
    instead: &'static str,
) -> Result<&'u Path, OpenError> {
    if scheme(url) != expected {
        return Err(OpenError::Unsupported { setting, scheme: scheme(url).to_owned(), instead });
    }
    let path = url.get(expected.len()..).and_then(|rest| rest.strip_prefix("://"));
    path.map(Path::new)
        .filter(|path| path.is_absolute() && path.file_name().is_some())
        .ok_or(OpenError::Path { setting, instead })
}

/// How long a process that was killed may take to be gone.
const DYING: Duration = Duration::from_secs(2);

/// Takes the folder's lock. One that was killed just now may hold it for a moment: waits for that.
async fn lock_folder(folder: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Folder { folder: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let path = folder.join("penstock.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if since.elapsed() < DYING => tokio::time::sleep(DYING / 20).await,
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}
