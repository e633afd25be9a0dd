//! The tensors that a config calls for, by their names in each layout and their shapes, checked before any of them is read.

use std::collections::HashSet;
use std::ops::Range;

use candle_core::quantized::GgmlDType;

use super::config::{Architecture, ModelConfig, RopeDivisors};
use super::rope::LONG_DIVISORS;
use crate::load::{Layout, LoadError, TensorInfo, TensorTable};

/// Checks that every tensor the model needs is there, in the right shape and in a format that can be computed with,
/// and that none is there that would change the answers without being used. Other extra tensors are left alone in a GGUF
/// file, and refused in a folder, whose names are not as well known.
///
/// # Errors
/// [`LoadError::MissingTensor`], [`LoadError::TensorShape`], [`LoadError::UnsupportedTensorType`], or
/// [`LoadError::Malformed`] for a tensor that must not be there.
pub fn check(table: &TensorTable, config: &ModelConfig, layout: Layout) -> Result<(), LoadError> {
    let names = Names::of(config, layout);
    let mut called_for = HashSet::new();
    let mut matrix = |matrix: &Matrix| -> Result<(), LoadError> {
        expect_shape(table.tensor(&matrix.name)?, &[matrix.n_rows as u64, matrix.k as u64])?;
        called_for.insert(matrix.name.clone());
        Ok(())
    };
    matrix(&names.embedding_matrix())?;
    if names.has_own_head(table) {
        matrix(&names.head_matrix())?;
    }
    let layers: Vec<LayerNames> = (0..config.n_layers()).map(|layer_idx| names.layer(layer_idx)).collect();
    layers.iter().flat_map(LayerNames::matrices).try_for_each(&mut matrix)?;
    let mut vector = |name: &str, width: usize| -> Result<(), LoadError> {
        vector(table, name, width)?;
        called_for.insert(name.to_owned());
        Ok(())
    };
    vector(names.output_norm, config.hidden_size)?;
    if let RopeDivisors::Tensor(name) = config.rope_divisors {
        vector(name, config.head_dim / 2)?;
    }
    layers.iter().flat_map(|layer| layer.vectors(config)).try_for_each(|(name, width)| vector(name, width))?;
    let foreign = table.iter().find(|info| {
        !called_for.contains(&info.name)
            && match layout {
                Layout::Gguf => changes_gguf_answers(&info.name, config),
                Layout::HuggingFace => !is_idle_in_folders(&info.name, &names),
            }
    });
    match foreign {
        None => Ok(()),
        Some(info) => Err(LoadError::malformed(format!(
            "tensor {:?} has no place in the architecture {}, and would change its answers",
            info.name,
            config.architecture.name()
        ))),
    }
}

fn vector(table: &TensorTable, name: &str, width: usize) -> Result<(), LoadError> {
    let info = table.tensor(name)?;
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

/// Names that some converters use for things that this engine would have to compute with: long-context frequency factors,
/// mixtures of experts, biases outside query, key and value. Asked of tensors that are not called for.
fn changes_gguf_answers(name: &str, config: &ModelConfig) -> bool {
    // The set for longer contexts lies beside the one in use.
    let is_other_divisors = name == LONG_DIVISORS && matches!(config.rope_divisors, RopeDivisors::Tensor(_));
    (name.starts_with("rope_f") && !is_other_divisors)
        || name.contains("_exps.")
        || name.contains(".rope_f")
        || name.contains("attn_sinks")
        || name.contains("_norm.bias")
        || (name.starts_with("blk.") && name.ends_with(".bias"))
        || name == "output.bias"
        || [".attn_q_norm.weight", ".attn_k_norm.weight"].iter().any(|end| name.ends_with(end))
        || [".post_attention_norm.weight", ".post_ffw_norm.weight"].iter().any(|end| name.ends_with(end))
}

/// Tensors that old files carry and nobody reads: rotary frequencies, which follow from the config, and a copy of the
/// embedding where that is the head.
fn is_idle_in_folders(name: &str, names: &Names<'_>) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (name == names.head && names.config.tied_head == Some(true))
}

/// The name of the embedding, whose rows tell the size of the vocabulary.
pub(super) fn embedding_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Gguf => "token_embd.weight",
        Layout::HuggingFace => "model.embed_tokens.weight",
    }
}

/// A weight matrix: all of a tensor, or some of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// The tensor's name.
    pub name: String,
    /// The rows that are this matrix.
    pub rows: Range<usize>,
    /// Rows of the tensor.
    pub n_rows: usize,
    /// Values of a row.
    pub k: usize,
}

impl Matrix {
    fn whole(name: String, n: usize, k: usize) -> Self {
        Self { name, rows: 0..n, n_rows: n, k }
    }

    /// A tensor that holds matrices of `heights` rows, one below the other.
    fn stacked<const N: usize>(name: &str, heights: [usize; N], k: usize) -> [Self; N] {
        let n_rows = heights.iter().sum();
        let mut end = 0;
        heights.map(|height| {
            end += height;
            Self { name: name.to_owned(), rows: end - height..end, n_rows, k }
        })
    }
}

/// The names of a model's tensors.
pub struct Names<'a> {
    /// `[vocab_size, hidden_size]`.
    pub embedding: &'static str,
    /// `[hidden_size]`.
    pub output_norm: &'static str,
    /// `[vocab_size, hidden_size]`, where the embedding is not the head as well.
    pub head: &'static str,
    config: &'a ModelConfig,
    layout: Layout,
}

impl<'a> Names<'a> {
    /// The names that `config` calls for.
    pub fn of(config: &'a ModelConfig, layout: Layout) -> Self {
        let (output_norm, head) = match layout {
            Layout::Gguf => ("output_norm.weight", "output.weight"),
            Layout::HuggingFace => ("model.norm.weight", "lm_head.weight"),
        };
        Self { embedding: embedding_name(layout), output_norm, head, config, layout }
    }

