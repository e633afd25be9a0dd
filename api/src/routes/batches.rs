//! Batches: made of uploaded files, one job a line.

use std::str::FromStr;

use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use contract::openai::ErrorEnvelope;
use contract::openai::batches::{
    BatchList, BatchObject, BatchProgress, BatchRequest, ResubmitRequest, parse_batch, parse_resubmit,
};
use contract::openai::canonical::body_hash;
use contract::{Batch, BatchCancel, BatchId, FileId, IdempotencyKey, LineSet, Made, NewBatch, Purpose, TenantId};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::quota::Ask;
use crate::routes::jobs::PathText;
use crate::routes::list::{most, pairs};
use crate::routes::webhooks::check_url;
use crate::state::AppState;
use crate::submit::latest_run_after;
use crate::{body, headers};

const ROUTE: &str = "/v1/batches";
const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;

/// Makes a batch of an uploaded file.
///
/// The file is checked after this answers: one that is wrong makes a batch that is `failed`, with what is wrong and in
/// which line. Its jobs are of class bulk and wait behind all others. Making it counts as one request; its lines count for
/// none of the tenant's limits.
#[utoipa::path(post, path = "/v1/batches", tag = "batches", request_body = BatchRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same batch")),
    responses(
        (status = 200, description = "Accepted", body = BatchObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let key = headers::idempotency_key(request.headers())?;
    let value = body::json(request, &state.deps.limits).await?;
    let mut asked = parse_batch(&value)?;
    if let Some(hook) = &mut asked.webhook {
        hook.url = check_url(&state, &hook.url, "webhook.url")?;
    }
    if asked.run_after.is_some_and(|at| at.0 > latest_run_after()) {
        return Err(ApiError::query("run_after", "is more than 30 days ahead"));
    }
    state.quotas.admit(&caller.tenant, Ask::ONE)?;
    let idempotency = key.map(|key| IdempotencyKey { key, body_hash: body_hash(ROUTE, &value) });
    if let Some(earlier) = replay(&state, &caller, idempotency.as_ref()).await? {
        return Ok(earlier);
    }
    check_input(&state, &caller.tenant, &asked.input, "input_file_id").await?;
    let new = NewBatch {
        id: BatchId::new(),
        tenant: caller.tenant.clone(),
        endpoint: asked.endpoint,
        input: asked.input,
        window: asked.window,
        window_text: asked.window_text,
        metadata: asked.metadata,
        output_life: asked.output_life,
        run_after: asked.run_after,
        only: None,
        webhook: asked.webhook,
        keep: asked.keep,
        idempotency,
    };
    add(&state, &new).await
}

/// Refuses an input that is not there, is no input, or whose time is over. `param` is the field that names it.
///
/// # Errors
/// What is wrong with it.
pub(super) async fn check_input(
    state: &AppState,
    tenant: &TenantId,
    input: &FileId,
    param: &str,
) -> Result<(), ApiError> {
    match state.deps.admin.file(tenant, input).await? {
        None => Err(ApiError::query(param, "names no file: POST /v1/files gives one")),
        Some(file) if file.has_expired() => {
            Err(ApiError::query(param, "names a file whose time is over: upload it again"))
        }
        Some(file) if file.purpose != Purpose::Batch => {
            Err(ApiError::query(param, "names a file that was made by a batch: upload one of purpose batch"))
        }
        Some(_) => Ok(()),
    }
}

/// What an earlier call with the same key made, whatever became of its file since.
async fn replay(state: &AppState, caller: &Caller, key: Option<&IdempotencyKey>) -> Result<Option<Response>, ApiError> {
    let Some(key) = key else { return Ok(None) };
    let admin = &state.deps.admin;
    let made = admin.made_before(&caller.tenant, key).await?.map_err(|_| ApiError::KeyReused)?;
    let Some(made) = made else { return Ok(None) };
    let batch = admin.batch(&caller.tenant, &BatchId(made)).await?.ok_or(ApiError::KeyReused)?;
    let mut response = Json(BatchObject::of(&batch)).into_response();
    response.headers_mut().insert(headers::REPLAYED, HeaderValue::from_static("true"));
    Ok(Some(response))
}

async fn add(state: &AppState, new: &NewBatch) -> Result<Response, ApiError> {
    let made = state.deps.admin.add_batch(new).await?.map_err(|_| ApiError::KeyReused)?;
    let is_replayed = matches!(made, Made::Replayed(_));
    let mut response = Json(BatchObject::of(&made.into_inner())).into_response();
    if is_replayed {
        response.headers_mut().insert(headers::REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Reads a batch's id from the path; what is no id is no batch.
pub(super) fn batch_id(path: PathText) -> Result<BatchId, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::BatchNotFound { id: "(not UTF-8)".to_owned() }) };
    BatchId::from_str(&text).map_err(|_| ApiError::BatchNotFound { id: text.chars().take(80).collect() })
}

/// One batch, with how far it is.
#[utoipa::path(get, path = "/v1/batches/{id}", tag = "batches",
    params(("id" = String, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "The batch", body = BatchObject),
        (status = 404, description = "No such batch", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<BatchObject>, ApiError> {
    Ok(Json(BatchObject::of(&find(&state, &caller, &batch_id(path)?).await?)))
}

pub(super) async fn find(state: &AppState, caller: &Caller, id: &BatchId) -> Result<Batch, ApiError> {
    let batch = state.deps.admin.batch(&caller.tenant, id).await?;
    batch.ok_or_else(|| ApiError::BatchNotFound { id: id.to_string() })
}

/// How far a batch is: what runs and what waits, how fast it goes, and what is ahead of it.
#[utoipa::path(get, path = "/v1/batches/{id}/progress", tag = "batches",
    params(("id" = String, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "How far it is", body = BatchProgress),
        (status = 404, description = "No such batch", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn progress(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<BatchProgress>, ApiError> {
    let id = batch_id(path)?;
    let progress = state.deps.admin.batch_progress(&caller.tenant, &id).await?;
    let progress = progress.ok_or_else(|| ApiError::BatchNotFound { id: id.to_string() })?;
    Ok(Json(BatchProgress::of(&progress)))
}

/// Runs again what has no result: makes a batch of those lines of the same file that failed, were refused, were cancelled
/// or ran out of time.
#[utoipa::path(post, path = "/v1/batches/{id}/resubmit", tag = "batches", request_body = Option<ResubmitRequest>,
    params(
        ("id" = String, Path, description = "The batch's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same batch"),
    ),
    responses(
        (status = 200, description = "The new batch", body = BatchObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such batch", body = ErrorEnvelope),
        (status = 409, description = "It has not ended, or every line has a result", body = ErrorEnvelope),
        (status = 410, description = "Its input file has expired, or was deleted; `code` says which", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn resubmit(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    request: Request,
) -> Result<Response, ApiError> {
    let id = batch_id(path)?;
    let key = headers::idempotency_key(request.headers())?;
    let value = body::optional_json(request, &state.deps.limits).await?;
    let asked = parse_resubmit(&value)?;
    state.quotas.admit(&caller.tenant, Ask::ONE)?;
    let route = format!("{ROUTE}/{id}/resubmit");
    let idempotency = key.map(|key| IdempotencyKey { key, body_hash: body_hash(&route, &value) });
    if let Some(earlier) = replay(&state, &caller, idempotency.as_ref()).await? {
        return Ok(earlier);
    }
    let batch = find(&state, &caller, &id).await?;
    if !batch.state.is_terminal() {
        return Err(ApiError::BatchNotEnded { state: batch.state });
    }
    match state.deps.admin.file(&caller.tenant, &batch.input).await? {
        // A file keeps its row when its time is over: what has none was deleted.
        None => return Err(ApiError::InputDeleted { id: batch.input.to_string() }),
        Some(file) if file.has_expired() => return Err(ApiError::FileExpired { id: batch.input.to_string() }),
        Some(_) => {}
    }
    // Of one that ended before its lines were counted, all lines are without a result.
    let only = match batch.total {
        0 => state.deps.admin.batch_lines(&batch.id).await?,
        _ => Some(without_result(&state, &batch).await?),
    };
    if only.as_ref().is_some_and(|lines| lines.iter().next().is_none()) {
        return Err(ApiError::NothingToResubmit);
    }
    let (window, window_text) = match asked.window {
        Some((window, text)) => (window, text),
        None => (batch.window(), batch.window_text.clone()),
    };
    let new = NewBatch {
        id: BatchId::new(),
        tenant: caller.tenant.clone(),
        endpoint: batch.endpoint,
        input: batch.input,
        window,
        window_text,
        metadata: asked.metadata.unwrap_or_else(|| batch.metadata.clone()),
        output_life: batch.output_life,
        run_after: None,
        only,
        webhook: None,
        keep: batch.keep,
        idempotency,
    };
    add(&state, &new).await
}

/// Lines of the file that a batch has no result of, by their number in the file.
async fn without_result(state: &AppState, batch: &Batch) -> Result<LineSet, ApiError> {
    let admin = &state.deps.admin;
    let done: LineSet = admin.lines_with_result(&batch.id).await?.into_iter().collect();
    let lines = (0..batch.total).filter(|line| !done.contains(*line));
    let Some(only) = admin.batch_lines(&batch.id).await? else { return Ok(lines.collect()) };
    let of_file: Vec<u32> = only.iter().collect();
    Ok(lines.filter_map(|line| of_file.get(line as usize).copied()).collect())
}

/// Lists batches, newest first.
#[utoipa::path(get, path = "/v1/batches", tag = "batches",
    params(
        ("after" = Option<String>, Query, description = "Only batches older than this one"),
        ("limit" = Option<u32>, Query, description = "Most batches of the page; default 20", minimum = 1, maximum = 100),
    ),
    responses(
        (status = 200, description = "A page", body = BatchList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<BatchList>, ApiError> {
    let (mut after, mut limit) = (None, DEFAULT_LIMIT);
    for (name, value) in pairs(query.as_deref())? {
        match name.as_str() {
            "after" => {
                let id = BatchId::from_str(&value);
                after = Some(id.map_err(|problem| ApiError::query("after", format_args!("is wrong: {problem}")))?);
            }
            "limit" => limit = most(&value, MAX_LIMIT)?,
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    let (batches, has_more) = state.deps.admin.batches(&caller.tenant, after, limit).await?;
    Ok(Json(BatchList::new(&batches, has_more)))
}

/// Cancels a batch. Asking again gives the same answer.
///
/// It is `cancelling` until its last running line has ended, and then `cancelled`. What had ended is kept.
#[utoipa::path(post, path = "/v1/batches/{id}/cancel", tag = "batches",
    params(("id" = String, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "Cancelled, now or before", body = BatchObject),
        (status = 404, description = "No such batch", body = ErrorEnvelope),
        (status = 409, description = "Its lines had all ended before", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<BatchObject>, ApiError> {
    let id = batch_id(path)?;
    match state.deps.admin.cancel_batch(&caller.tenant, &id).await? {
        BatchCancel::Cancelling(batch) => Ok(Json(BatchObject::of(&batch))),
        BatchCancel::TooLate(batch) => Err(ApiError::BatchEnded { state: batch.state }),
        BatchCancel::NotFound => Err(ApiError::BatchNotFound { id: id.to_string() }),
    }
}
