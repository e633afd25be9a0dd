//! What a decoder of the Llama kin looks like: every size and switch that changes its answers, checked before use.
//!
//! A family (`llama`, `qwen2`, …) fills a [`ModelConfig`] from a model's metadata; behind it only the names and the order of
//! tensors depend on the family.

use crate::engine::plan::BLOCK_TOKENS;

/// The families this engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 1 to 3 and Mistral.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3, dense.
    Qwen3,
    /// Gemma 3, text only.
    Gemma3,
    /// Phi-3 and Phi-3.5, dense.
    Phi3,
}

impl Architecture {
    /// Every family, in the order in which messages name them.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma3, Self::Phi3];

    /// Every `model_type` of a Hugging Face `config.json` that is served, and its family.
    pub const MODEL_TYPES: [(&str, Self); 6] = [
        ("llama", Self::Llama),
        ("mistral", Self::Llama),
        ("qwen2", Self::Qwen2),
        ("qwen3", Self::Qwen3),
        ("gemma3_text", Self::Gemma3),
        ("phi3", Self::Phi3),
    ];

    /// The name as GGUF's `general.architecture` has it, which is also the prefix of the family's metadata keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
        }
    }

    /// The family called `name` in GGUF files, if it is known.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.name() == name)
    }

    /// The family of a `model_type`, if it is known.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::MODEL_TYPES.into_iter().find(|(name, _)| *name == model_type).map(|(_, architecture)| architecture)
    }
}

/// The gate's function in the MLP: `down(activation(gate(x)) * up(x))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// A token sees this many tokens, itself included; `None`: all before it.
    pub window: Option<usize>,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Positions are divided by this before they turn (linear scaling); 1 where there is none.
    pub rope_scale: f32,
}

/// What the rotary frequency of each pair of a head is divided by, in every layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RopeDivisors {
    /// Nothing.
    #[default]
    None,
    /// These numbers, `head_dim / 2` of them.
    Values(Vec<f32>),
    /// The numbers in the tensor of this name, `[head_dim / 2]`.
    Tensor(&'static str),
}

/// One decoder. Sizes are numbers of float values or of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family it came from.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head, a multiple of 16.
    pub head_dim: usize,
    /// Rows of the embedding, and of the head.
    pub vocab_size: usize,
    /// Longest sequence the model was made for, in tokens.
    pub context_tokens: usize,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Multiplies the scores of attention.
    pub attention_scale: f32,
    /// Multiplies the embeddings.
    pub embedding_scale: Option<f32>,
    /// The MLP's activation.
    pub activation: Activation,
    /// Query, key and value products have a bias.
    pub qkv_bias: bool,
    /// Query and key heads are normed before they are turned.
    pub qk_norm: bool,
    /// The outputs of attention and MLP are normed before they join the residual stream.
    pub post_norms: bool,
    /// Whether the embedding is the head as well; `None`: where the files have no other head.
    pub tied_head: Option<bool>,
    /// Divisors of the rotary frequencies.
    pub rope_divisors: RopeDivisors,
    /// Multiplies queries and keys as they are turned; 1 in most models.
    pub rope_magnitude: f32,
    /// One entry per layer.
    pub layers: Vec<LayerConfig>,
}

/// What is wrong with a model's description.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A size is zero or beyond what any model of these families has.
    #[error("{field} is {value}; it must be from {min} to {max}")]
    Range {
        /// The field of [`ModelConfig`].
        field: &'static str,
        /// What the file says.
        value: usize,
        /// Least usable value.
        min: usize,
        /// Greatest usable value.
        max: usize,
    },
    /// A number is not finite, or has no use at its value.
    #[error("{field} is {value}, which is not usable")]
    Number {
        /// The field of [`ModelConfig`].
        field: &'static str,
        /// What the file says.
        value: f32,
    },
    /// A size that the kernels do not work with.
    #[error("{field} is {value}; it must be a multiple of {of}")]
    Multiple {
        /// The field of [`ModelConfig`].
        field: &'static str,
        /// What the file says.
        value: usize,
        /// Of what.
        of: usize,
    },
    /// Two sizes do not go together.
    #[error("{field} is {value}; it must divide {whole} ({of})")]
    Divides {
        /// The field of [`ModelConfig`].
        field: &'static str,
        /// What the file says.
        value: usize,
        /// The field that it must divide.
        of: &'static str,
        /// That field's value.
        whole: usize,
    },
}