    /// Whether the model has a head beside its embedding.
    pub fn has_own_head(&self, table: &TensorTable) -> bool {
        match self.config.tied_head {
            Some(tied) => !tied,
            None => table.opt_tensor(self.head).is_some(),
        }
    }

    fn embedding_matrix(&self) -> Matrix {
        Matrix::whole(self.embedding.to_owned(), self.config.vocab_size, self.config.hidden_size)
    }

    /// The head beside the embedding.
    pub fn head_matrix(&self) -> Matrix {
        Matrix::whole(self.head.to_owned(), self.config.vocab_size, self.config.hidden_size)
    }

    /// The names of one layer.
    pub fn layer(&self, layer_idx: usize) -> LayerNames {
        let words = match self.layout {
            Layout::Gguf => &GGUF,
            Layout::HuggingFace if self.config.post_norms => &FOLDER_WITH_POST_NORMS,
            Layout::HuggingFace => &FOLDER,
        };
        let name = |tensor: &str| format!("{}{layer_idx}.{tensor}", words.layer);
        let config = self.config;
        let (hidden, mlp) = (config.hidden_size, config.intermediate_size);
        let heads = [config.q_width(), config.kv_width(), config.kv_width()];
        let ([q, k, v], [gate, up]) = match config.architecture {
            Architecture::Phi3 => (
                Matrix::stacked(&name(words.qkv), heads, hidden),
                Matrix::stacked(&name(words.gate_up), [mlp, mlp], hidden),
            ),
            _ => {
                let [q, k, v] = words.attention;
                let [q_width, k_width, v_width] = heads;
                let product = |tensor, n| Matrix::whole(name(tensor), n, hidden);
                (
                    [product(q, q_width), product(k, k_width), product(v, v_width)],
                    [product(words.gate, mlp), product(words.up, mlp)],
                )
            }
        };
        LayerNames {
            attn_norm: name(words.attn_norm),
            q,
            k,
            v,
            qkv_bias: config.qkv_bias.then(|| words.qkv_bias.map(name)),
            qk_norm: config.qk_norm.then(|| words.qk_norm.map(name)),
            o: Matrix::whole(name(words.o), hidden, config.q_width()),
            post_attn_norm: config.post_norms.then(|| name(words.post_attn_norm)),
            mlp_norm: name(words.mlp_norm),
            gate,
            up,
            down: Matrix::whole(name(words.down), hidden, mlp),
            post_mlp_norm: config.post_norms.then(|| name(words.post_mlp_norm)),
        }
    }
}

/// What a layout calls the tensors of a layer.
struct Words {
    /// Before the layer's number.
    layer: &'static str,
    attn_norm: &'static str,
    attention: [&'static str; 3],
    /// Query, key and value in one.
    qkv: &'static str,
    qkv_bias: [&'static str; 3],
    qk_norm: [&'static str; 2],
    o: &'static str,
    post_attn_norm: &'static str,
    mlp_norm: &'static str,
    gate: &'static str,
    up: &'static str,
    /// Gate and up in one.
    gate_up: &'static str,
    down: &'static str,
    post_mlp_norm: &'static str,
}

const GGUF: Words = Words {
    layer: "blk.",
    attn_norm: "attn_norm.weight",
    attention: ["attn_q.weight", "attn_k.weight", "attn_v.weight"],
    qkv: "attn_qkv.weight",
    qkv_bias: ["attn_q.bias", "attn_k.bias", "attn_v.bias"],
    qk_norm: ["attn_q_norm.weight", "attn_k_norm.weight"],
    o: "attn_output.weight",
    post_attn_norm: "post_attention_norm.weight",
    mlp_norm: "ffn_norm.weight",
    gate: "ffn_gate.weight",
    up: "ffn_up.weight",
    gate_up: "ffn_up.weight",
    down: "ffn_down.weight",
    post_mlp_norm: "post_ffw_norm.weight",
};

const FOLDER: Words = Words {
    layer: "model.layers.",
    attn_norm: "input_layernorm.weight",
    attention: ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
    qkv: "self_attn.qkv_proj.weight",
    qkv_bias: ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"],
    qk_norm: ["self_attn.q_norm.weight", "self_attn.k_norm.weight"],
    o: "self_attn.o_proj.weight",
    post_attn_norm: "",
    mlp_norm: "post_attention_layernorm.weight",
    gate: "mlp.gate_proj.weight",
    up: "mlp.up_proj.weight",
    gate_up: "mlp.gate_up_proj.weight",
    down: "mlp.down_proj.weight",
    post_mlp_norm: "",
};

/// Where attention is normed behind as well, the norm after it has the name that others use for the one before the MLP.
const FOLDER_WITH_POST_NORMS: Words = Words {
    post_attn_norm: "post_attention_layernorm.weight",
    mlp_norm: "pre_feedforward_layernorm.weight",
    post_mlp_norm: "post_feedforward_layernorm.weight",
    ..FOLDER
};

/// The names of one layer's tensors; the fields are those of [`super::decoder::Layer`].
#[expect(missing_docs, reason = "each field is the tensor it is named after")]
pub struct LayerNames {
    pub attn_norm: String,
    pub q: Matrix,
    pub k: Matrix,
    pub v: Matrix,
    pub qkv_bias: Option<[String; 3]>,
    pub qk_norm: Option<[String; 2]>,
    pub o: Matrix,
    pub post_attn_norm: Option<String>,
    pub mlp_norm: String,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub post_mlp_norm: Option<String>,
}

impl LayerNames {
    fn matrices(&self) -> [&Matrix; 7] {
        [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down]
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
