//! What can go wrong on the wire, and one table from each kind to status, type and code.

use serde::{Deserialize, Serialize};

use super::ParseCode;
use crate::outcome::{ErrorCode, JobError};

/// A kind of error as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The body is no JSON document.
    InvalidJson,
    /// A field of the body or of the query string is wrong.
    Parameter(ParseCode),
    /// A header is wrong.
    InvalidHeader,
    /// Prompt and output do not fit the model's context.
    ContextLengthExceeded,
    /// The model's file brings no chat template.
    NoChatTemplate,
    /// The worker found the request wrong in a way that only it can see.
    InvalidRequest,
    /// The call has no key, or one that is not good.
    InvalidApiKey,
    /// The key may not do this.
    MissingScope,
    /// No such key.
    KeyNotFound,
    /// No such file of this tenant.
    FileNotFound,
    /// The file's time is over.
    FileExpired,
    /// The file was there, and somebody deleted it.
    FileDeleted,
    /// A batch reads the file, or an enabled schedule uses it.
    FileInUse,
    /// No such batch of this tenant.
    BatchNotFound,
    /// The batch had ended before.
    BatchAlreadyEnded,
    /// The batch has not ended.
    BatchNotEnded,
    /// Every line of the batch has a result.
    NothingToResubmit,
    /// No such webhook of this tenant.
    WebhookNotFound,
    /// No such delivery of this tenant.
    DeliveryNotFound,
    /// No such schedule of this tenant.
    ScheduleNotFound,
    /// The file of the schedule is gone.
    ScheduleFileGone,
    /// No such sequence of this tenant.
    SequenceNotFound,
    /// All or none were asked for, and another one was refused.
    OthersRefused,
    /// No such model.
    ModelNotFound,
    /// No such job of this tenant.
    JobNotFound,
    /// The job's payload was removed: its time was over.
    JobEmptied,
    /// The job ended without a trajectory, or keeps none.
    NoTrajectory,
    /// No such route.
    RouteNotFound,
    /// The route exists, the method does not.
    MethodNotAllowed,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The job had ended otherwise before.
    JobAlreadyEnded,
    /// The job has not ended yet.
    JobNotEnded,
    /// Somebody cancelled the job while this call waited for it.
    JobCancelled,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The body's media type or encoding is not one this route reads.
    UnsupportedMediaType,
    /// The idempotency key was used with another body.
    IdempotencyKeyReused,
    /// The release has as many unfinished jobs of the class as it may have.
    QueueFull,
    /// The tenant has made as many requests as it may for now.
    RequestsLimited,
    /// The tenant has asked for as many tokens as it may for now.
    TokensLimited,
    /// The tenant has as many calls under way as it may have.
    ConcurrencyLimited,
    /// The tenant has as many unfinished jobs as it may have.
    TenantQueueFull,
    /// The call asks for more than the tenant's limit of a whole minute: it can never be let in.
    RequestExceedsLimit,
    /// A fault of this server.
    Internal,
    /// The job failed.
    JobFailed,
    /// Workers died under the job three times.
    Quarantined,
    /// No worker of the release is ready.
    NoReadyWorker,
    /// The job store or the object store cannot be used now.
    StoreUnavailable,
    /// The queue cannot be used now, so nobody would start a call that somebody waits for.
    QueueUnavailable,
    /// This server is going down.
    ShuttingDown,
    /// The deadline passed first.
    DeadlineExceeded,
}

/// How a kind looks on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.code`: stable.
    pub code: &'static str,
    /// `Some(false)` is sent as `x-should-retry: false`: client libraries would repeat this status by themselves,
    /// and repeating cannot help.
    pub should_retry: Option<bool>,
}

const INVALID: &str = "invalid_request_error";
const AUTHENTICATION: &str = "authentication_error";
const PERMISSION: &str = "permission_error";
const LIMIT: &str = "rate_limit_error";
const SERVER: &str = "server_error";

