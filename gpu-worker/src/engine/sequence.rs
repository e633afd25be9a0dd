//! One generation inside the engine: its tokens, where it stands, and when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use contract::{ErrorCode, FinishReason, JobError};

use super::blocks::BlockTable;
use super::grammar::Grammar;
use super::sampler::{Choosing, Chosen};

/// Names a sequence towards the engine's owner; the engine never looks inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Set by anybody who wants a sequence gone: its job was cancelled, or its lease lost. Read before every step.
#[derive(Debug, Clone, Default)]
pub struct DropMark(Arc<AtomicBool>);

impl DropMark {
    /// Asks for the end; the sequence is gone within one step.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody asked.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Text that one token made visible.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// The text, possibly empty.
    pub text: String,
    /// The stop string that was met, if one was: the sequence ends.
    pub stop: Option<String>,
}

/// Turns the tokens of one sequence into text, watching for stop strings.
pub trait OutputText: Send {
    /// Takes the next token. `watch_stops`: whether a stop string may end the text now.
    fn push(&mut self, id: u32, watch_stops: bool) -> Piece;
    /// The text still held back at the end.
    fn finish(&mut self) -> String;
}

/// For whoever counts tokens and reads none: benchmarks, and tests of the loop.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoText;

impl OutputText for NoText {
    fn push(&mut self, _id: u32, _watch_stops: bool) -> Piece {
        Piece::default()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// A sequence ready for the engine: rendered, tokenised, checked.
pub struct Prepared {
    /// Its name.
    pub id: SequenceId,
    /// The prompt's token ids, at least one, each below the vocabulary's size.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub choosing: Choosing,
    /// Most tokens to generate, at least 1; prompt and this fit the context and the pool.
    pub max_tokens: u32,
    /// Ends cannot come before this many tokens.
    pub min_tokens: u32,
    /// Token ids that end it (end of text, unless ignored, and the request's own).
    pub end_ids: Vec<u32>,
    /// The rule that the answer keeps to; it then has no `min_tokens`.
    pub grammar: Option<Grammar>,
    /// Its text.
    pub text: Box<dyn OutputText>,
    /// When it must be over.
    pub deadline: Option<Instant>,
    /// Set when it is not wanted any more.
    pub mark: DropMark,
}

/// Why a sequence left the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// It ran to its end.
    Finished {
        /// Stop or length.
        reason: FinishReason,
        /// The stop string or token that ended it.
        stop: Option<StopReason>,
    },
    /// Its mark was set.
    Dropped,
    /// Its deadline passed.
    DeadlinePassed,
    /// A step failed, or its numbers were not finite.
    Failed(JobError),
}

/// What ended a sequence, when it was something the request named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A stop string.
    Text(String),
    /// A token id.
    Token(u32),
}

/// One token that a step gave.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenOutput {
    /// Whose.
    pub id: SequenceId,
    /// Tokens generated so far, this one included.
    pub position: u32,
    /// The token and its log-probabilities.
    pub chosen: Chosen,
    /// Text that became visible.
    pub text: String,
}

/// A sequence inside the engine.
pub(super) struct Sequence {
    pub(super) prepared: Prepared,
    /// Prompt and output ids.
    pub(super) tokens: Vec<u32>,
    /// Tokens whose keys and values are in the cache.
    pub(super) cached: usize,
    pub(super) table: BlockTable,
}

impl Sequence {
    pub(super) fn new(prepared: Prepared) -> Self {
        let tokens = prepared.prompt.clone();
        Self { prepared, tokens, cached: 0, table: BlockTable::default() }
    }

    pub(super) fn n_prompt(&self) -> usize {
        self.prepared.prompt.len()
    }

    pub(super) fn n_output(&self) -> usize {
        self.tokens.len() - self.prepared.prompt.len()
    }

    /// Tokens not in the cache yet; 1 while decoding.
    pub(super) fn n_pending(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Ids that may not be chosen next.
    pub(super) fn banned(&self) -> &[u32] {
        if (self.n_output() as u32) < self.prepared.min_tokens { &self.prepared.end_ids } else { &[] }
    }

    /// Takes the chosen token; says what became visible and whether the sequence is over.
    pub(super) fn push(&mut self, chosen: Chosen) -> (TokenOutput, Option<Ending>) {
        let id = chosen.id;
        self.tokens.push(id);
        let n_output = self.n_output() as u32;
        let may_end = n_output >= self.prepared.min_tokens;
        let mut text = String::new();
        let mut ending = None;
        if self.prepared.end_ids.contains(&id) {
            let stop = Some(StopReason::Token(id));
            ending = Some(Ending::Finished { reason: FinishReason::Stop, stop });
        } else {
            let piece = self.prepared.text.push(id, may_end);
            text = piece.text;
            if let Some(stop) = piece.stop {
                ending = Some(Ending::Finished { reason: FinishReason::Stop, stop: Some(StopReason::Text(stop)) });
            }
        }
        if ending.is_none()
            && let Some(grammar) = &mut self.prepared.grammar
        {
            ending = grammar.take(id, n_output);
        }
        if ending.is_none() && n_output >= self.prepared.max_tokens {
            ending = Some(Ending::Finished { reason: FinishReason::Length, stop: None });
        }
        let stopped_by_text = matches!(&ending, Some(Ending::Finished { stop: Some(StopReason::Text(_)), .. }));
        if ending.is_some() && !stopped_by_text {
            text.push_str(&self.prepared.text.finish());
        }
        (TokenOutput { id: self.prepared.id, position: n_output, chosen, text }, ending)
    }

    pub(super) fn not_finite() -> Ending {
        Ending::Failed(JobError::new(
            ErrorCode::NotFinite,
            "the model gave numbers that are not finite for this request; nothing sensible can be chosen from them",
        ))
    }
}
