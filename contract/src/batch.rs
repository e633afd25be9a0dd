//! Batches: files of requests, one job a line.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::file::{FileId, NewFile};
use crate::ids::{BadId, JobId, TenantId, tagged};
use crate::job::{IdempotencyKey, Job};
use crate::request::Kind;
use crate::schedule::ScheduleId;
use crate::time::Timestamp;
use crate::webhook::Hook;

/// Most lines of a batch.
pub const MAX_LINES: u32 = 50_000;
/// Most bytes of a batch's input file.
pub const MAX_INPUT_BYTES: u64 = 200 * 1_000_000;

/// Identifies a batch. Shown as `batch_` and 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub Uuid);

impl BatchId {
    /// A new id, later in order than all that this process made before.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for BatchId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch_{}", self.0.simple())
    }
}

impl FromStr for BatchId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        tagged(text, "batch_")
            .map(Self)
            .ok_or_else(|| BadId::new(text, "a batch id (`batch_` and 32 hexadecimal digits)"))
    }
}

/// Where a batch stands: exactly the words of OpenAI's API, since strict clients refuse others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// Its file is being read.
    Validating,
    /// Its file is wrong: nothing was run.
    Failed,
    /// Its lines run, or wait for others.
    InProgress,
    /// All lines have ended; the files are being written.
    Finalizing,
    /// Every line is in one of the two files.
    Completed,
    /// Its time was over first. What had ended is kept.
    Expired,
    /// It was cancelled, and its last lines are ending.
    Cancelling,
    /// It was cancelled. What had ended is kept.
    Cancelled,
}

impl BatchState {
    /// Every state.
    pub const ALL: [BatchState; 8] = [
        BatchState::Validating,
        BatchState::Failed,
        BatchState::InProgress,
        BatchState::Finalizing,
        BatchState::Completed,
        BatchState::Expired,
        BatchState::Cancelling,
        BatchState::Cancelled,
    ];

    /// The word used in JSON and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            BatchState::Validating => "validating",
            BatchState::Failed => "failed",
            BatchState::InProgress => "in_progress",
            BatchState::Finalizing => "finalizing",
            BatchState::Completed => "completed",
            BatchState::Expired => "expired",
            BatchState::Cancelling => "cancelling",
            BatchState::Cancelled => "cancelled",
        }
    }

    /// Whether nothing about it changes any more.
    pub fn is_terminal(self) -> bool {
        match self {
            BatchState::Failed | BatchState::Completed | BatchState::Expired | BatchState::Cancelled => true,
            BatchState::Validating | BatchState::InProgress | BatchState::Finalizing | BatchState::Cancelling => false,
        }
    }
}

/// A word that is no state of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no state of a batch")]
pub struct BadBatchState(String);

impl FromStr for BatchState {
    type Err = BadBatchState;

    fn from_str(word: &str) -> Result<Self, BadBatchState> {
        let found = BatchState::ALL.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| BadBatchState(word.chars().take(40).collect()))
    }
}

/// What is wrong with a batch's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchError {
    /// The stable code: `invalid_json_line`, `duplicate_custom_id` and so on.
    pub code: String,
    /// What is wrong and what to do.
    pub message: String,
    /// The field at fault, if one is.
    #[schema(required)]
    pub param: Option<String>,
    /// The line, from 1, if one is at fault.
    #[schema(required)]
    pub line: Option<u64>,
}

/// A batch to accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBatch {
    /// Its id, made by the server.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Which route its lines call.
    pub endpoint: Kind,
    /// Its input.
    pub input: FileId,
    /// From now, or from `run_after` if that is later, to its end.
    pub window: Duration,
    /// None of its lines runs before this.
    pub run_after: Option<Timestamp>,
    /// The same as the client wrote it.
    pub window_text: String,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Life of its output files.
    pub output_life: Option<Duration>,
    /// How long the payload of a line is kept after its end, where the server's policy does not say.
    pub keep: Option<Duration>,
    /// The lines of its file that it is of; all, if none are named.
    pub only: Option<LineSet>,
    /// Where it alone is told of.
    pub webhook: Option<Hook>,
    /// A client's key that makes a repeat the same batch.
    pub idempotency: Option<IdempotencyKey>,
}

