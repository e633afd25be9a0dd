//! Gemma 3, text only: scaled embeddings, norms before and after each half of a layer, normed query and key heads,
//! five layers with a sliding window to each one that sees everything, GELU, the embedding as the head.
//!
//! The family's norms multiply by `1 + weight`. GGUF files hold the sum already, and the loader adds the 1 to the weights
//! of a folder, so they are plain norms here.

use super::config::{Activation, Architecture, LayerConfig, ModelConfig};
use super::family::{Keys, Sizes};
use super::rope::Rope;
use crate::load::LoadError;

/// Every sixth layer sees the whole context.
const WINDOW_PATTERN: usize = 6;
/// Rotary bases of the layers that see everything and of those with a window, where the files do not give them.
const ROPE_BASES: [f32; 2] = [1_000_000.0, 10_000.0];
/// The layers of the 27 B model, the only one whose attention is not scaled by the width of its heads.
const LAYERS_OF_27B: usize = 62;

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes) -> Result<ModelConfig, LoadError> {
    keys.refuse_number("attn_logit_softcapping")?;
    keys.refuse_number("final_logit_softcapping")?;
    // The width of a head does not follow from other sizes in this family, and folders may not say it.
    if keys.of_folder() {
        keys.size("attention.key_length")?;
    }
    let window = keys.size("attention.sliding_window")?;
    // Longer contexts were trained with scaled positions, on the layers that see all of them.
    let [global, local] = Rope::read_global_and_local(keys, ROPE_BASES, &sizes)?;
    let local_layer = LayerConfig { window: Some(window), rope_base: local.base, rope_scale: local.scale };
    let global_layer = LayerConfig { window: None, rope_base: global.base, rope_scale: global.scale };
    let layers = windowed_layers(keys, sizes.n_layers)?
        .into_iter()
        .map(|windowed| if windowed { local_layer } else { global_layer })
        .collect();
    let scaled_width = match (keys.opt_number("query_pre_attn_scalar")?, sizes.n_layers) {
        (Some(width), _) => width,
        (None, LAYERS_OF_27B) => sizes.hidden_size as f32 / sizes.n_heads as f32,
        (None, _) => sizes.head_dim as f32,
    };
    let embedding_scale = Some((sizes.hidden_size as f32).sqrt());
    Ok(ModelConfig {
        layers,
        attention_scale: 1.0 / scaled_width.sqrt(),
        embedding_scale,
        activation: Activation::GeluTanh,
        qk_norm: true,
        post_norms: true,
        ..sizes.decoder(Architecture::Gemma3, global, None)
    })
}

/// Which layers have a window.
fn windowed_layers(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    if keys.of_folder()
        && let Some(windowed) = keys.opt_windowed_layers(n_layers)?
    {
        return Ok(windowed);
    }
    let pattern = keys.opt_size("attention.sliding_window_pattern")?.unwrap_or(WINDOW_PATTERN);
    if pattern == 0 {
        return Err(keys.refused("attention.sliding_window_pattern", "is 0"));
    }
    Ok((1..=n_layers).map(|nth| !nth.is_multiple_of(pattern)).collect())
}
