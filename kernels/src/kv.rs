//! The paged key-value cache of one layer.

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};

use crate::error::{KernelError, Result};
use crate::lanes::LANES;
use crate::tensors::{check_f32, cpu_slices, on_cpu};

/// Tokens of one cache block. Slot `s` is token `s % BLOCK_TOKENS` of block `s / BLOCK_TOKENS`.
pub const BLOCK_TOKENS: usize = 16;

/// The cached keys and values of one layer, in blocks of [`BLOCK_TOKENS`] tokens, f32.
///
/// Keys lie as `[n_blocks, kv_heads, head_dim, BLOCK_TOKENS]`, so that one vector holds one dimension of sixteen
/// positions and no score needs a horizontal sum; values lie as `[n_blocks, kv_heads, BLOCK_TOKENS, head_dim]`.
#[derive(Debug)]
pub struct KvLayer {
    keys: Tensor,
    values: Tensor,
    n_blocks: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl KvLayer {
    /// A pool of `n_blocks` blocks filled with zeros.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when a size is zero or `head_dim` is not a multiple of 16; [`KernelError::Device`] when the device has no room.
    pub fn new(n_blocks: usize, kv_heads: usize, head_dim: usize, device: &Device) -> Result<Self> {
        if n_blocks == 0 || kv_heads == 0 || head_dim == 0 {
            return Err(KernelError::shape(
                "kv_layer",
                format!("n_blocks {n_blocks}, kv_heads {kv_heads} and head_dim {head_dim} must all be at least 1"),
            ));
        }
        if !head_dim.is_multiple_of(LANES) {
            return Err(KernelError::shape("kv_layer", format!("head_dim {head_dim} is not a multiple of {LANES}")));
        }
        let keys = Tensor::zeros((n_blocks, kv_heads, head_dim, BLOCK_TOKENS), DType::F32, device)?;
        let values = Tensor::zeros((n_blocks, kv_heads, BLOCK_TOKENS, head_dim), DType::F32, device)?;
        Ok(Self { keys, values, n_blocks, kv_heads, head_dim })
    }

    /// The keys, `[n_blocks, kv_heads, head_dim, BLOCK_TOKENS]`.
    #[must_use]
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// The values, `[n_blocks, kv_heads, BLOCK_TOKENS, head_dim]`.
    #[must_use]
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Key-value heads.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Values of one head of one token.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
}

/// Writes this step's keys and values into the cache.
///
/// `keys`, `values`: `[n_tokens, kv_heads, head_dim]`, contiguous f32. `slots`: one per token, all distinct.
///
/// # Errors
/// [`KernelError::Shape`] before anything is written: wrong shapes, or a slot outside the pool; [`KernelError::Device`] when
/// the device fails, and the touched blocks are undefined.
pub fn write_kv(layer: &mut KvLayer, keys: &Tensor, values: &Tensor, slots: &[u32]) -> Result<()> {
    const OP: &str = "write_kv";
    let expected = [slots.len(), layer.kv_heads, layer.head_dim];
    check_f32(OP, "keys", keys, &expected)?;
    check_f32(OP, "values", values, &expected)?;
    let n_slots = layer.n_blocks * BLOCK_TOKENS;
    if let Some(slot) = slots.iter().find(|slot| **slot as usize >= n_slots) {
        return Err(KernelError::shape(OP, format!("slot {slot} is outside the pool of {n_slots} slots")));
    }
    if slots.is_empty() {
        return Ok(());
    }
    if !on_cpu(&layer.keys) {
        return scatter_on_device(layer, keys, values, slots);
    }
    // Both sides are reached before either is written.
    cpu_slices(OP, [&layer.keys, &layer.values, keys, values], |_| ())?;
    let (kv_heads, head_dim) = (layer.kv_heads, layer.head_dim);
    layer.keys.inplace_op2(keys, &Scatter { slots, kv_heads, head_dim, per_token: 1, per_value: BLOCK_TOKENS })?;
    layer.values.inplace_op2(values, &Scatter { slots, kv_heads, head_dim, per_token: head_dim, per_value: 1 })?;
    Ok(())
}

/// The same through candle's own scatter, for any device.
fn scatter_on_device(layer: &KvLayer, keys: &Tensor, values: &Tensor, slots: &[u32]) -> Result<()> {
    let (kv_heads, head_dim) = (layer.kv_heads, layer.head_dim);
    let page = head_dim * BLOCK_TOKENS;
    for (pool, rows, per_token, per_value) in
        [(&layer.keys, keys, 1, BLOCK_TOKENS), (&layer.values, values, head_dim, 1)]
    {
        let places = slots.iter().flat_map(|slot| {
            let (block, token) = (*slot as usize / BLOCK_TOKENS, *slot as usize % BLOCK_TOKENS);
            (0..kv_heads).flat_map(move |head| {
                let start = (block * kv_heads + head) * page + token * per_token;
                (0..head_dim).map(move |i| (start + i * per_value) as i64)
            })
        });
        let places = Tensor::from_iter(places, rows.device())?;
        // The pool is contiguous, so its flat form is the same memory.
        pool.flatten_all()?.scatter_set(&places, &rows.flatten_all()?, 0)?;
    }
    Ok(())
}

/// Copies token rows to their slots; the strides say how a block lies.
struct Scatter<'a> {
    slots: &'a [u32],
    kv_heads: usize,
    head_dim: usize,
    /// Elements from one token of a block to the next.
    per_token: usize,
    /// Elements from one dimension of a head to the next.
    per_value: usize,
}

