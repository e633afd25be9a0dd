//! Attention of one layer: products, biases, head norms, rotary turns, the cache, and which rows see what.

use candle_core::Tensor;
use kernels::{AttnSpan, KernelError, KvLayer, PackedLinear, RopeTable};
use std::sync::Arc;

use super::decoder::split;
use crate::engine::plan::StepPlan;

/// The attention of one layer. Matrices are `[outputs, inputs]`.
#[derive(Debug)]
pub struct Attention {
    /// `[n_heads * head_dim, hidden_size]`.
    pub q: PackedLinear,
    /// `[n_kv_heads * head_dim, hidden_size]`.
    pub k: PackedLinear,
    /// `[n_kv_heads * head_dim, hidden_size]`.
    pub v: PackedLinear,
    /// Biases of query, key and value, each as wide as its product.
    pub qkv_bias: Option<[Tensor; 3]>,
    /// Norms of every query head and every key head, `[head_dim]`, applied before the turn.
    pub qk_norm: Option<[Tensor; 2]>,
    /// `[hidden_size, n_heads * head_dim]`.
    pub o: PackedLinear,
    /// Turns of every position; layers of one base share one.
    pub rope: Arc<RopeTable>,
    /// Tokens that a token sees, itself included; `None`: all before it.
    pub window: Option<u32>,
    /// Multiplies the scores.
    pub scale: f32,
    /// Added to the mean square in the head norms.
    pub norm_eps: f32,
    /// Width of a head.
    pub head_dim: usize,
}

/// The rows that a query product is made of: their positions, and to which sequence they belong.
pub struct Rows<'a> {
    positions: Vec<u32>,
    spans: Vec<AttnSpan<'a>>,
}

impl<'a> Rows<'a> {
    /// All rows of a plan.
    pub fn of(plan: &'a StepPlan) -> Self {
        let spans = plan
            .spans
            .iter()
            .map(|span| AttnSpan {
                start: span.start as usize,
                len: span.len as usize,
                context: (span.context + span.len) as usize,
                blocks: &span.blocks,
            })
            .collect();
        Self { positions: plan.positions.clone(), spans }
    }

    /// Only the `wanted` rows, which are ascending, closed up. Runs of neighbours in one sequence stay one span.
    pub fn wanted(plan: &'a StepPlan, wanted: &[u32]) -> Self {
        let mut spans: Vec<AttnSpan<'a>> = Vec::with_capacity(plan.spans.len());
        let mut rest = wanted;
        let mut start = 0;
        for span in &plan.spans {
            let n_wanted = rest.partition_point(|&row| row < span.start + span.len);
            let (own, later) = rest.split_at(n_wanted);
            for run in own.chunk_by(|row, next| row + 1 == *next) {
                // The cache after this run's last row; what the step wrote behind it is not seen.
                let context = (span.context + run[run.len() - 1] - span.start + 1) as usize;
                spans.push(AttnSpan { start, len: run.len(), context, blocks: &span.blocks });
                start += run.len();
            }
            rest = later;
        }
        Self { positions: wanted.iter().map(|&row| plan.positions[row as usize]).collect(), spans }
    }
}

impl Attention {
    /// Query, key and value products of `x [n, hidden_size]`, biased.
    pub fn project(&self, x: &Tensor) -> Result<(Tensor, Tensor, Tensor), KernelError> {
        let [q, k, v] = split(PackedLinear::forward_many(&[&self.q, &self.k, &self.v], x)?);
        match &self.qkv_bias {
            None => Ok((q, k, v)),
            Some([q_bias, k_bias, v_bias]) => {
                Ok((kernels::add_bias(&q, q_bias)?, kernels::add_bias(&k, k_bias)?, kernels::add_bias(&v, v_bias)?))
            }
        }
    }

    /// Key and value products alone.
    pub fn project_kv(&self, x: &Tensor) -> Result<(Tensor, Tensor), KernelError> {
        let [k, v] = split(PackedLinear::forward_many(&[&self.k, &self.v], x)?);
        match &self.qkv_bias {
            None => Ok((k, v)),
            Some([_, k_bias, v_bias]) => Ok((kernels::add_bias(&k, k_bias)?, kernels::add_bias(&v, v_bias)?)),
        }
    }

    /// The query product alone.
    pub fn project_q(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        let q = self.q.forward(x)?;
        match &self.qkv_bias {
            None => Ok(q),
            Some([q_bias, _, _]) => kernels::add_bias(&q, q_bias),
        }
    }

    /// Norms and turns the keys, and writes keys and values of all rows of `plan` into the cache.
    pub fn write(&self, cache: &mut KvLayer, k: Tensor, v: &Tensor, plan: &StepPlan) -> Result<(), KernelError> {
        let k = self.turn(k, self.qk_norm.as_ref().map(|[_, k_norm]| k_norm), &plan.positions)?;
        let v = v.reshape((v.dims()[0], (), self.head_dim))?;
        kernels::write_kv(cache, &k, &v, &plan.slots)
    }

    /// Norms and turns the queries of `rows`, attends over the cache, and multiplies by the output matrix:
    /// `[rows, hidden_size]`.
    pub fn attend(&self, q: Tensor, cache: &KvLayer, rows: &Rows<'_>) -> Result<Tensor, KernelError> {
        let q = self.turn(q, self.qk_norm.as_ref().map(|[q_norm, _]| q_norm), &rows.positions)?;
        let attended = kernels::paged_attention(&q, cache, &rows.spans, self.scale, self.window, None)?;
        self.o.forward(&attended)
    }

    /// `x [n, heads * head_dim]` to `[n, heads, head_dim]`, each head normed and turned by its row's position.
    fn turn(&self, x: Tensor, norm: Option<&Tensor>, positions: &[u32]) -> Result<Tensor, KernelError> {
        let n = positions.len();
        let x = match norm {
            None => x,
            Some(norm) => kernels::rms_norm(&x.reshape(((), self.head_dim))?, norm, self.norm_eps)?,
        };
        kernels::rope(&x.reshape((n, (), self.head_dim))?, positions, &self.rope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::push_span;

    #[test]
    fn wanted_rows_keep_their_sequence_and_what_they_see() {
        let mut plan = StepPlan::default();
        push_span(&mut plan, &[5, 6, 7, 8, 9], 10, &[3], 0..0);
        push_span(&mut plan, &[1], 4, &[4], 0..1);
        let rows = Rows::wanted(&plan, &[0, 1, 4, 5]);
        assert_eq!(rows.positions, [10, 11, 14, 4]);
        let spans: Vec<_> = rows.spans.iter().map(|span| (span.start, span.len, span.context)).collect();
        assert_eq!(spans, [(0, 2, 12), (2, 1, 15), (3, 1, 5)]);
        assert_eq!(rows.spans[2].blocks, [4]);
    }
}
