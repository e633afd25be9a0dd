//! The life of a job: one pure function says what may follow what. Stores repeat its guards in SQL.

use serde::{Deserialize, Serialize};

/// Where a job stands. The last four are terminal, and terminal states never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Accepted, waits for a worker (also while it waits to be retried, or is held).
    Queued,
    /// A worker holds the lease.
    Running,
    /// The result is committed.
    Succeeded,
    /// A permanent error, or a budget used up.
    Failed,
    /// Somebody asked for it.
    Cancelled,
    /// The deadline passed.
    Expired,
}

impl JobState {
    /// Every state, in the order of a life.
    pub const ALL: [JobState; 6] = [
        JobState::Queued,
        JobState::Running,
        JobState::Succeeded,
        JobState::Failed,
        JobState::Cancelled,
        JobState::Expired,
    ];

    /// The word used in JSON, SQL, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::Expired => "expired",
        }
    }

    /// Whether nothing follows any more.
    pub fn is_terminal(self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running)
    }
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for JobState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        JobState::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            format!("`{text}` is not a job state (queued, running, succeeded, failed, cancelled or expired)")
        })
    }
}

/// The part of a job that the state machine decides on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Where it stands.
    pub state: JobState,
    /// Leases so far; `(job, attempt)` names the lease and fences every later write.
    pub attempt: u32,
    /// The job's own transient failures so far.
    pub errors: u32,
    /// Workers that died while they ran it.
    pub losses: u32,
}

impl Life {
    /// A job as it is accepted.
    pub const NEW: Life = Life { state: JobState::Queued, attempt: 0, errors: 0, losses: 0 };
}

/// How often a job may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Transient failures of its own after which it fails.
    pub errors: u32,
    /// Lost workers after which it is quarantined, if it ran alone when the last one died.
    pub losses: u32,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { errors: 3, losses: 3 }
    }
}

/// What may happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// A worker took the lease.
    Leased,
    /// The result was committed.
    Succeeded,
    /// An error that another try would not mend.
    FailedForGood,
    /// An error that another try may mend; spends one of `errors`.
    FailedForNow,
    /// The worker died or lost touch. `alone`: no other job was leased by it, so there is nobody else to blame.
    WorkerLost {
        /// Whether the job was the worker's only one.
        alone: bool,
    },
    /// The worker drains and gives the job back unharmed; spends nothing.
    HandedBack,
    /// Somebody asked for the end.
    CancelAsked,
    /// The deadline has passed.
    DeadlinePassed,
}

/// A transition that the job's state does not allow; the caller's picture of the job is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {state} job cannot go through {transition:?}")]
pub struct IllegalTransition {
    /// Where the job stood.
    pub state: JobState,
    /// What was tried.
    pub transition: Transition,
}

/// What a job becomes.
///
/// A worker lost takes all its jobs with it, so blame is narrowed before it is laid: a job that has lost
/// `budgets.losses - 1` workers is given one more chance alone, and only a loss suffered alone ends it.
///
/// # Errors
/// [`IllegalTransition`] when the state does not allow it; terminal states allow nothing.
pub fn transition(life: Life, transition: Transition, budgets: Budgets) -> Result<Life, IllegalTransition> {
    use {JobState as S, Transition as T};
    let next = match (life.state, transition) {
        (S::Queued, T::Leased) => Life { state: S::Running, attempt: life.attempt + 1, ..life },
        (S::Running, T::Succeeded) => Life { state: S::Succeeded, ..life },
        (S::Running, T::FailedForGood) => Life { state: S::Failed, ..life },
        (S::Running, T::FailedForNow) => {
            let errors = life.errors + 1;
            let state = if errors >= budgets.errors { S::Failed } else { S::Queued };
            Life { state, errors, ..life }
        }
        (S::Running, T::WorkerLost { alone }) => {
            let losses = life.losses + 1;
            if losses < budgets.losses {
                Life { state: S::Queued, losses, ..life }
            } else if alone {
                Life { state: S::Failed, losses, ..life }
            } else {
                // Not proven: the count stays where the next run is alone.
                Life { state: S::Queued, losses: budgets.losses.saturating_sub(1), ..life }
            }
        }
        (S::Running, T::HandedBack) => Life { state: S::Queued, ..life },
        (S::Queued | S::Running, T::CancelAsked) => Life { state: S::Cancelled, ..life },
        (S::Queued | S::Running, T::DeadlinePassed) => Life { state: S::Expired, ..life },
        (state, transition) => return Err(IllegalTransition { state, transition }),
    };
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobState as S;
    use Transition as T;

    const TRANSITIONS: [T; 9] = [
        T::Leased,
        T::Succeeded,
        T::FailedForGood,
        T::FailedForNow,
        T::WorkerLost { alone: false },
        T::WorkerLost { alone: true },
        T::HandedBack,
        T::CancelAsked,
        T::DeadlinePassed,
    ];

    /// The diagram as a table: from each state, the state that each transition leads to with fresh budgets.
    #[test]
    fn all_pairs_follow_the_diagram() {
        #[rustfmt::skip]
        let table: [(S, [Option<S>; 9]); 6] = [
            (S::Queued,    [Some(S::Running), None, None, None, None, None, None, Some(S::Cancelled), Some(S::Expired)]),
            (S::Running,   [None, Some(S::Succeeded), Some(S::Failed), Some(S::Queued), Some(S::Queued), Some(S::Queued), Some(S::Queued), Some(S::Cancelled), Some(S::Expired)]),
            (S::Succeeded, [None; 9]),
            (S::Failed,    [None; 9]),
            (S::Cancelled, [None; 9]),
            (S::Expired,   [None; 9]),
        ];
        for (state, row) in table {
            for (event, expected) in TRANSITIONS.into_iter().zip(row) {
                let life = Life { state, attempt: 1, errors: 0, losses: 0 };
                let got = transition(life, event, Budgets::default()).ok().map(|next| next.state);
                assert_eq!(got, expected, "{state} through {event:?}");
            }
        }
    }

    #[test]
    fn a_lease_counts_an_attempt_and_giving_back_spends_nothing() {
        let leased = transition(Life::NEW, T::Leased, Budgets::default()).unwrap();
        assert_eq!(leased, Life { state: S::Running, attempt: 1, errors: 0, losses: 0 });
        let back = transition(leased, T::HandedBack, Budgets::default()).unwrap();
        assert_eq!(back, Life { state: S::Queued, attempt: 1, errors: 0, losses: 0 });
    }

    #[test]
    fn the_third_error_is_the_last() {
        let mut life = Life { state: S::Running, attempt: 1, errors: 0, losses: 0 };
        for expected in [S::Queued, S::Queued, S::Failed] {
            life = transition(Life { state: S::Running, ..life }, T::FailedForNow, Budgets::default()).unwrap();
            assert_eq!(life.state, expected);
        }
        assert_eq!(life.errors, 3);
    }

    #[test]
    fn only_a_third_loss_suffered_alone_quarantines() {
        let running = |losses| Life { state: S::Running, attempt: 4, errors: 0, losses };
        let lost = |losses, alone| transition(running(losses), T::WorkerLost { alone }, Budgets::default()).unwrap();
        assert_eq!((lost(0, true).state, lost(0, true).losses), (S::Queued, 1));
        assert_eq!((lost(1, true).state, lost(1, true).losses), (S::Queued, 2));
        assert_eq!((lost(2, false).state, lost(2, false).losses), (S::Queued, 2));
        assert_eq!((lost(2, true).state, lost(2, true).losses), (S::Failed, 3));
    }
}
