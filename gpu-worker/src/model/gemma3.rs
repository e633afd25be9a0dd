//! Gemma 3, text only: scaled embeddings, norms before and after each half of a layer, normed query and key heads,
//! five layers with a sliding window to each one that sees everything, GELU, the embedding as the head.
//!
//! The family's norms multiply by `1 + weight`; GGUF files hold the sum already, so they are plain norms here.

use super::config::{Activation, Architecture, LayerConfig, ModelConfig};
use super::family::{Keys, Sizes};
use crate::load::LoadError;

/// Every sixth layer sees the whole context.
const WINDOW_PATTERN: usize = 6;
/// Rotary base of the layers with a window; files give the other layers' base alone.
const LOCAL_ROPE_BASE: f32 = 10_000.0;
/// The layers of the 27 B model, the only one whose attention is not scaled by the width of its heads.
const LAYERS_OF_27B: usize = 62;

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes) -> Result<ModelConfig, LoadError> {
    keys.refuse_number("attn_logit_softcapping")?;
    keys.refuse_number("final_logit_softcapping")?;
    let window = keys.size("attention.sliding_window")?;
    let pattern = keys.opt_size("attention.sliding_window_pattern")?.unwrap_or(WINDOW_PATTERN);
    if pattern == 0 {
        return Err(keys.refused("attention.sliding_window_pattern", "is 0"));
    }
    let local_base = keys.opt_number("rope.freq_base_swa")?.unwrap_or(LOCAL_ROPE_BASE);
    // Longer contexts were trained with scaled positions, on the layers that see all of them.
    let local = LayerConfig { window: Some(window), rope_base: local_base, rope_scale: 1.0 };
    let global = LayerConfig { window: None, rope_base: sizes.rope_base, rope_scale: keys.linear_rope_scale()? };
    let layers = (1..=sizes.n_layers).map(|nth| if nth.is_multiple_of(pattern) { global } else { local }).collect();
    let scaled_width = match sizes.n_layers {
        LAYERS_OF_27B => sizes.hidden_size as f32 / sizes.n_heads as f32,
        _ => sizes.head_dim as f32,
    };
    Ok(ModelConfig {
        architecture: Architecture::Gemma3,
        layers,
        hidden_size: sizes.hidden_size,
        intermediate_size: sizes.intermediate_size,
        n_heads: sizes.n_heads,
        n_kv_heads: sizes.n_kv_heads,
        head_dim: sizes.head_dim,
        vocab_size: sizes.vocab_size,
        context_tokens: sizes.context_tokens,
        norm_eps: sizes.norm_eps,
        attention_scale: 1.0 / scaled_width.sqrt(),
        embedding_scale: Some((sizes.hidden_size as f32).sqrt()),
        activation: Activation::GeluTanh,
        qkv_bias: false,
        qk_norm: true,
        post_norms: true,
    })
}
