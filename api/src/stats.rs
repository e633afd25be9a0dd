//! Counters of this process, and what the operations page shows.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use contract::WorkerInfo;
use serde::Serialize;
use utoipa::ToSchema;

/// Counts since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub requests: AtomicU64,
    pub client_errors: AtomicU64,
    pub server_errors: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub hang_ups: AtomicU64,
    pub open_streams: AtomicU64,
}

impl Counters {
    pub fn count_status(&self, status: StatusCode) {
        if status.is_client_error() {
            self.client_errors.fetch_add(1, Ordering::Relaxed);
        } else if status.is_server_error() {
            self.server_errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What this process knows of itself and its surroundings.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stats {
    /// Seconds since this process started.
    pub uptime_seconds: i64,
    /// Version of the server.
    pub version: String,
    /// The models and their releases.
    pub models: Vec<ModelStats>,
    /// Workers that live now.
    pub workers: Vec<WorkerInfo>,
    /// One entry per release and class.
    pub queues: Vec<QueueStats>,
    /// Counts of this process since its start.
    pub http: HttpStats,
}

/// A model that is served.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelStats {
    /// Its name.
    pub name: String,
    /// Fingerprint of its release.
    pub release: String,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
}

/// A queue.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueStats {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: contract::Class,
    /// Jobs that wait for a worker.
    pub queued: u64,
    /// Wake-ups that wait in the queue; null while the queue cannot be asked.
    #[schema(required)]
    pub ready: Option<u64>,
    /// Most unfinished jobs it may have.
    pub bound: u64,
}

/// Counts of this process since its start.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HttpStats {
    /// Requests.
    pub requests: u64,
    /// Answers 400 to 499.
    pub client_errors: u64,
    /// Answers 500 to 599.
    pub server_errors: u64,
    /// Jobs accepted.
    pub accepted: u64,
    /// Jobs refused for lack of room.
    pub refused: u64,
    /// Jobs cancelled because their client hung up.
    pub hang_ups: u64,
    /// Streams that are open now.
    pub open_streams: u64,
}

impl HttpStats {
    pub fn of(counters: &Counters) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            requests: read(&counters.requests),
            client_errors: read(&counters.client_errors),
            server_errors: read(&counters.server_errors),
            accepted: read(&counters.accepted),
            refused: read(&counters.refused),
            hang_ups: read(&counters.hang_ups),
            open_streams: read(&counters.open_streams),
        }
    }
}
