//! A [`Forward`] without a model: logits are a hash of the tokens that the sequence's block table leads to.
//!
//! It measures the queue and tests the planner. It keeps what was written to every cache slot and reads it back through
//! the block tables, as attention does, so a lost write, a block freed too early or a wrong table gives other logits.

use std::time::Duration;

use super::{PlanLimits, check_plan, slot_of};
use crate::engine::plan::{BLOCK_TOKENS, Forward, ForwardError, Logits, Span, StepPlan};

/// When the end token is the most likely one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// No token is special.
    #[default]
    Never,
    /// After a history of `tokens` tokens or more (prompt included), and never before.
    AtLength {
        /// The end token's id.
        token: u32,
        /// Length of the history, in tokens.
        tokens: usize,
    },
    /// After one in `n` histories, chosen by their hash, and never after others.
    OneIn {
        /// The end token's id.
        token: u32,
        /// 1 ends every sequence at once; 0 is read as 1.
        n: u64,
    },
}

/// Numbers in a hidden state of the trivial forward.
pub const HIDDEN_SIZE: usize = 24;

/// Shape and behaviour of a [`TrivialForward`].
#[derive(Debug, Clone, Copy)]
pub struct TrivialConfig {
    /// Entries in a row of logits.
    pub vocab_size: usize,
    /// Longest sequence, in tokens.
    pub context_tokens: usize,
    /// Blocks in the pool.
    pub n_blocks: usize,
    /// Slept at every step, in place of computing.
    pub step_delay: Duration,
    /// When sequences end.
    pub ending: Ending,
}

/// A deterministic stand-in for a model. Same history, same logits, whatever the batch, the chunks or the blocks.
#[derive(Debug)]
pub struct TrivialForward {
    config: TrivialConfig,
    /// Hash of the token and position last written to each slot, and of all tokens before it, as a model's keys and values
    /// depend on them; `None` where nothing was written.
    memory: Vec<Option<u64>>,
}

impl TrivialForward {
    /// An empty cache of `config.n_blocks` blocks.
    pub fn new(config: TrivialConfig) -> Self {
        Self { memory: vec![None; config.n_blocks * BLOCK_TOKENS], config }
    }

    /// Hash of what the block table holds at positions `0..=last`.
    fn history(&self, span: &Span, last: usize) -> Result<u64, ForwardError> {
        let mut hash = 0x243f_6a88_85a3_08d3;
        for position in 0..=last {
            hash = mix(hash ^ self.read(span, position)?);
        }
        Ok(hash)
    }

    fn read(&self, span: &Span, position: usize) -> Result<u64, ForwardError> {
        let slot = slot_of(span, position);
        self.memory[slot].ok_or_else(|| {
            ForwardError::Device(format!("position {position} reads slot {slot}, which was never written"))
        })
    }

    fn write(&mut self, plan: &StepPlan, span: &Span) -> Result<(), ForwardError> {
        for row in span.start as usize..(span.start + span.len) as usize {
            let (token, position) = (plan.tokens[row], plan.positions[row]);
            let before = match position.checked_sub(1) {
                Some(previous) => self.read(span, previous as usize)?,
                None => 0,
            };
            self.memory[plan.slots[row] as usize] =
                Some(mix(before ^ mix((u64::from(position) << 32) | u64::from(token))));
        }
        Ok(())
    }

    /// What `fill` makes, from the history and its length, of each of `rows`.
    fn rows(
        &self,
        plan: &StepPlan,
        rows: &[u32],
        width: usize,
        fill: impl Fn(&Self, u64, usize, &mut [f32]),
    ) -> Result<Vec<f32>, ForwardError> {
        let mut data = vec![0.0; rows.len() * width];
        let mut spans = plan.spans.iter();
        let mut span = spans.next();
        for (&row, made) in rows.iter().zip(data.chunks_exact_mut(width)) {
            while let Some(passed) = span.filter(|span| row >= span.start + span.len) {
                debug_assert!(passed.start <= row, "spans come in the order of the rows");
                span = spans.next();
            }
            let span = span.ok_or_else(|| ForwardError::Device(format!("row {row} belongs to no span")))?;
            let last = plan.positions[row as usize] as usize;
            fill(self, self.history(span, last)?, last + 1, made);
        }
        Ok(data)
    }

    /// From -1 to 1.
    fn fill_hidden(&self, history: u64, _n_tokens: usize, row: &mut [f32]) {
        for (at, x) in row.iter_mut().enumerate() {
            *x = (mix(!history ^ at as u64) >> 40) as f32 * (2.0 / 16_777_216.0) - 1.0;
        }
    }

    fn fill_row(&self, history: u64, n_tokens: usize, row: &mut [f32]) {
        for (token, logit) in row.iter_mut().enumerate() {
            // 24 bits fit a float32 exactly: a spread of [-8, 8) with few ties.
            *logit = (mix(history ^ token as u64) >> 40) as f32 * (16.0 / 16_777_216.0) - 8.0;
        }
        let (token, ends) = match self.config.ending {
            Ending::Never => return,
            Ending::AtLength { token, tokens } => (token, n_tokens >= tokens),
            Ending::OneIn { token, n } => (token, history.is_multiple_of(n.max(1))),
        };
        if let Some(logit) = row.get_mut(token as usize) {
            *logit = if ends { 32.0 } else { -32.0 };
        }
    }
}

