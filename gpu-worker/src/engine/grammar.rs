//! Follows the rule that an answer keeps to: which tokens may come next, and when the answer is complete.
//!
//! The state is a function of the rule and of the tokens chosen so far. It stays with its sequence, so a preemption, which
//! takes keys and values away and no tokens, does not touch it; a new attempt begins at the beginning.

use contract::{ErrorCode, FinishReason, JobError};
use llguidance::Matcher;

use super::sampler::{Chosen, Next, Scratch, all_finite, logprobs_of, pick};
use super::sequence::{Ending, Sequence};

/// The logit of a token that is not allowed: it weighs nothing at any temperature.
const FORBIDDEN: f32 = -1e30;
/// The least of one that is: a penalty without measure takes it to the last place, and not out of the rule.
const LEAST: f32 = -1e29;

/// A compiled rule and how far one answer has followed it.
pub struct Grammar {
    matcher: Matcher,
    field: String,
    ends: Vec<u32>,
}

impl Grammar {
    /// Follows `matcher` from its beginning. `field`: where the rule stands in the request. `ends`: control tokens that
    /// the request names as ends; they may come where the answer is complete, as end-of-text tokens may.
    pub fn new(matcher: Matcher, field: String, ends: Vec<u32>) -> Self {
        Self { matcher, field, ends }
    }

    /// Chooses the next token from `row`, `[vocab_size]`, among those that keep to the rule, after bias and penalties.
    /// Log-probabilities are those of the row as the model gave it.
    ///
    /// # Errors
    /// How the sequence ends when nothing can be chosen.
    pub(super) fn choose(&mut self, row: &[f32], next: &Next<'_>, scratch: &mut Scratch) -> Result<Chosen, Ending> {
        let position = next.position;
        if !all_finite(row) {
            return Err(Sequence::not_finite());
        }
        let mut allowed = self.matcher.compute_mask().map_err(|err| self.failed(position, &err))?;
        if !self.ends.is_empty() && self.matcher.is_accepting().map_err(|err| self.failed(position, &err))? {
            self.ends.iter().for_each(|id| allowed.allow_token(*id));
        }
        let mut masked = std::mem::take(&mut scratch.masked);
        match next.adjustment {
            None => mask(row, allowed.as_slice(), &mut masked),
            Some(adjustment) => {
                let mut adjusted = std::mem::take(&mut scratch.adjusted);
                adjusted.clear();
                adjusted.extend_from_slice(row);
                adjustment.apply(&mut adjusted);
                adjusted.iter_mut().for_each(|logit| *logit = logit.max(LEAST));
                mask(&adjusted, allowed.as_slice(), &mut masked);
                scratch.adjusted = adjusted;
            }
        }
        let mut id = pick(&masked, &Next { adjustment: None, ..*next }, scratch);
        if masked[id as usize] == FORBIDDEN {
            // Rounding left a crumb of the draw beyond the last allowed token: it belongs to the likeliest one.
            id = likeliest(&masked);
        }
        scratch.masked = masked;
        let logprobs = next.how.logprobs.map(|top| logprobs_of(row, id, top as usize, scratch));
        Ok(Chosen { id, logprobs })
    }

    /// Takes the chosen token, the `n_output`-th; answers the ending if the answer is complete with it and cannot go on.
    pub(super) fn take(&mut self, id: u32, n_output: u32) -> Option<Ending> {
        if let Err(err) = self.matcher.consume_token(id) {
            return Some(self.failed(n_output, &err));
        }
        let over = self.matcher.is_stopped();
        over.then_some(Ending::Finished { reason: FinishReason::Stop, stop: None })
    }

    /// The rule cannot be followed any further. Another attempt would come to the same place.
    fn failed(&self, n_output: u32, err: &dyn std::fmt::Display) -> Ending {
        let fault = GrammarFault::of(err);
        let message = format!("the answer could not be kept to `{}` after {n_output} tokens: {fault}", self.field);
        Ending::Failed(JobError::new(ErrorCode::InvalidRequest, message).with_param(&self.field))
    }
}

/// What the engine of grammars says, for people: one line of at most 400 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarFault(String);

impl GrammarFault {
    /// Most characters that are passed on.
    const MAX_CHARS: usize = 400;

    /// From its own error. It catches its own panics, and answers them as errors with a backtrace.
    pub fn of(err: &dyn std::fmt::Display) -> Self {
        let text = err.to_string();
        if let Some(panic) = text.strip_prefix("panic: ") {
            tracing::error!(error = %panic, "the engine of grammars tripped over a rule");
            return Self("the engine of grammars tripped over it".to_owned());
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "<non-verbose/>");
        let what: String = lines.collect::<Vec<_>>().join(" ").chars().take(Self::MAX_CHARS).collect();
        let what = match what.as_str() {
            "" | "NoExtensionBias" => "no token of this model continues it".to_owned(),
            _ if what.contains("oneOf constraints are not supported") => {
                "`oneOf` can only be enforced where its alternatives surely exclude one another; use `anyOf`".to_owned()
            }
            _ => what,
        };
        Self(what)
    }
}

/// `row` with [`FORBIDDEN`] wherever the bit of `allowed` is not set, 32 bits a word, lowest first; tokens beyond it are
/// forbidden.
fn mask(row: &[f32], allowed: &[u32], masked: &mut Vec<f32>) {
    masked.clear();
    masked.resize(row.len(), FORBIDDEN);
    for ((from, to), word) in row.chunks(32).zip(masked.chunks_mut(32)).zip(allowed) {
        let mut left = *word;
        if left == u32::MAX {
            to.copy_from_slice(from);
            continue;
        }
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            if bit < from.len() {
                to[bit] = from[bit];
            }
            left &= left - 1;
        }
    }
}

fn likeliest(row: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in row.iter().enumerate() {
        if *logit > row[best] {
            best = id;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_keeps_the_logits_of_its_bits_and_no_others() {
        let row: Vec<f32> = (0..70).map(|id| id as f32).collect();
        let mut masked = vec![5.0; 3];
        // Bits 1 and 31; all of the second word; of the third, bit 2 (token 66), and bit 9, which is no token.
        mask(&row, &[1 << 1 | 1 << 31, u32::MAX, 1 << 2 | 1 << 9], &mut masked);
        assert_eq!(masked.len(), 70);
        let kept: Vec<usize> = (0..70).filter(|id| masked[*id] != FORBIDDEN).collect();
        let expected: Vec<usize> = [1, 31].into_iter().chain(32..64).chain([66]).collect();
        assert_eq!(kept, expected);
        assert!(kept.iter().all(|id| masked[*id] == *id as f32));
        mask(&row, &[0], &mut masked);
        assert!(masked.iter().all(|logit| *logit == FORBIDDEN), "what the mask does not name is forbidden");
    }

    #[test]
    fn errors_are_one_line_for_people() {
        let fault = |text: &str| GrammarFault::of(&text).to_string();
        assert_eq!(fault("Invalid type: x\n<non-verbose/>"), "Invalid type: x");
        assert_eq!(fault("NoExtensionBias\n<non-verbose/>"), "no token of this model continues it");
        assert!(!fault("panic: index out of bounds\n<backtrace>\n 0: f\n</backtrace>").contains("index"));
        assert_eq!(fault(&"x".repeat(9_000)).len(), 400);
    }
}
