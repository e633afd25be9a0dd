//! What every request goes through: a request id, the release in the answer, one log line, and no panic.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;

use crate::auth::Caller;
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

    let release =
        state.deps.models.borrow().first().and_then(|model| HeaderValue::from_str(model.release.as_str()).ok());
    let headers = response.headers_mut();
    if let Some(release) = release {
        headers.entry(headers::RELEASE).or_insert(release);
    }
    headers.insert(headers::REQUEST_ID, id.clone());
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    let status = response.status();
    state.counters.count_status(status);
    let caller = response.extensions().get::<Caller>();
    // A stream ends later; this is the time to its head.
    tracing::info!(
        request.id = id.to_str().unwrap_or_default(),
        http.method = method.as_str(),
        http.route = route,
        http.status = status.as_u16(),
        tenant = caller.map(|caller| caller.tenant.as_str()),
        key.id = caller.and_then(|caller| caller.key).map(tracing::field::display),
        duration_ms = started.elapsed().as_millis() as u64,
        "answered"
    );
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;
    use crate::{Deps, Limits};

    async fn boom() -> Response {
        panic!("a handler's bug")
    }

    #[tokio::test]
    async fn a_panic_is_a_500_in_the_envelope() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(backends::SqliteStore::open(folder.path().join("jobs.db")).await.unwrap());
        let state = AppState::new(Deps {
            admin: store.clone(),
            needs_key: false,
            store,
            queue: Arc::new(backends::InProcessQueue::default()),
            bus: Arc::new(backends::InProcessBus::default()),
            objects: Arc::new(backends::local_objects(folder.path()).unwrap()),
            models: tokio::sync::watch::channel(Vec::new()).1,
            trajectories: contract::Trajectories::default(),
            guard: contract::guard::Guard::default(),
            limits: Limits::default(),
        });
        let layer = axum::middleware::from_fn_with_state(state.clone(), frame);
        let router: Router = Router::new().route("/boom", get(boom)).layer(layer).with_state(state);
        let request = Request::get("/boom").header("x-request-id", "r1").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["x-request-id"]), (500, &"r1".parse().unwrap()));
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "internal_error");
        assert!(!body.to_string().contains("bug"));
    }
}