/// The cache is read in vectors of this many values.
const HEAD_DIM_STEP: usize = 16;

/// The greatest sizes that are taken for a description and not for an attack: several times the largest published
/// models, and small enough that every product of them fits 64 bits.
mod limits {
    pub const LAYERS: usize = 512;
    pub const WIDTH: usize = 1 << 17;
    pub const MLP_WIDTH: usize = 1 << 20;
    pub const HEADS: usize = 1024;
    pub const HEAD_DIM: usize = 512;
    pub const VOCAB: usize = 1 << 22;
    pub const CONTEXT: usize = 1 << 24;
}

impl ModelConfig {
    /// Layers of the decoder.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Bytes of cache that one block takes over all layers: keys and values in float32.
    pub fn kv_bytes_per_block(&self) -> usize {
        2 * self.n_layers() * BLOCK_TOKENS * self.kv_width() * size_of::<f32>()
    }

    /// Refuses sizes that are zero, absurd, or do not go together. After it no product of two sizes overflows.
    ///
    /// # Errors
    /// [`ConfigError`] with the first field that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_n_layers(self.n_layers())?;
        let ranges = [
            ("hidden_size", self.hidden_size, 1, limits::WIDTH),
            ("intermediate_size", self.intermediate_size, 1, limits::MLP_WIDTH),
            ("n_heads", self.n_heads, 1, limits::HEADS),
            ("n_kv_heads", self.n_kv_heads, 1, limits::HEADS),
            ("head_dim", self.head_dim, HEAD_DIM_STEP, limits::HEAD_DIM),
            ("vocab_size", self.vocab_size, 1, limits::VOCAB),
            ("context_tokens", self.context_tokens, 1, limits::CONTEXT),
        ];
        for (field, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Range { field, value, min, max });
            }
        }
        divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)?;
        if !self.head_dim.is_multiple_of(HEAD_DIM_STEP) {
            return Err(ConfigError::Multiple { field: "head_dim", value: self.head_dim, of: HEAD_DIM_STEP });
        }
        positive("norm_eps", self.norm_eps, 1.0)?;
        positive("attention_scale", self.attention_scale, 1e3)?;
        positive("embedding_scale", self.embedding_scale.unwrap_or(1.0), 1e4)?;
        positive("rope_magnitude", self.rope_magnitude, 1e2)?;
        if let RopeDivisors::Values(divisors) = &self.rope_divisors {
            let (value, pairs) = (divisors.len(), self.head_dim / 2);
            if value != pairs {
                return Err(ConfigError::Range {
                    field: "rope_divisors (their number)",
                    value,
                    min: pairs,
                    max: pairs,
                });
            }
            divisors.iter().try_for_each(|divisor| positive("rope_divisors", *divisor, 1e6))?;
        }
        for layer in &self.layers {
            positive("rope_base", layer.rope_base, 1e12)?;
            positive("rope_scale", layer.rope_scale, 1e4)?;
            let value = layer.window.unwrap_or(1);
            if !(1..=limits::CONTEXT).contains(&value) {
                return Err(ConfigError::Range { field: "window", value, min: 1, max: limits::CONTEXT });
            }
        }
        Ok(())
    }
}