impl ErrorKind {
    /// The table.
    pub fn look(self) -> Look {
        let look = |status, kind, code| Look { status, kind, code, should_retry: None };
        let final_look = |status, kind, code| Look { should_retry: Some(false), ..look(status, kind, code) };
        match self {
            ErrorKind::InvalidJson => look(400, INVALID, "invalid_json"),
            ErrorKind::Parameter(code) => look(400, INVALID, code.as_str()),
            ErrorKind::InvalidHeader => look(400, INVALID, "invalid_header"),
            ErrorKind::ContextLengthExceeded => look(400, INVALID, "context_length_exceeded"),
            ErrorKind::NoChatTemplate => look(400, INVALID, "no_chat_template"),
            ErrorKind::InvalidRequest => look(400, INVALID, "invalid_request"),
            ErrorKind::InvalidApiKey => look(401, AUTHENTICATION, "invalid_api_key"),
            ErrorKind::MissingScope => look(403, PERMISSION, "missing_scope"),
            ErrorKind::KeyNotFound => look(404, INVALID, "key_not_found"),
            ErrorKind::FileNotFound => look(404, INVALID, "file_not_found"),
            ErrorKind::FileExpired => look(410, INVALID, "file_expired"),
            // Gone for good as well; a 404 of a call about a batch says that the batch is not there.
            ErrorKind::FileDeleted => look(410, INVALID, "file_deleted"),
            ErrorKind::FileInUse => final_look(409, INVALID, "file_in_use"),
            ErrorKind::BatchNotFound => look(404, INVALID, "batch_not_found"),
            ErrorKind::BatchAlreadyEnded => final_look(409, INVALID, "batch_already_ended"),
            ErrorKind::BatchNotEnded => look(409, INVALID, "batch_not_ended"),
            ErrorKind::NothingToResubmit => final_look(409, INVALID, "nothing_to_resubmit"),
            ErrorKind::WebhookNotFound => look(404, INVALID, "webhook_not_found"),
            ErrorKind::DeliveryNotFound => look(404, INVALID, "delivery_not_found"),
            ErrorKind::ScheduleNotFound => look(404, INVALID, "schedule_not_found"),
            ErrorKind::ScheduleFileGone => final_look(409, INVALID, "schedule_file_gone"),
            ErrorKind::SequenceNotFound => look(404, INVALID, "sequence_not_found"),
            ErrorKind::OthersRefused => look(409, INVALID, "others_refused"),
            ErrorKind::ModelNotFound => look(404, INVALID, "model_not_found"),
            ErrorKind::JobNotFound => look(404, INVALID, "job_not_found"),
            ErrorKind::JobEmptied => look(410, INVALID, "job_emptied"),
            ErrorKind::NoTrajectory => look(404, INVALID, "no_trajectory"),
            ErrorKind::RouteNotFound => look(404, INVALID, "route_not_found"),
            ErrorKind::MethodNotAllowed => look(405, INVALID, "method_not_allowed"),
            ErrorKind::RequestTimeout => final_look(408, INVALID, "request_timeout"),
            ErrorKind::JobAlreadyEnded => final_look(409, INVALID, "job_already_ended"),
            ErrorKind::JobNotEnded => final_look(409, INVALID, "job_not_ended"),
            ErrorKind::JobCancelled => final_look(409, INVALID, "job_cancelled"),
            ErrorKind::BodyTooLarge => look(413, INVALID, "body_too_large"),
            ErrorKind::UnsupportedMediaType => look(415, INVALID, "unsupported_media_type"),
            ErrorKind::IdempotencyKeyReused => look(422, INVALID, "idempotency_key_reused"),
            ErrorKind::QueueFull => look(429, LIMIT, "queue_full"),
            // OpenAI's code, and its types.
            ErrorKind::RequestsLimited => look(429, "requests", "rate_limit_exceeded"),
            ErrorKind::TokensLimited => look(429, "tokens", "rate_limit_exceeded"),
            ErrorKind::ConcurrencyLimited => look(429, LIMIT, "concurrency_limit_exceeded"),
            ErrorKind::TenantQueueFull => look(429, LIMIT, "tenant_queue_full"),
            ErrorKind::RequestExceedsLimit => look(400, INVALID, "request_exceeds_limit"),
            ErrorKind::Internal => look(500, SERVER, "internal_error"),
            ErrorKind::JobFailed => final_look(502, SERVER, "job_failed"),
            ErrorKind::Quarantined => final_look(502, SERVER, "quarantined"),
            ErrorKind::NoReadyWorker => look(503, SERVER, "no_ready_worker"),
            ErrorKind::StoreUnavailable => look(503, SERVER, "store_unavailable"),
            ErrorKind::QueueUnavailable => look(503, SERVER, "queue_unavailable"),
            ErrorKind::ShuttingDown => look(503, SERVER, "shutting_down"),
            ErrorKind::DeadlineExceeded => final_look(504, SERVER, "deadline_exceeded"),
        }
    }

    /// How a synchronous call shows a job's own error.
    pub fn of_job_error(error: &JobError) -> ErrorKind {
        match error.code {
            ErrorCode::ContextLengthExceeded => ErrorKind::ContextLengthExceeded,
            ErrorCode::InvalidRequest => ErrorKind::InvalidRequest,
            ErrorCode::EngineFailed | ErrorCode::NotFinite | ErrorCode::StorageFailed => ErrorKind::JobFailed,
            ErrorCode::Quarantined => ErrorKind::Quarantined,
        }
    }
}

