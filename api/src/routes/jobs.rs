//! Native jobs: submit, look, cancel.

use std::str::FromStr;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::openai::ErrorEnvelope;
use contract::openai::canonical::body_hash;
use contract::openai::native::{EmptiedBody, JobObject, JobUrls};
use contract::openai::requests::JobRequest;
use contract::{CancelAnswer, IdempotencyKey, Job, JobId};
use tokio::time::{Duration, Instant};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::headers::{self, Prefer};
use crate::quota::Ask;
use crate::routes::list::pairs;
use crate::state::AppState;
use crate::submit::{self, Submission};
use crate::{body, results};

/// A text from the path, if it is one.
pub(super) type PathText = Result<Path<String>, PathRejection>;

/// Reads a job's id from the path; what is no id is no job.
pub(super) fn job_id(path: PathText) -> Result<JobId, ApiError> {
    let Ok(Path(text)) = path else {
        return Err(ApiError::JobNotFound { id: "(not UTF-8)".to_owned() });
    };
    JobId::from_str(&text).map_err(|_| ApiError::JobNotFound { id: text.chars().take(80).collect() })
}

/// A job as the body of an answer, with its headers.
pub(super) async fn reply(state: &AppState, status: StatusCode, job: Job) -> Result<Response, ApiError> {
    let finished = results::finished(state, job).await?;
    let mut response = (status, Json(finished.object())).into_response();
    headers::describe(response.headers_mut(), &finished.job);
    Ok(response)
}

/// A 202 with the job, where to find it, and what was applied.
pub(super) async fn accepted_reply(
    state: &AppState,
    job: Job,
    prefer: Prefer,
    replayed: bool,
) -> Result<Response, ApiError> {
    // Who waits wants the result; who does not, the job's id.
    let job = if prefer.wait.is_some() { results::kept(job)? } else { job };
    let ended = job.state.is_terminal();
    let location = JobUrls::of(&job.id).get;
    let status = if ended && prefer.wait.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = reply(state, status, job).await?;
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&location) {
        headers.insert(header::LOCATION, location);
    }
    if let Some(applied) = prefer.applied() {
        headers.insert(headers::PREFERENCE_APPLIED, applied);
    }
    if replayed {
        headers.insert(headers::REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Submits a job.
///
/// It is accepted once this answers, and survives restarts. With `Prefer: wait=N` the answer waits up to N seconds
/// (60 at most) for the end. The same `Idempotency-Key` and body give the same job.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = JobRequest,
    params(
        ("Prefer" = Option<String>, Header, description = "`wait=N`: answer when the job has ended, or after N seconds"),
        ("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same job"),
    ),
    responses(
        (status = 202, description = "Accepted", body = JobObject, headers(("location" = String, description = "The job"))),
        (status = 200, description = "Ended within the preferred wait", body = JobObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such model", body = ErrorEnvelope),
        (status = 410, description = "A wait was preferred, and the job of this key is not kept any more", body = EmptiedBody),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 429, description = "The queue is full, or the tenant has used up a limit; nothing was written", body = ErrorEnvelope,
            headers(("retry-after" = u64, description = "Seconds"))),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let (prefer, traceparent) = (Prefer::of(request.headers()), headers::traceparent(request.headers()));
    // Every answer of this route is an asynchronous one already.
    let prefer = Prefer { respond_async: false, ..prefer };
    let key = headers::idempotency_key(request.headers())?;
    let value = body::json(request, &state.deps.limits).await?;
    let key = key.map(|key| IdempotencyKey { key, body_hash: body_hash("/v1/jobs", &value) });
    let mut submission = Submission::of_job(&state, &caller.tenant, &value, traceparent, key)?;
    let ask =
        Ask { tokens: submission.request.estimated_tokens().into(), is_waited_for: prefer.wait.is_some(), ..Ask::ONE };
    // The seat is kept until the answer is there.
    let admitted = state.quotas.admit(&caller.tenant, ask)?;
    submission.tenant_bound = admitted.tenant_bound;
    let submitted = submit::submit(&state, submission, false).await?;
    let job = match (prefer.wait, submitted.new) {
        (Some(wait), _) => results::wait(&state, &caller.tenant, submitted.job, Some(Instant::now() + wait)).await?,
        (None, Some(job)) => job,
        (None, None) => results::job(&state, &caller.tenant, &submitted.job).await?,
    };
    accepted_reply(&state, job, prefer, submitted.replayed).await
}

/// One job, with its result once it succeeded.
///
/// Request, result, trajectory and metadata are kept until `result_expires_at`. After it the answer is a 410 that has
/// beside the error, as `job`, what is left: states, times, tokens, errors. Reading never ends that time.
///
/// With `?wait=N` the answer waits up to N seconds (60 at most) for the end; either way it is a 200.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job's id"),
        ("wait" = Option<u64>, Query, description = "Seconds to wait for the end", maximum = 60),
    ),
    responses(
        (status = 200, description = "The job", body = JobObject),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope),
        (status = 404, description = "No such job", body = ErrorEnvelope),
        (status = 410, description = "Its payload's time is over (`job_emptied`); with what is left of it", body = EmptiedBody),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let id = job_id(path)?;
    let mut wait = None;
    for (name, value) in pairs(query.as_deref())? {
        match name.as_str() {
            "wait" => wait = Some(wait_seconds(&value)?),
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    let job = match wait {
        Some(seconds) => {
            let until = Instant::now() + Duration::from_secs(seconds);
            results::wait(&state, &caller.tenant, id, Some(until)).await?
        }
        None => results::job(&state, &caller.tenant, &id).await?,
    };
    reply(&state, StatusCode::OK, results::kept(job)?).await
}

fn wait_seconds(text: &str) -> Result<u64, ApiError> {
    let max = headers::MAX_WAIT_SECONDS;
    let seconds = text.parse().ok().filter(|seconds| *seconds <= max);
    seconds.ok_or_else(|| ApiError::query("wait", format_args!("must be a whole number of seconds from 0 to {max}")))
}

/// Cancels a job that has not ended. Asking again gives the same answer.
///
/// A 200 means that no result follows. A running job leaves the engine within a step.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs",
    params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "Cancelled, now or before", body = JobObject),
        (status = 404, description = "No such job", body = ErrorEnvelope),
        (status = 409, description = "It had ended otherwise before", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn cancel(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Response, ApiError> {
    let id = job_id(path)?;
    match submit::cancel(&state, &caller.tenant, id).await? {
        CancelAnswer::Cancelled { .. } => {
            let job = results::job(&state, &caller.tenant, &id).await?;
            reply(&state, StatusCode::OK, job).await
        }
        CancelAnswer::AlreadyEnded(ended) => Err(ApiError::AlreadyEnded { state: ended }),
        CancelAnswer::NotFound => Err(ApiError::JobNotFound { id: id.to_string() }),
    }
}

/// The position after which a reader resumes, from `Last-Event-ID`; 0 without one.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<u32, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(0) };
    let bad = || ApiError::Header { name: "Last-Event-ID", problem: "must be the id of an event of this stream" };
    let text = value.to_str().map_err(|_| bad())?.trim();
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| bad())
}