/// Lines of a file, by number from 0, without blank ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineSet(Vec<u8>);

impl LineSet {
    /// The same set from [`LineSet::as_bytes`].
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// A bit for each line, the lowest bit of the first byte for the first line.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a line.
    pub fn insert(&mut self, line: u32) {
        let byte = line as usize / 8;
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        self.0[byte] |= 1 << (line % 8);
    }

    /// Whether a line is in it.
    pub fn contains(&self, line: u32) -> bool {
        self.0.get(line as usize / 8).is_some_and(|byte| byte & (1 << (line % 8)) != 0)
    }

    /// The lines, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).take(self.0.len() * 8).filter(|line| self.contains(*line))
    }
}

impl FromIterator<u32> for LineSet {
    fn from_iter<I: IntoIterator<Item = u32>>(lines: I) -> Self {
        let mut set = Self::default();
        for line in lines {
            set.insert(line);
        }
        set
    }
}

/// How far the expansion of a batch into jobs came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Lines that are expanded: the number, from 0, of the next one.
    pub line: u32,
    /// Where it begins in the file.
    pub offset: u64,
}

/// Lines of a batch by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Jobs that succeeded.
    pub succeeded: u64,
    /// Jobs that failed, and lines that were refused as requests.
    pub failed: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs whose time was over.
    pub expired: u64,
    /// Jobs that run or wait.
    pub unfinished: u64,
}

/// Tokens of all lines of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTokens {
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Those of them that were in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}

/// A batch as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Its id.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Which route its lines call.
    pub endpoint: Kind,
    /// The model its lines name, once they were read.
    pub model: Option<String>,
    /// Its input.
    pub input: FileId,
    /// The time it has, as the client wrote it.
    pub window_text: String,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Life of its output files.
    pub output_life: Option<Duration>,
    /// How long the payload of a line is kept after its end, where the server's policy does not say.
    pub keep: Option<Duration>,
    /// Where it stands.
    pub state: BatchState,
    /// What is wrong with its file.
    pub errors: Vec<BatchError>,
    /// Its results, if there are any.
    pub output: Option<FileId>,
    /// Its errors, if there are any.
    pub error_file: Option<FileId>,
    /// Lines of its file, once they were read.
    pub total: u32,
    /// How far it is expanded.
    pub cursor: Cursor,
    /// Its lines by what became of them. Zero in lists of the scheduler, which asks for one batch at a time.
    pub counts: LineCounts,
    /// Tokens of its lines.
    pub usage: BatchTokens,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// None of its lines runs before this.
    pub run_after: Option<Timestamp>,
    /// The schedule that made it.
    pub schedule: Option<ScheduleId>,
    /// When its first line could run.
    pub in_progress_at: Option<Timestamp>,
    /// When it ends unfinished.
    pub expires_at: Timestamp,
    /// When its last line had ended.
    pub finalizing_at: Option<Timestamp>,
    /// When its files were complete.
    pub completed_at: Option<Timestamp>,
    /// When its file was found wrong.
    pub failed_at: Option<Timestamp>,
    /// When its time was over.
    pub expired_at: Option<Timestamp>,
    /// When it was asked to be cancelled.
    pub cancelling_at: Option<Timestamp>,
    /// When that was done.
    pub cancelled_at: Option<Timestamp>,
    /// The store's clock when it answered.
    pub now: Timestamp,
}

impl Batch {
    /// The time that it was given.
    pub fn window(&self) -> Duration {
        let from = self.run_after.map_or(self.created_at, |at| at.max(self.created_at));
        Duration::from_millis(self.expires_at.millis_since(from))
    }
}

/// A line that was refused as a request: its answer is a 4xx, and no job was made of it.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedLine {
    /// Its number, from 0.
    pub line: u32,
    /// The client's name for it.
    pub custom_id: String,
    /// The HTTP status.
    pub status: u16,
    /// The error envelope.
    pub body: Value,
}

