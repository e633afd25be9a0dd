//! The adapters of [`Forward`](crate::engine::plan::Forward): `candle` computes a real model, `trivial` a hash.
//!
//! Both begin with [`check_plan`], so a plan that would read or write another sequence's cache is refused by either.

pub mod candle;
pub mod trivial;

use std::ops::Range;

use crate::engine::plan::{BLOCK_TOKENS, ForwardError, Span, StepPlan};

/// What a plan must stay inside of.
#[derive(Debug, Clone, Copy)]
pub struct PlanLimits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Positions are below this.
    pub context_tokens: usize,
    /// Block indexes are below this.
    pub n_blocks: usize,
}

/// Refuses a plan that is not what [`StepPlan`] says it is: linear in its tokens and blocks, so done at every step.
///
/// That no two tokens share a slot is checked in debug builds only.
///
/// # Errors
/// [`ForwardError::Device`] with the field and the row.
pub fn check_plan(plan: &StepPlan, limits: PlanLimits) -> Result<(), ForwardError> {
    let refuse = |what: String| Err(ForwardError::Device(format!("the plan is not valid: {what}")));
    let n_tokens = plan.n_tokens();
    if plan.positions.len() != n_tokens || plan.slots.len() != n_tokens {
        return refuse(format!("{n_tokens} tokens, {} positions and {} slots", plan.positions.len(), plan.slots.len()));
    }
    if let Some(row) = plan.tokens.iter().position(|&token| token as usize >= limits.vocab_size) {
        return refuse(format!("token {} of row {row} is outside the vocabulary", plan.tokens[row]));
    }
    let mut covered = 0_usize;
    for (span_idx, span) in plan.spans.iter().enumerate() {
        let (len, context) = (span.len as usize, span.context as usize);
        if span.start as usize != covered || len == 0 || len > n_tokens - covered {
            return refuse(format!("span {span_idx} does not follow the one before, or is empty"));
        }
        let end = context.saturating_add(len);
        if end > limits.context_tokens || end > span.blocks.len().saturating_mul(BLOCK_TOKENS) {
            return refuse(format!("span {span_idx} ends at {end}, beyond its blocks or the context"));
        }
        if span.blocks.iter().any(|&block| block as usize >= limits.n_blocks) {
            return refuse(format!("span {span_idx} names a block outside the pool"));
        }
        for (row, position) in (covered..covered + len).zip(context..end) {
            if plan.positions[row] as usize != position {
                return refuse(format!("row {row} has position {}, not {position}", plan.positions[row]));
            }
            if plan.slots[row] as usize != slot_of(span, position) {
                return refuse(format!("row {row} has slot {}, which its block table does not give", plan.slots[row]));
            }
        }
        covered += len;
    }
    if covered != n_tokens {
        return refuse(format!("the spans cover {covered} of {n_tokens} tokens"));
    }
    for (name, rows) in [("logit_rows", &plan.logit_rows), ("hidden_rows", &plan.hidden_rows)] {
        let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || rows.last().is_some_and(|&row| row as usize >= n_tokens) {
            return refuse(format!("{name} are not ascending rows of the plan"));
        }
    }
    // Both are ascending, and the second is nearly always empty.
    if let Some(row) = plan.hidden_rows.iter().find(|row| plan.logit_rows.binary_search(row).is_ok()) {
        return refuse(format!("row {row} is among logit_rows and hidden_rows"));
    }
    debug_assert!(slots_are_distinct(&plan.slots), "two tokens of one plan share a slot");
    Ok(())
}

/// The cache slot of `position` in the sequence that `span` belongs to.
fn slot_of(span: &Span, position: usize) -> usize {
    span.blocks[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
}

fn slots_are_distinct(slots: &[u32]) -> bool {
    let mut sorted = slots.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// Appends one span to a plan made by hand (perplexity, warm-up, tests): `tokens` follow `context` tokens that are in
/// the cache already; `wanted` are the tokens, counted within the span, whose logits are asked for.
///
/// # Panics
/// If `blocks` do not cover `context + tokens.len()` tokens.
pub fn push_span(plan: &mut StepPlan, tokens: &[u32], context: usize, blocks: &[u32], wanted: Range<usize>) {
    let start = plan.n_tokens() as u32;
    let (len, context_tokens) = (tokens.len() as u32, context as u32);
    let span = Span { start, len, context: context_tokens, blocks: blocks.to_vec(), ..Span::default() };
    plan.tokens.extend_from_slice(tokens);
    plan.positions.extend((context..context + tokens.len()).map(|position| position as u32));
    plan.slots.extend((context..context + tokens.len()).map(|position| slot_of(&span, position) as u32));
    plan.logit_rows.extend(wanted.map(|row| start + row as u32));
    plan.spans.push(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PlanLimits = PlanLimits { vocab_size: 10, context_tokens: 40, n_blocks: 4 };

    fn good() -> StepPlan {
        let mut plan = StepPlan::default();
        push_span(&mut plan, &[1, 2, 3], 15, &[2, 0], 2..3);
        push_span(&mut plan, &[4], 0, &[3], 0..1);
        plan
    }

    #[test]
    fn a_span_made_by_hand_has_the_slots_of_its_block_table() {
        let plan = good();
        assert_eq!(plan.positions, [15, 16, 17, 0]);
        assert_eq!(plan.slots, [2 * 16 + 15, 0, 1, 3 * 16]);
        assert_eq!(plan.logit_rows, [2, 3]);
        check_plan(&plan, LIMITS).unwrap();
    }

    #[test]
    fn every_broken_field_is_refused() {
        type Break = fn(&mut StepPlan);
        let breaks: [(&str, Break); 13] = [
            ("token", |p| p.tokens[1] = 10),
            ("positions", |p| p.positions[0] = 14),
            ("slots", |p| p.slots[2] = 5),
            ("fewer slots", |p| p.slots.truncate(3)),
            ("block outside the pool", |p| p.spans[1].blocks[0] = 4),
            ("span too long", |p| p.spans[1].len = 2),
            ("span missing", |p| p.spans.truncate(1)),
            ("blocks missing", |p| p.spans[0].blocks.truncate(1)),
            ("rows descending", |p| p.logit_rows.reverse()),
            ("row outside", |p| p.logit_rows[1] = 4),
            ("hidden rows descending", |p| p.hidden_rows = vec![1, 0]),
            ("hidden row outside", |p| p.hidden_rows = vec![4]),
            ("row of both kinds", |p| p.hidden_rows = vec![0, 2]),
        ];
        for (name, break_it) in breaks {
            let mut plan = good();
            break_it(&mut plan);
            assert!(check_plan(&plan, LIMITS).is_err(), "{name} was not refused");
        }
        let short = PlanLimits { context_tokens: 17, ..LIMITS };
        assert!(check_plan(&good(), short).is_err(), "a position beyond the context was not refused");
    }
}
