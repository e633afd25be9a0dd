//! From what a model's files say of it to a [`ModelConfig`]: what all families share, and the table of families.

use super::config::{
    Activation, Architecture, ConfigError, LayerConfig, ModelConfig, check_n_layers, default_head_dim,
};
use super::rope::Rope;
use super::{gemma3, llama, phi3, qwen2, qwen3, tensors};
use crate::load::metadata::Value;
use crate::load::{GgufHeader, Layout, LoadError, Metadata, TensorTable, folder};

/// Reads and checks the description of the model in a GGUF file.
///
/// # Errors
/// [`LoadError::UnsupportedArchitecture`] for any family but those of [`Architecture::ALL`];
/// [`LoadError::MissingMetadata`] and [`LoadError::BadMetadata`] for a key; [`LoadError::Malformed`] for sizes that are
/// absurd or do not go together; [`LoadError::MissingTensor`] without an embedding, which tells the vocabulary's size.
pub fn read_config(header: &GgufHeader) -> Result<ModelConfig, LoadError> {
    describe(Layout::Gguf, &header.metadata, &header.tensors)
}

/// [`read_config`] for files of any layout.
///
/// # Errors
/// As [`read_config`].
pub fn describe(layout: Layout, metadata: &Metadata, tensors: &TensorTable) -> Result<ModelConfig, LoadError> {
    let architecture = match layout {
        Layout::Gguf => gguf_architecture(metadata)?,
        Layout::HuggingFace => folder_architecture(metadata)?,
    };
    let keys = Keys { metadata, layout, prefix: architecture.name() };
    let sizes = Sizes::read(&keys, tensors)?;
    let mut config = match architecture {
        Architecture::Llama => llama::config(&keys, sizes, tensors)?,
        Architecture::Qwen2 => qwen2::config(&keys, sizes)?,
        Architecture::Qwen3 => qwen3::config(&keys, sizes)?,
        Architecture::Gemma3 => gemma3::config(&keys, sizes)?,
        Architecture::Phi3 => phi3::config(&keys, sizes, tensors)?,
    };
    if layout == Layout::HuggingFace {
        config.tied_head = keys.opt_flag("tie_word_embeddings")?;
        keys.refuse_what_only_folders_have(config.activation)?;
    }
    config.validate().map_err(|err| unusable(layout, &err))?;
    Ok(config)
}

fn gguf_architecture(metadata: &Metadata) -> Result<Architecture, LoadError> {
    let found = metadata.string("general.architecture")?;
    Architecture::from_name(found).ok_or_else(|| LoadError::UnsupportedArchitecture {
        found: found.to_owned(),
        supported: Architecture::ALL.map(Architecture::name).to_vec(),
    })
}

fn folder_architecture(metadata: &Metadata) -> Result<Architecture, LoadError> {
    let found = metadata.string("config.json:model_type")?;
    let architecture = Architecture::from_model_type(found).ok_or_else(|| LoadError::UnsupportedArchitecture {
        // As long as the file's author likes; a name is short.
        found: found.chars().take(100).collect(),
        supported: Architecture::MODEL_TYPES.map(|(name, _)| name).to_vec(),
    })?;
    // Models with another head have the same `model_type` and answer other questions.
    let key = "config.json:architectures";
    let class = metadata.opt_strings(key)?.and_then(|classes| classes.get(0));
    match class.filter(|class| !class.ends_with("ForCausalLM")) {
        Some(class) => {
            Err(LoadError::bad_metadata(key, format!("is {class:?}; only causal language models are served")))
        }
        None => Ok(architecture),
    }
}

/// A family's keys, by the names that GGUF has for them (without the family's prefix).
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    layout: Layout,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    /// True for a folder in the layout of the Hugging Face libraries.
    pub fn of_folder(&self) -> bool {
        self.layout == Layout::HuggingFace
    }

    /// The whole key: `attention.head_count` is `qwen2.attention.head_count` in a Qwen2 GGUF file, and
    /// `config.json:num_attention_heads` in a folder.
    pub fn key(&self, name: &str) -> String {
        match self.layout {
            Layout::Gguf => format!("{}.{name}", self.prefix),
            Layout::HuggingFace => format!("{}:{}", folder::CONFIG, folder_name(name)),
        }
    }

    pub fn size(&self, name: &str) -> Result<usize, LoadError> {
        Ok(self.metadata.u32(&self.key(name))? as usize)
    }

    pub fn opt_size(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.metadata.opt_u32(&self.key(name))?.map(|size| size as usize))
    }

    pub fn number(&self, name: &str) -> Result<f32, LoadError> {
        self.opt_number(name)?.ok_or_else(|| LoadError::MissingMetadata { key: self.key(name) })
    }

    pub fn opt_number(&self, name: &str) -> Result<Option<f32>, LoadError> {
        let key = self.key(name);
        match self.metadata.get(&key) {
            // In JSON a whole number is often written without a point.
            Some(Value::Unsigned(number)) if self.of_folder() => Ok(Some(*number as f32)),
            _ => self.metadata.opt_f32(&key),
        }
    }

    pub fn opt_text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        self.metadata.opt_string(&self.key(name))
    }

    pub fn opt_flag(&self, name: &str) -> Result<Option<bool>, LoadError> {
        self.metadata.opt_bool(&self.key(name))
    }

    pub fn numbers(&self, name: &str) -> Result<&'a [f32], LoadError> {
        self.metadata.f32s(&self.key(name))
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

    /// Of a folder: which layers have a window, where `layer_types` says so.
    pub fn opt_windowed_layers(&self, n_layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
        let name = "layer_types";
        let Some(types) = self.metadata.opt_strings(&self.key(name))? else { return Ok(None) };
        if types.len() != n_layers {
            return Err(LoadError::bad_metadata(&self.key(name), format!("has {} entries", types.len())));
        }
        let windowed = types.iter().map(|layer| match layer {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(self.refused(name, &format!("has {other:?}"))),
        });
        windowed.collect::<Result<_, _>>().map(Some)
    }

    /// Settings of `config.json` that no GGUF file has a key for.
    fn refuse_what_only_folders_have(&self, activation: Activation) -> Result<(), LoadError> {
        let expected = match activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
        };
        for name in ["hidden_act", "hidden_activation"] {
            if let Some(other) = self.opt_text(name)?.filter(|found| *found != expected) {
                return Err(self.refused(name, &format!("is {other:?}")));
            }
        }
        // Tensors under names that are not called for are refused as well; this says it in the config's words.
        for name in ["attention_bias", "mlp_bias", "use_bidirectional_attention"] {
            if self.opt_flag(name)?.unwrap_or(false) {
                return Err(self.refused(name, "is true"));
            }
        }
        let quantised = "quantization_config.quant_method";
        if let Some(method) = self.opt_text(quantised)? {
            let why =
                format!("is {method:?}; quantised folders are not supported: use the float weights, or a GGUF file");
            return Err(LoadError::bad_metadata(&self.key(quantised), why));
        }
        Ok(())
    }
}

