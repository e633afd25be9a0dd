//! From URLs to adapters: the one place that knows which adapter serves which scheme.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::{Bus, JobStore, Queue, StoreError};
use object_store::ObjectStore;

use crate::objects::{ObjectsError, local_objects};
use crate::sqlite::{SqliteOpenError, SqliteStore};
use crate::{InProcessBus, InProcessQueue};

/// Where the four backends are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendUrls {
    /// `sqlite:///absolute/path/jobs.db`, the path as it is (no percent escapes). Its folder is the data folder.
    pub store: String,
    /// `memory:`.
    pub queue: String,
    /// Most wake-ups that wait in one queue.
    pub queue_limit: usize,
    /// `memory:`.
    pub bus: String,
    /// `file:///absolute/folder`, the path as it is.
    pub objects: String,
}

/// The open backends.
pub struct Backends {
    /// The truth about jobs.
    pub store: Arc<dyn JobStore>,
    /// Wake-ups.
    pub queue: Arc<dyn Queue>,
    /// Tokens while they come, and signals.
    pub bus: Arc<dyn Bus>,
    /// Large things.
    pub objects: Arc<dyn ObjectStore>,
    /// Keeps other processes out of the data folder for as long as this value lives.
    lock: File,
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backends").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// The backends could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A URL whose scheme this build has no adapter for.
    #[error("{setting} `{scheme}:` is not supported yet in this build; use `{instead}`")]
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
    /// The database cannot be opened.
    #[error(transparent)]
    Store(#[from] SqliteOpenError),
    /// The leases of the last run could not be ended.
    #[error("the jobs that ran when the last process ended could not be queued again")]
    Leases(#[source] StoreError),
    /// The object folder cannot be used.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
}

const STORE: &str = "sqlite:///absolute/path/jobs.db";
const MEMORY: &str = "memory:";
const OBJECTS: &str = "file:///absolute/folder";

/// Opens the backends: makes and locks the data folder, opens the rest, and ends the leases that a process which is
/// gone has left. Call it on a tokio runtime, on which the store's writer then runs.
///
/// # Errors
/// [`OpenError`]; nothing stays locked then.
pub async fn open(urls: &BackendUrls) -> Result<Backends, OpenError> {
    let database = local_path("store", &urls.store, "sqlite", STORE)?;
    let objects = local_path("objects", &urls.objects, "file", OBJECTS)?;
    memory("queue", &urls.queue)?;
    memory("bus", &urls.bus)?;
    let folder = database.parent().ok_or(OpenError::Path { setting: "store", instead: STORE })?;
    let lock = lock_folder(folder)?;
    let objects = local_objects(objects)?;
    let store = SqliteStore::open(database).await?;
    let reaped = store.end_leases().await.map_err(OpenError::Leases)?;
    if !reaped.requeued.is_empty() || !reaped.ended.is_empty() {
        tracing::info!(
            requeued = reaped.requeued.len(),
            ended = reaped.ended.len(),
            "took over the jobs of the process before"
        );
    }
    Ok(Backends {
        store: Arc::new(store),
        queue: Arc::new(InProcessQueue::new(urls.queue_limit)),
        bus: Arc::new(InProcessBus::default()),
        objects: Arc::new(objects),
        lock,
    })
}

/// The scheme of a URL: what stands before the first colon.
fn scheme(url: &str) -> &str {
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

fn memory(setting: &'static str, url: &str) -> Result<(), OpenError> {
    if url == MEMORY {
        return Ok(());
    }
    Err(OpenError::Unsupported { setting, scheme: scheme(url).to_owned(), instead: MEMORY })
}

fn lock_folder(folder: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Folder { folder: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let path = folder.join("penstock.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { folder: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
