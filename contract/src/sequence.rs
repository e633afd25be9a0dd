//! Sequences: jobs of one key of a tenant, which run one at a time in order of acceptance.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{JobId, QueueId};
use crate::life::JobState;
use crate::time::Timestamp;

/// What the jobs behind one do when it fails or expires. Whoever cancels a job means that one alone: the next one runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The next one runs.
    #[default]
    Skip,
    /// They wait until somebody resumes the sequence.
    Block,
}

impl OnFailure {
    /// Every way.
    pub const ALL: [OnFailure; 2] = [OnFailure::Skip, OnFailure::Block];

    /// The word used in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Skip => "skip",
            OnFailure::Block => "block",
        }
    }
}

/// A word that says neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither skip nor block")]
pub struct BadOnFailure(String);

impl FromStr for OnFailure {
    type Err = BadOnFailure;

    fn from_str(text: &str) -> Result<Self, BadOnFailure> {
        OnFailure::ALL
            .into_iter()
            .find(|way| way.as_str() == text)
            .ok_or_else(|| BadOnFailure(text.chars().take(40).collect()))
    }
}

/// Why a sequence stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceBlock {
    /// The job that failed or expired: the first one, if there were several.
    pub job: JobId,
    /// When it did.
    pub at: Timestamp,
}

/// A sequence that has unfinished jobs or is blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Its key.
    pub key: String,
    /// Why its jobs are held, if they are.
    pub block: Option<SequenceBlock>,
    /// Its jobs that have not ended.
    pub unfinished: u64,
    /// The first of them, and where it stands: its turn has come, or comes when the sequence is resumed.
    pub next: Option<(JobId, JobState)>,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SequenceState {
    /// No worker has a job of it now.
    Idle,
    /// A worker runs its next job.
    Running,
    /// Its jobs are held until somebody resumes it.
    Blocked,
}

impl Sequence {
    /// Where it stands.
    pub fn state(&self) -> SequenceState {
        match (&self.block, self.next) {
            (Some(_), _) => SequenceState::Blocked,
            (None, Some((_, JobState::Running))) => SequenceState::Running,
            (None, _) => SequenceState::Idle,
        }
    }
}

/// A sequence that is not blocked any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// The sequence as it now is.
    pub sequence: Sequence,
    /// Where its next job became due by this call.
    pub due: Option<QueueId>,
}