impl InplaceOp2 for Scatter<'_> {
    fn name(&self) -> &'static str {
        "write_kv"
    }

    fn cpu_fwd(
        &self,
        pool: &mut CpuStorage,
        _pool_layout: &Layout,
        rows: &CpuStorage,
        rows_layout: &Layout,
    ) -> candle_core::Result<()> {
        let (CpuStorage::F32(pool), CpuStorage::F32(rows)) = (pool, rows) else {
            candle_core::bail!("write_kv: the cache and the rows must be f32")
        };
        let rows = &rows[rows_layout.start_offset()..];
        let page = self.head_dim * BLOCK_TOKENS;
        for (slot, row) in self.slots.iter().zip(rows.chunks_exact(self.kv_heads * self.head_dim)) {
            let (block, token) = (*slot as usize / BLOCK_TOKENS, *slot as usize % BLOCK_TOKENS);
            for (head, from) in row.chunks_exact(self.head_dim).enumerate() {
                let page = &mut pool[(block * self.kv_heads + head) * page..][..page];
                if self.per_value == 1 {
                    page[token * self.per_token..][..self.head_dim].copy_from_slice(from);
                } else {
                    for (i, value) in from.iter().enumerate() {
                        page[token * self.per_token + i * self.per_value] = *value;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_scatter_writes_what_ours_writes() {
        let device = Device::Cpu;
        let (mut ours, theirs) = (KvLayer::new(3, 2, 16, &device).unwrap(), KvLayer::new(3, 2, 16, &device).unwrap());
        let numbers = |from: f32| Tensor::arange(from, from + 96.0, &device).unwrap().reshape((3, 2, 16)).unwrap();
        let (keys, values, slots) = (numbers(1.0), numbers(1_000.0), [47, 0, 17]);
        write_kv(&mut ours, &keys, &values, &slots).unwrap();
        scatter_on_device(&theirs, &keys, &values, &slots).unwrap();
        for (ours, theirs) in [(&ours.keys, &theirs.keys), (&ours.values, &theirs.values)] {
            let numbers = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(numbers(ours), numbers(theirs));
        }
        assert_eq!(ours.keys.sum_all().unwrap().to_scalar::<f32>().unwrap(), 4_656.0, "1 + … + 96, each once");
    }
}
