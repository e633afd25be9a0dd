//! What both stores of jobs write alike when a job leaves a state.

use std::hash::{BuildHasher, RandomState};

use contract::{JobError, JobState, Life, RecordLocation, Timestamp, Transition, Usage};
use serde_json::{Value, json};

/// Longest wait after the first transient failure; it doubles with each one more.
const BACKOFF_BASE_MS: u64 = 1_000;
/// No wait is longer.
const BACKOFF_CAP_MS: u64 = 60_000;
/// Entries of a job's history that are kept; older ones go.
const HISTORY: usize = 32;

/// What comes with a transition.
pub(crate) struct Change<'a> {
    /// What happens to the job.
    pub(crate) transition: Transition,
    /// Why, where an error says it.
    pub(crate) error: Option<&'a JobError>,
    /// Tokens the attempt used, if the transition tells.
    pub(crate) usage: Option<Usage>,
    /// The result.
    pub(crate) record: Option<&'a RecordLocation>,
    /// When the first token came.
    pub(crate) first_token_at: Option<i64>,
    /// How long a job that is handed back waits.
    pub(crate) delay_ms: i64,
}

impl Change<'_> {
    /// A transition that brings nothing along.
    pub(crate) fn bare(transition: Transition) -> Self {
        Self { transition, error: None, usage: None, record: None, first_token_at: None, delay_ms: 0 }
    }
}

/// The name of a transition's event.
pub(crate) fn event_kind(transition: Transition, next: Life) -> &'static str {
    match transition {
        Transition::Leased => "leased",
        Transition::Succeeded => "succeeded",
        Transition::FailedForNow if next.state == JobState::Queued => "retried",
        Transition::FailedForNow | Transition::FailedForGood => "failed",
        Transition::WorkerLost { .. } => "lost",
        Transition::HandedBack => "handed_back",
        Transition::CancelAsked => "cancelled",
        Transition::DeadlinePassed => "expired",
    }
}

/// An attempt that ended without a result. Times are milliseconds since the Unix epoch.
pub(crate) struct EndedAttempt<'a> {
    pub(crate) attempt: u32,
    pub(crate) worker: Option<&'a str>,
    pub(crate) started_at: Option<i64>,
    pub(crate) ended_at: i64,
    pub(crate) transition: Transition,
    pub(crate) error: Option<&'a JobError>,
}

impl EndedAttempt<'_> {
    /// Enters it into its job's history.
    pub(crate) fn enter(self, history: &mut Vec<Value>) {
        let why = match (self.transition, self.error) {
            (Transition::WorkerLost { .. }, _) => "worker_lost".to_owned(),
            (Transition::HandedBack, _) => "handed_back".to_owned(),
            (Transition::CancelAsked, _) => "cancelled".to_owned(),
            (Transition::DeadlinePassed, _) => "expired".to_owned(),
            (_, Some(error)) => error.to_string(),
            (_, None) => "failed".to_owned(),
        };
        history.push(json!({
            "attempt": self.attempt,
            "worker": self.worker,
            "started_at": self.started_at.map(|at| Timestamp(at).rfc3339()),
            "ended_at": Timestamp(self.ended_at).rfc3339(),
            "why": why,
        }));
        let surplus = history.len().saturating_sub(HISTORY);
        history.drain(..surplus);
    }
}

/// Full jitter: anything from nothing to a bound that doubles with each failure.
pub(crate) fn backoff_ms(errors: u32) -> i64 {
    let bound = BACKOFF_BASE_MS.saturating_mul(1 << errors.saturating_sub(1).min(16)).min(BACKOFF_CAP_MS);
    // The standard library's own random keys: spread is all that is needed here.
    let draw = RandomState::new().hash_one(errors) % (bound + 1);
    i64::try_from(draw).unwrap_or(0)
}

/// What a job has used: a result has the tokens of the attempt that gave it; any other end, those of all attempts.
pub(crate) fn usage_after(before: Usage, attempt: Option<Usage>, next: Life) -> Usage {
    match attempt {
        Some(usage) if next.state == JobState::Succeeded => usage,
        Some(usage) => sum(before, usage),
        None => before,
    }
}

/// Tokens of two attempts together.
fn sum(a: Usage, b: Usage) -> Usage {
    Usage {
        prompt_tokens: a.prompt_tokens.saturating_add(b.prompt_tokens),
        cached_tokens: a.cached_tokens.saturating_add(b.cached_tokens),
        output_tokens: a.output_tokens.saturating_add(b.output_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_stay_under_a_minute() {
        for (errors, bound) in [(1, 1_000), (2, 2_000), (3, 4_000), (7, 60_000), (u32::MAX, 60_000)] {
            let draws: Vec<i64> = (0..200).map(|_| backoff_ms(errors)).collect();
            assert!(draws.iter().all(|&ms| (0..=bound).contains(&ms)), "{errors}: {draws:?}");
            // Full jitter: the lower half is drawn as well as the upper one.
            assert!(draws.iter().any(|&ms| ms < bound / 2) && draws.iter().any(|&ms| ms > bound / 2), "{errors}");
        }
    }
}