/// The name in `config.json` of what GGUF calls `name`.
fn folder_name(name: &str) -> &str {
    match name {
        "block_count" => "num_hidden_layers",
        "embedding_length" => "hidden_size",
        "feed_forward_length" => "intermediate_size",
        "attention.head_count" => "num_attention_heads",
        "attention.head_count_kv" => "num_key_value_heads",
        "attention.key_length" => "head_dim",
        "attention.layer_norm_rms_epsilon" => "rms_norm_eps",
        "attention.sliding_window" => "sliding_window",
        "attention.sliding_window_pattern" => "sliding_window_pattern",
        "context_length" => "max_position_embeddings",
        other => other,
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
}

impl Sizes {
    fn read(keys: &Keys<'_>, tensors: &TensorTable) -> Result<Self, LoadError> {
        let n_layers = keys.size("block_count")?;
        check_n_layers(n_layers).map_err(|err| unusable(keys.layout, &err))?;
        let hidden_size = keys.size("embedding_length")?;
        let n_heads = keys.size("attention.head_count")?;
        let head_dim = match keys.opt_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => default_head_dim(hidden_size, n_heads).map_err(|err| unusable(keys.layout, &err))?,
        };
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(other) = keys.opt_size(name)?.filter(|&other| other != head_dim) {
                return Err(keys.refused(name, &format!("is {other} where heads are {head_dim} wide")));
            }
        }
        let vocab_size = tensors.tensor(tensors::embedding_name(keys.layout))?.dims[0] as usize;
        if let Some(tokens) = keys.metadata.opt_strings("tokenizer.ggml.tokens")? {
            // A token without a row in the embedding could be given out by the tokenizer and refused by every step.
            if tokens.len() > vocab_size {
                let why = format!("has {} tokens, the embedding {vocab_size} rows", tokens.len());
                return Err(LoadError::bad_metadata("tokenizer.ggml.tokens", why));
            }
        }
        if let Some(other) = keys.opt_size("vocab_size")?.filter(|&other| keys.of_folder() && other != vocab_size) {
            let why = format!("is {other}, the embedding has {vocab_size} rows");
            return Err(LoadError::bad_metadata(&keys.key("vocab_size"), why));
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
            norm_eps: keys.number("attention.layer_norm_rms_epsilon")?,
        })
    }

    /// The plainest decoder of these sizes: all layers alike, turned by `rope` and seen through `window`.
    pub fn decoder(&self, architecture: Architecture, rope: Rope, window: Option<usize>) -> ModelConfig {
        let layer = LayerConfig { window, rope_base: rope.base, rope_scale: rope.scale };
        ModelConfig {
            architecture,
            layers: vec![layer; self.n_layers],
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            context_tokens: rope.context_tokens.unwrap_or(self.context_tokens).min(self.context_tokens),
            norm_eps: self.norm_eps,
            attention_scale: 1.0 / (self.head_dim as f32).sqrt(),
            embedding_scale: None,
            activation: Activation::Silu,
            qkv_bias: false,
            qk_norm: false,
            post_norms: false,
            tied_head: None,
            rope_divisors: rope.divisors,
            rope_magnitude: rope.magnitude,
        }
    }

    /// A window, where it hides anything.
    pub fn narrower(&self, window: Option<usize>) -> Option<usize> {
        window.filter(|&window| window > 0 && window < self.context_tokens)
    }
}

fn unusable(layout: Layout, err: &ConfigError) -> LoadError {
    match layout {
        Layout::Gguf => LoadError::malformed(err.to_string()),
        Layout::HuggingFace => {
            LoadError::bad_file(folder::CONFIG, format!("describes no model that can be run: {err}"))
        }
    }
}
