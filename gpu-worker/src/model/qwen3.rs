//! Qwen3, dense: normed query and key heads of a width of their own, no biases, SiLU.

use super::config::{Architecture, ModelConfig};
use super::family::{Keys, Sizes};
use super::qwen2::with_windows;
use super::rope::Rope;
use crate::load::LoadError;

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes) -> Result<ModelConfig, LoadError> {
    // The width of a head does not follow from other sizes in this family.
    keys.size("attention.key_length")?;
    let config = sizes.decoder(Architecture::Qwen3, Rope::read(keys, &sizes)?, None);
    Ok(ModelConfig { qk_norm: true, ..with_windows(keys, &sizes, config)? })
}