/// The body of every error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorEnvelope {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong; all four members are always there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// For people: what is wrong and what to do.
    pub message: String,
    /// The family of the error, as OpenAI names it.
    #[serde(rename = "type")]
    #[schema(example = "invalid_request_error")]
    pub kind: String,
    /// The field at fault, as a path, if one is.
    #[schema(required, example = "messages[2].content")]
    pub param: Option<String>,
    /// The stable code of the error.
    #[schema(required, example = "invalid_type")]
    pub code: Option<String>,
}

impl ErrorEnvelope {
    /// The envelope of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>, param: Option<String>) -> Self {
        let look = kind.look();
        Self {
            error: ErrorBody {
                message: message.into(),
                kind: look.kind.to_owned(),
                param,
                code: Some(look.code.to_owned()),
            },
        }
    }

    /// What a job that failed is answered with, in the worker's own words, behind the HTTP status; `None` where nobody says
    /// why it failed.
    pub fn of_failed_job(error: Option<&JobError>) -> (u16, Self) {
        let kind = error.map_or(ErrorKind::JobFailed, ErrorKind::of_job_error);
        let message = error.map_or("the job failed", |error| error.message.as_str());
        let envelope = Self::new(kind, message, error.and_then(|error| error.param.clone()));
        (kind.look().status, envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_published_table() {
        let cases = [
            (ErrorKind::Parameter(ParseCode::UnknownParameter), 400, "unknown_parameter", None),
            (ErrorKind::ContextLengthExceeded, 400, "context_length_exceeded", None),
            (ErrorKind::InvalidApiKey, 401, "invalid_api_key", None),
            (ErrorKind::MissingScope, 403, "missing_scope", None),
            (ErrorKind::ModelNotFound, 404, "model_not_found", None),
            (ErrorKind::JobEmptied, 410, "job_emptied", None),
            (ErrorKind::FileDeleted, 410, "file_deleted", None),
            (ErrorKind::NoTrajectory, 404, "no_trajectory", None),
            (ErrorKind::JobAlreadyEnded, 409, "job_already_ended", Some(false)),
            (ErrorKind::JobNotEnded, 409, "job_not_ended", Some(false)),
            (ErrorKind::IdempotencyKeyReused, 422, "idempotency_key_reused", None),
            (ErrorKind::QueueFull, 429, "queue_full", None),
            (ErrorKind::RequestsLimited, 429, "rate_limit_exceeded", None),
            (ErrorKind::TokensLimited, 429, "rate_limit_exceeded", None),
            (ErrorKind::ConcurrencyLimited, 429, "concurrency_limit_exceeded", None),
            (ErrorKind::TenantQueueFull, 429, "tenant_queue_full", None),
            (ErrorKind::RequestExceedsLimit, 400, "request_exceeds_limit", None),
            (ErrorKind::JobFailed, 502, "job_failed", Some(false)),
            (ErrorKind::Quarantined, 502, "quarantined", Some(false)),
            (ErrorKind::NoReadyWorker, 503, "no_ready_worker", None),
            (ErrorKind::DeadlineExceeded, 504, "deadline_exceeded", Some(false)),
        ];
        for (kind, status, code, should_retry) in cases {
            let look = kind.look();
            assert_eq!((look.status, look.code, look.should_retry), (status, code, should_retry), "{kind:?}");
        }
    }

    #[test]
    fn the_envelope_has_all_four_members() {
        let envelope = ErrorEnvelope::new(ErrorKind::QueueFull, "full", None);
        assert_eq!(
            serde_json::to_string(&envelope).unwrap(),
            r#"{"error":{"message":"full","type":"rate_limit_error","param":null,"code":"queue_full"}}"#
        );
    }

    #[test]
    fn the_clients_fault_is_a_400_and_ours_a_502() {
        for code in [
            ErrorCode::ContextLengthExceeded,
            ErrorCode::InvalidRequest,
            ErrorCode::EngineFailed,
            ErrorCode::NotFinite,
            ErrorCode::StorageFailed,
            ErrorCode::Quarantined,
        ] {
            let (status, envelope) = ErrorEnvelope::of_failed_job(Some(&JobError::new(code, "x").with_param("p")));
            assert_eq!(status, if code.is_clients_fault() { 400 } else { 502 }, "{code:?}");
            assert_eq!((envelope.error.message.as_str(), envelope.error.param.as_deref()), ("x", Some("p")));
        }
        let (status, envelope) = ErrorEnvelope::of_failed_job(None);
        assert_eq!((status, envelope.error.code.as_deref()), (502, Some("job_failed")));
    }
}
