//! Picks who takes part in the next step, with which tokens, and keeps the block tables: plain data, no tensors.
//!
//! Invariants: K-1 (empty + cached + used = all blocks), K-2 (a planner that is not idle has a plan).
//! Running sequences are kept oldest first. Blocks run out → the newest is preempted and recomputed later; since sequences
//! are served oldest first and one alone always fits, the oldest always moves.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use contract::{ErrorCode, FinishReason, JobError};

use super::blocks::{BlockPool, blocks_for};
use super::plan::{Logits, Span, StepPlan};
use super::sampler::Scratch;
use super::sequence::{Ending, OfPrompt, Prepared, PromptOutput, Sequence, SequenceId, TokenOutput};
use super::single::SingleLimits;

/// Rows of prompts that one step scores at most: a row of logits is as wide as the vocabulary, so a step with one for each
/// token of a long prompt would hold hundreds of megabytes of them.
pub(super) const SCORED_ROWS: usize = 64;

/// How much the engine takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that generate in the cache at once, at least 1.
    pub max_sequences: usize,
    /// Tokens of a step, at least `max_sequences`.
    pub step_tokens: usize,
    /// For what is done in a single pass.
    pub singles: SingleLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_sequences: 32, step_tokens: 256, singles: SingleLimits::default() }
    }
}

/// A sequence that left, and what it had used.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Which.
    pub id: SequenceId,
    /// Why.
    pub ending: Ending,
    /// Tokens of its prompt that were in the cache at some time.
    pub prompt_tokens: u32,
    /// Of those, tokens that were there already: found, and never computed for it.
    pub cached_tokens: u32,
    /// Tokens it generated.
    pub output_tokens: u32,
}

/// What a step gave.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// What prompts gave, before new tokens of the same sequences.
    pub prompts: Vec<PromptOutput>,
    /// New tokens, at most one per sequence.
    pub tokens: Vec<TokenOutput>,
    /// Sequences that left, after their last token.
    pub ended: Vec<Ended>,
}

impl StepOutput {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty() && self.tokens.is_empty() && self.ended.is_empty()
    }
}

/// What a step can still take on.
struct Budget {
    /// Tokens of prompts.
    tokens: usize,
    /// Rows of prompts to score.
    rows: usize,
}

impl Budget {
    /// How many of its next tokens a sequence can have computed.
    fn of(&self, sequence: &Sequence) -> usize {
        sequence.most_tokens(sequence.n_pending().min(self.tokens), self.rows)
    }
}

/// Where a sequence waits.
#[derive(Debug, Clone, Copy)]
enum Line {
    /// For a place among those that generate.
    Answers,
    /// For a single pass.
    Singles,
}

/// The sequences and their blocks.
pub struct Planner {
    limits: Limits,
    pool: BlockPool,
    waiting: VecDeque<Sequence>,
    /// Those that wait for a single pass.
    singles: VecDeque<Sequence>,
    running: Vec<Sequence>,
    preemptions: u64,
    scratch: Scratch,
}

impl Planner {
    /// A planner over an empty pool of `n_blocks`.
    pub fn new(limits: Limits, n_blocks: usize) -> Self {
        let limits = Limits {
            max_sequences: limits.max_sequences.max(1),
            step_tokens: limits.step_tokens.max(limits.max_sequences).max(1),
            singles: SingleLimits { largest_batch: limits.singles.largest_batch.max(1), ..limits.singles },
        };
        Self {
            limits,
            pool: BlockPool::new(n_blocks),
            waiting: VecDeque::new(),
            singles: VecDeque::new(),
            running: Vec::new(),
            preemptions: 0,
            scratch: Scratch::default(),
        }
    }

    /// Takes a sequence in; it waits for room. The caller has checked that prompt and output fit the whole pool.
    pub fn admit(&mut self, prepared: Prepared) {
        let line = if prepared.is_single_pass() { &mut self.singles } else { &mut self.waiting };
        line.push_back(Sequence::new(prepared));
    }

