//! Qwen2 and Qwen2.5: biases on query, key and value, SiLU, a head of its own or the embedding's.

use super::config::{Activation, Architecture, LayerConfig, ModelConfig};
use super::family::{Keys, Sizes};
use crate::load::LoadError;

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes) -> Result<ModelConfig, LoadError> {
    let window = keys.opt_size("attention.sliding_window")?;
    // A window as wide as the context hides nothing; a narrower one is applied to some layers only, and which ones
    // the file does not say.
    if let Some(window) = window.filter(|&window| window > 0 && window < sizes.context_tokens) {
        return Err(keys.refused("attention.sliding_window", &format!("is {window}")));
    }
    let layer = LayerConfig { window: None, rope_base: sizes.rope_base, rope_scale: keys.linear_rope_scale()? };
    Ok(ModelConfig {
        architecture: Architecture::Qwen2,
        layers: sizes.uniform_layers(layer),
        hidden_size: sizes.hidden_size,
        intermediate_size: sizes.intermediate_size,
        n_heads: sizes.n_heads,
        n_kv_heads: sizes.n_kv_heads,
        head_dim: sizes.head_dim,
        vocab_size: sizes.vocab_size,
        context_tokens: sizes.context_tokens,
        norm_eps: sizes.norm_eps,
        attention_scale: 1.0 / (sizes.head_dim as f32).sqrt(),
        embedding_scale: None,
        activation: Activation::Silu,
        qkv_bias: true,
        qk_norm: false,
        post_norms: false,
    })
}
