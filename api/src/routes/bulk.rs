//! Many jobs in one call.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::openai::requests::JobRequest;
use contract::openai::{ErrorBody, ErrorEnvelope, ParseCode, ParseError};
use contract::{JobId, NewJob, QueueId, TenantId, Wake};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::state::AppState;
use crate::submit::{self, Submission};
use crate::{body, headers};

/// Most jobs of one call.
const MAX_JOBS: usize = 10_000;
/// Jobs of one transaction: others write in between.
const GROUP: usize = 512;

/// The answers, in the order of the jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BulkAnswer {
    /// Always `list`.
    object: &'static str,
    /// One for each job.
    data: Vec<ItemAnswer>,
    /// Jobs that were accepted.
    accepted: usize,
    /// Jobs that were refused; nothing of them is kept.
    refused: usize,
    /// The first refusal, when all were refused: then this is an error like any other.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// What became of one job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ItemAnswer {
    /// Its place in the request, from 0.
    index: usize,
    /// Its id, if it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    id: Option<JobId>,
    /// Why not, if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// Submits up to 10,000 jobs.
///
/// The body is an array of what `POST /v1/jobs` takes. Each job is accepted or refused by itself: the answer has one
/// item for each, in order. An accepted one is kept and survives restarts. 202 when any was accepted; else the status
/// of the first refusal, which is then also the answer's `error`.
#[utoipa::path(post, path = "/v1/jobs:batch", tag = "jobs", request_body = Vec<JobRequest>,
    responses(
        (status = 202, description = "At least one was accepted", body = BulkAnswer),
        (status = 400, description = "The body is no array, or all jobs are wrong: then with `data` as in a 202", body = ErrorEnvelope),
        (status = 413, description = "The body is too large, or has too many jobs", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 429, description = "The queue is full; nothing was written; with `data` as in a 202", body = ErrorEnvelope,
            headers(("retry-after" = u64, description = "Seconds"))),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    if request.headers().contains_key("idempotency-key") {
        let problem = "is of one job: POST them to /v1/jobs with a key each";
        return Err(ApiError::Header { name: "Idempotency-Key", problem });
    }
    let traceparent = headers::traceparent(request.headers());
    let value = body::json(request, &state.deps.limits).await?;
    let Value::Array(items) = value else {
        let message = "the body must be an array of jobs".to_owned();
        return Err(ApiError::Parameter(ParseError { param: None, message, code: ParseCode::InvalidType }));
    };
    if items.is_empty() || items.len() > MAX_JOBS {
        return Err(ApiError::query("body", format_args!("has {} jobs; 1 to {MAX_JOBS} can be sent", items.len())));
    }
    let mut answers: Vec<Option<Result<JobId, ApiError>>> = Vec::with_capacity(items.len());
    let (mut indices, mut jobs) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for (index, item) in items.iter().enumerate() {
        match prepare(&state, &caller.tenant, item, traceparent.clone()) {
            Ok(job) => {
                indices.push(index);
                jobs.push(job);
                answers.push(None);
            }
            Err(error) => answers.push(Some(Err(error))),
        }
    }
    drop(items);
    // On a task of its own, so that what was committed is made known even if the client goes away.
    let accepting = state.tasks.spawn({
        let state = state.clone();
        async move { accept(&state, &indices, &jobs).await }
    });
    for (index, answer) in accepting.await.map_err(|_| ApiError::Internal)?? {
        answers[index] = Some(answer);
    }
    Ok(reply(answers.into_iter().map(|answer| answer.unwrap_or(Err(ApiError::Internal)))))
}

fn prepare(state: &AppState, tenant: &TenantId, item: &Value, traceparent: Option<String>) -> Result<NewJob, ApiError> {
    let submission = Submission::of_job(state, tenant, item, traceparent, None)?;
    submit::new_job(state, submission)
}

/// Accepts in groups jobs that stand at these places of the request. An error of the store ends it: alone when nothing was accepted before, else as the answer of each
/// job that is left.
async fn accept(
    state: &AppState,
    indices: &[usize],
    jobs: &[NewJob],
) -> Result<Vec<(usize, Result<JobId, ApiError>)>, ApiError> {
    let mut answers = Vec::with_capacity(jobs.len());
    for (nth, group) in jobs.chunks(GROUP).enumerate() {
        let places = &indices[nth * GROUP..];
        let accepted = match state.deps.store.accept(group).await {
            Ok(accepted) => accepted,
            Err(error) if answers.is_empty() => return Err(error.into()),
            Err(error) => {
                // Each of the rest is told by itself; the ids of those before must reach the client.
                tracing::warn!(error = &error as &dyn std::error::Error, "a part of a bulk submit was not accepted");
                let done = answers.len();
                let message = "the job store could not be used: send this one again";
                answers.extend(indices[done..].iter().map(|index| (*index, Err(ApiError::StoreLater { message }))));
                return Ok(answers);
            }
        };
        let mut wakes: HashMap<(QueueId, bool), Vec<(QueueId, Wake)>> = HashMap::new();
        for ((index, job), answer) in places.iter().zip(group).zip(accepted) {
            match answer {
                Ok(accepted) => {
                    state.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    if !accepted.held && !accepted.replayed {
                        let queue = QueueId { release: job.release.clone(), class: job.class };
                        let wake = (queue.clone(), Wake { job: accepted.job, attempt: 0 });
                        wakes.entry((queue, job.published_by_caller)).or_default().push(wake);
                    }
                    answers.push((*index, Ok(accepted.job)));
                }
                Err(refused) => answers.push((*index, Err(submit::refusal(state, refused)))),
            }
        }
        for ((_, publish), wakes) in wakes {
            submit::make_known(state, &wakes, publish).await;
        }
    }
    Ok(answers)
}

fn reply(answers: impl Iterator<Item = Result<JobId, ApiError>>) -> Response {
    let (mut first_refusal, mut longest_wait) = (None, None);
    let mut data = Vec::new();
    let mut accepted = 0;
    for (index, answer) in answers.enumerate() {
        match answer {
            Ok(id) => {
                accepted += 1;
                data.push(ItemAnswer { index, id: Some(id), error: None });
            }
            Err(error) => {
                longest_wait = longest_wait.max(error.retry_after());
                data.push(ItemAnswer { index, id: None, error: Some(error.envelope().error) });
                first_refusal.get_or_insert(error);
            }
        }
    }
    let refused = data.len() - accepted;
    let mut answer = BulkAnswer { object: "list", data, accepted, refused, error: None };
    let Some(refusal) = first_refusal else { return (StatusCode::ACCEPTED, Json(answer)).into_response() };
    let retry_after = longest_wait.map(HeaderValue::from);
    let mut response = if accepted > 0 {
        (StatusCode::ACCEPTED, Json(answer)).into_response()
    } else {
        // All of them: an error like any other, so that clients and their libraries see it as one.
        answer.error = Some(refusal.envelope().error);
        let (mut parts, _) = refusal.into_response().into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        // Strings and numbers always serialise.
        Response::from_parts(parts, serde_json::to_vec(&answer).unwrap_or_default().into())
    };
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}
