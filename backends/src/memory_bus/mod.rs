//! The bus of embedded mode: events of running jobs in bounded rings, signals by broadcast, workers by their last beat.

mod ring;
mod rings;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use contract::{Bus, BusError, Gone, JobEvent, JobId, Signal, WorkerId, WorkerInfo};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Instant;

use self::rings::{Reader, Rings};

/// Signals that a slow listener may be behind before it misses some.
const SIGNALS: usize = 4096;

/// How much an [`InProcessBus`] keeps.
#[derive(Debug, Clone, Copy)]
pub struct BusLimits {
    /// Events of one job.
    pub events_per_job: usize,
    /// How long a job's events are kept after the last one.
    pub keep: Duration,
    /// Events of all jobs together, in bytes (estimated); the jobs that were quiet longest go first.
    pub total_bytes: usize,
}

impl Default for BusLimits {
    /// 4096 events, 15 minutes, 64 MiB.
    fn default() -> Self {
        Self { events_per_job: 4096, keep: Duration::from_secs(15 * 60), total_bytes: 64 << 20 }
    }
}

/// A [`Bus`] in memory, for one process.
#[derive(Debug)]
pub struct InProcessBus {
    rings: Arc<Mutex<Rings>>,
    signals: broadcast::Sender<Signal>,
    workers: Mutex<HashMap<WorkerId, (WorkerInfo, Instant)>>,
}

impl InProcessBus {
    /// A bus that keeps this much.
    pub fn new(limits: BusLimits) -> Self {
        Self {
            rings: Arc::new(Mutex::new(Rings::new(limits))),
            signals: broadcast::Sender::new(SIGNALS),
            workers: Mutex::default(),
        }
    }
}

impl Default for InProcessBus {
    fn default() -> Self {
        Self::new(BusLimits::default())
    }
}

#[async_trait]
impl Bus for InProcessBus {
    async fn append(&self, events: &[JobEvent]) -> Result<(), BusError> {
        rings::lock(&self.rings).append(events);
        Ok(())
    }

    async fn events(&self, job: &JobId, after: u32) -> Result<BoxStream<'static, Result<JobEvent, Gone>>, Gone> {
        let reader = Reader::open(self.rings.clone(), *job, after)?;
        Ok(stream::unfold(reader, |mut reader| async move { reader.next().await.map(|event| (event, reader)) }).boxed())
    }

    async fn tell(&self, signal: Signal) {
        // Nobody listening is fine.
        let _ = self.signals.send(signal);
    }

    async fn signals(&self) -> BoxStream<'static, Signal> {
        stream::unfold(self.signals.subscribe(), |mut listener| async move {
            loop {
                match listener.recv().await {
                    Ok(signal) => return Some((signal, listener)),
                    Err(RecvError::Lagged(missed)) => tracing::debug!(missed, "a listener of the bus was too slow"),
                    Err(RecvError::Closed) => return None,
                }
            }
        })
        .boxed()
    }

    async fn beat(&self, worker: WorkerInfo, ttl: Duration) -> Result<(), BusError> {
        let now = Instant::now();
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|_, (_, until)| *until > now);
        workers.insert(worker.id.clone(), (worker, now + ttl));
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<WorkerInfo>, BusError> {
        let now = Instant::now();
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alive: Vec<WorkerInfo> =
            workers.values().filter(|(_, until)| *until > now).map(|(worker, _)| worker.clone()).collect();
        alive.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(alive)
    }
}
