//! Everything that can go wrong in a handler, and its one way onto the wire.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::openai::json::BadJson;
use contract::openai::native::{EmptiedBody, JobObject, job_object};
use contract::openai::views::Inconsistent;
use contract::openai::{ErrorEnvelope, ErrorKind, ParseCode, ParseError};
use contract::record::RecordError;
use contract::{BatchState, Class, Job, JobError, JobState, QueueId, Scope, StoreError, Timestamp};

use crate::quota::{Rated, Violated, whole_seconds};

/// Why a request is not answered with what it asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(transparent)]
    Json(#[from] BadJson),
    #[error(transparent)]
    Parameter(#[from] ParseError),
    #[error("the header `{name}` {problem}")]
    Header { name: &'static str, problem: &'static str },
    #[error("{message}")]
    TooLong { param: String, message: String },
    #[error("the model `{name}` brings no chat template, so it takes no chats; use /v1/completions")]
    NoChatTemplate { name: String },
    #[error("there is no model `{name}`; GET /v1/models lists what there is")]
    ModelNotFound { name: String },
    #[error(
        "this server needs a key: send it as `authorization: Bearer psk_…`; its operator makes one with `penstock keys create`"
    )]
    NoKey,
    #[error("this key is not known here: check that all of it was copied, and that it is one of this server")]
    UnknownKey,
    #[error("this key {}: ask for another one", if *.revoked { "was revoked" } else { "has expired" })]
    KeyEnded { revoked: bool },
    #[error("this key lacks the scope `{needed}`, which this call needs")]
    NoScope { needed: Scope },
    #[error("there is no key `{id}`; GET /v1/keys lists them")]
    KeyNotFound { id: String },
    #[error("there is no file `{id}`")]
    FileNotFound { id: String },
    #[error("the file `{id}` has expired, and its content is gone")]
    FileExpired { id: String },
    #[error("the batch's input file `{id}` was deleted: upload it again, and make a new batch of it")]
    InputDeleted { id: String },
    #[error(
        "the file `{id}` is read by a batch that has not ended, or used by an enabled schedule: cancel the batch or wait for \
         its end, and disable or delete the schedule"
    )]
    FileInUse { id: String },
    #[error("the body is no form: send `multipart/form-data` with its boundary")]
    NoForm,
    #[error("there is no batch `{id}`")]
    BatchNotFound { id: String },
    #[error("the batch is {}, so it cannot be cancelled", .state.as_str())]
    BatchEnded { state: BatchState },
    #[error("the batch is {}: what has no result can be run again once it has ended; wait, or cancel it", .state.as_str())]
    BatchNotEnded { state: BatchState },
    #[error("every line of the batch has a result: there is nothing to run again")]
    NothingToResubmit,
    #[error("there is no webhook `{id}`")]
    WebhookNotFound { id: String },
    #[error("there is no delivery `{id}`")]
    DeliveryNotFound { id: String },
    #[error("there is no schedule `{id}`")]
    ScheduleNotFound { id: String },
    #[error("the file of this schedule is gone: upload it again, and give the schedule the new one as `batch`")]
    ScheduleFileGone,
    #[error("there is no sequence `{key}`: no unfinished job has this key, and it is not blocked")]
    SequenceNotFound { key: String },
    #[error("all or none were asked for, and another job of this call was refused")]
    OthersRefused,
    #[error("there is no job `{id}`")]
    JobNotFound { id: String },
    #[error("request, result and trajectory of this job were kept until {until}, and are gone; `job` is what is left")]
    JobEmptied { until: String, job: Box<JobObject> },
    #[error("no trajectory of this job is kept: {reason}")]
    NoTrajectory { reason: String },
    #[error("the job is {state}; its trajectory is there once it has succeeded: wait for its end")]
    NotEnded { state: JobState },
    #[error("there is no route {path}; GET /openapi.json lists what there is")]
    RouteNotFound { path: String },
    #[error("this route does not take {method}")]
    MethodNotAllowed { method: String },
    #[error("the body stopped coming")]
    BodyStalled,
    #[error("the body broke off, or is not framed as its headers say")]
    BodyBroken,
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("{problem}: send JSON with `content-type: application/json`, not compressed")]
    MediaType { problem: String },
    #[error("the job has already ended as {state}, so it cannot be cancelled")]
    AlreadyEnded { state: JobState },
    #[error("the job was cancelled while this call waited for it")]
    JobCancelled,
    #[error("this idempotency key was used before with another body: use another key, or send the same body")]
    KeyReused,
    #[error("the queue for {} jobs is full ({bound} unfinished): try again later", .queue.class)]
    QueueFull { queue: QueueId, bound: u64 },
    #[error(
        "this call takes {amount} {}, and of this tenant's {limit} a minute fewer are left: come back in {} s",
        .what.as_str(),
        whole_seconds(*.wait)
    )]
    RateLimited { what: Rated, limit: u64, amount: u64, wait: Duration },
    #[error(
        "this call takes {amount} {}, and its tenant may use {limit} a minute, so it can never be let in: send less at once",
        .what.as_str()
    )]
    ExceedsLimit { what: Rated, limit: u64, amount: u64 },
    #[error(
        "{jobs} jobs cannot be accepted together where {bound} may be unfinished: send fewer at once, or without `all_or_none`"
    )]
    TooManyTogether { jobs: u64, bound: u64 },
    #[error(
        "this tenant's limit of calls under way is reached ({limit}): wait for one to end, or submit a job and come back"
    )]
    TooConcurrent { limit: u64 },
    #[error("this tenant's limit of unfinished jobs is reached ({bound}): wait for some to end, or cancel some")]
    TenantFull { bound: u64 },
    #[error("the job failed: {0}")]
    JobFailed(JobError),
    #[error("the job failed, and the store does not say why")]
    JobFailedSilently,
    #[error("the deadline passed before the job was done")]
    Expired,
    #[error("no worker for this model is ready: {reason}")]
    NotReady { reason: String },
    #[error("the job store cannot be used now: try again")]
    Store(#[from] StoreError),
    #[error("the result is stored where it cannot be read now: try again")]
    Objects(#[source] object_store::Error),
    #[error(
        "the queue cannot be reached now, so nobody would start this call: try again, or submit a job and come back{}",
        if *.kept { "; with its idempotency key the job is kept, and a repeat of the call finds it" } else { "" }
    )]
    QueueAway { kept: bool },
    #[error("{message}")]
    StoreLater { message: &'static str },
    #[error("the stored result is damaged")]
    Record(#[from] RecordError),
    #[error("the stored result is damaged")]
    Inconsistent(#[from] Inconsistent),
    #[error("two attempts of the job gave different tokens, so this stream cannot be trusted: get the job instead")]
    Disagrees,
    #[error("this server is shutting down: try again")]
    ShuttingDown,
    #[error("an internal error; the request id names it in the log")]
    Internal,
}

impl ApiError {
    /// A wrong parameter of the query string.
    pub fn query(param: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("`{param}` {problem}");
        ApiError::Parameter(ParseError { param: Some(param), message, code: ParseCode::InvalidValue })
    }

    /// What there is of a job whose payload's time is over.
    pub fn emptied(job: &Job) -> Self {
        let until = job.result_expires_at.or(job.emptied_at).map(Timestamp::rfc3339).unwrap_or_default();
        ApiError::JobEmptied { until, job: Box::new(job_object(job, None)) }
    }

    /// The kind on the wire; without a catch-all, so that a new variant does not compile until someone decides.
    fn kind(&self) -> ErrorKind {
        match self {
            ApiError::Json(_) | ApiError::BodyBroken => ErrorKind::InvalidJson,
            ApiError::Parameter(error) => ErrorKind::Parameter(error.code),
            ApiError::Header { .. } => ErrorKind::InvalidHeader,
            ApiError::TooLong { .. } => ErrorKind::ContextLengthExceeded,
            ApiError::NoChatTemplate { .. } => ErrorKind::NoChatTemplate,
            ApiError::ModelNotFound { .. } => ErrorKind::ModelNotFound,
            ApiError::NoKey | ApiError::UnknownKey | ApiError::KeyEnded { .. } => ErrorKind::InvalidApiKey,
            ApiError::NoScope { .. } => ErrorKind::MissingScope,
            ApiError::KeyNotFound { .. } => ErrorKind::KeyNotFound,
            ApiError::FileNotFound { .. } => ErrorKind::FileNotFound,
            ApiError::FileExpired { .. } => ErrorKind::FileExpired,
            ApiError::InputDeleted { .. } => ErrorKind::FileDeleted,
            ApiError::FileInUse { .. } => ErrorKind::FileInUse,
            ApiError::NoForm => ErrorKind::UnsupportedMediaType,
            ApiError::BatchNotFound { .. } => ErrorKind::BatchNotFound,
            ApiError::BatchEnded { .. } => ErrorKind::BatchAlreadyEnded,
            ApiError::BatchNotEnded { .. } => ErrorKind::BatchNotEnded,
            ApiError::NothingToResubmit => ErrorKind::NothingToResubmit,
            ApiError::WebhookNotFound { .. } => ErrorKind::WebhookNotFound,
            ApiError::DeliveryNotFound { .. } => ErrorKind::DeliveryNotFound,
            ApiError::ScheduleNotFound { .. } => ErrorKind::ScheduleNotFound,
            ApiError::ScheduleFileGone => ErrorKind::ScheduleFileGone,
            ApiError::SequenceNotFound { .. } => ErrorKind::SequenceNotFound,
            ApiError::OthersRefused => ErrorKind::OthersRefused,
            ApiError::JobNotFound { .. } => ErrorKind::JobNotFound,
            ApiError::JobEmptied { .. } => ErrorKind::JobEmptied,
            ApiError::NoTrajectory { .. } => ErrorKind::NoTrajectory,
            ApiError::NotEnded { .. } => ErrorKind::JobNotEnded,
            ApiError::RouteNotFound { .. } => ErrorKind::RouteNotFound,
            ApiError::MethodNotAllowed { .. } => ErrorKind::MethodNotAllowed,
            ApiError::BodyStalled => ErrorKind::RequestTimeout,
            ApiError::BodyTooLarge { .. } => ErrorKind::BodyTooLarge,
            ApiError::MediaType { .. } => ErrorKind::UnsupportedMediaType,
            ApiError::AlreadyEnded { .. } => ErrorKind::JobAlreadyEnded,
            ApiError::JobCancelled => ErrorKind::JobCancelled,
            ApiError::KeyReused => ErrorKind::IdempotencyKeyReused,
            ApiError::QueueFull { .. } => ErrorKind::QueueFull,
            ApiError::RateLimited { what: Rated::Requests, .. } => ErrorKind::RequestsLimited,
            ApiError::RateLimited { what: Rated::Tokens, .. } => ErrorKind::TokensLimited,
            ApiError::ExceedsLimit { .. } | ApiError::TooManyTogether { .. } => ErrorKind::RequestExceedsLimit,
            ApiError::TooConcurrent { .. } => ErrorKind::ConcurrencyLimited,
            ApiError::TenantFull { .. } => ErrorKind::TenantQueueFull,
            ApiError::JobFailed(error) => ErrorKind::of_job_error(error),
            ApiError::JobFailedSilently => ErrorKind::JobFailed,
            ApiError::Expired => ErrorKind::DeadlineExceeded,
            ApiError::NotReady { .. } => ErrorKind::NoReadyWorker,
            ApiError::Store(_) | ApiError::StoreLater { .. } | ApiError::Objects(_) => ErrorKind::StoreUnavailable,
            ApiError::QueueAway { .. } => ErrorKind::QueueUnavailable,
            ApiError::ShuttingDown => ErrorKind::ShuttingDown,
            ApiError::Record(_) | ApiError::Inconsistent(_) | ApiError::Disagrees | ApiError::Internal => {
                ErrorKind::Internal
            }
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            ApiError::Parameter(error) => error.param.clone(),
            ApiError::JobFailed(error) => error.param.clone(),
            ApiError::TooLong { param, .. } => Some(param.clone()),
            ApiError::Header { name, .. } => Some((*name).to_owned()),
            ApiError::ModelNotFound { .. } | ApiError::NoChatTemplate { .. } => Some("model".to_owned()),
            _ => None,
        }
    }

    /// Seconds after which a repeat may help; 429 and 503 always say.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            // Interactive work turns over in seconds, bulk in minutes.
            ApiError::QueueFull { queue, .. } => Some(match queue.class {
                Class::Interactive => 1,
                Class::Standard => 5,
                Class::Bulk => 30,
            }),
            ApiError::RateLimited { wait, .. } => Some(whole_seconds(*wait)),
            ApiError::TooConcurrent { .. } => Some(1),
            ApiError::TenantFull { .. } => Some(5),
            ApiError::NotReady { .. } | ApiError::ShuttingDown | ApiError::QueueAway { .. } => Some(5),
            ApiError::Store(_) | ApiError::StoreLater { .. } | ApiError::Objects(_) => Some(1),
            _ => None,
        }
    }

    /// The envelope; also the data of an error inside a stream.
    pub fn envelope(&self) -> ErrorEnvelope {
        match self {
            // The worker's words are for the client when the request is at fault.
            ApiError::JobFailed(error) if error.code.is_clients_fault() => ErrorEnvelope::of_failed_job(Some(error)).1,
            other => ErrorEnvelope::new(other.kind(), other.to_string(), other.param()),
        }
    }

    /// Writes what the client is not shown to the log.
    pub fn log(&self) {
        // What says all there is to say in its answer is not said twice.
        let is_plain = matches!(self, ApiError::QueueAway { .. } | ApiError::NotReady { .. } | ApiError::ShuttingDown);
        if self.kind().look().status >= 500 && !is_plain {
            let chain = std::iter::successors(Some(self as &dyn std::error::Error), |error| error.source());
            let mut chain: Vec<String> = chain.map(ToString::to_string).collect();
            chain.dedup();
            tracing::warn!(error.code = self.kind().look().code, error.chain = chain.join(": "), "a call failed");
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.log();
        let look = self.kind().look();
        let status = StatusCode::from_u16(look.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let envelope = self.envelope();
        let mut response = match &self {
            ApiError::JobEmptied { job, .. } => {
                let body = EmptiedBody { error: envelope.error, job: JobObject::clone(job) };
                (status, axum::Json(body)).into_response()
            }
            _ => (status, axum::Json(envelope)).into_response(),
        };
        if let ApiError::RateLimited { what, wait, .. } = self {
            response.extensions_mut().insert(Violated { what, wait });
        }
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if look.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if look.should_retry == Some(false) {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if matches!(self, ApiError::BodyTooLarge { .. } | ApiError::BodyStalled) {
            // The rest of the body is still on its way and nobody will read it.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