    /// Nobody is here.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.singles.is_empty() && self.running.is_empty()
    }

    /// Sequences of a single pass, waiting and running.
    pub(super) fn n_singles(&self) -> usize {
        self.singles.len() + self.n_running_singles()
    }

    fn n_running_singles(&self) -> usize {
        self.running.iter().filter(|sequence| sequence.prepared.is_single_pass()).count()
    }

    /// Sequences in the cache.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait for room.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len() + self.singles.len()
    }

    /// The blocks' accounting.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Sequences preempted since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Whether a running sequence uses this seed.
    pub fn is_running_seed(&self, seed: u64) -> bool {
        self.running.iter().any(|sequence| sequence.prepared.choosing.seed == seed)
    }

    /// Takes out whoever is not wanted any more or is past its deadline.
    pub fn sweep(&mut self, now: Instant, out: &mut StepOutput) {
        let over = |sequence: &Sequence| {
            if sequence.prepared.mark.is_set() {
                Some(Ending::Dropped)
            } else if sequence.prepared.deadline.is_some_and(|deadline| deadline <= now) {
                Some(Ending::DeadlinePassed)
            } else {
                None
            }
        };
        let mut idx = 0;
        while idx < self.running.len() {
            match over(&self.running[idx]) {
                Some(ending) => {
                    let sequence = self.running.remove(idx);
                    self.retire(sequence, ending, out);
                }
                None => idx += 1,
            }
        }
        for line in [Line::Answers, Line::Singles] {
            let mut idx = 0;
            while idx < self.line(line).len() {
                match over(&self.line(line)[idx]) {
                    Some(ending) => {
                        if let Some(sequence) = self.line(line).remove(idx) {
                            self.retire(sequence, ending, out);
                        }
                    }
                    None => idx += 1,
                }
            }
        }
    }

    fn line(&mut self, line: Line) -> &mut VecDeque<Sequence> {
        match line {
            Line::Answers => &mut self.waiting,
            Line::Singles => &mut self.singles,
        }
    }

    /// The next step, or `None` when idle. Decode tokens of all, then prefill chunks up to the token budget.
    pub fn plan(&mut self) -> Option<StepPlan> {
        let mut plan = StepPlan::default();
        let decoding = self.running.iter().filter(|sequence| sequence.n_pending() == 1).count();
        let mut left = Budget { tokens: self.limits.step_tokens.saturating_sub(decoding), rows: SCORED_ROWS };
        let mut idx = 0;
        while idx < self.running.len() {
            let pending = self.running[idx].n_pending();
            let take = if pending == 1 { 1 } else { left.of(&self.running[idx]) };
            if take > 0 && self.make_room(idx, take) {
                if pending > 1 {
                    left.tokens -= take;
                }
                left.rows = left.rows.saturating_sub(Self::add_span(&mut plan, &self.running[idx], take));
            }
            idx += 1;
        }
        // At most half of what is left where both wait: neither holds up the other.
        let others = if self.waiting.is_empty() { 0 } else { left.tokens / 2 };
        left.tokens -= others;
        self.let_in(Line::Singles, &mut left, &mut plan);
        left.tokens += others;
        self.let_in(Line::Answers, &mut left, &mut plan);
        debug_assert!(self.is_idle() || !plan.spans.is_empty(), "K-2: not idle, and no plan");
        (!plan.spans.is_empty()).then_some(plan)
    }

    /// Lets in who waits in `line`, in order, as long as there is room, and begins their prompts.
    fn let_in(&mut self, line: Line, left: &mut Budget, plan: &mut StepPlan) {
        let n_singles = self.n_running_singles();
        let mut places = match line {
            Line::Answers => self.limits.max_sequences.saturating_sub(self.running.len() - n_singles),
            Line::Singles => self.limits.singles.largest_batch.saturating_sub(n_singles),
        };
        while places > 0 && left.tokens > 0 {
            let waiting = match line {
                Line::Answers => &mut self.waiting,
                Line::Singles => &mut self.singles,
            };
            let Some(next) = waiting.front_mut() else { break };
            let found = next.find(&self.pool);
            // Room for the prompt and a first token, less what it shares with those that run: nobody is let in at
            // another's cost.
            let needed = blocks_for(next.tokens.len() + 1) - self.pool.n_used_among(&found);
            if !self.running.is_empty() && needed > self.pool.n_free() {
                break;
            }
            let Some(mut sequence) = waiting.pop_front() else { break };
            sequence.begin_with(&found, &mut self.pool);
            self.running.push(sequence);
            places -= 1;
            let idx = self.running.len() - 1;
            // None when all rows that can be scored are others' in this step: its place is in the next one.
            let take = left.of(&self.running[idx]);
            if take == 0 {
                continue;
            }
            if !self.make_room(idx, take) {
                break;
            }
            left.tokens -= take;
            left.rows = left.rows.saturating_sub(Self::add_span(plan, &self.running[idx], take));
        }
    }

    /// Makes the table of `running[idx]` cover `take` more tokens, preempting newer ones if it must.
    fn make_room(&mut self, idx: usize, take: usize) -> bool {
        let wanted = self.running[idx].cached + take;
        loop {
            if self.running[idx].table.grow_to(wanted, &mut self.pool) {
                return true;
            }
            if idx + 1 >= self.running.len() {
                return false;
            }
            if let Some(mut newest) = self.running.pop() {
                newest.preempt(&mut self.pool);
                self.preemptions += 1;
                let line = if newest.prepared.is_single_pass() { Line::Singles } else { Line::Answers };
                self.line(line).push_front(newest);
            }
        }
    }

    /// Adds the next `take` tokens of a sequence; answers how many rows of its prompt they score.
    fn add_span(plan: &mut StepPlan, sequence: &Sequence, take: usize) -> usize {
        let start = plan.tokens.len();
        let context = sequence.cached;
        plan.tokens.extend_from_slice(&sequence.tokens[context..context + take]);
        plan.positions.extend((context..context + take).map(|position| position as u32));
        plan.slots.extend((context..context + take).map(|position| sequence.table.slot(position)));
        plan.spans.push(Span {
            sequence: sequence.prepared.id,
            start: start as u32,
            len: take as u32,
            context: context as u32,
            blocks: sequence.table.blocks().to_vec(),
        });
        let wanted = sequence.wanted(take);
        let n_wanted = wanted.len();
        let rows = wanted.map(|position| (start + position - context) as u32);
        match sequence.prepared.of_prompt {
            OfPrompt::Vector(_) => plan.hidden_rows.extend(rows),
            OfPrompt::Nothing | OfPrompt::Scores(_) => plan.logit_rows.extend(rows),
        }
        if sequence.is_scoring() { n_wanted } else { 0 }
    }

    /// Takes the step's logits in: scores prompts, samples, appends, ends.
    pub fn commit(&mut self, plan: &StepPlan, logits: &Logits, out: &mut StepOutput) {
        let (mut row, mut hidden_row) = (0, 0);
        let mut ended: Vec<(usize, Ending)> = Vec::new();
        let mut planned = plan.spans.iter();
        for (idx, sequence) in self.running.iter_mut().enumerate() {
            // Spans are in the order of `running`; a sequence that was passed over has none.
            let Some(span) = planned.as_slice().first() else { break };
            if sequence.prepared.id != span.sequence {
                continue;
            }
            planned.next();
            let wanted = sequence.wanted(span.len as usize);
            sequence.wrote(span.len as usize, &mut self.pool);
            let next_row = match sequence.prepared.of_prompt {
                OfPrompt::Vector(_) => &mut hidden_row,
                OfPrompt::Nothing | OfPrompt::Scores(_) => &mut row,
            };
            // Where its rows end, whatever becomes of them.
            let end_row = *next_row + wanted.len();
            let ending = match sequence.take_prompt(wanted, logits, next_row, &mut self.scratch) {
                Err(ending) => Some(ending),
                Ok(prompt) => {
                    out.prompts.extend(prompt);
                    if sequence.cached < sequence.tokens.len() {
                        None
                    } else if sequence.prepared.is_single_pass() {
                        Some(Ending::Finished { reason: FinishReason::Length, stop: None })
                    } else {
                        match sequence.choose(logits.row(*next_row), &mut self.scratch) {
                            Ok(chosen) => {
                                let (token, ending) = sequence.push(chosen);
                                out.tokens.push(token);
                                ending
                            }
                            Err(ending) => Some(ending),
                        }
                    }
                }
            };
            *next_row = end_row;
            ended.extend(ending.map(|ending| (idx, ending)));
        }
        for (idx, ending) in ended.into_iter().rev() {
            let sequence = self.running.remove(idx);
            self.retire(sequence, ending, out);
        }
    }

    /// The step failed: its sequences end, the rest go on.
    pub fn fail(&mut self, plan: &StepPlan, message: &str, out: &mut StepOutput) {
        let planned: HashSet<SequenceId> = plan.spans.iter().map(|span| span.sequence).collect();
        let mut idx = 0;
        while idx < self.running.len() {
            if planned.contains(&self.running[idx].prepared.id) {
                let sequence = self.running.remove(idx);
                self.retire(sequence, Ending::Failed(JobError::new(ErrorCode::EngineFailed, message)), out);
            } else {
                idx += 1;
            }
        }
    }

    /// Ends everybody as dropped: the engine stops.
    pub fn abort_all(&mut self, out: &mut StepOutput) {
        let running = std::mem::take(&mut self.running).into_iter();
        let waiting = std::mem::take(&mut self.waiting).into_iter().chain(std::mem::take(&mut self.singles));
        for sequence in running.chain(waiting) {
            self.retire(sequence, Ending::Dropped, out);
        }
    }

    /// The one way out: blocks go back to the pool.
    fn retire(&mut self, mut sequence: Sequence, ending: Ending, out: &mut StepOutput) {
        match &ending {
            // Whatever went wrong may be in its blocks: nobody else is to begin with them.
            Ending::Failed(_) => sequence.table.discard(&mut self.pool),
            Ending::Finished { .. } | Ending::Dropped | Ending::DeadlinePassed => sequence.table.free(&mut self.pool),
        }
        out.ended.push(Ended {
            id: sequence.prepared.id,
            ending,
            prompt_tokens: sequence.n_prompt_used() as u32,
            cached_tokens: sequence.n_prompt_found() as u32,
            output_tokens: sequence.n_output() as u32,
        });
    }

    /// Checks K-1 against the tables of all sequences.
    ///
    /// # Panics
    /// When it does not hold.
    #[cfg(test)]
    pub(super) fn assert_whole(&self) {
        self.pool.assert_whole(
            self.running.iter().chain(&self.waiting).chain(&self.singles).map(|sequence| &sequence.table),
        );
    }
}
