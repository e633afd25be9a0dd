//! The tensors that a config calls for, by their GGUF names and shapes, checked before any of them is read.

use candle_core::quantized::GgmlDType;

use super::config::ModelConfig;
use crate::load::{GgufHeader, LoadError, TensorInfo};

/// Checks that every tensor the model needs is there, in the right shape and in a format that can be computed with,
/// and that none is there that would change the answers without being used. Other extra tensors are left alone.
///
/// # Errors
/// [`LoadError::MissingTensor`], [`LoadError::TensorShape`], [`LoadError::UnsupportedTensorType`], or
/// [`LoadError::Malformed`] for a tensor that must not be there.
pub fn check(header: &GgufHeader, config: &ModelConfig) -> Result<(), LoadError> {
    let names = Names::of(config);
    matrix(header, names.embedding, config.vocab_size, config.hidden_size)?;
    vector(header, names.output_norm, config.hidden_size)?;
    if header.opt_tensor(names.head).is_some() {
        matrix(header, names.head, config.vocab_size, config.hidden_size)?;
    }
    for layer_idx in 0..config.n_layers() {
        let layer = names.layer(layer_idx);
        for (name, n, k) in layer.matrices(config) {
            matrix(header, name, n, k)?;
        }
        for (name, width) in layer.vectors(config) {
            vector(header, name, width)?;
        }
    }
    refuse_unused(header, config)
}

fn matrix(header: &GgufHeader, name: &str, n: usize, k: usize) -> Result<(), LoadError> {
    expect_shape(header.tensor(name)?, &[n as u64, k as u64])
}

fn vector(header: &GgufHeader, name: &str, width: usize) -> Result<(), LoadError> {
    let info = header.tensor(name)?;
    expect_shape(info, &[width as u64])?;
    match info.dtype {
        GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => Ok(()),
        other => {
            Err(LoadError::UnsupportedTensorType { name: name.to_owned(), ggml_type: format!("{other:?}, a vector") })
        }
    }
}

fn expect_shape(info: &TensorInfo, expected: &[u64]) -> Result<(), LoadError> {
    if info.dims == expected {
        return Ok(());
    }
    Err(LoadError::TensorShape { name: info.name.clone(), expected: expected.to_vec(), found: info.dims.clone() })
}

/// Tensors under names that some converters use for things that this engine would have to compute with: long-context
/// frequency factors, mixtures of experts, biases outside query, key and value.
fn refuse_unused(header: &GgufHeader, config: &ModelConfig) -> Result<(), LoadError> {
    let wanted = |name: &str| {
        let ends = [".attn_q.bias", ".attn_k.bias", ".attn_v.bias"];
        config.qkv_bias && ends.iter().any(|end| name.ends_with(end))
    };
    let changes_answers = |name: &str| {
        name.starts_with("rope_f")
            || name.contains("_exps.")
            || name.contains(".rope_f")
            || name.contains("attn_sinks")
            || name.contains("_norm.bias")
            || (name.starts_with("blk.") && name.ends_with(".bias") && !wanted(name))
            || name == "output.bias"
            || (!config.qk_norm && (name.ends_with(".attn_q_norm.weight") || name.ends_with(".attn_k_norm.weight")))
            || (!config.post_norms
                && (name.ends_with(".post_attention_norm.weight") || name.ends_with(".post_ffw_norm.weight")))
    };
    match header.tensors.iter().find(|info| changes_answers(&info.name)) {
        None => Ok(()),
        Some(info) => Err(LoadError::malformed(format!(
            "tensor {:?} has no place in the architecture {}, and would change its answers",
            info.name,
            config.architecture.name()
        ))),
    }
}

/// GGUF's names of the tensors outside the layers.
pub struct Names {
    /// `[vocab_size, hidden_size]`.
    pub embedding: &'static str,
    /// `[hidden_size]`.
    pub output_norm: &'static str,
    /// `[vocab_size, hidden_size]`; where a file has none, the embedding serves as the head.
    pub head: &'static str,
    qkv_bias: bool,
    qk_norm: bool,
    post_norms: bool,
}

impl Names {
    /// The names that `config` calls for.
    pub fn of(config: &ModelConfig) -> Self {
        Self {
            embedding: "token_embd.weight",
            output_norm: "output_norm.weight",
            head: "output.weight",
            qkv_bias: config.qkv_bias,
            qk_norm: config.qk_norm,
            post_norms: config.post_norms,
        }
    }

    /// The names of one layer.
    pub fn layer(&self, layer_idx: usize) -> LayerNames {
        let name = |tensor: &str| format!("blk.{layer_idx}.{tensor}");
        let three = |present: bool| present.then(|| ["attn_q.bias", "attn_k.bias", "attn_v.bias"].map(name));
        LayerNames {
            attn_norm: name("attn_norm.weight"),
            q: name("attn_q.weight"),
            k: name("attn_k.weight"),
            v: name("attn_v.weight"),
            qkv_bias: three(self.qkv_bias),
            qk_norm: self.qk_norm.then(|| ["attn_q_norm.weight", "attn_k_norm.weight"].map(name)),
            o: name("attn_output.weight"),
            post_attn_norm: self.post_norms.then(|| name("post_attention_norm.weight")),
            mlp_norm: name("ffn_norm.weight"),
            gate: name("ffn_gate.weight"),
            up: name("ffn_up.weight"),
            down: name("ffn_down.weight"),
            post_mlp_norm: self.post_norms.then(|| name("post_ffw_norm.weight")),
        }
    }
}

/// GGUF's names of one layer's tensors; the fields are those of [`super::decoder::Layer`].
#[expect(missing_docs, reason = "each field is the tensor it is named after")]
pub struct LayerNames {
    pub attn_norm: String,
    pub q: String,
    pub k: String,
    pub v: String,
    pub qkv_bias: Option<[String; 3]>,
    pub qk_norm: Option<[String; 2]>,
    pub o: String,
    pub post_attn_norm: Option<String>,
    pub mlp_norm: String,
    pub gate: String,
    pub up: String,
    pub down: String,
    pub post_mlp_norm: Option<String>,
}

impl LayerNames {
    /// Name, outputs and inputs of every matrix.
    fn matrices(&self, config: &ModelConfig) -> [(&str, usize, usize); 7] {
        let (hidden, mlp) = (config.hidden_size, config.intermediate_size);
        let (q_width, kv_width) = (config.q_width(), config.kv_width());
        [
            (&self.q, q_width, hidden),
            (&self.k, kv_width, hidden),
            (&self.v, kv_width, hidden),
            (&self.o, hidden, q_width),
            (&self.gate, mlp, hidden),
            (&self.up, mlp, hidden),
            (&self.down, hidden, mlp),
        ]
    }

    /// Name and width of every vector.
    fn vectors(&self, config: &ModelConfig) -> Vec<(&str, usize)> {
        let (hidden, kv_width) = (config.hidden_size, config.kv_width());
        let mut vectors = vec![(self.attn_norm.as_str(), hidden), (&self.mlp_norm, hidden)];
        if let Some([q, k, v]) = &self.qkv_bias {
            vectors.extend([(q.as_str(), config.q_width()), (k, kv_width), (v, kv_width)]);
        }
        if let Some([q, k]) = &self.qk_norm {
            vectors.extend([(q.as_str(), config.head_dim), (k, config.head_dim)]);
        }
        let post = [&self.post_attn_norm, &self.post_mlp_norm];
        vectors.extend(post.into_iter().flatten().map(|name| (name.as_str(), hidden)));
        vectors
    }
}
