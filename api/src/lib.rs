//! HTTP in, jobs out: the native and the OpenAI-compatible routes, server-sent events, errors, limits and the
//! operations page.
//!
//! A synchronous call is a job that somebody waits for: every route that asks a model something accepts a job through
//! [`contract::JobStore`] and then waits on the bus, with the store behind it. This room opens no model file, runs
//! nothing, and never learns which adapters stand behind the ports.

mod auth;
mod body;
mod depth;
mod error;
mod follow;
mod frame;
mod headers;
mod limits;
mod quota;
mod results;
mod routes;
mod serve;
mod sse;
mod stall;
mod state;
mod stats;
mod submit;
mod waiters;

use std::sync::Arc;

use contract::guard::Guard;
use contract::{AdminStore, Bus, JobStore, Queue, ServedModel, Trajectories};
use object_store::ObjectStore;
use tokio::sync::watch;

pub use limits::{Bounds, Limits};
pub use routes::openapi;
pub use serve::run;

/// What this room needs of the outside world.
#[derive(Clone)]
pub struct Deps {
    /// The truth about jobs.
    pub store: Arc<dyn JobStore>,
    /// Keys.
    pub admin: Arc<dyn AdminStore>,
    /// Calls need a key even before the first one is made.
    pub needs_key: bool,
    /// Where wake-ups of interactive jobs go while it is shallow.
    pub queue: Arc<dyn Queue>,
    /// Tokens while they come, signals, and signs of life of workers.
    pub bus: Arc<dyn Bus>,
    /// Where records are that are too large for a row.
    pub objects: Arc<dyn ObjectStore>,
    /// What is served, the default model first; whoever fills it may change it at any time.
    pub models: watch::Receiver<Vec<ServedModel>>,
    /// How much is kept of whose jobs.
    pub trajectories: Trajectories,
    /// Which addresses webhooks may have.
    pub guard: Guard,
    /// Bounds, sizes and times.
    pub limits: Limits,
}

/// The routes, for a server that somebody else runs. Call it on a tokio runtime: it starts the task that listens on
/// the bus, which ends when the router is dropped. Streams are not drained; [`run`] does that.
pub fn router(deps: Deps) -> axum::Router {
    routes::app(state::AppState::new(deps))
}
