//! What every request goes through: a request id, the release in the answer, one log line, and no panic.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;

use crate::error::ApiError;
use crate::headers;
use crate::state::AppState;

pub(crate) async fn frame(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = headers::request_id(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
    state.counters.requests.fetch_add(1, Ordering::Relaxed);
    let outcome = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = outcome.unwrap_or_else(|_| ApiError::Internal.into_response());

    let release = state.deps.models.first().and_then(|model| HeaderValue::from_str(model.release.as_str()).ok());
    let headers = response.headers_mut();
    if let Some(release) = release {
        headers.entry(headers::RELEASE).or_insert(release);
    }
    headers.insert(headers::REQUEST_ID, id.clone());
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    let status = response.status();
    state.counters.count_status(status);
    // A stream ends later; this is the time to its head.
    tracing::info!(
        request.id = id.to_str().unwrap_or_default(),
        http.method = method.as_str(),
        http.route = route,
        http.status = status.as_u16(),
        duration_ms = started.elapsed().as_millis() as u64,
        "answered"
    );
    response
}
