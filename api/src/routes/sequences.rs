//! Sequences: which are blocked, how one stands, and its resumption.

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use contract::Signal;
use contract::openai::ErrorEnvelope;
use contract::openai::sequences::{SequenceList, SequenceObject};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::routes::jobs::PathText;
use crate::routes::list::{most, pairs};
use crate::state::AppState;

const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;

/// Blocked sequences, by key.
///
/// A sequence is blocked when a job of it that was submitted with `"on_failure": "block"` ends as `failed` or
/// `expired`. Further pages: give `last_key` of a page as `after` while `has_more` is true.
#[utoipa::path(get, path = "/v1/sequences", tag = "jobs",
    params(
        ("after" = Option<String>, Query, description = "Only sequences with keys behind this one"),
        ("limit" = Option<u32>, Query, description = "Most sequences of the page; default 20", minimum = 1, maximum = 100),
    ),
    responses(
        (status = 200, description = "A page", body = SequenceList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<SequenceList>, ApiError> {
    let (mut after, mut limit) = (None, DEFAULT_LIMIT);
    for (name, value) in pairs(query.as_deref())? {
        match name.as_str() {
            "after" => after = Some(value),
            "limit" => limit = most(&value, MAX_LIMIT)?,
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    let (sequences, has_more) = state.deps.store.blocked_sequences(&caller.tenant, after.as_deref(), limit).await?;
    Ok(Json(SequenceList::new(&sequences, has_more)))
}

/// Reads a key from the path; it can be any text.
fn key(path: PathText) -> Result<String, ApiError> {
    path.map(|Path(key)| key).map_err(|_| ApiError::SequenceNotFound { key: "(not UTF-8)".to_owned() })
}

fn not_found(key: &str) -> ApiError {
    ApiError::SequenceNotFound { key: key.chars().take(80).collect() }
}

/// One sequence that has unfinished jobs or is blocked.
#[utoipa::path(get, path = "/v1/sequences/{key}", tag = "jobs",
    params(("key" = String, Path, description = "The `sequence_key` of its jobs, percent-encoded")),
    responses(
        (status = 200, description = "The sequence", body = SequenceObject),
        (status = 404, description = "No unfinished job has this key, and it is not blocked", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<SequenceObject>, ApiError> {
    let key = key(path)?;
    let sequence = state.deps.store.sequence(&caller.tenant, &key).await?.ok_or_else(|| not_found(&key))?;
    Ok(Json(SequenceObject::of(&sequence)))
}

/// Resumes a blocked sequence: the first of its waiting jobs runs next. One that is not blocked stays as it is.
#[utoipa::path(post, path = "/v1/sequences/{key}/resume", tag = "jobs",
    params(("key" = String, Path, description = "The `sequence_key` of its jobs, percent-encoded")),
    responses(
        (status = 200, description = "The sequence as it is now", body = SequenceObject),
        (status = 404, description = "No unfinished job has this key, and it is not blocked", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn resume(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<SequenceObject>, ApiError> {
    let key = key(path)?;
    let resumed = state.deps.store.resume_sequence(&caller.tenant, &key).await?.ok_or_else(|| not_found(&key))?;
    if let Some(queue) = resumed.due {
        state.deps.bus.tell(Signal::Due { queue }).await;
    }
    Ok(Json(SequenceObject::of(&resumed.sequence)))
}
