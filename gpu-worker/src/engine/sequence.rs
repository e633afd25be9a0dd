//! One generation inside the engine: its tokens, where it stands, and when it ends.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use contract::{ErrorCode, FinishReason, JobError};

use super::adjust::Adjustment;
use super::blocks::{BlockPool, BlockTable};
use super::grammar::Grammar;
use super::plan::BLOCK_TOKENS;
use super::prefix::{BlockHash, CacheScope};
use super::sampler::{self, Choosing, Chosen, Next, NotFinite, Scratch};

/// Names a sequence towards the engine's owner; the engine never looks inside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// Its name, unlike that of any other sequence in the engine.
    pub id: SequenceId,
    /// With whom it shares full blocks of the cache; `None`: it finds none, and leaves none to find.
    pub scope: Option<CacheScope>,
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
    /// Hashes of its full blocks, as far as they were needed; tokens are only ever appended, so they stay right.
    chain: Vec<BlockHash>,
    /// Blocks of the table that were found or are kept.
    kept: usize,
    /// The positions that it computed itself, from the first to one behind the last, whatever it lost since; `None` before
    /// its first step.
    computed: Option<Range<usize>>,
    /// Bias and penalties, which count its tokens. They stay with it when it is preempted, as its tokens do.
    adjustment: Option<Adjustment>,
}

impl Sequence {
    pub(super) fn new(prepared: Prepared) -> Self {
        let tokens = prepared.prompt.clone();
        let adjustment = Adjustment::new(&prepared.choosing.sampling, &prepared.prompt, prepared.max_tokens);
        Self {
            prepared,
            tokens,
            cached: 0,
            table: BlockTable::default(),
            chain: Vec::new(),
            kept: 0,
            computed: None,
            adjustment,
        }
    }

    /// Known blocks that it could begin with. Never all of its tokens: the last one's logits are wanted.
    pub(super) fn find(&mut self, pool: &BlockPool) -> Vec<u32> {
        let Some(scope) = self.prepared.scope else { return Vec::new() };
        let n = (self.tokens.len() - 1) / BLOCK_TOKENS;
        self.extend_chain(scope, n);
        pool.find(scope, &self.chain[..n], &self.tokens)
    }

    /// Begins with these blocks, which [`Sequence::find`] gave just now.
    pub(super) fn begin_with(&mut self, found: &[u32], pool: &mut BlockPool) {
        self.table.begin_with(found, pool);
        self.kept = found.len();
        self.cached = found.len() * BLOCK_TOKENS;
    }

    /// The first block that it would have to compute with this many found, among those that it could find.
    pub(super) fn needs_next(&self, n_found: usize) -> Option<BlockHash> {
        let n = (self.tokens.len() - 1) / BLOCK_TOKENS;
        self.chain.get(..n)?.get(n_found).copied()
    }

    /// The full blocks of its tokens that it has yet to compute, for whoever could share them.
    pub(super) fn coming(&self) -> impl Iterator<Item = BlockHash> {
        self.chain.iter().skip(self.kept).copied()
    }

    /// A step wrote the keys and values of `n` more tokens: the blocks that are full now are kept.
    pub(super) fn wrote(&mut self, n: usize, pool: &mut BlockPool) {
        let (from, to) = (self.cached, self.cached + n);
        self.cached = to;
        let so_far = self.computed.take().unwrap_or(from..to);
        self.computed = Some(so_far.start.min(from)..so_far.end.max(to));
        let Some(scope) = self.prepared.scope else { return };
        let full = to / BLOCK_TOKENS;
        self.extend_chain(scope, full);
        let (ids, _) = self.tokens.as_chunks();
        for (at, ids) in ids.iter().enumerate().take(full).skip(self.kept) {
            pool.keep(self.table.blocks()[at], scope, self.chain[at], *ids);
        }
        self.kept = full;
    }

    /// Gives its blocks back and begins anew, later; what it computed may be found then.
    pub(super) fn preempt(&mut self, pool: &mut BlockPool) {
        self.table.free(pool);
        self.kept = 0;
        self.cached = 0;
    }

    /// Makes the chain cover the first `n` blocks, all of them full.
    fn extend_chain(&mut self, scope: CacheScope, n: usize) {
        let (ids, _) = self.tokens.as_chunks();
        for ids in &ids[self.chain.len().min(n)..n] {
            self.chain.push(scope.block_hash(self.chain.last().copied(), ids));
        }
    }

    /// Tokens of the prompt that were in the cache at some time, computed or found; 0 before its first step.
    pub(super) fn n_prompt_used(&self) -> usize {
        self.computed.as_ref().map_or(0, |computed| computed.end.min(self.n_prompt()))
    }

    /// Of those, tokens that it found and never computed.
    pub(super) fn n_prompt_found(&self) -> usize {
        self.computed.as_ref().map_or(0, |computed| computed.start.min(self.n_prompt()))
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

    /// Chooses its next token from the logits of its last one; or how it ends, if none can be chosen.
    pub(super) fn choose(&mut self, row: &[f32], scratch: &mut Scratch) -> Result<Chosen, Ending> {
        let (n_prompt, n_tokens) = (self.prepared.prompt.len(), self.tokens.len());
        let Prepared { choosing: how, end_ids, min_tokens, grammar, .. } = &mut self.prepared;
        let position = (n_tokens - n_prompt) as u32;
        let banned = if position < *min_tokens { end_ids.as_slice() } else { &[] };
        let next = Next { how, position, banned, adjustment: self.adjustment.as_ref() };
        match grammar {
            None => sampler::choose(row, &next, scratch).map_err(|NotFinite| Self::not_finite()),
            Some(grammar) => grammar.choose(row, &next, scratch),
        }
    }

    /// Takes the chosen token; says what became visible and whether the sequence is over.
    pub(super) fn push(&mut self, chosen: Chosen) -> (TokenOutput, Option<Ending>) {
        let id = chosen.id;
        self.tokens.push(id);
        if let Some(adjustment) = &mut self.adjustment {
            adjustment.push(id);
        }
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
