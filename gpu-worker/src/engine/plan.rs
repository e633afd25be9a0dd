//! What one step computes: plain data that the planner makes and a [`Forward`] carries out.
//!
//! Nothing here knows tensors or devices, so the planner is tested without a model and a `Forward` without a planner.

use super::sequence::SequenceId;

/// Tokens in one block of the paged KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// One forward pass over the flat list of tokens of a step: decode tokens of running sequences and prefill chunks of
/// new ones, side by side. `tokens`, `positions` and `slots` have one entry per token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Token ids, all spans one after the other.
    pub tokens: Vec<u32>,
    /// Position of each token in its own sequence, from 0.
    pub positions: Vec<u32>,
    /// Where each token's key and value go: `block * BLOCK_TOKENS + offset`, all distinct.
    pub slots: Vec<u32>,
    /// One span per sequence that takes part, in the order of `tokens`; together they cover `tokens` exactly.
    pub spans: Vec<Span>,
    /// Rows of the flat list whose logits are wanted, ascending; may be empty (a prefill chunk that is not the last).
    pub logit_rows: Vec<u32>,
    /// Rows whose hidden states are wanted, behind the model's last norm, ascending; none of them is among `logit_rows`.
    pub hidden_rows: Vec<u32>,
}

/// The part of a step that belongs to one sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Span {
    /// Whose it is. Blocks do not tell: sequences that begin alike share them.
    pub sequence: SequenceId,
    /// First row of the span in the flat list.
    pub start: u32,
    /// Tokens of the span, at least 1.
    pub len: u32,
    /// Tokens of the sequence already in the cache before this span (= position of the span's first token).
    pub context: u32,
    /// The sequence's block table: block indexes in order; covers at least `context + len` tokens.
    pub blocks: Vec<u32>,
}

impl StepPlan {
    /// The step with the `idx`-th span alone.
    ///
    /// # Panics
    /// If there is no such span.
    pub fn only(&self, idx: usize) -> StepPlan {
        let span = &self.spans[idx];
        let rows = span.start as usize..(span.start + span.len) as usize;
        let of_span = |wanted: &[u32]| {
            let wanted = wanted.iter().filter(|row| rows.contains(&(**row as usize)));
            wanted.map(|row| row - span.start).collect()
        };
        StepPlan {
            tokens: self.tokens[rows.clone()].to_vec(),
            positions: self.positions[rows.clone()].to_vec(),
            slots: self.slots[rows.clone()].to_vec(),
            logit_rows: of_span(&self.logit_rows),
            hidden_rows: of_span(&self.hidden_rows),
            spans: vec![Span { start: 0, ..span.clone() }],
        }
    }

    /// Tokens in the step.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }
}

/// What a plan asked for, on the host: logits, and hidden states.
#[derive(Debug, Clone, Default)]
pub struct Logits {
    /// `[n_rows, vocab_size]`, row-major, float32; one row per entry of [`StepPlan::logit_rows`].
    pub data: Vec<f32>,
    /// Length of a row.
    pub vocab_size: usize,
    /// `[n_rows, hidden_size]`, row-major, float32; one row per entry of [`StepPlan::hidden_rows`].
    pub hidden: Vec<f32>,
    /// Length of a row of `hidden`.
    pub hidden_size: usize,
}

impl Logits {
    /// The `idx`-th asked row, `[vocab_size]`.
    ///
    /// # Panics
    /// If `idx` is not below the number of rows asked for.
    pub fn row(&self, idx: usize) -> &[f32] {
        &self.data[idx * self.vocab_size..(idx + 1) * self.vocab_size]
    }

    /// The `idx`-th asked hidden state, `[hidden_size]`.
    ///
    /// # Panics
    /// If `idx` is not below the number of rows asked for.
    pub fn hidden_row(&self, idx: usize) -> &[f32] {
        &self.hidden[idx * self.hidden_size..(idx + 1) * self.hidden_size]
    }
}

/// Why a step could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The device or a kernel refused; the touched cache slots are undefined, other sequences are whole.
    #[error("the forward pass failed: {0}")]
    Device(String),
}

/// The model behind the engine: one batched pass per call. Synchronous; owned by the engine's thread alone.
pub trait Forward: Send {
    /// Runs the plan: writes keys and values of every token into the cache, and answers the asked logits and hidden states.
    /// What a row gives depends on its own sequence alone, bit for bit, whatever else the plan holds and however
    /// its earlier tokens were cut into spans.
    ///
    /// # Errors
    /// [`ForwardError`]; the planner then ends the sequences of this plan, and the worker goes on.
    fn step(&mut self, plan: &StepPlan) -> Result<Logits, ForwardError>;
    /// Entries in a row of logits.
    fn vocab_size(&self) -> usize;
    /// Numbers in a hidden state.
    fn hidden_size(&self) -> usize;
    /// Longest sequence the model was made for, in tokens.
    fn context_tokens(&self) -> usize;
    /// Blocks in the preallocated KV pool.
    fn n_blocks(&self) -> usize;
}
