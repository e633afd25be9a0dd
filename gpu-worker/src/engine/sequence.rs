//! One generation inside the engine: its tokens, where it stands, and when it ends.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use contract::{ErrorCode, FinishReason, JobError, Pooling};

use super::adjust::Adjustment;
use super::blocks::{BlockPool, BlockTable};
use super::grammar::Grammar;
use super::plan::{BLOCK_TOKENS, Logits};
use super::prefix::{BlockHash, CacheScope};
use super::sampler::{self, Choosing, Chosen, Next, NotFinite, Scored, Scratch};

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

/// What is wanted of a sequence's prompt itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OfPrompt {
    /// Nothing but that it is read.
    #[default]
    Nothing,
    /// What the model made of each token after the first, with this many of the likeliest.
    Scores(u8),
    /// One vector, made of the hidden states of its tokens. No tokens are generated.
    Vector(Pooling),
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
    /// What is wanted of the prompt.
    pub of_prompt: OfPrompt,
    /// Most tokens to generate; with 0 it is over once its prompt is read. Prompt and this fit the context and the pool.
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

/// What a step gave of a sequence's prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptOutput {
    /// Whose.
    pub id: SequenceId,
    /// What.
    pub gives: PromptGives,
}

/// What a prompt can give.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptGives {
    /// Scores of its tokens, the next ones in order: the first is that of its second token. Each is told of once.
    Scores(Vec<Scored>),
    /// Its vector, `[hidden_size]`, as it was pooled.
    Vector(Vec<f32>),
}

impl Prepared {
    /// Whether it is done once its prompt is read: work for the batcher of single passes.
    pub fn is_single_pass(&self) -> bool {
        self.max_tokens == 0
    }
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
    /// Positions of its prompt whose rows were scored, if they are to be. They stay told of when it is preempted.
    scored: usize,
    /// Sum of the hidden states so far, in order, for a mean.
    sum: Vec<f64>,
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
            scored: 0,
            sum: Vec::new(),
        }
    }

    /// Known blocks that it could begin with. Never all of its tokens: the last one's logits are wanted. None of those whose
    /// rows are wanted still: a block that is found gives no row.
    pub(super) fn find(&mut self, pool: &BlockPool) -> Vec<u32> {
        let Some(scope) = self.prepared.scope else { return Vec::new() };
        let n = self.needed_from().min(self.tokens.len() - 1) / BLOCK_TOKENS;
        self.extend_chain(scope, n);
        pool.find(scope, &self.chain[..n], &self.tokens)
    }

    /// Begins with these blocks, which [`Sequence::find`] gave just now.
    pub(super) fn begin_with(&mut self, found: &[u32], pool: &mut BlockPool) {
        self.table.begin_with(found, pool);
        self.kept = found.len();
        self.cached = found.len() * BLOCK_TOKENS;
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
        self.sum.clear();
    }

    /// Whether rows of its prompt are still to be scored.
    pub(super) fn is_scoring(&self) -> bool {
        matches!(self.prepared.of_prompt, OfPrompt::Scores(_)) && self.scored + 1 < self.n_prompt()
    }

    /// The first position whose row is wanted for its own sake, and not only to choose the next token.
    fn needed_from(&self) -> usize {
        match self.prepared.of_prompt {
            OfPrompt::Vector(Pooling::Mean) => 0,
            _ if self.is_scoring() => self.scored,
            _ => self.tokens.len(),
        }
    }

    /// The positions whose rows a step over the next `take` tokens is to give: hidden states for a vector, else logits.
    pub(super) fn wanted(&self, take: usize) -> Range<usize> {
        let (from, to) = (self.cached, self.cached + take);
        let is_last = to == self.tokens.len();
        match self.prepared.of_prompt {
            OfPrompt::Vector(Pooling::Mean) => from..to,
            OfPrompt::Vector(Pooling::Last) if is_last => to - 1..to,
            OfPrompt::Vector(Pooling::Last) => to..to,
            OfPrompt::Nothing | OfPrompt::Scores(_) => {
                let end = if is_last && self.prepared.max_tokens > 0 { to } else { to.min(self.tokens.len() - 1) };
                // The row of a prompt's last token scores none of the prompt's.
                let start = if self.is_scoring() { self.scored.max(from) } else { self.tokens.len() - 1 };
                start.min(end)..end
            }
        }
    }

    /// How many of its next `pending` tokens a step can take that gives at most `rows` scores.
    pub(super) fn most_tokens(&self, pending: usize, rows: usize) -> usize {
        if !self.is_scoring() {
            return pending;
        }
        let most = self.scored.saturating_sub(self.cached) + rows;
        // With the last score the last token comes for free.
        if most + 1 >= self.n_pending() { pending } else { pending.min(most) }
    }

    /// Takes the rows in that [`Sequence::wanted`] names, but for the one that the next token is chosen from; `next_row`
    /// is the first of them in `logits`, and is left behind those that were taken.
    ///
    /// # Errors
    /// How the sequence ends: a number was not finite.
    pub(super) fn take_prompt(
        &mut self,
        wanted: Range<usize>,
        logits: &Logits,
        next_row: &mut usize,
        scratch: &mut Scratch,
    ) -> Result<Option<PromptOutput>, Ending> {
        let id = self.prepared.id;
        match self.prepared.of_prompt {
            OfPrompt::Nothing => Ok(None),
            OfPrompt::Scores(top) => {
                let scores = wanted.start..wanted.end.min(self.n_prompt() - 1);
                if scores.is_empty() {
                    return Ok(None);
                }
                self.scored = scores.end;
                let score = |position: usize| {
                    let row = logits.row(*next_row);
                    *next_row += 1;
                    sampler::score(row, self.tokens[position + 1], top, scratch).map_err(|NotFinite| Self::not_finite())
                };
                let scores = scores.map(score).collect::<Result<_, _>>()?;
                Ok(Some(PromptOutput { id, gives: PromptGives::Scores(scores) }))
            }
            OfPrompt::Vector(pooling) => {
                let mut last = None;
                for _ in wanted {
                    let row = logits.hidden_row(*next_row);
                    *next_row += 1;
                    if !sampler::all_finite(row) {
                        return Err(Self::not_finite());
                    }
                    match pooling {
                        Pooling::Last => last = Some(row.to_vec()),
                        Pooling::Mean => self.add(row),
                    }
                }
                if self.n_pending() > 0 {
                    return Ok(None);
                }
                let n = self.tokens.len() as f64;
                let mean = || self.sum.iter().map(|sum| (sum / n) as f32).collect();
                Ok(Some(PromptOutput { id, gives: PromptGives::Vector(last.unwrap_or_else(mean)) }))
            }
        }
    }

    /// Adds a hidden state to the sum: in the order of the positions, so that it does not depend on how they were cut.
    fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        for (sum, x) in self.sum.iter_mut().zip(row) {
            *sum += f64::from(*x);
        }
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
