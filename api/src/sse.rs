//! Server-sent events: framing, comments on quiet streams, and the answer's head.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;

use crate::error::ApiError;
use crate::state::AppState;

/// A comment, which every reader passes over.
const PING: &str = ": ping\n\n";

/// One event as it goes over the wire. `data` is one line: JSON has no raw line breaks.
pub(crate) fn event(name: Option<&str>, id: Option<u32>, data: &str) -> String {
    let name = name.map_or_else(String::new, |name| format!("event: {name}\n"));
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    format!("{name}{id}data: {data}\n\n")
}

/// The event that ends a stream which cannot go on; official clients raise on it.
pub(crate) fn error_event(name: Option<&str>, error: &ApiError) -> String {
    error.log();
    event(name, None, &serde_json::to_string(&error.envelope()).unwrap_or_default())
}

/// Gives the pieces of a stream, one at a time. Dropping it means that the reader went away.
pub(crate) trait Pieces: Send + 'static {
    /// The next piece; `None` is the end. Must be cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<String>> + Send;
}

/// Counts an open stream for as long as it lives.
struct Open(AppState);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer that streams `pieces`.
pub(crate) fn reply(state: &AppState, pieces: impl Pieces) -> Response {
    state.counters.open_streams.fetch_add(1, Ordering::Relaxed);
    let stream = with_pings(pieces, state.deps.limits.ping, Open(state.clone()));
    let mut response = Body::from_stream(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    // Proxies that buffer answers know this one.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn with_pings(
    pieces: impl Pieces,
    pause: Duration,
    open: Open,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    futures::stream::unfold((pieces, open), move |(mut pieces, open)| async move {
        let piece = match tokio::time::timeout(pause, pieces.next()).await {
            Ok(piece) => piece?,
            Err(_) => PING.to_owned(),
        };
        Some((Ok(Bytes::from(piece)), (pieces, open)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_framed_as_the_standard_says() {
        assert_eq!(event(None, None, "{}"), "data: {}\n\n");
        assert_eq!(event(Some("token"), Some(3), "{\"a\":1}"), "event: token\nid: 3\ndata: {\"a\":1}\n\n");
    }
}