/// Refuses a number of layers that nothing should be allocated for.
///
/// # Errors
/// [`ConfigError::Range`].
pub fn check_n_layers(n_layers: usize) -> Result<(), ConfigError> {
    if (1..=limits::LAYERS).contains(&n_layers) {
        return Ok(());
    }
    Err(ConfigError::Range { field: "n_layers", value: n_layers, min: 1, max: limits::LAYERS })
}

/// The width of a head where the file does not give it: `hidden_size / n_heads`, which must be whole.
///
/// # Errors
/// [`ConfigError`] if there are no heads, or they do not divide the width.
pub fn default_head_dim(hidden_size: usize, n_heads: usize) -> Result<usize, ConfigError> {
    divides("n_heads", n_heads, "hidden_size", hidden_size)?;
    Ok(hidden_size / n_heads)
}

fn divides(field: &'static str, value: usize, of: &'static str, whole: usize) -> Result<(), ConfigError> {
    if value > 0 && whole.is_multiple_of(value) {
        return Ok(());
    }
    Err(ConfigError::Divides { field, value, of, whole })
}

fn positive(field: &'static str, value: f32, max: f32) -> Result<(), ConfigError> {
    // Written so that a NaN is refused.
    if value > 0.0 && value <= max {
        return Ok(());
    }
    Err(ConfigError::Number { field, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Qwen2,
            hidden_size: 896,
            intermediate_size: 4864,
            n_heads: 14,
            n_kv_heads: 2,
            head_dim: 64,
            vocab_size: 151_936,
            context_tokens: 32_768,
            norm_eps: 1e-6,
            attention_scale: 0.125,
            embedding_scale: None,
            activation: Activation::Silu,
            qkv_bias: true,
            qk_norm: false,
            post_norms: false,
            tied_head: None,
            rope_divisors: RopeDivisors::None,
            rope_magnitude: 1.0,
            layers: vec![LayerConfig { window: None, rope_base: 1e6, rope_scale: 1.0 }; 24],
        }
    }

    #[test]
    fn a_block_of_the_qwen_cache_is_384_kib() {
        // 24 layers * (128 + 128) values * 16 tokens * 4 bytes.
        assert_eq!(good().kv_bytes_per_block(), 393_216);
        good().validate().unwrap();
    }

    #[test]
    fn hostile_sizes_are_refused_by_name() {
        type Break = fn(&mut ModelConfig);
        let breaks: [(&str, Break); 17] = [
            ("n_layers", |c| c.layers.clear()),
            ("hidden_size", |c| c.hidden_size = 0),
            ("hidden_size", |c| c.hidden_size = usize::MAX),
            ("intermediate_size", |c| c.intermediate_size = 1 << 40),
            ("n_heads", |c| c.n_heads = 0),
            ("n_kv_heads", |c| c.n_kv_heads = 0),
            ("n_kv_heads", |c| c.n_kv_heads = 3),
            ("head_dim", |c| c.head_dim = 24),
            ("head_dim", |c| c.head_dim = 1 << 20),
            ("vocab_size", |c| c.vocab_size = 0),
            ("context_tokens", |c| c.context_tokens = 0),
            ("norm_eps", |c| c.norm_eps = f32::NAN),
            ("rope_base", |c| c.layers[3].rope_base = f32::INFINITY),
            ("window", |c| c.layers[3].window = Some(0)),
            ("rope_magnitude", |c| c.rope_magnitude = f32::INFINITY),
            ("rope_divisors", |c| c.rope_divisors = RopeDivisors::Values(vec![1.0; 31])),
            ("rope_divisors", |c| c.rope_divisors = RopeDivisors::Values(vec![0.0; 32])),
        ];
        for (name, break_it) in breaks {
            let mut config = good();
            break_it(&mut config);
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(name), "{message} does not name {name}");
        }
        assert!(check_n_layers(1_000_000_000).is_err());
        assert!(default_head_dim(896, 0).is_err());
        assert!(default_head_dim(896, 15).is_err());
        assert_eq!(default_head_dim(896, 14), Ok(64));
    }
}
