//! Llama 1 to 3, and Mistral, which differs by a window on every layer and by what its files are called: no biases, SiLU,
//! a head of its own or the embedding's.
//!
//! GGUF files of this family hold query and key rows in another order; the loader puts them back.

use super::config::{Architecture, ModelConfig};
use super::family::{Keys, Sizes};
use super::rope::{LLAMA3_DIVISORS, Rope, gguf_divisors};
use crate::load::{LoadError, TensorTable};

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes, tensors: &TensorTable) -> Result<ModelConfig, LoadError> {
    let window = sizes.narrower(keys.opt_size("attention.sliding_window")?);
    if let Some(window) = window.filter(|_| keys.opt_text("model_type").is_ok_and(|name| name == Some("llama"))) {
        return Err(keys.refused("attention.sliding_window", &format!("is {window}")));
    }
    // Mixtures of experts come under the same name.
    for name in ["expert_count", "num_local_experts"] {
        if let Some(n_experts) = keys.opt_size(name)?.filter(|&n_experts| n_experts > 0) {
            return Err(keys.refused(name, &format!("is {n_experts}")));
        }
    }
    let mut rope = Rope::read(keys, &sizes)?;
    if !keys.of_folder() {
        rope.divisors = gguf_divisors(tensors, LLAMA3_DIVISORS);
    }
    Ok(sizes.decoder(Architecture::Llama, rope, window))
}
