//! Request bodies: JSON of a bounded size that keeps coming.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use contract::openai::json;
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
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|text| text.parse::<u64>().ok()).is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(ApiError::BodyTooLarge { limit: limits.body_bytes });
    }
    let bytes = read(request.into_body(), limits.body_bytes, limits.body_pause).await?;
    Ok(json::parse(&bytes)?)
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