impl Forward for TrivialForward {
    fn step(&mut self, plan: &StepPlan) -> Result<Logits, ForwardError> {
        let TrivialConfig { vocab_size, context_tokens, n_blocks, step_delay, .. } = self.config;
        check_plan(plan, PlanLimits { vocab_size, context_tokens, n_blocks })?;
        if !step_delay.is_zero() {
            std::thread::sleep(step_delay);
        }
        for span in &plan.spans {
            self.write(plan, span)?;
        }
        let data = self.rows(plan, &plan.logit_rows, vocab_size, Self::fill_row)?;
        let hidden = self.rows(plan, &plan.hidden_rows, HIDDEN_SIZE, Self::fill_hidden)?;
        Ok(Logits { data, vocab_size, hidden, hidden_size: HIDDEN_SIZE })
    }

    fn hidden_size(&self) -> usize {
        HIDDEN_SIZE
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn context_tokens(&self) -> usize {
        self.config.context_tokens
    }

    fn n_blocks(&self) -> usize {
        self.config.n_blocks
    }
}

/// The finaliser of SplitMix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::push_span;

    fn forward(ending: Ending) -> TrivialForward {
        TrivialForward::new(TrivialConfig {
            vocab_size: 50,
            context_tokens: 64,
            n_blocks: 8,
            step_delay: Duration::ZERO,
            ending,
        })
    }

    fn run(forward: &mut TrivialForward, spans: &[(&[u32], usize, &[u32])]) -> Logits {
        let mut plan = StepPlan::default();
        for (tokens, context, blocks) in spans {
            push_span(&mut plan, tokens, *context, blocks, tokens.len() - 1..tokens.len());
        }
        forward.step(&plan).unwrap()
    }

    const HISTORY: [u32; 20] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4];

    #[test]
    fn logits_depend_on_the_history_alone() {
        let alone = run(&mut forward(Ending::Never), &[(&HISTORY, 0, &[0, 1])]);
        let mut other = forward(Ending::Never);
        run(&mut other, &[(&[7; 9], 0, &[2]), (&HISTORY[..7], 0, &[6, 3])]);
        let split = run(&mut other, &[(&[8], 9, &[2]), (&HISTORY[7..], 7, &[6, 3])]);
        assert_eq!(alone.row(0), split.row(1));
    }

    #[test]
    fn a_wrong_table_or_an_overwritten_block_gives_other_logits() {
        let right = run(&mut forward(Ending::Never), &[(&HISTORY, 0, &[0, 1])]);
        let mut broken = forward(Ending::Never);
        run(&mut broken, &[(&HISTORY[..19], 0, &[0, 1]), (&[1; 16], 0, &[2])]);
        let wrong_table = run(&mut broken, &[(&HISTORY[19..], 19, &[2, 1])]);
        assert_ne!(right.row(0), wrong_table.row(0));
        run(&mut broken, &[(&[1, 2, 3], 0, &[0])]);
        let overwritten = run(&mut broken, &[(&HISTORY[19..], 19, &[0, 1])]);
        assert_ne!(right.row(0), overwritten.row(0));
    }

    #[test]
    fn what_is_cached_of_a_token_depends_on_the_tokens_before_it() {
        let second = |first: u32| {
            let mut forward = forward(Ending::Never);
            run(&mut forward, &[(&[first; 16], 0, &[0]), (&[9; 16], 0, &[1])]);
            run(&mut forward, &[(&HISTORY[..16], 16, &[0, 2])]);
            // The same tokens at the same positions, behind another first block.
            run(&mut forward, &[(&[5], 32, &[1, 2, 3])]).data
        };
        assert_ne!(second(1), second(2));
        assert_eq!(second(1), second(1));
    }

    #[test]
    fn a_slot_that_was_never_written_is_an_error() {
        let mut plan = StepPlan::default();
        push_span(&mut plan, &[1], 3, &[0], 0..1);
        assert!(forward(Ending::Never).step(&plan).is_err());
    }

    #[test]
    fn the_end_token_wins_exactly_when_it_should() {
        let mut at_length = forward(Ending::AtLength { token: 7, tokens: 20 });
        let best = |logits: &[f32]| (0..50).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_ne!(best(run(&mut at_length, &[(&HISTORY[..19], 0, &[0, 1])]).row(0)), 7);
        assert_eq!(best(run(&mut at_length, &[(&HISTORY[19..], 19, &[0, 1])]).row(0)), 7);
        let always = run(&mut forward(Ending::OneIn { token: 7, n: 1 }), &[(&[1], 0, &[0])]);
        assert_eq!(best(always.row(0)), 7);
    }
}
