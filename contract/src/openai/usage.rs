//! The body of the usage routes.

use serde::Serialize;
use utoipa::ToSchema;

use crate::ids::Class;
use crate::ledger::{Day, TokenSums, UsageLine};

/// Jobs by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsageJobs {
    /// Accepted on that day.
    pub accepted: u64,
    /// Ended on that day with a result.
    pub succeeded: u64,
    /// Failed on that day.
    pub failed: u64,
    /// Cancelled on that day.
    pub cancelled: u64,
    /// Those whose deadline passed on that day.
    pub expired: u64,
}

/// Sums of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsageTokens {
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Those of them that were in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}

impl From<TokenSums> for UsageTokens {
    fn from(sums: TokenSums) -> Self {
        Self { prompt_tokens: sums.prompt, cached_tokens: sums.cached, output_tokens: sums.output }
    }
}

/// What a tenant used on one day (UTC) of one release, by the name of the model and the class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsageObject {
    /// The day.
    #[schema(example = "2026-11-29")]
    pub day: String,
    /// Whose jobs.
    pub tenant: String,
    /// The release they ran on.
    pub release: String,
    /// The name they called it by.
    pub model: String,
    /// Their class.
    pub class: Class,
    /// Jobs.
    pub jobs: UsageJobs,
    /// Tokens of the results of jobs that succeeded on that day.
    pub tokens: UsageTokens,
    /// Tokens of attempts that gave no result, booked on that day.
    pub wasted_tokens: UsageTokens,
}

impl UsageObject {
    /// What is shown of a line of the ledger.
    pub fn of(line: &UsageLine) -> Self {
        Self {
            day: line.day.to_string(),
            tenant: line.tenant.to_string(),
            release: line.release.to_string(),
            model: line.model.clone(),
            class: line.class,
            jobs: UsageJobs {
                accepted: line.accepted,
                succeeded: line.succeeded,
                failed: line.failed,
                cancelled: line.cancelled,
                expired: line.expired,
            },
            tokens: line.tokens.into(),
            wasted_tokens: line.wasted.into(),
        }
    }
}

/// Usage by day, tenant, release, model and class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UsageList {
    /// Always `list`.
    pub object: String,
    /// The first day asked for.
    pub from: String,
    /// The last day asked for.
    pub to: String,
    /// The lines, first day first; days without jobs have none.
    pub data: Vec<UsageObject>,
}

impl UsageList {
    /// The lines of some days.
    pub fn new(from: Day, to: Day, lines: &[UsageLine]) -> Self {
        Self {
            object: "list".to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            data: lines.iter().map(UsageObject::of).collect(),
        }
    }
}
