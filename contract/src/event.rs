//! What is told over the bus. The bus is best effort: whoever waits also reads the store.

use serde::{Deserialize, Serialize};

use crate::ids::{Fingerprint, JobId, QueueId, WorkerId};
use crate::life::JobState;
use crate::record::TokenLogprob;

/// Something that happened to a running job, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The job.
    pub job: JobId,
    /// Its attempt; a higher one starts again at position 1, and readers skip what they have.
    pub attempt: u32,
    /// What happened.
    pub body: JobEventBody,
}

/// The kinds of [`JobEvent`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobEventBody {
    /// The worker took the lease.
    Started,
    /// One token was generated.
    Token(TokenEvent),
    /// The job reached a terminal state, which the store has.
    Ended {
        /// That state.
        state: JobState,
    },
}

/// One generated token and the text it made visible.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Tokens told of so far, those of all answers and this one included: the id of the event, from 1.
    pub position: u32,
    /// The token.
    pub id: u32,
    /// Which answer it belongs to, from 0. Tokens of several come in turn: the first of each, then the second of each that
    /// has one, so that every attempt gives them in the same order.
    #[serde(default, skip_serializing_if = "is_first")]
    pub choice: u32,
    /// Text that became visible with it; empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// If asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<TokenLogprob>,
}

fn is_first(choice: &u32) -> bool {
    *choice == 0
}

/// Short messages to whoever listens. A lost one costs time, never truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Signal {
    /// A job reached a terminal state.
    Ended {
        /// The job.
        job: JobId,
        /// The state.
        state: JobState,
    },
    /// Somebody cancelled a job that may be running: workers drop it.
    Cancelled {
        /// The job.
        job: JobId,
    },
    /// A queue has due rows: the feeder should look now.
    Due {
        /// Which.
        queue: QueueId,
    },
    /// A queue has messages: workers should look now.
    Ready {
        /// Which.
        queue: QueueId,
    },
}

/// What a worker says of itself, every few seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerInfo {
    /// Its name, unique per start.
    #[schema(value_type = String)]
    pub id: WorkerId,
    /// The release it has loaded.
    #[schema(value_type = String)]
    pub release: Fingerprint,
    /// The model's name.
    pub model: String,
    /// Loaded, warmed, and its engine is alive.
    pub ready: bool,
    /// It finishes what it has and takes nothing more.
    pub draining: bool,
    /// Sequences in the engine.
    pub running: u32,
    /// Sequences the engine takes at once.
    pub capacity: u32,
    /// KV blocks in use.
    pub used_blocks: u32,
    /// KV blocks that nobody uses and that keep what prompts began with; they are free for whoever needs them.
    #[serde(default)]
    pub cached_blocks: u32,
    /// KV blocks of the pool.
    pub total_blocks: u32,
    /// Steps since the start.
    pub steps: u64,
    /// Sequences preempted since the start.
    pub preemptions: u64,
}
