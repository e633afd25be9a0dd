//! One forward pass of a decoder over the flat list of tokens of a step.
//!
//! The linear layers see all rows at once, whichever sequences they belong to; only attention knows the spans. What is
//! not asked for is not computed: behind the last layer's keys and values, only the rows that are wanted go on.

use candle_core::{Device, Tensor};
use kernels::{EmbeddingTable, KernelError, KvLayer, PackedLinear};

use super::attention::{Attention, Rows};
use super::config::{Activation, ModelConfig};
use crate::engine::plan::StepPlan;

/// The weights of one layer, and what is fixed about it.
#[derive(Debug)]
pub struct Layer {
    /// `[hidden_size]`.
    pub attn_norm: Tensor,
    /// Query, key, value and output products, rotary table, window.
    pub attention: Attention,
    /// `[hidden_size]`, where the family norms what attention gives.
    pub post_attn_norm: Option<Tensor>,
    /// `[hidden_size]`.
    pub mlp_norm: Tensor,
    /// `[intermediate_size, hidden_size]`.
    pub gate: PackedLinear,
    /// `[intermediate_size, hidden_size]`.
    pub up: PackedLinear,
    /// `[hidden_size, intermediate_size]`.
    pub down: PackedLinear,
    /// `[hidden_size]`, where the family norms what the MLP gives.
    pub post_mlp_norm: Option<Tensor>,
}

/// A model ready to run: a config and the weights that it calls for.
#[derive(Debug)]
pub struct Decoder {
    /// What the weights are weights of.
    pub config: ModelConfig,
    /// `[vocab_size, hidden_size]`.
    pub embedding: EmbeddingTable,
    /// One per layer of the config.
    pub layers: Vec<Layer>,
    /// `[hidden_size]`.
    pub output_norm: Tensor,
    /// `[vocab_size, hidden_size]`; packed from the embedding where the file has no other.
    pub head: PackedLinear,
    /// Where activations live.
    pub device: Device,
}

impl Decoder {
    /// Writes the keys and values of every token of `plan` into `cache`, one [`KvLayer`] per layer, and gives the hidden
    /// states of the `wanted` rows, which are ascending, behind the last norm: `[wanted, hidden_size]`; `None` where none
    /// are. Their product with `head` is their logits.
    ///
    /// # Errors
    /// [`KernelError`] when a kernel refuses; the plan's slots are then undefined, and no others are touched.
    ///
    /// # Panics
    /// If `cache` has fewer layers than the model.
    pub fn forward(
        &self,
        plan: &StepPlan,
        wanted: &[u32],
        cache: &mut [KvLayer],
    ) -> Result<Option<Tensor>, KernelError> {
        let all_wanted = wanted.len() == plan.n_tokens();
        let eps = self.config.norm_eps;
        let mut rows = Rows::of(plan);
        let mut residual = self.embedding.rows(&plan.tokens, &self.device)?;
        if let Some(factor) = self.config.embedding_scale {
            residual = kernels::scale(&residual, factor)?;
        }
        let mut normed = kernels::rms_norm(&residual, &self.layers[0].attn_norm, eps)?;
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            let (k, v, q) = if layer_idx + 1 < self.layers.len() || all_wanted {
                let (q, k, v) = layer.attention.project(&normed)?;
                (k, v, Some(q))
            } else {
                let (k, v) = layer.attention.project_kv(&normed)?;
                (k, v, None)
            };
            layer.attention.write(&mut cache[layer_idx], k, &v, plan)?;
            let q = match q {
                Some(q) => q,
                None if wanted.is_empty() => return Ok(None),
                None => {
                    rows = Rows::wanted(plan, wanted);
                    let kept = Tensor::new(wanted, &self.device)?;
                    residual = residual.index_select(&kept, 0)?;
                    normed = normed.index_select(&kept, 0)?;
                    layer.attention.project_q(&normed)?
                }
            };
            let attended = layer.attention.attend(q, &cache[layer_idx], &rows)?;
            let attended = post_norm(attended, layer.post_attn_norm.as_ref(), eps)?;
            (residual, normed) = kernels::add_rms_norm(&attended, &residual, &layer.mlp_norm, eps)?;
            let mlp = post_norm(self.mlp(layer, &normed)?, layer.post_mlp_norm.as_ref(), eps)?;
            let next_norm = self.layers.get(layer_idx + 1).map_or(&self.output_norm, |next| &next.attn_norm);
            (residual, normed) = kernels::add_rms_norm(&mlp, &residual, next_norm, eps)?;
        }
        Ok(Some(normed))
    }

    fn mlp(&self, layer: &Layer, x: &Tensor) -> Result<Tensor, KernelError> {
        let [gate, up] = split(PackedLinear::forward_many(&[&layer.gate, &layer.up], x)?);
        let hidden = match self.config.activation {
            Activation::Silu => kernels::silu_mul(&gate, &up)?,
            Activation::GeluTanh => kernels::gelu_tanh_mul(&gate, &up)?,
        };
        layer.down.forward(&hidden)
    }

    /// Every weight matrix that is multiplied with, head last.
    pub fn matrices(&self) -> impl Iterator<Item = &PackedLinear> {
        self.layers
            .iter()
            .flat_map(|layer| {
                let attention = &layer.attention;
                [&attention.q, &attention.k, &attention.v, &attention.o, &layer.gate, &layer.up, &layer.down]
            })
            .chain([&self.head])
    }
}

fn post_norm(x: Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor, KernelError> {
    match weight {
        Some(weight) => kernels::rms_norm(&x, weight, eps),
        None => Ok(x),
    }
}

/// The products of `N` matrices, which come in a vector of that length.
pub(super) fn split<const N: usize>(products: Vec<Tensor>) -> [Tensor; N] {
    products.try_into().expect("forward_many gives one product per matrix")
}
