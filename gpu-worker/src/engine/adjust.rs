//! What a request's biases and penalties do to the logits of one sequence, before temperature and filters.
//!
//! Sums and comparisons as vLLM does them: bias, then repetition (over prompt and output), then frequency and presence
//! (over the output). Only tokens that are named or were seen are touched.

use contract::Sampling;

/// The biases and penalties of one sequence, and how often it has which token.
#[derive(Debug, Clone, PartialEq)]
pub struct Adjustment {
    bias: Vec<(u32, f32)>,
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// By id, ascending. Empty while no penalty is on.
    seen: Vec<Seen>,
}

/// A token that the sequence has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    id: u32,
    /// How often the output has it; 0 when only the prompt does.
    n_output: u32,
}

impl Adjustment {
    /// What `sampling` asks for a sequence that begins with `prompt` and may generate `max_tokens`; `None` when it asks
    /// for nothing. Room for all of them is taken here, so that no step takes any.
    pub fn new(sampling: &Sampling, prompt: &[u32], max_tokens: u32) -> Option<Self> {
        let adjustment = Self {
            bias: sampling.logit_bias.iter().map(|(id, bias)| (*id, *bias)).collect(),
            repetition: sampling.repetition_penalty,
            frequency: sampling.frequency_penalty,
            presence: sampling.presence_penalty,
            seen: Vec::new(),
        };
        if !adjustment.counts() {
            return (!adjustment.bias.is_empty()).then_some(adjustment);
        }
        let mut ids = if adjustment.repetition == 1.0 { Vec::new() } else { prompt.to_vec() };
        ids.sort_unstable();
        ids.dedup();
        let mut seen = Vec::with_capacity(ids.len() + max_tokens as usize);
        seen.extend(ids.into_iter().map(|id| Seen { id, n_output: 0 }));
        Some(Self { seen, ..adjustment })
    }

    /// Whether a penalty is on.
    fn counts(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0
    }

    /// Counts a token of the output.
    pub fn push(&mut self, id: u32) {
        if !self.counts() {
            return;
        }
        match self.seen.binary_search_by_key(&id, |seen| seen.id) {
            Ok(at) => self.seen[at].n_output = self.seen[at].n_output.saturating_add(1),
            Err(at) => self.seen.insert(at, Seen { id, n_output: 1 }),
        }
    }

    /// Adjusts a row of finite logits in place; they stay finite. Ids beyond the row are passed over.
    pub fn apply(&self, row: &mut [f32]) {
        for (id, bias) in &self.bias {
            if let Some(logit) = row.get_mut(*id as usize) {
                *logit = finite(*logit + bias);
            }
        }
        for Seen { id, n_output } in &self.seen {
            let Some(logit) = row.get_mut(*id as usize) else { continue };
            let mut value = *logit;
            if self.repetition != 1.0 {
                value = if value > 0.0 { value / self.repetition } else { value * self.repetition };
            }
            if *n_output > 0 {
                value = value - self.frequency * *n_output as f32 - self.presence;
            }
            *logit = finite(value);
        }
    }
}

