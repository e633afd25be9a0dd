//! Keeps the leases alive and tells the bus that this worker lives, on a thread and a runtime of its own, so that a busy
//! engine or an event loop full of requests does not cost a healthy job its lease.
//!
//! Leases are renewed only while the engine is idle or steps: a stuck engine loses its jobs to another worker.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::{Bus, JobStore, WorkerId, WorkerInfo};
use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::engine::EngineStatus;
use crate::live::Live;

/// How long a busy engine may go without a step before its leases are let go.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(2);
/// How long a sign of life is good.
const BEAT_TTL: Duration = Duration::from_secs(8);

/// What the worker's sign of life says besides the engine's counters.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name.
    pub id: WorkerId,
    /// Its release.
    pub release: contract::Fingerprint,
    /// The model's name.
    pub model: String,
    /// Sequences it takes at once.
    pub capacity: u32,
}

/// What the heartbeat renews and tells through.
#[derive(Clone)]
pub struct BeatPorts {
    /// Where leases are renewed.
    pub store: Arc<dyn JobStore>,
    /// Where signs of life go.
    pub bus: Arc<dyn Bus>,
}

/// Opens the heartbeat's ports, on the heartbeat's own runtime: with connections of its own it depends on nothing that
/// the worker's event loop does. Called again after a while when it fails.
pub type OpenBeatPorts = Box<dyn Fn() -> BoxFuture<'static, Result<BeatPorts, BoxError>> + Send>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What the heartbeat needs.
pub struct Heartbeat {
    /// Where its ports come from.
    pub open: OpenBeatPorts,
    /// The held jobs.
    pub live: Arc<Live>,
    /// The engine's counters.
    pub status: Arc<EngineStatus>,
    /// Who this is.
    pub identity: Identity,
    /// Life of a lease; renewed at a third of it.
    pub lease_ttl: Duration,
    /// True once the worker drains.
    pub draining: watch::Receiver<bool>,
}

/// A running heartbeat; stops when dropped.
pub struct Beating {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Beating {
    /// Whether its thread still runs.
    pub fn is_beating(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was logged by the runtime; there is nothing to add here.
            let _ended = thread.join();
        }
    }
}

impl Heartbeat {
    /// Starts beating.
    ///
    /// # Errors
    /// When the system has no thread or runtime to give.
    pub fn start(self) -> std::io::Result<Beating> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            runtime.block_on(async {
                let mut stopped = pin!(stopped);
                let ports = tokio::select! {
                    ports = self.ports() => ports,
                    _ = &mut stopped => return,
                };
                tokio::select! {
                    () = self.run(&ports) => {}
                    _ = &mut stopped => {}
                }
                // Nobody should count on it for as long as its last sign of life is good.
                let _took_too_long = tokio::time::timeout(BEAT, self.beat(&*ports.bus, Duration::ZERO)).await.is_err();
            });
        })?;
        Ok(Beating { stop: Some(stop), thread: Some(thread) })
    }

    async fn run(&self, ports: &BeatPorts) {
        let mut renewed = Instant::now();
        let mut draining = self.draining.clone();
        loop {
            self.beat(&*ports.bus, BEAT_TTL).await;
            if renewed.elapsed() >= self.lease_ttl / 3 {
                renewed = Instant::now();
                self.renew(&*ports.store).await;
            }
            let pause = tokio::time::sleep(BEAT.min(self.lease_ttl / 3));
            tokio::select! {
                () = pause => {}
                // The API hears at once that it takes nothing more.
                Ok(()) = draining.changed() => {}
            }
        }
    }

    async fn ports(&self) -> BeatPorts {
        loop {
            match (self.open)().await {
                Ok(ports) => return ports,
                Err(err) => {
                    tracing::warn!(error = err.as_ref() as &dyn std::error::Error, "the heartbeat has no store yet");
                    tokio::time::sleep(BEAT).await;
                }
            }
        }
    }

    async fn renew(&self, store: &dyn JobStore) {
        let leases = self.live.leases();
        if leases.is_empty() {
            return;
        }
        if !self.status.is_progressing(PATIENCE) {
            tracing::error!(
                leases = leases.len(),
                "the engine has not stepped for {PATIENCE:?}: its leases are let go"
            );
            return;
        }
        match tokio::time::timeout(self.lease_ttl / 3, store.renew(&leases, self.lease_ttl)).await {
            Ok(Ok(lost)) => {
                for lease in lost {
                    if self.live.mark_lease(lease) {
                        tracing::info!(job.id = %lease.job, attempt = lease.attempt, "lease lost");
                    }
                }
            }
            Ok(Err(err)) => tracing::warn!(error = &err as &dyn std::error::Error, "leases could not be renewed"),
            Err(_) => tracing::warn!("the store did not answer a renewal in time"),
        }
    }

    async fn beat(&self, bus: &dyn Bus, ttl: Duration) {
        let engine = self.status.read();
        let info = WorkerInfo {
            id: self.identity.id.clone(),
            release: self.identity.release.clone(),
            model: self.identity.model.clone(),
            ready: self.status.is_progressing(PATIENCE),
            draining: *self.draining.borrow(),
            running: engine.running as u32,
            capacity: self.identity.capacity,
            used_blocks: engine.used_blocks as u32,
            cached_blocks: engine.cached_blocks as u32,
            total_blocks: engine.total_blocks as u32,
            steps: engine.steps,
            preemptions: engine.preemptions,
        };
        if let Err(err) = bus.beat(info, ttl).await {
            tracing::debug!(error = &err as &dyn std::error::Error, "the sign of life was not taken");
        }
    }
}
