//! The operations page and the figures it shows.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use contract::openai::ErrorEnvelope;
use contract::{Class, QueueId};

use crate::error::ApiError;
use crate::state::AppState;
use crate::stats::{HttpStats, ModelStats, QueueStats, Stats};

const PAGE: &str = include_str!("page.html");
/// The page brings all it needs, and talks to its own server only.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The operations page.
#[utoipa::path(get, path = "/", tag = "operations",
    responses((status = 200, description = "A page for people", body = String, content_type = "text/html")))]
pub(super) async fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

/// Workers, queues, and counts of this process.
#[utoipa::path(get, path = "/v1/stats", tag = "operations",
    responses(
        (status = 200, description = "Figures of now", body = Stats),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn stats(State(state): State<AppState>) -> Result<Json<Stats>, ApiError> {
    let mut queues = Vec::new();
    let mut models = Vec::new();
    for model in &state.models() {
        models.push(ModelStats {
            name: model.name.clone(),
            release: model.release.to_string(),
            context_tokens: model.context_tokens,
        });
        for class in Class::ALL {
            let queue = QueueId { release: model.release.clone(), class };
            queues.push(QueueStats {
                name: queue.to_string(),
                class,
                queued: state.deps.store.queued(&queue).await?,
                ready: state.deps.queue.ready(&queue).await.ok(),
                bound: state.deps.limits.bounds.of(class),
            });
        }
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Json(Stats {
        uptime_seconds: i64::try_from(now).unwrap_or(0).saturating_sub(state.started_at).max(0),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        models,
        workers: state.deps.bus.workers().await.unwrap_or_default(),
        queues,
        http: HttpStats::of(&state.counters),
    }))
}
