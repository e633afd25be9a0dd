//! From a file's metadata to a [`ModelConfig`]: what all families share, and the table of families.

use super::config::{Architecture, ConfigError, LayerConfig, ModelConfig, check_n_layers, default_head_dim};
use super::{gemma3, qwen2};
use crate::load::{GgufHeader, LoadError, Metadata};

/// Reads and checks the description of the model in a GGUF file.
///
/// # Errors
/// [`LoadError::UnsupportedArchitecture`] for any family but those of [`Architecture::ALL`];
/// [`LoadError::MissingMetadata`] and [`LoadError::BadMetadata`] for a key; [`LoadError::Malformed`] for sizes that are
/// absurd or do not go together; [`LoadError::MissingTensor`] without an embedding, which tells the vocabulary's size.
pub fn read_config(header: &GgufHeader) -> Result<ModelConfig, LoadError> {
    let found = header.metadata.string("general.architecture")?;
    let architecture = Architecture::from_name(found).ok_or_else(|| LoadError::UnsupportedArchitecture {
        found: found.to_owned(),
        supported: Architecture::ALL.map(Architecture::name).to_vec(),
    })?;
    let keys = Keys { metadata: &header.metadata, prefix: architecture.name() };
    let sizes = Sizes::read(&keys, header)?;
    let config = match architecture {
        Architecture::Qwen2 => qwen2::config(&keys, sizes)?,
        Architecture::Gemma3 => gemma3::config(&keys, sizes)?,
    };
    config.validate().map_err(malformed)?;
    Ok(config)
}

/// A family's keys, which all begin with its name.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

impl Keys<'_> {
    /// The whole key: `attention.head_count` is `qwen2.attention.head_count` in a Qwen2 file.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub fn size(&self, name: &str) -> Result<usize, LoadError> {
        Ok(self.metadata.u32(&self.key(name))? as usize)
    }

    pub fn opt_size(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.metadata.opt_u32(&self.key(name))?.map(|size| size as usize))
    }

    pub fn opt_number(&self, name: &str) -> Result<Option<f32>, LoadError> {
        self.metadata.opt_f32(&self.key(name))
    }

    /// Refuses a key that would change the model's answers in a way that is not computed here. Zero means "off".
    pub fn refuse_number(&self, name: &str) -> Result<(), LoadError> {
        match self.opt_number(name)? {
            None | Some(0.0) => Ok(()),
            Some(value) => Err(self.refused(name, &format!("is {value}"))),
        }
    }

    /// The error for a value that this engine does not compute with.
    pub fn refused(&self, name: &str, what: &str) -> LoadError {
        LoadError::bad_metadata(&self.key(name), format!("{what}, which is not supported for this architecture"))
    }

    /// The factor that positions are divided by, 1 without scaling. Only linear scaling is computed here.
    pub fn linear_rope_scale(&self) -> Result<f32, LoadError> {
        match self.metadata.opt_string(&self.key("rope.scaling.type"))? {
            None | Some("none") => Ok(1.0),
            Some("linear") => self.metadata.f32(&self.key("rope.scaling.factor")),
            Some(other) => Err(self.refused("rope.scaling.type", &format!("is {other:?}"))),
        }
    }
}

/// The sizes that every family has under the same names.
pub(super) struct Sizes {
    pub n_layers: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub context_tokens: usize,
    pub norm_eps: f32,
    pub rope_base: f32,
}

impl Sizes {
    fn read(keys: &Keys<'_>, header: &GgufHeader) -> Result<Self, LoadError> {
        let n_layers = keys.size("block_count")?;
        check_n_layers(n_layers).map_err(malformed)?;
        let hidden_size = keys.size("embedding_length")?;
        let n_heads = keys.size("attention.head_count")?;
        let head_dim = match keys.opt_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => default_head_dim(hidden_size, n_heads).map_err(malformed)?,
        };
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(other) = keys.opt_size(name)?.filter(|&other| other != head_dim) {
                return Err(keys.refused(name, &format!("is {other} where heads are {head_dim} wide")));
            }
        }
        let vocab_size = header.tensor("token_embd.weight")?.dims[0] as usize;
        if let Some(tokens) = header.metadata.opt_strings("tokenizer.ggml.tokens")? {
            // A token without a row in the embedding could be given out by the tokenizer and refused by every step.
            if tokens.len() > vocab_size {
                let why = format!("has {} tokens, the embedding {vocab_size} rows", tokens.len());
                return Err(LoadError::bad_metadata("tokenizer.ggml.tokens", why));
            }
        }
        Ok(Self {
            n_layers,
            hidden_size,
            intermediate_size: keys.size("feed_forward_length")?,
            n_heads,
            n_kv_heads: keys.opt_size("attention.head_count_kv")?.unwrap_or(n_heads),
            head_dim,
            vocab_size,
            context_tokens: keys.size("context_length")?,
            norm_eps: header.metadata.f32(&keys.key("attention.layer_norm_rms_epsilon"))?,
            rope_base: keys.opt_number("rope.freq_base")?.unwrap_or(10_000.0),
        })
    }

    /// The same layer `n_layers` times.
    pub fn uniform_layers(&self, layer: LayerConfig) -> Vec<LayerConfig> {
        vec![layer; self.n_layers]
    }
}

fn malformed(err: ConfigError) -> LoadError {
    LoadError::malformed(err.to_string())
}
