//! Request bodies: JSON of a bounded size that keeps coming.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use contract::openai::json::{self, BadJson};
use futures::StreamExt;
use serde_json::Value;

use crate::error::ApiError;
use crate::limits::Limits;

/// Reads the body as one JSON document.
///
/// # Errors
/// 415 unless it is declared as JSON, 413 above the limit, 408 when it stops coming, 400 when it breaks off
/// or is no JSON.
pub(crate) async fn json(request: Request, limits: &Limits) -> Result<Value, ApiError> {
    media_type(request.headers())?;
    Ok(json::parse(&bounded(request, limits).await?)?)
}

async fn bounded(request: Request, limits: &Limits) -> Result<Bytes, ApiError> {
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|text| text.parse::<u64>().ok()).is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(ApiError::BodyTooLarge { limit: limits.body_bytes });
    }
    read(request.into_body(), limits.body_bytes, limits.body_pause).await
}

/// Documents of one body.
pub(crate) enum Documents {
    /// One document.
    One(Value),
    /// A document a line (`application/x-ndjson`, `application/jsonl`); blank lines are passed over.
    Lines(Vec<Result<Value, ApiError>>),
}

/// Reads the body as one JSON document or as lines of them, as it is declared.
///
/// # Errors
/// As for [`json`]. A line that is no JSON is that line's own affair.
pub(crate) async fn documents(request: Request, limits: &Limits) -> Result<Documents, ApiError> {
    let declared =
        request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_lines = ["application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"];
    if !is_lines.contains(&essence.as_str()) {
        return json(request, limits).await.map(Documents::One);
    }
    let bytes = bounded(request, limits).await?;
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace));
    let parsed = lines.map(|(nth, line)| json::parse(line).map_err(|error| BadJson { line: nth + 1, ..error }.into()));
    Ok(Documents::Lines(parsed.collect()))
}

/// Reads the body as one JSON document, or as an object without members when there is none.
///
/// # Errors
/// As for [`json`], where there is a body.
pub(crate) async fn optional_json(request: Request, limits: &Limits) -> Result<Value, ApiError> {
    if request.body().is_end_stream() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    match json(request, limits).await? {
        // As a field that is `null` counts as left out.
        Value::Null => Ok(Value::Object(serde_json::Map::new())),
        body => Ok(body),
    }
}

/// JSON must be declared: a page of another origin can send undeclared bodies to a server on this machine, but not
/// declared JSON, for which its browser asks first.
fn media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        let problem = format!("the body is encoded as {}", String::from_utf8_lossy(encoding.as_bytes()));
        return Err(ApiError::MediaType { problem });
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Err(ApiError::MediaType { problem: "the body has no content type".to_owned() });
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return charset(&text);
    }
    let shown: String = essence.chars().take(80).collect();
    Err(ApiError::MediaType { problem: format!("the body is declared as `{shown}`") })
}

/// JSON is UTF-8 (RFC 8259, section 8.1); another charset that is declared is refused rather than overlooked.
fn charset(media_type: &str) -> Result<(), ApiError> {
    let parameters = media_type.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
    for (name, value) in parameters {
        let value = value.trim().trim_matches('"');
        if name.trim().eq_ignore_ascii_case("charset")
            && !["utf-8", "utf8", "us-ascii"].contains(&&*value.to_ascii_lowercase())
        {
            let shown: String = value.chars().take(40).collect();
            return Err(ApiError::MediaType {
                problem: format!("the body is declared as `charset={shown}`, and JSON is UTF-8"),
            });
        }
    }
    Ok(())
}

async fn read(body: Body, limit: usize, pause: Duration) -> Result<Bytes, ApiError> {
    let mut frames = body.into_data_stream();
    let mut whole = Vec::new();
    loop {
        match tokio::time::timeout(pause, frames.next()).await {
            Err(_) => return Err(ApiError::BodyStalled),
            Ok(None) => return Ok(Bytes::from(whole)),
            Ok(Some(Err(_))) => return Err(ApiError::BodyBroken),
            Ok(Some(Ok(frame))) if whole.len() + frame.len() > limit => return Err(ApiError::BodyTooLarge { limit }),
            Ok(Some(Ok(frame))) => whole.extend_from_slice(&frame),
        }
    }
}
