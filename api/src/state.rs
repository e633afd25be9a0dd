//! What all handlers share.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use contract::ServedModel;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Deps;
use crate::auth::Keyring;
use crate::depth::Depths;
use crate::error::ApiError;
use crate::quota::Quotas;
use crate::stats::Counters;
use crate::waiters::Waiters;

/// Cheap to clone; see [`Shared`].
#[derive(Clone)]
pub(crate) struct AppState(Arc<Shared>);

/// The shared part.
pub(crate) struct Shared {
    pub deps: Deps,
    /// What is known of keys.
    pub keyring: Keyring,
    /// What each tenant may use, and has used.
    pub quotas: Arc<Quotas>,
    /// How deep the queues are, and so who publishes a job.
    pub depths: Depths,
    /// Who waits for the end of which job.
    pub waiters: Arc<Waiters>,
    /// The shutdown began: long polls answer what they have, readiness is false.
    pub draining: CancellationToken,
    /// The grace is over: whoever still waits ends with an error.
    pub closing: CancellationToken,
    /// Work that outlives its request: accepts and cancels.
    pub tasks: TaskTracker,
    pub counters: Counters,
    /// Unix seconds of the start.
    pub started_at: i64,
    /// The generated description, set once the routes are built.
    pub openapi: OnceLock<Bytes>,
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl AppState {
    /// Starts the task that listens on the bus; it ends with the last clone of this state.
    pub fn new(deps: Deps) -> Self {
        let waiters = Waiters::listening(deps.bus.clone());
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self(Arc::new(Shared {
            keyring: Keyring::new(deps.admin.clone(), deps.needs_key),
            quotas: Arc::new(Quotas::new(deps.admin.clone())),
            depths: Depths::of(deps.queue.clone()),
            deps,
            waiters,
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            counters: Counters::default(),
            started_at: i64::try_from(started_at).unwrap_or(0),
            openapi: OnceLock::new(),
        }))
    }
}

impl Shared {
    /// The models as they are on offer now.
    pub fn models(&self) -> Vec<ServedModel> {
        self.deps.models.borrow().clone()
    }

    /// The model of that name.
    pub fn model(&self, name: &str) -> Result<ServedModel, ApiError> {
        let models = self.deps.models.borrow();
        let found = models.iter().find(|model| model.name == name).cloned();
        found.ok_or_else(|| ApiError::ModelNotFound { name: name.chars().take(80).collect() })
    }
}
