//! How a job ended, or why a try of it did.

use serde::{Deserialize, Serialize};

use crate::record::RecordLocation;

/// Why the text of a choice ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop string or stop token was met.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// The model ended it, and called functions in it.
    ToolCalls,
}

impl FinishReason {
    /// The word of the OpenAI routes.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

/// Tokens a job used, in the sense of the OpenAI routes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, tokens whose keys and values were already in the cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
}

/// The codes a job can fail with; the same words in the store, the API and the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Prompt and `max_tokens` do not fit the model's context. Permanent, the request's fault.
    ContextLengthExceeded,
    /// The worker found the request wrong in a way the API cannot see (no chat template, a token id out of range, a rule for
    /// the answer that cannot be enforced). Permanent.
    InvalidRequest,
    /// A step failed on the device; another try may work.
    EngineFailed,
    /// The model's numbers were not finite for this job. Permanent.
    NotFinite,
    /// The record could not be stored; another try may work.
    StorageFailed,
    /// Workers died under it three times, the last time alone.
    Quarantined,
}

impl ErrorCode {
    /// The word used in JSON and SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::ContextLengthExceeded => "context_length_exceeded",
            ErrorCode::InvalidRequest => "invalid_request",
            ErrorCode::EngineFailed => "engine_failed",
            ErrorCode::NotFinite => "not_finite",
            ErrorCode::StorageFailed => "storage_failed",
            ErrorCode::Quarantined => "quarantined",
        }
    }

    /// Whether another attempt of the same job may end better.
    pub fn is_transient(self) -> bool {
        matches!(self, ErrorCode::EngineFailed | ErrorCode::StorageFailed)
    }

    /// Whether the client's request is at fault: synchronous routes answer 400, not 502.
    pub fn is_clients_fault(self) -> bool {
        matches!(self, ErrorCode::ContextLengthExceeded | ErrorCode::InvalidRequest)
    }
}

/// Why a job, or one attempt of it, failed. Kept with the job and shown to its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct JobError {
    /// What kind of error.
    pub code: ErrorCode,
    /// What happened and what to do about it, for people.
    pub message: String,
    /// The request's field at fault, if one is.
    pub param: Option<String>,
}

impl JobError {
    /// An error without a field.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: None }
    }

    /// The same, pointing at a field of the request.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }
}

/// What a worker commits for a job whose lease it holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It ran to its end.
    Succeeded {
        /// The encoded record, inline or where it was staged.
        record: RecordLocation,
        /// Tokens used.
        usage: Usage,
        /// Milliseconds from the lease to the first token.
        first_token_ms: Option<u64>,
    },
    /// A permanent error.
    Failed {
        /// Why.
        error: JobError,
        /// Tokens used before it.
        usage: Usage,
    },
    /// The deadline passed while it ran.
    Expired {
        /// Tokens used before it.
        usage: Usage,
    },
}