/// What became of a line.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// It is a job.
    Job {
        /// Its number, from 0.
        line: u32,
        /// The client's name for it.
        custom_id: String,
        /// The job, with its record's location.
        job: Box<Job>,
    },
    /// It was refused.
    Refused(RefusedLine),
}

impl Line {
    /// Its number, from 0.
    pub fn number(&self) -> u32 {
        match self {
            Line::Job { line, .. } => *line,
            Line::Refused(refused) => refused.line,
        }
    }

    /// The job that it was made.
    pub fn job(&self) -> Option<&Job> {
        match self {
            Line::Job { job, .. } => Some(job),
            Line::Refused(_) => None,
        }
    }
}

/// Names a line that has ended: what the `id` of its answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineId {
    /// The job that was made of it.
    Job(JobId),
    /// Its number, from 0; it was refused.
    Refused(u32),
}

impl fmt::Display for LineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineId::Job(job) => job.fmt(f),
            LineId::Refused(line) => write!(f, "line_{line}"),
        }
    }
}

impl FromStr for LineId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let refused = text.strip_prefix("line_").and_then(|number| number.parse().ok()).map(LineId::Refused);
        let found = refused.or_else(|| text.parse().ok().map(LineId::Job));
        found.ok_or_else(|| BadId::new(text, "the id of a line's answer (`job_…` or `line_…`)"))
    }
}

/// How far a batch is, beyond its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchProgress {
    /// The batch with its counts.
    pub batch: Batch,
    /// Of its unfinished jobs those that run.
    pub running: u64,
    /// Jobs of it that ended in the last [`RECENT`].
    pub recent: u64,
    /// Jobs of the same tenant, release and class that were accepted before its next one and wait too. Other tenants
    /// take turns with them. `None` when no job of it waits.
    pub jobs_ahead: Option<u64>,
}

/// Over which time the speed of a batch is measured.
pub const RECENT: Duration = Duration::from_secs(60);

/// The end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchEnd {
    /// [`BatchState::Completed`], [`BatchState::Expired`] or [`BatchState::Cancelled`].
    pub state: BatchState,
    /// Its results, with their number of lines.
    pub output: Option<(NewFile, u32)>,
    /// Its errors, with their number of lines. Both numbers together are all lines, or the end is refused.
    pub errors: Option<(NewFile, u32)>,
}

/// The answer to a cancel of a batch. Asking again gives the same answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchCancel {
    /// It is being cancelled, or is cancelled, by this call or an earlier one.
    Cancelling(Box<Batch>),
    /// Its lines had all ended before, or it had.
    TooLate(Box<Batch>),
    /// No such batch of this tenant.
    NotFound,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_public_api() {
        // https://platform.openai.com/docs/api-reference/batch/object
        let words: Vec<&str> = BatchState::ALL.into_iter().map(BatchState::as_str).collect();
        assert_eq!(
            words,
            ["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
        );
        for state in BatchState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        assert!("queued".parse::<BatchState>().is_err());
    }

    #[test]
    fn sets_of_lines_keep_what_they_are_given() {
        let lines = [0, 7, 8, 49_999];
        let set: LineSet = lines.into_iter().collect();
        assert_eq!(LineSet::from_bytes(set.as_bytes().to_vec()).iter().collect::<Vec<_>>(), lines);
        assert_eq!(set.as_bytes().len(), 6_250);
        assert_eq!((set.as_bytes()[0], set.as_bytes()[1]), (0b1000_0001, 1));
        assert!(!set.contains(1) && !set.contains(u32::MAX));
        assert_eq!(LineSet::default().iter().next(), None);
    }

    #[test]
    fn ids_are_read_as_they_are_shown() {
        let (batch, file) = (BatchId::new(), FileId::new());
        assert_eq!(batch.to_string().parse(), Ok(batch));
        assert_eq!(file.to_string().parse(), Ok(file));
        for line in [LineId::Job(JobId::new()), LineId::Refused(7)] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        assert!("line_x".parse::<LineId>().is_err() && batch.to_string().parse::<LineId>().is_err());
        assert!(file.to_string().parse::<BatchId>().is_err() && "batch_1".parse::<BatchId>().is_err());
    }
}
