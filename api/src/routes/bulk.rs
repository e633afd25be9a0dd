//! Many jobs in one call.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::openai::canonical::body_hash;
use contract::openai::requests::JobRequest;
use contract::openai::{ErrorBody, ErrorEnvelope, ParseCode, ParseError};
use contract::{Accepted, IdempotencyKey, JobId, NewJob, QueueId, Refused, TenantId, Wake};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::body::{self, Documents};
use crate::error::ApiError;
use crate::headers;
use crate::quota::Ask;
use crate::routes::list::pairs;
use crate::state::AppState;
use crate::submit::{self, Submission};

const ROUTE: &str = "/v1/jobs:batch";
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
/// The body is an array of what `POST /v1/jobs` takes, or one of it a line (`application/x-ndjson` or
/// `application/jsonl`). Each job is accepted or refused by itself: the answer has one item for each, in order. An accepted
/// one is kept and survives restarts. 202 when any was accepted; else the status of the first refusal, which is then also
/// the answer's `error`. With `all_or_none=true` the first refusal refuses all.
///
/// Each job counts as a request and with its tokens. A call for more than a tenant's limit of a whole minute is refused
/// with 400: it could never be let in.
///
/// An `Idempotency-Key` makes a repeat of the same body give the same jobs, and accept those that were refused before.
#[utoipa::path(post, path = "/v1/jobs:batch", tag = "jobs", request_body(content(
        (Vec<JobRequest> = "application/json"),
        (JobRequest = "application/x-ndjson"),
    )),
    params(
        ("all_or_none" = Option<bool>, Query, description = "Accept all jobs or none; default false"),
        ("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same jobs"),
    ),
    responses(
        (status = 202, description = "At least one was accepted", body = BulkAnswer),
        (status = 400, description = "The body is no array, or all jobs are wrong: then with `data` as in a 202", body = ErrorEnvelope),
        (status = 404, description = "All jobs name models that are not there; with `data` as in a 202", body = ErrorEnvelope),
        (status = 408, description = "The body stopped coming", body = ErrorEnvelope),
        (status = 413, description = "The body is too large, or has too many jobs", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another body; with `data` as in a 202", body = ErrorEnvelope),
        (status = 429, description = "The queue is full, or the tenant has used up a limit; nothing was written; with `data` as in a 202", body = ErrorEnvelope,
            headers(("retry-after" = u64, description = "Seconds"))),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let all_or_none = all_or_none(query.as_deref())?;
    let key = headers::idempotency_key(request.headers())?;
    let traceparent = headers::traceparent(request.headers());
    let items: Vec<Result<Value, ApiError>> = match body::documents(request, &state.deps.limits).await? {
        Documents::One(Value::Array(items)) => items.into_iter().map(Ok).collect(),
        Documents::Lines(items) => items,
        Documents::One(_) => {
            let message =
                "the body must be an array of jobs, or a job a line declared as application/x-ndjson".to_owned();
            return Err(ApiError::Parameter(ParseError { param: None, message, code: ParseCode::InvalidType }));
        }
    };
    if items.is_empty() || items.len() > MAX_JOBS {
        return Err(ApiError::query("body", format_args!("has {} jobs; 1 to {MAX_JOBS} can be sent", items.len())));
    }
    let mut answers: Vec<Option<Result<JobId, ApiError>>> = Vec::with_capacity(items.len());
    let (mut indices, mut jobs) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    let keys = ItemKeys::of(key, &items);
    if let Some(keys) = &keys {
        let all: Vec<String> = (0..items.len()).map(|index| keys.of_item(index).key).collect();
        if state.deps.admin.is_any_reused(&caller.tenant, &all, &keys.body_hash).await? {
            return Err(ApiError::KeyReused);
        }
    }
    for (index, item) in items.into_iter().enumerate() {
        let key = keys.as_ref().map(|keys| keys.of_item(index));
        match item.and_then(|item| prepare(&state, &caller.tenant, &item, traceparent.clone(), key)) {
            Ok(job) => {
                indices.push(index);
                jobs.push(job);
                answers.push(None);
            }
            Err(error) => answers.push(Some(Err(error))),
        }
    }
    if all_or_none && answers.iter().any(Option::is_some) {
        let others = || Some(Err(ApiError::OthersRefused));
        return Ok(reply(answers.into_iter().map(|answer| answer.or_else(others).unwrap_or(Err(ApiError::Internal)))));
    }
    if !jobs.is_empty() {
        let tokens = jobs.iter().map(|job| u64::from(job.request.estimated_tokens())).sum();
        let ask = Ask { requests: jobs.len() as u64, tokens, is_waited_for: false };
        let admitted = state.quotas.admit(&caller.tenant, ask)?;
        for job in &mut jobs {
            job.tenant_bound = admitted.tenant_bound;
        }
    }
    // On a task of its own, so that what was committed is made known even if the client goes away.
    let accepting = state.tasks.spawn({
        let state = state.clone();
        async move {
            match all_or_none {
                true => accept_all(&state, &mut jobs).await,
                false => accept(&state, &indices, &mut jobs).await,
            }
        }
    });
    for (index, answer) in accepting.await.map_err(|_| ApiError::Internal)?? {
        answers[index] = Some(answer);
    }
    Ok(reply(answers.into_iter().map(|answer| answer.unwrap_or(Err(ApiError::Internal)))))
}

fn all_or_none(query: Option<&str>) -> Result<bool, ApiError> {
    let mut all_or_none = false;
    for (name, value) in pairs(query)? {
        match (name.as_str(), value.as_str()) {
            ("all_or_none", "true") => all_or_none = true,
            ("all_or_none", "false") => all_or_none = false,
            ("all_or_none", _) => return Err(ApiError::query("all_or_none", "must be true or false")),
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    Ok(all_or_none)
}

/// Keys of the jobs of one call: one each, so that what was accepted is known one by one; all with the hash of the whole
/// body, so that another body is told.
struct ItemKeys {
    key: String,
    body_hash: [u8; 32],
}

impl ItemKeys {
    fn of(key: Option<String>, items: &[Result<Value, ApiError>]) -> Option<Self> {
        let key = key?;
        let mut body = Sha256::new();
        for item in items {
            // A line that is no JSON never becomes a job.
            body.update(item.as_ref().map_or([0; 32], |item| body_hash(ROUTE, item)));
        }
        Some(Self { key, body_hash: body.finalize().into() })
    }

    fn of_item(&self, index: usize) -> IdempotencyKey {
        // No client's own key has a control character.
        IdempotencyKey { key: format!("{}\u{1}{index}", self.key), body_hash: self.body_hash }
    }
}

fn prepare(
    state: &AppState,
    tenant: &TenantId,
    item: &Value,
    traceparent: Option<String>,
    key: Option<IdempotencyKey>,
) -> Result<NewJob, ApiError> {
    let submission = Submission::of_job(state, tenant, item, traceparent, key)?;
    submit::new_job(state, submission)
}

/// Accepts all of the jobs of a call, which are then all at their places, or none.
async fn accept_all(state: &AppState, jobs: &mut [NewJob]) -> Result<Vec<(usize, Result<JobId, ApiError>)>, ApiError> {
    let places = state.depths.take_places(jobs);
    match state.deps.store.accept_all(jobs).await? {
        Ok(accepted) => {
            let mut made = MadeKnown::default();
            let answers = accepted.iter().enumerate().map(|(index, accepted)| {
                made.add(state, &jobs[index], accepted);
                (index, Ok(accepted.job))
            });
            let answers = answers.collect();
            made.tell(state).await;
            places.published();
            Ok(answers)
        }
        Err((nth, refused)) => {
            let mut refusal = Some(never_together(jobs, &refused).unwrap_or_else(|| submit::refusal(state, refused)));
            let answers = (0..jobs.len()).map(|index| {
                let is_it = index == nth;
                (index, Err(refusal.take_if(|_| is_it).unwrap_or(ApiError::OthersRefused)))
            });
            Ok(answers.collect())
        }
    }
}

/// Why these jobs could never be accepted in one piece, however empty the queue is.
fn never_together(jobs: &[NewJob], refused: &Refused) -> Option<ApiError> {
    let (n, bound) = match refused {
        Refused::QueueFull { queue, bound } => {
            (jobs.iter().filter(|job| job.class == queue.class && job.release == queue.release).count(), *bound)
        }
        Refused::TenantFull { bound } => (jobs.len(), *bound),
        Refused::KeyReused => return None,
    };
    (n as u64 > bound).then_some(ApiError::TooManyTogether { jobs: n as u64, bound })
}

/// Accepted jobs that the queue is to be told of.
#[derive(Default)]
struct MadeKnown {
    wakes: HashMap<(QueueId, bool), Vec<(QueueId, Wake)>>,
}

impl MadeKnown {
    fn add(&mut self, state: &AppState, job: &NewJob, accepted: &Accepted) {
        if accepted.replayed {
            return;
        }
        state.counters.accepted.fetch_add(1, Ordering::Relaxed);
        if !accepted.held && job.delay.is_zero() {
            let queue = QueueId { release: job.release.clone(), class: job.class };
            let wake = (queue.clone(), Wake { job: accepted.job, attempt: 0 });
            self.wakes.entry((queue, job.published_by_caller)).or_default().push(wake);
        }
    }

    async fn tell(self, state: &AppState) {
        for ((_, publish), wakes) in self.wakes {
            submit::make_known(state, &wakes, publish).await;
        }
    }
}

/// Accepts in groups jobs that stand at these places of the request. An error of the store ends it: alone when nothing was accepted before, else as the answer of each
/// job that is left.
async fn accept(
    state: &AppState,
    indices: &[usize],
    jobs: &mut [NewJob],
) -> Result<Vec<(usize, Result<JobId, ApiError>)>, ApiError> {
    let mut answers = Vec::with_capacity(jobs.len());
    for (nth, group) in jobs.chunks_mut(GROUP).enumerate() {
        let indices_of_group = &indices[nth * GROUP..];
        let places = state.depths.take_places(group);
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
        let mut made = MadeKnown::default();
        for ((index, job), answer) in indices_of_group.iter().zip(&*group).zip(accepted) {
            match answer {
                Ok(accepted) => {
                    made.add(state, job, &accepted);
                    answers.push((*index, Ok(accepted.job)));
                }
                Err(refused) => answers.push((*index, Err(submit::refusal(state, refused)))),
            }
        }
        made.tell(state).await;
        places.published();
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
                // What was refused for another one's sake is not why.
                if !matches!(error, ApiError::OthersRefused) {
                    first_refusal.get_or_insert(error);
                }
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
