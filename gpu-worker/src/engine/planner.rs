//! Picks who takes part in the next step, with which tokens, and keeps the block tables: plain data, no tensors.
//!
//! Invariants: K-1 (empty + cached + used = all blocks), K-2 (a planner that is not idle has a plan).
//! Running sequences are kept oldest first. Blocks run out → the newest is preempted and recomputed later; since sequences
//! are served oldest first and one alone always fits, the oldest always moves.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use contract::{ErrorCode, JobError};

use super::blocks::{BlockPool, blocks_for};
use super::plan::{Logits, Span, StepPlan};
use super::prefix::BlockHash;
use super::sampler::Scratch;
use super::sequence::{Ending, Prepared, Sequence, SequenceId, TokenOutput};

/// How much the engine takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences in the cache at once, at least 1.
    pub max_sequences: usize,
    /// Tokens of a step, at least `max_sequences`.
    pub step_tokens: usize,
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
    /// New tokens, at most one per sequence.
    pub tokens: Vec<TokenOutput>,
    /// Sequences that left, after their last token.
    pub ended: Vec<Ended>,
}

impl StepOutput {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.ended.is_empty()
    }
}

/// The sequences and their blocks.
pub struct Planner {
    limits: Limits,
    pool: BlockPool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    preemptions: u64,
    scratch: Scratch,
    /// Blocks that running sequences are about to compute; made anew by each plan that lets anybody in.
    coming: HashSet<BlockHash>,
}

impl Planner {
    /// A planner over an empty pool of `n_blocks`.
    pub fn new(limits: Limits, n_blocks: usize) -> Self {
        let limits = Limits {
            max_sequences: limits.max_sequences.max(1),
            step_tokens: limits.step_tokens.max(limits.max_sequences).max(1),
        };
        Self {
            limits,
            pool: BlockPool::new(n_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            preemptions: 0,
            scratch: Scratch::default(),
            coming: HashSet::new(),
        }
    }

    /// Takes a sequence in; it waits for room. The caller has checked that prompt and output fit the whole pool.
    pub fn admit(&mut self, prepared: Prepared) {
        self.waiting.push_back(Sequence::new(prepared));
    }

    /// Nobody is here.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences in the cache.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait for room.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
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
        let mut idx = 0;
        while idx < self.waiting.len() {
            match over(&self.waiting[idx]) {
                Some(ending) => {
                    if let Some(sequence) = self.waiting.remove(idx) {
                        self.retire(sequence, ending, out);
                    }
                }
                None => idx += 1,
            }
        }
    }

    /// The next step, or `None` when idle. Decode tokens of all, then prefill chunks up to the token budget.
    pub fn plan(&mut self) -> Option<StepPlan> {
        let mut plan = StepPlan::default();
        let decoding = self.running.iter().filter(|sequence| sequence.n_pending() == 1).count();
        let mut prefill_budget = self.limits.step_tokens.saturating_sub(decoding);
        let mut idx = 0;
        while idx < self.running.len() {
            let pending = self.running[idx].n_pending();
            let take = if pending == 1 { 1 } else { pending.min(prefill_budget) };
            if take > 0 && self.make_room(idx, take) {
                if pending > 1 {
                    prefill_budget -= take;
                }
                Self::add_span(&mut plan, &self.running[idx], take);
            }
            idx += 1;
        }
        self.let_in(prefill_budget, &mut plan);
        debug_assert!(self.is_idle() || !plan.spans.is_empty(), "K-2: not idle, and no plan");
        (!plan.spans.is_empty()).then_some(plan)
    }

    /// Lets waiting sequences in, oldest first, and plans up to `budget` of their tokens.
    fn let_in(&mut self, mut budget: usize, plan: &mut StepPlan) {
        if self.waiting.is_empty() || self.running.len() >= self.limits.max_sequences {
            return;
        }
        self.coming.clear();
        self.coming.extend(self.running.iter().flat_map(Sequence::coming));
        let mut place = 0;
        while self.running.len() < self.limits.max_sequences && budget > 0 {
            let Some(next) = self.waiting.get_mut(place) else { break };
            let found = next.find(&self.pool);
            // Somebody computes what it needs next: it finds that in a step or a few, and others go before it meanwhile.
            // Whoever computes runs, so it comes to an end.
            if next.needs_next(found.len()).is_some_and(|block| self.coming.contains(&block)) {
                place += 1;
                if place > self.limits.max_sequences {
                    break;
                }
                continue;
            }
            // Room for the prompt and a first token, less what it shares with those that run: nobody is let in at
            // another's cost.
            let needed = blocks_for(next.tokens.len() + 1) - self.pool.n_used_among(&found);
            if !self.running.is_empty() && needed > self.pool.n_free() {
                break;
            }
            let Some(mut sequence) = self.waiting.remove(place) else { break };
            sequence.begin_with(&found, &mut self.pool);
            self.coming.extend(sequence.coming());
            self.running.push(sequence);
            let idx = self.running.len() - 1;
            let take = self.running[idx].n_pending().min(budget);
            if !self.make_room(idx, take) {
                break;
            }
            budget -= take;
            Self::add_span(plan, &self.running[idx], take);
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
                self.waiting.push_front(newest);
            }
        }
    }

    fn add_span(plan: &mut StepPlan, sequence: &Sequence, take: usize) {
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
        if context + take == sequence.tokens.len() {
            plan.logit_rows.push((start + take - 1) as u32);
        }
    }

    /// Takes the step's logits in: samples, appends, ends.
    pub fn commit(&mut self, plan: &StepPlan, logits: &Logits, out: &mut StepOutput) {
        let mut row = 0;
        let mut ended: Vec<(usize, Ending)> = Vec::new();
        let mut planned = plan.spans.iter();
        for (idx, sequence) in self.running.iter_mut().enumerate() {
            // Spans are in the order of `running`; a sequence that was passed over has none.
            let Some(span) = planned.as_slice().first() else { break };
            if sequence.prepared.id != span.sequence {
                continue;
            }
            planned.next();
            sequence.wrote(span.len as usize, &mut self.pool);
            if sequence.cached < sequence.tokens.len() {
                continue;
            }
            let chosen = sequence.choose(logits.row(row), &mut self.scratch);
            row += 1;
            match chosen {
                Ok(chosen) => {
                    let (token, ending) = sequence.push(chosen);
                    out.tokens.push(token);
                    ended.extend(ending.map(|ending| (idx, ending)));
                }
                Err(ending) => ended.push((idx, ending)),
            }
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
        for sequence in std::mem::take(&mut self.running).into_iter().chain(std::mem::take(&mut self.waiting)) {
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
        self.pool.assert_whole(self.running.iter().chain(&self.waiting).map(|sequence| &sequence.table));
    }
}
