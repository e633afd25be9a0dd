//! Perplexity of a text, by the method of llama.cpp's `llama-perplexity`, so that the figures can be compared.

use crate::engine::plan::{BLOCK_TOKENS, Forward, ForwardError, StepPlan};
use crate::forward::push_span;

/// Tokens of one step: bounds the logits held at once (a row of Gemma's vocabulary is 1 MiB).
const CHUNK_TOKENS: usize = 64;

/// How well a model predicts a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood of the scored tokens.
    pub ppl: f64,
    /// Whole windows of the text that were scored; a shorter rest is left out.
    pub chunks: usize,
    /// Tokens that were scored.
    pub tokens: usize,
}

/// Why no perplexity could be given.
#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    /// The window cannot be used with this model.
    #[error(
        "context {context} is not usable: it must be at least 4, within the model's {limit} tokens, and fit the cache"
    )]
    Context {
        /// The window asked for, in tokens.
        context: usize,
        /// The model's own limit, in tokens.
        limit: usize,
    },
    /// Less than one whole window.
    #[error("the text has {tokens} tokens; at least {context} are needed")]
    TooShort {
        /// Tokens in the text.
        tokens: usize,
        /// Tokens of one window.
        context: usize,
    },
    /// The model could not be run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// Scores `ids` in windows of `context` tokens, each on an empty cache: the second half of every window is predicted
/// given the window from its start.
///
/// `ids`: the whole text as the tokenizer gives it with special tokens added. `bos`: for models whose texts begin with
/// one; the first token of every window is replaced by it, as `llama-perplexity` does. Blocks from 0 up are overwritten.
///
/// # Errors
/// [`PerplexityError`]: a window that does not fit, a text shorter than one window, or a failing forward pass.
pub fn perplexity(
    forward: &mut dyn Forward,
    ids: &[u32],
    context: usize,
    bos: Option<u32>,
) -> Result<Perplexity, PerplexityError> {
    let limit = forward.context_tokens();
    let n_blocks = context.div_ceil(BLOCK_TOKENS);
    if context < 4 || context > limit || n_blocks > forward.n_blocks() {
        return Err(PerplexityError::Context { context, limit });
    }
    let blocks: Vec<u32> = (0..n_blocks as u32).collect();
    if ids.len() < context {
        return Err(PerplexityError::TooShort { tokens: ids.len(), context });
    }
    let scored = context / 2..context - 1;
    let (mut nll, mut chunks) = (0.0_f64, 0);
    for window in ids.chunks_exact(context) {
        let mut window = window.to_vec();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        for start in (0..context).step_by(CHUNK_TOKENS) {
            let end = context.min(start + CHUNK_TOKENS);
            let wanted = scored.start.clamp(start, end)..scored.end.clamp(start, end);
            let mut plan = StepPlan::default();
            push_span(&mut plan, &window[start..end], start, &blocks, wanted.start - start..wanted.end - start);
            let logits = forward.step(&plan)?;
            nll +=
                wanted.enumerate().map(|(row, position)| -log_prob(logits.row(row), window[position + 1])).sum::<f64>();
        }
        chunks += 1;
    }
    let tokens = chunks * scored.len();
    Ok(Perplexity { ppl: (nll / tokens as f64).exp(), chunks, tokens })
}

/// Natural logarithm of the softmax of `logits` at `token`, summed in float64.
///
/// # Panics
/// If `token` is not below the length of `logits`.
pub fn log_prob(logits: &[f32], token: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    f64::from(logits[token as usize]) - max - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::Logits;

    /// Gives every token the same logit, and keeps the first token of every window.
    struct Uniform {
        first_tokens: Vec<u32>,
    }

    impl Forward for Uniform {
        fn step(&mut self, plan: &StepPlan) -> Result<Logits, ForwardError> {
            if plan.positions[0] == 0 {
                self.first_tokens.push(plan.tokens[0]);
            }
            let data = vec![1.5; plan.logit_rows.len() * 50];
            Ok(Logits { data, vocab_size: 50, ..Logits::default() })
        }
        fn vocab_size(&self) -> usize {
            50
        }
        fn hidden_size(&self) -> usize {
            1
        }
        fn context_tokens(&self) -> usize {
            128
        }
        fn n_blocks(&self) -> usize {
            8
        }
    }

    #[test]
    fn a_uniform_model_has_the_perplexity_of_its_vocabulary() {
        let mut forward = Uniform { first_tokens: Vec::new() };
        let ids: Vec<u32> = (0..300).map(|i| i % 50).collect();
        let found = perplexity(&mut forward, &ids, 100, Some(49)).unwrap();
        assert!((found.ppl - 50.0).abs() < 1e-9);
        assert_eq!((found.chunks, found.tokens), (3, 3 * 49));
        assert_eq!(forward.first_tokens, [49; 3]);
    }

    #[test]
    fn windows_that_do_not_fit_are_refused() {
        let mut forward = Uniform { first_tokens: Vec::new() };
        for context in [0, 3, 129, usize::MAX] {
            assert!(matches!(perplexity(&mut forward, &[0; 300], context, None), Err(PerplexityError::Context { .. })));
        }
        assert!(matches!(perplexity(&mut forward, &[0; 9], 100, None), Err(PerplexityError::TooShort { .. })));
    }
}
