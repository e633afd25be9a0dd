//! Phi-3 and Phi-3.5, dense: one matrix for query, key and value and one for gate and up, SiLU, and for long contexts
//! divisors of the rotary frequencies in two sets, of which the one for the trained length is served.

use super::config::{Architecture, ModelConfig, RopeDivisors};
use super::family::{Keys, Sizes};
use super::rope::{LONG_DIVISORS, Rope, SHORT_DIVISORS, gguf_divisors};
use crate::load::{LoadError, TensorTable};

/// The family's config; `sizes` are not yet checked.
pub(super) fn config(keys: &Keys<'_>, sizes: Sizes, tensors: &TensorTable) -> Result<ModelConfig, LoadError> {
    let window = sizes.narrower(keys.opt_size("attention.sliding_window")?);
    let rope = match keys.of_folder() {
        true => Rope::read(keys, &sizes)?,
        false => gguf_rope(keys, &sizes, tensors)?,
    };
    Ok(sizes.decoder(Architecture::Phi3, rope, window))
}

fn gguf_rope(keys: &Keys<'_>, sizes: &Sizes, tensors: &TensorTable) -> Result<Rope, LoadError> {
    let original = "rope.scaling.original_context_length";
    let trained = keys.opt_size(original)?.filter(|&trained| trained < sizes.context_tokens);
    let divisors = gguf_divisors(tensors, SHORT_DIVISORS);
    if divisors == RopeDivisors::None {
        let plain = Rope::read(keys, sizes)?;
        return match trained {
            // An old conversion: without the divisors its turns are wrong even below the trained length.
            Some(_) => Err(LoadError::MissingTensor { name: SHORT_DIVISORS.to_owned() }),
            None => Ok(plain),
        };
    }
    if tensors.opt_tensor(LONG_DIVISORS).is_some() && keys.opt_size(original)?.is_none() {
        return Err(LoadError::MissingMetadata { key: keys.key(original) });
    }
    let magnitude = keys.number("rope.scaling.attn_factor")?;
    let kind = "rope.scaling.type";
    if let Some(other) = keys.opt_text(kind)?.filter(|kind| !["none", "longrope"].contains(kind)) {
        return Err(keys.refused(kind, &format!("is {other:?}, beside {SHORT_DIVISORS}")));
    }
    Ok(Rope { divisors, magnitude, context_tokens: trained, ..Rope::unscaled(keys)? })
}
