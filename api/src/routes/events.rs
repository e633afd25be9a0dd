//! A job's tokens as they come, resumable.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use contract::openai::ErrorEnvelope;
use contract::openai::native::{EmptiedBody, EndedData, StartedData, TokenData};
use serde::Serialize;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::follow::{Follow, Followed};
use crate::headers;
use crate::routes::jobs::{PathText, job_id, last_event_id};
use crate::sse::{self, Pieces};
use crate::state::AppState;

/// A job's events, as server-sent events.
///
/// `started` (data: StartedData) when an attempt begins; `token` (data: TokenData) whose id is its position; last of
/// all `ended` (data: EndedData) with the job and its result, or `error` (an error envelope) when the stream cannot go
/// on. `Last-Event-ID` resumes after that token, on a running job and on one that has ended, without gap or repeat.
/// Hanging up changes nothing.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job's id"),
        ("Last-Event-ID" = Option<u32>, Header, description = "Position of the last token that was received"),
    ),
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = 400, description = "`Last-Event-ID` is no position", body = ErrorEnvelope),
        (status = 404, description = "No such job", body = ErrorEnvelope),
        (status = 410, description = "Its payload's time is over; with what is left of it", body = EmptiedBody),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn events(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    request_headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = job_id(path)?;
    let after = last_event_id(&request_headers)?;
    let (follow, job) = Follow::start(&state, &caller.tenant, id, after).await?;
    let mut response = sse::reply(&state, NativeEvents { follow });
    headers::describe(response.headers_mut(), &job);
    Ok(response)
}

struct NativeEvents {
    follow: Follow,
}

impl Pieces for NativeEvents {
    async fn next(&mut self) -> Option<String> {
        Some(match self.follow.next().await? {
            Followed::Started { attempt } => sse::event(Some("started"), None, &json(&StartedData { attempt })),
            Followed::Token(token) => sse::event(Some("token"), Some(token.position), &json(&TokenData::of(&token))),
            Followed::Ended(finished) => {
                let output_hash = finished.record.as_ref().map(contract::Record::output_hash);
                sse::event(Some("ended"), None, &json(&EndedData { job: finished.object(), output_hash }))
            }
            Followed::Failed(error) => sse::error_event(Some("error"), &error),
        })
    }
}

fn json(data: &impl Serialize) -> String {
    // Strings, finite numbers and maps with string keys always serialise.
    serde_json::to_string(data).unwrap_or_default()
}
