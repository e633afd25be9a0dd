//! The wire: bodies of the OpenAI-compatible and native routes, read and written without any I/O.
//!
//! - In: bytes → [`json::parse`] → [`parse_chat`], [`parse_completion`] or [`parse_job`] → [`crate::Request`].
//! - Out: [`crate::Record`] and [`crate::Job`] → the typed bodies of [`bodies`] and [`native`].
//! - Errors: one [`ErrorKind`] per thing that can go wrong, and one table from kind to status, type and code.
//!
//! A field is honoured, or documented as being without effect, or refused by name. `null` always means absent.

pub mod audit;
pub mod batches;
pub mod bodies;
pub mod canonical;
mod chat;
mod common;
mod completion;
pub mod constraint;
mod fields;
pub mod files;
mod job;
pub mod json;
pub mod keys;
pub mod kinds;
mod messages;
pub mod native;
pub mod pattern;
pub mod requests;
pub mod schedules;
pub mod schema;
pub mod sequences;
pub mod stream;
pub mod tenants;
mod tools;
pub mod usage;
pub mod views;
pub mod webhooks;

#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod view_tests;

use std::collections::BTreeMap;

use crate::request::Request;
use crate::retention::Storage;

pub use chat::parse_chat;
pub use completion::parse_completion;
pub use job::{ParsedJob, parse_job};
pub use kinds::{ErrorBody, ErrorEnvelope, ErrorKind};

/// Most messages of one conversation.
pub const MAX_MESSAGES: usize = 2_048;
/// Most functions that a request offers, and most calls of one message.
pub const MAX_TOOLS: usize = 128;
/// Most characters of the name of a function.
pub const MAX_TOOL_NAME_CHARS: usize = 64;
/// Most bytes of all schemas and descriptions of a request's functions together.
pub const MAX_TOOLS_BYTES: usize = 256 * 1024;
/// Most characters of a call's id.
pub const MAX_TOOL_CALL_ID_CHARS: usize = 128;
/// Most bytes of one string of a request.
pub const MAX_STRING_BYTES: usize = 1024 * 1024;
/// Most stop strings.
pub const MAX_STOPS: usize = 8;
/// Most characters of one stop string.
pub const MAX_STOP_CHARS: usize = 128;
/// Most stop token ids.
pub const MAX_STOP_TOKEN_IDS: usize = 64;
/// Most token ids of `logit_bias`.
pub const MAX_LOGIT_BIASES: usize = 1_024;
/// Most likely tokens shown beside each chosen one.
pub const MAX_TOP_LOGPROBS: u8 = 20;
/// Most pairs of `metadata`.
pub const MAX_METADATA_PAIRS: usize = 16;
/// Most characters of a key of `metadata`.
pub const MAX_METADATA_KEY_CHARS: usize = 64;
/// Most characters of a value of `metadata`.
pub const MAX_METADATA_VALUE_CHARS: usize = 512;
/// Most seconds between acceptance and deadline: a week.
pub const MAX_DEADLINE_SECONDS: u64 = 604_800;
/// Tokens a completion generates when the request names no limit, as OpenAI's endpoint does.
pub const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// A body of one of the OpenAI routes, understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// What to do.
    pub request: Request,
    /// Answer as server-sent events.
    pub stream: bool,
    /// Send one more chunk with the usage before the end of the stream.
    pub include_usage: bool,
    /// The client's own pairs, kept with the job.
    pub metadata: BTreeMap<String, String>,
    /// How long its payload is kept: [`Storage::RunOnly`] with `store: false`.
    pub storage: Storage,
}

/// What kind of mistake a body has; the `code` of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParseCode {
    /// A field that must be there is absent.
    MissingRequiredParameter,
    /// No route of this server knows the field.
    UnknownParameter,
    /// The field is known, but the asked value is not honoured yet.
    UnsupportedParameter,
    /// The value is of another JSON type.
    InvalidType,
    /// The value is of the right type and out of range, or contradicts another one.
    InvalidValue,
}

impl ParseCode {
    /// Every code.
    pub const ALL: [ParseCode; 5] = [
        ParseCode::MissingRequiredParameter,
        ParseCode::UnknownParameter,
        ParseCode::UnsupportedParameter,
        ParseCode::InvalidType,
        ParseCode::InvalidValue,
    ];

    /// The word used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ParseCode::MissingRequiredParameter => "missing_required_parameter",
            ParseCode::UnknownParameter => "unknown_parameter",
            ParseCode::UnsupportedParameter => "unsupported_parameter",
            ParseCode::InvalidType => "invalid_type",
            ParseCode::InvalidValue => "invalid_value",
        }
    }
}

/// A body that is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// The field at fault, as a path: `messages[2].content`, `request.temperature`. `None`: the body as a whole.
    pub param: Option<String>,
    /// What is wrong and what would be right, for people.
    pub message: String,
    /// What kind of mistake.
    pub code: ParseCode,
}
