//! The [`contract::Bus`] on Redis: a capped stream per job, pub/sub beside it, and the workers' signs of life.
//!
//! - A job's events lie in one stream, which Redis itself keeps in order (`entry`); every entry is also published on a
//!   channel of the job, so that a token costs its reader no question.
//! - One process has two connections, however many jobs it reads (`session`). While they are gone, calls fail at
//!   once, [`Bus::tell`] drops, and readers and listeners wait: they go on by themselves. A reader for which something
//!   is missing by then ends with [`Gone`].
//! - Redis is a cache here. What it loses, a flush or a restart included, is in the store once the job has ended. The
//!   one loss that a reader cannot see is of the last tokens before the end; a reader that counts them sees it in the
//!   job's record.
//!
//! One Redis serves several installations under different prefixes. Redis Cluster is not supported.

mod entry;
mod hub;
mod reader;
mod session;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use contract::{Bus, BusError, Gone, JobEvent, JobId, Signal, WorkerInfo};
use futures::stream::{self, BoxStream, StreamExt};
use redis::{Client, Script};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::entry::{EntryId, Written};
use self::reader::Reader;
use self::session::{Away, Failure, Shared};

/// Tokens of one job that are kept at least.
const KEPT: u32 = 8192;
/// Shortest and longest time that events can be kept.
const KEEP: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(366 * 24 * 3600));
/// Entries of one pipeline. More than an engine step makes, few enough for an answer in time.
const ENTRIES: usize = 1024;
/// Signals that a slow listener may be behind, and that may wait for Redis, before some are dropped.
const SIGNALS: usize = 4096;
/// Signals of one pipeline.
const TOLD: usize = 256;

static BEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("beat.lua")));
static WORKERS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("workers.lua")));

/// How a [`RedisBus`] uses its Redis.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisOptions {
    /// `redis://[user:password@]host:port[/database]`; `rediss:` with TLS.
    pub url: String,
    /// What the names of all keys and channels begin with. Installations that share a Redis have different ones.
    pub prefix: String,
    /// How long a job's events are kept after the last one; 1 ms to a year.
    pub keep: Duration,
}

impl RedisOptions {
    /// The defaults for a URL: prefix `penstock`, events kept for 15 minutes.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), prefix: "penstock".into(), keep: Duration::from_secs(15 * 60) }
    }
}

impl std::fmt::Debug for RedisOptions {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url: _, prefix, keep } = self;
        f.debug_struct("RedisOptions").field("prefix", prefix).field("keep", keep).finish_non_exhaustive()
    }
}

/// The bus could not be opened, and waiting would not help.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// The URL is none of Redis.
    #[error("the url of the bus is not a redis url, as in `redis://user:password@host:6379`")]
    Url(#[source] redis::RedisError),
    /// Redis is there and refuses this user.
    #[error("redis refuses the user or password in the url of the bus")]
    Credentials(#[source] redis::RedisError),
}

/// A [`Bus`] that many processes share.
pub struct RedisBus {
    inner: Arc<Inner>,
}

/// What the bus and its streams share. The tasks end with the last of them.
struct Inner {
    shared: Arc<Shared>,
    prefix: String,
    keep: Duration,
    told: mpsc::Sender<Signal>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl std::fmt::Debug for RedisBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { prefix, keep, .. } = &*self.inner;
        f.debug_struct("RedisBus").field("prefix", prefix).field("keep", keep).finish_non_exhaustive()
    }
}

impl RedisBus {
    /// Opens the bus; waits at most a second for Redis. One that is away now is no error: the bus works as soon as it is
    /// there. Call it on the tokio runtime on which the connections then live; the bus can be used from others too.
    ///
    /// # Errors
    /// [`RedisOpenError`].
    pub async fn connect(options: RedisOptions) -> Result<Self, RedisOpenError> {
        let RedisOptions { url, prefix, keep } = options;
        let client = Client::open(url).map_err(RedisOpenError::Url)?;
        let shared = Arc::new(Shared::new(format!("{prefix}:signals"), SIGNALS));
        let (told, to_tell) = mpsc::channel(SIGNALS);
        let tasks =
            [tokio::spawn(session::supervise(shared.clone(), client)), tokio::spawn(tell_all(shared.clone(), to_tell))];
        let inner = Inner { shared, prefix, keep: keep.clamp(KEEP.0, KEEP.1), told, tasks };
        match inner.shared.first_attempt().await {
            Err(Away::Failed(error)) if is_about_credentials(&error) => {
                Err(RedisOpenError::Credentials(error.as_ref().clone()))
            }
            // Told in the log already, if need be.
            Ok(()) | Err(_) => Ok(Self { inner: Arc::new(inner) }),
        }
    }
}

fn is_about_credentials(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Publishes what is told, in order; drops it while Redis is away. Callers of [`Bus::tell`] never wait for it.
async fn tell_all(shared: Arc<Shared>, mut to_tell: mpsc::Receiver<Signal>) {
    let mut signals = Vec::with_capacity(TOLD);
    while to_tell.recv_many(&mut signals, TOLD).await > 0 {
        let mut pipe = redis::pipe();
        for signal in signals.drain(..) {
            match serde_json::to_string(&signal) {
                Ok(text) => drop(pipe.publish(&shared.signal_channel, text).ignore()),
                Err(error) => tracing::error!(%error, "a signal cannot be written"),
            }
        }
        if let Err(error) = shared.run(async |redis| pipe.exec_async(redis).await).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "signals were dropped");
        }
    }
}

impl Inner {
    /// The name of a job's stream and of its channel.
    fn key(&self, job: &JobId) -> String {
        format!("{}:events:{{{}}}", self.prefix, job.0.simple())
    }

