//! Plain, slow, obviously right versions of every kernel, in candle's own operations.
//!
//! Tests compare the kernels with these, and tensors on a device without a kernel of ours are computed by them.

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{D, Device, Tensor};
use std::borrow::Cow;

use crate::attention::AttnSpan;
use crate::error::{KernelError, Result};
use crate::kv::{BLOCK_TOKENS, KvLayer};

/// The `[n, k]` matrix that `blocks` encode, as f32 on the CPU, by candle's own dequantisation.
///
/// # Errors
/// When `blocks` has not exactly the bytes of `n * k` values of `dtype`.
pub fn dequantize(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize) -> Result<Tensor> {
    check_bytes(dtype, blocks, n, k)?;
    let storage = QStorage::from_data(Cow::Borrowed(blocks), &Device::Cpu, dtype)?;
    Ok(QTensor::new(storage, (n, k))?.dequantize(&Device::Cpu)?)
}

/// Refuses `blocks` unless they are exactly `n` rows of `k` values of `dtype`.
pub(crate) fn check_bytes(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize) -> Result<()> {
    let format = |what: String| KernelError::Format { dtype: format!("{dtype:?}"), what };
    if n == 0 || k == 0 {
        return Err(format(format!("the matrix is empty ({n} x {k})")));
    }
    let block = dtype.block_size();
    if !k.is_multiple_of(block) {
        return Err(format(format!("rows of {k} values are not a whole number of blocks of {block}")));
    }
    let expected = n.checked_mul(k / block).and_then(|blocks| blocks.checked_mul(dtype.type_size()));
    if expected != Some(blocks.len()) {
        return Err(format(format!("{n} x {k} needs {expected:?} bytes, got {}", blocks.len())));
    }
    Ok(())
}

/// `x [m, k]` times the transpose of `weight [n, k]`, in f32.
///
/// # Errors
/// When candle refuses the shapes.
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(x.matmul(&weight.t()?)?)
}

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension.
///
/// # Errors
/// When candle refuses the shapes.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    let inverse = (mean + f64::from(eps))?.sqrt()?.recip()?;
    Ok(x.broadcast_mul(&inverse)?.broadcast_mul(weight)?)
}

/// Rotates the two halves of each head: `x [n_tokens, heads, head_dim]`, `cos` and `sin` `[n_tokens, head_dim / 2]`.
///
/// # Errors
/// When candle refuses the shapes.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.dim(D::Minus1)? / 2;
    let (a, b) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    Ok(Tensor::cat(&[first, second], D::Minus1)?)
}

/// `silu(gate) * up`.
///
/// # Errors
/// When candle refuses the shapes.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    Ok((gate.silu()? * up)?)
}

/// `gelu_tanh(gate) * up`.
///
/// # Errors
/// When candle refuses the shapes.
pub fn gelu_tanh_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    Ok((gate.gelu()? * up)?)
}

/// Causal attention of `q [n_tokens, heads, head_dim]` over the cached keys and values, one span and one head at a time.
///
/// # Errors
/// When candle refuses the shapes.
pub fn paged_attention(
    q: &Tensor,
    layer: &KvLayer,
    spans: &[AttnSpan<'_>],
    scale: f32,
    window: Option<u32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let (_, heads, head_dim) = q.dims3()?;
    let group = heads / layer.kv_heads();
    let mut outputs = Vec::new();
    for span in spans {
        let (keys, values) = gather(layer, span)?;
        let q = q.narrow(0, span.start, span.len)?;
        let mut by_head = Vec::with_capacity(heads);
        for head in 0..heads {
            let q = q.narrow(1, head, 1)?.squeeze(1)?.contiguous()?;
            let k = keys.narrow(1, head / group, 1)?.squeeze(1)?.contiguous()?;
            let v = values.narrow(1, head / group, 1)?.squeeze(1)?.contiguous()?;
            let mut scores = (q.matmul(&k.t()?)? * f64::from(scale))?;
            if let Some(cap) = softcap {
                scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
            }
            let scores = scores.add(&mask(span, window, q.device())?)?;
            let top = scores.max_keepdim(D::Minus1)?;
            let weights = scores.broadcast_sub(&top)?.exp()?;
            let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
            by_head.push(weights.matmul(&v)?);
        }
        outputs.push(Tensor::cat(&by_head, 1)?);
    }
    Ok(Tensor::cat(&outputs, 0)?.reshape(((), heads * head_dim))?)
}

/// The cached keys and values of a span in position order, each `[context, kv_heads, head_dim]`.
fn gather(layer: &KvLayer, span: &AttnSpan<'_>) -> Result<(Tensor, Tensor)> {
    let n_blocks = span.context.div_ceil(BLOCK_TOKENS);
    let ids = Tensor::new(&span.blocks[..n_blocks], layer.keys().device())?;
    let (kv_heads, head_dim) = (layer.kv_heads(), layer.head_dim());
    // Keys lie as [block, kv_head, head_dim, token], values as [block, kv_head, token, head_dim].
    let keys = layer.keys().index_select(&ids, 0)?.permute((0, 3, 1, 2))?.contiguous()?;
    let values = layer.values().index_select(&ids, 0)?.permute((0, 2, 1, 3))?.contiguous()?;
    let flat = (n_blocks * BLOCK_TOKENS, kv_heads, head_dim);
    Ok((keys.reshape(flat)?.narrow(0, 0, span.context)?, values.reshape(flat)?.narrow(0, 0, span.context)?))
}

/// `[len, context]`: 0 where a row may look, minus infinity elsewhere.
fn mask(span: &AttnSpan<'_>, window: Option<u32>, device: &Device) -> Result<Tensor> {
    let mut values = Vec::with_capacity(span.len * span.context);
    for row in 0..span.len {
        let position = span.context - span.len + row;
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
        values.extend((0..span.context).map(|p| if (first..=position).contains(&p) { 0.0 } else { f32::NEG_INFINITY }));
    }
    Ok(Tensor::from_vec(values, (span.len, span.context), device)?)
}