/// A penalty near the largest or smallest number there is takes a logit out of range: it stays at the end of it.
fn finite(value: f32) -> f32 {
    value.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn adjusted(sampling: &Sampling, prompt: &[u32], output: &[u32], row: &[f32]) -> Vec<f32> {
        let mut row = row.to_vec();
        let mut adjustment = Adjustment::new(sampling, prompt, output.len() as u32).expect("something is asked for");
        output.iter().for_each(|id| adjustment.push(*id));
        adjustment.apply(&mut row);
        row
    }

    /// Worked out by hand from the formulas of vLLM's documentation.
    #[test]
    fn each_penalty_does_what_its_formula_says() {
        let row = [2.0, -2.0, 4.0, 0.0, 1.0, -1.0];
        let (prompt, output) = ([0, 1, 1, 3], [1, 2, 2]);
        let none = Sampling::default();
        let repetition = Sampling { repetition_penalty: 2.0, ..none.clone() };
        // 0, 1, 3 of the prompt and 1, 2 of the output, each once however often it is there.
        assert_eq!(adjusted(&repetition, &prompt, &output, &row), [1.0, -4.0, 2.0, 0.0, 1.0, -1.0]);
        let reward = Sampling { repetition_penalty: 0.5, ..none.clone() };
        assert_eq!(adjusted(&reward, &prompt, &output, &row), [4.0, -1.0, 8.0, 0.0, 1.0, -1.0]);
        let frequency = Sampling { frequency_penalty: 0.5, ..none.clone() };
        assert_eq!(adjusted(&frequency, &prompt, &output, &row), [2.0, -2.5, 3.0, 0.0, 1.0, -1.0]);
        let presence = Sampling { presence_penalty: -0.25, ..none.clone() };
        assert_eq!(adjusted(&presence, &prompt, &output, &row), [2.0, -1.75, 4.25, 0.0, 1.0, -1.0]);
        let bias = Sampling { logit_bias: BTreeMap::from([(0, -100.0), (5, 3.5), (4_000, 1.0)]), ..none };
        assert_eq!(adjusted(&bias, &prompt, &output, &row), [-98.0, -2.0, 4.0, 0.0, 1.0, 2.5]);
    }

    /// The bias turns -2 into 2, which the repetition penalty then divides: (-2 + 4) / 2 - 1 × 0.5 - 0.25 = 0.25.
    #[test]
    fn the_bias_comes_first_and_the_repetition_before_the_others() {
        let sampling = Sampling {
            logit_bias: BTreeMap::from([(1, 4.0)]),
            repetition_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..Sampling::default()
        };
        assert_eq!(adjusted(&sampling, &[0], &[1], &[1.0, -2.0, 3.0]), [0.5, 0.25, 3.0]);
    }

    #[test]
    fn neutral_values_ask_for_nothing() {
        assert_eq!(Adjustment::new(&Sampling::default(), &[1, 2], 9), None);
        let negative_zero = Sampling { presence_penalty: -0.0, frequency_penalty: -0.0, ..Sampling::default() };
        assert_eq!(Adjustment::new(&negative_zero, &[1, 2], 9), None);
    }

    proptest! {
        /// Whatever is asked for: rows stay finite, and tokens that were neither named nor seen keep their bits.
        #[test]
        fn rows_stay_finite_and_the_rest_is_untouched(
            row in proptest::collection::vec(prop_oneof![-40f32..40.0, Just(f32::MAX), Just(f32::MIN), Just(-0.0f32)], 1..40),
            prompt in proptest::collection::vec(0u32..60, 0..20),
            output in proptest::collection::vec(0u32..60, 0..20),
            bias in proptest::collection::btree_map(0u32..60, -100f32..100.0, 0..5),
            repetition_penalty in prop_oneof![Just(1.0f32), Just(f32::MIN_POSITIVE), Just(f32::MAX), 0.1f32..3.0],
            frequency_penalty in prop_oneof![Just(0f32), -2f32..2.0],
            presence_penalty in prop_oneof![Just(0f32), -2f32..2.0],
        ) {
            let sampling = Sampling {
                logit_bias: bias, repetition_penalty, frequency_penalty, presence_penalty, ..Sampling::default()
            };
            let mut after = row.clone();
            if let Some(mut adjustment) = Adjustment::new(&sampling, &prompt, output.len() as u32) {
                let capacity = adjustment.seen.capacity();
                output.iter().for_each(|id| adjustment.push(*id));
                prop_assert_eq!(adjustment.seen.capacity(), capacity, "a step took room");
                adjustment.apply(&mut after);
            }
            for (id, (before, after)) in row.iter().zip(&after).enumerate() {
                let id = id as u32;
                prop_assert!(after.is_finite());
                let is_penalised = output.contains(&id) || (repetition_penalty != 1.0 && prompt.contains(&id));
                if !sampling.logit_bias.contains_key(&id) && !is_penalised {
                    prop_assert_eq!(before.to_bits(), after.to_bits());
                }
            }
        }
    }
}