    /// Keys of the registry: when each worker's beat ends, and what it said.
    fn worker_keys(&self) -> [String; 2] {
        [format!("{}:{{workers}}:until", self.prefix), format!("{}:{{workers}}:info", self.prefix)]
    }

    /// Up to `most` entries of a stream from `start` on, that one included.
    async fn range(&self, key: &str, start: Option<EntryId>, most: usize) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let start = start.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let mut range = redis::cmd("XRANGE");
        range.arg(key).arg(start).arg("+").arg("COUNT").arg(most);
        let found: Vec<(String, (String, Vec<u8>))> =
            self.shared.run(async |redis| range.query_async(redis).await).await?;
        Ok(found.into_iter().map(|(id, (_field, payload))| (id, payload)).collect())
    }

    /// Writes and publishes entries in one round trip.
    async fn write(&self, entries: &[Written]) -> Result<(), Failure> {
        let keep = u64::try_from(self.keep.as_millis()).unwrap_or(u64::MAX);
        let mut pipe = redis::Pipeline::with_capacity(3 * entries.len());
        pipe.ignore_errors();
        for (idx, entry) in entries.iter().enumerate() {
            let Written { job, id, payload, position } = entry;
            let key = self.key(job);
            // What is older than the last tokens goes, and so does every earlier attempt.
            let floor = match position.checked_sub(KEPT) {
                Some(dropped) => EntryId::token(id.attempt, dropped + 1),
                None => EntryId::floor(id.attempt),
            };
            pipe.cmd("XADD").arg(&key).arg("MINID").arg("=").arg(floor.to_string());
            pipe.arg(id.to_string()).arg("e").arg(payload);
            if entries.get(idx + 1).is_none_or(|next| next.job != *job) {
                pipe.cmd("PEXPIRE").arg(&key).arg(keep).ignore();
            }
            pipe.cmd("PUBLISH").arg(&key).arg(entry.message()).ignore();
        }
        let added: Vec<Result<redis::Value, redis::RedisError>> =
            self.shared.run(async |redis| pipe.query_async(redis).await).await?;
        match added.into_iter().filter_map(Result::err).find(|error| !is_out_of_order(error)) {
            Some(error) => Err(Failure::Refused(error)),
            None => Ok(()),
        }
    }
}

/// Redis has this entry, a later one, or one of a newer attempt.
fn is_out_of_order(error: &redis::RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("equal or smaller"))
}

#[async_trait]
impl Bus for RedisBus {
    async fn append(&self, events: &[JobEvent]) -> Result<(), BusError> {
        let entries = entry::entries(events).map_err(|error| BusError::Unreachable(Box::new(error)))?;
        for entries in entries.chunks(ENTRIES) {
            self.inner.write(entries).await?;
        }
        Ok(())
    }

    async fn events(&self, job: &JobId, after: u32) -> Result<BoxStream<'static, Result<JobEvent, Gone>>, Gone> {
        let reader = Reader::open(self.inner.clone(), *job, after).await?;
        Ok(stream::unfold(reader, |mut reader| async move { reader.next().await.map(|event| (event, reader)) }).boxed())
    }

    async fn tell(&self, signal: Signal) {
        if self.inner.told.try_send(signal).is_err() {
            tracing::debug!("a signal was dropped: too many wait for redis");
        }
    }

    async fn signals(&self) -> BoxStream<'static, Signal> {
        let bus = self.inner.clone();
        let listener = bus.shared.signals.subscribe();
        bus.shared.hub.keep(&bus.shared.signal_channel);
        // Without a connection now, the next one is subscribed.
        if let Err(error) = bus.shared.subscribe(&bus.shared.signal_channel).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "signals come once the bus is back");
        }
        stream::unfold((listener, bus), |(mut listener, bus)| async move {
            loop {
                match listener.recv().await {
                    Ok(signal) => return Some((signal, (listener, bus))),
                    Err(RecvError::Lagged(missed)) => tracing::debug!(missed, "a listener of the bus was too slow"),
                    Err(RecvError::Closed) => return None,
                }
            }
        })
        .boxed()
    }

    async fn beat(&self, worker: WorkerInfo, ttl: Duration) -> Result<(), BusError> {
        let info = serde_json::to_string(&worker).map_err(|error| BusError::Unreachable(Box::new(error)))?;
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let keys = self.inner.worker_keys();
        let mut beat = BEAT.prepare_invoke();
        beat.key(&keys[0]).key(&keys[1]).arg(worker.id.as_str()).arg(info).arg(ttl);
        Ok(self.inner.shared.run(async |redis| beat.invoke_async(redis).await).await?)
    }

    async fn workers(&self) -> Result<Vec<WorkerInfo>, BusError> {
        let keys = self.inner.worker_keys();
        let mut workers = WORKERS.prepare_invoke();
        workers.key(&keys[0]).key(&keys[1]);
        let infos: Vec<Vec<u8>> = self.inner.shared.run(async |redis| workers.invoke_async(redis).await).await?;
        let mut alive = Vec::with_capacity(infos.len());
        for info in infos {
            match serde_json::from_slice::<WorkerInfo>(&info) {
                Ok(worker) => alive.push(worker),
                // One of another version says what this one does not know.
                Err(error) => tracing::warn!(%error, "a worker's sign of life cannot be read"),
            }
        }
        alive.sort_by(|a, b| a.id.cmp(&b.id));
        if alive.is_empty() && self.inner.shared.is_forgetful() {
            return Err(Failure::Away(Away::Forgetful).into());
        }
        Ok(alive)
    }
}
