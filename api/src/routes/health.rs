//! Two questions: does the process live, and can it answer?

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::{BusError, Class, QueueId, ServedModel, WorkerInfo};
use serde::Serialize;
use utoipa::ToSchema;

use crate::state::AppState;

/// Longest wait for the store or the queue before readiness calls it gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// The process lives.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Alive {
    /// Always `alive`.
    status: &'static str,
}

/// Whether synchronous calls would be answered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    /// All of it is ready.
    ready: bool,
    /// Why not, if not.
    #[schema(required)]
    reason: Option<String>,
    /// What works less well: without the bus no tokens are seen before a job has ended; without the queue jobs are
    /// accepted and wait, and synchronous calls are refused.
    degraded: Vec<String>,
    /// Each model that is served.
    models: Vec<ModelReadiness>,
}

/// Readiness of one model.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ModelReadiness {
    /// Its name.
    model: String,
    /// Fingerprint of its release.
    release: String,
    /// A worker has loaded and warmed it.
    ready: bool,
    /// Why not, if not.
    #[schema(required)]
    reason: Option<String>,
}

/// Whether a worker of the model's release is ready, as far as the bus can tell.
///
/// # Errors
/// Why none is.
pub(super) async fn ready_worker(state: &AppState, model: &ServedModel) -> Result<(), String> {
    ready_among(&state.deps.bus.workers().await, model)
}

fn ready_among(workers: &Result<Vec<WorkerInfo>, BusError>, model: &ServedModel) -> Result<(), String> {
    // Without the bus nobody knows. The queue and the store go on without it, and so do calls, which then poll.
    let Ok(workers) = workers else { return Ok(()) };
    let mut same: Vec<_> = workers.iter().filter(|worker| worker.release == model.release).collect();
    if same.iter().any(|worker| worker.ready && !worker.draining) {
        return Ok(());
    }
    same.retain(|worker| !worker.draining);
    let short = model.release.short();
    Err(match (same.is_empty(), workers.is_empty()) {
        (false, _) => format!("the worker of release {short} is loading or warming up"),
        (true, true) => "no worker of this release gives a sign of life".to_owned(),
        (true, false) => format!("no worker of release {short} takes work"),
    })
}

/// The process lives; says nothing about readiness.
#[utoipa::path(get, path = "/livez", tag = "operations", responses((status = 200, description = "It lives", body = Alive)))]
pub(super) async fn livez() -> Json<Alive> {
    Json(Alive { status: "alive" })
}

/// Whether the store answers and each model has a worker that has loaded and warmed it.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses(
        (status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "Not ready; says why", body = Readiness),
    ))]
pub(super) async fn readyz(State(state): State<AppState>) -> Response {
    let (workers, queue, reason) = tokio::join!(state.deps.bus.workers(), queue_trouble(&state), reason(&state));
    let mut models = Vec::new();
    for model in &state.models() {
        let reason = ready_among(&workers, model).err();
        models.push(ModelReadiness {
            model: model.name.clone(),
            release: model.release.to_string(),
            ready: reason.is_none(),
            reason,
        });
    }
    let reason = reason.or_else(|| models.iter().find_map(|model| model.reason.clone()));
    let degraded = workers.err().map(|error| error.to_string()).into_iter().chain(queue).collect();
    let ready = reason.is_none();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = (status, Json(Readiness { ready, reason, degraded, models })).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !ready {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Why the queue cannot be used, if so. One stands for all: they are on the same broker.
async fn queue_trouble(state: &AppState) -> Option<String> {
    let release = state.deps.models.borrow().first()?.release.clone();
    let queue = QueueId { release, class: Class::Interactive };
    match tokio::time::timeout(PATIENCE, state.deps.queue.ready(&queue)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the queue does not answer".to_owned()),
    }
}

/// What stands in the way besides workers.
async fn reason(state: &AppState) -> Option<String> {
    if state.draining.is_cancelled() {
        return Some("this server is shutting down".to_owned());
    }
    if state.deps.models.borrow().is_empty() {
        return Some("no model is served".to_owned());
    }
    match tokio::time::timeout(PATIENCE, state.deps.store.queues()).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the job store does not answer".to_owned()),
    }
}
