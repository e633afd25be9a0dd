//! Qwen2 and Qwen2.5: biases on query, key and value, SiLU, a head of its own or the embedding's.

use super::config::{Architecture, ModelConfig};
use super::family::{Keys, Sizes};
use super::rope::Rope;
use crate::load::LoadError;

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes) -> Result<ModelConfig, LoadError> {
    let config = sizes.decoder(Architecture::Qwen2, Rope::read(keys, &sizes)?, None);
    Ok(ModelConfig { qkv_bias: true, ..with_windows(keys, &sizes, config)? })
}

/// The windows of the Qwen families: on the layers from `max_window_layers` on, in folders that switch them on.
pub(super) fn with_windows(keys: &Keys<'_>, sizes: &Sizes, mut config: ModelConfig) -> Result<ModelConfig, LoadError> {
    let Some(window) = sizes.narrower(keys.opt_size("attention.sliding_window")?) else { return Ok(config) };
    if !keys.of_folder() {
        // A window as wide as the context hides nothing; a narrower one is applied to some layers only, and which ones
        // the file does not say.
        return Err(keys.refused("attention.sliding_window", &format!("is {window}")));
    }
    if !keys.opt_flag("use_sliding_window")?.unwrap_or(false) {
        return Ok(config);
    }
    let windowed = match keys.opt_windowed_layers(sizes.n_layers)? {
        Some(windowed) => windowed,
        None => {
            let first = keys.size("max_window_layers")?;
            (0..sizes.n_layers).map(|layer_idx| layer_idx >= first).collect()
        }
    };
    for (layer, _) in config.layers.iter_mut().zip(windowed).filter(|(_, windowed)| *windowed) {
        layer.window = Some(window);
    }
    Ok(config)
}
