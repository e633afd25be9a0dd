//! What every answer of a route that is limited says of the limits: `RateLimit-Policy` and `RateLimit` (the draft
//! draft-ietf-httpapi-ratelimit-headers of the IETF) and the `x-ratelimit-` headers that OpenAI's clients read.

use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{Left, Rated};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::state::AppState;

/// Marks an answer that refuses a call for a limit by the minute: until when it would fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Violated {
    pub what: Rated,
    pub wait: Duration,
}

/// Whether calls of this route count.
pub(crate) fn is_limited(method: &Method, route: &str) -> bool {
    let limited = [
        "/v1/jobs",
        "/v1/jobs:batch",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/files",
        "/v1/batches",
        "/v1/batches/{id}/resubmit",
        "/v1/schedules/{id}/run",
    ];
    method == Method::POST && limited.contains(&route)
}

/// Sees that the caller's limits are known before a call that counts, and tells what is left of them after it.
pub(crate) async fn tell(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let counts = route.is_some_and(|route| is_limited(request.method(), route.as_str()));
    let caller = request.extensions().get::<Caller>().filter(|_| counts);
    let Some(tenant) = caller.map(|caller| caller.tenant.clone()) else { return next.run(request).await };
    if let Err(error) = state.quotas.learn(&tenant).await {
        return ApiError::from(error).into_response();
    }
    let mut response = next.run(request).await;
    let violated = response.extensions().get::<Violated>().copied();
    write(response.headers_mut(), &state.quotas.left(&tenant), violated);
    response
}

/// Whole seconds, so many that the time has passed after them.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn write(headers: &mut HeaderMap, left: &[Left], violated: Option<Violated>) {
    if left.is_empty() {
        return;
    }
    let mut policies = Vec::new();
    let mut standings = Vec::new();
    let mut put = |name: HeaderName, text: String| {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    };
    for Left { what, limit, remaining, reset } in left {
        let name = what.as_str();
        // Until it is full again; for a call that was refused, until it fits.
        let wait = violated.filter(|violated| violated.what == *what).map_or(*reset, |violated| violated.wait);
        policies.push(format!("\"{name}\";q={limit};w=60"));
        standings.push(format!("\"{name}\";r={remaining};t={}", whole_seconds(wait)));
        let (of_limit, of_remaining, of_reset) = names(*what);
        put(of_limit, limit.to_string());
        put(of_remaining, remaining.to_string());
        put(of_reset, format!("{}s", reset.as_millis() as f64 / 1_000.0));
    }
    put(HeaderName::from_static("ratelimit-policy"), policies.join(", "));
    put(HeaderName::from_static("ratelimit"), standings.join(", "));
}

fn names(what: Rated) -> (HeaderName, HeaderName, HeaderName) {
    let [limit, remaining, reset] = match what {
        Rated::Requests => {
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]
        }
        Rated::Tokens => ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    }
    .map(HeaderName::from_static);
    (limit, remaining, reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_is_left() {
        let left = [
            Left { what: Rated::Requests, limit: 100, remaining: 50, reset: Duration::from_secs(30) },
            Left { what: Rated::Tokens, limit: 600, remaining: 588, reset: Duration::from_millis(1_200) },
        ];
        let mut headers = HeaderMap::new();
        write(&mut headers, &left, None);
        let expected = [
            ("ratelimit-policy", "\"requests\";q=100;w=60, \"tokens\";q=600;w=60"),
            ("ratelimit", "\"requests\";r=50;t=30, \"tokens\";r=588;t=2"),
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", "50"),
            ("x-ratelimit-reset-requests", "30s"),
            ("x-ratelimit-limit-tokens", "600"),
            ("x-ratelimit-remaining-tokens", "588"),
            ("x-ratelimit-reset-tokens", "1.2s"),
        ];
        assert_eq!(headers.len(), expected.len());
        for (name, value) in expected {
            assert_eq!(headers[name], value, "{name}");
        }
        // A refused call is told when it fits, which is never after the bucket is full.
        write(&mut headers, &left, Some(Violated { what: Rated::Requests, wait: Duration::from_millis(4_001) }));
        assert_eq!(headers["ratelimit"], "\"requests\";r=50;t=5, \"tokens\";r=588;t=2");
        let mut none = HeaderMap::new();
        write(&mut none, &[], None);
        assert!(none.is_empty());
    }
}
