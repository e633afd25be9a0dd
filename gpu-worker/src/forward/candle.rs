//! A real model behind [`Forward`]: the decoder, and the cache that belongs to it.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};
use kernels::{KernelError, KvLayer};

use super::{PlanLimits, check_plan};
use crate::engine::plan::{BLOCK_TOKENS, Forward, ForwardError, Logits, StepPlan};
use crate::load::LoadError;
use crate::load::gguf::LoadedModel;
use crate::model::{Decoder, ModelConfig};

const _: () = assert!(BLOCK_TOKENS == kernels::BLOCK_TOKENS, "planner and kernels must cut the cache alike");

/// Bytes of cache that one block takes over all layers of a model.
pub fn kv_bytes_per_block(config: &ModelConfig) -> usize {
    config.kv_bytes_per_block()
}

/// A decoder with its preallocated cache.
#[derive(Debug)]
pub struct CandleForward {
    decoder: Decoder,
    cache: Vec<KvLayer>,
    n_blocks: usize,
}

impl CandleForward {
    /// Takes a loaded model, and a cache of `n_blocks` blocks ([`kv_bytes_per_block`] each).
    ///
    /// # Errors
    /// [`LoadError::Device`] when the cache cannot be had.
    pub fn new(model: LoadedModel, n_blocks: usize) -> Result<Self, LoadError> {
        Self::from_decoder(model.decoder, n_blocks)
    }

    /// As [`CandleForward::new`], for a decoder that came without a file.
    ///
    /// # Errors
    /// [`LoadError::Device`] when the cache cannot be had.
    pub fn from_decoder(decoder: Decoder, n_blocks: usize) -> Result<Self, LoadError> {
        keep_scratch_memory();
        let config = &decoder.config;
        // Slots are 32 bits wide.
        if n_blocks > u32::MAX as usize / BLOCK_TOKENS || n_blocks.checked_mul(kv_bytes_per_block(config)).is_none() {
            let err = candle_core::Error::Msg(format!("a cache of {n_blocks} blocks cannot be addressed"));
            return Err(LoadError::Device(err));
        }
        let cache = (0..config.n_layers())
            .map(|_| KvLayer::new(n_blocks, config.n_kv_heads, config.head_dim, &decoder.device))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|err| LoadError::Device(candle_core::Error::wrap(err)))?;
        Ok(Self { decoder, cache, n_blocks })
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.decoder.config
    }

    /// Number of matrices and bytes in memory, by packed format, in the order of the formats' names.
    pub fn matrix_formats(&self) -> BTreeMap<&'static str, (usize, usize)> {
        let mut formats = BTreeMap::new();
        for matrix in self.decoder.matrices() {
            let (n_matrices, bytes) = formats.entry(matrix.format_name()).or_insert((0, 0));
            *n_matrices += 1;
            *bytes += matrix.packed_bytes();
        }
        formats
    }

    /// What the numbers of an answer depend on besides the weights: device, kernel path, and how matrices are held.
    pub fn numerics(&self) -> String {
        let device = match self.decoder.device.is_cpu() {
            true => format!("cpu {}", kernels::cpu_path()),
            false => format!("{:?}", self.decoder.device.location()),
        };
        let formats: Vec<_> =
            self.matrix_formats().into_iter().map(|(format, (n, _))| format!("{format} x {n}")).collect();
        format!("{device}; f32 activations and cache; {}", formats.join(", "))
    }
}

impl CandleForward {
    /// The hidden states that `plan` asks for, from the states of all `wanted` rows.
    fn hidden(&self, plan: &StepPlan, wanted: &[u32], states: &Tensor) -> candle_core::Result<Vec<f32>> {
        if plan.hidden_rows.is_empty() {
            return Ok(Vec::new());
        }
        self.among(&plan.hidden_rows, wanted, states.clone())?.flatten_all()?.to_vec1()
    }

    /// The states of `rows`, from those of all `wanted` rows; the very same tensor where these are all.
    fn among(&self, rows: &[u32], wanted: &[u32], states: Tensor) -> candle_core::Result<Tensor> {
        if rows.len() == wanted.len() {
            return Ok(states);
        }
        let places: Vec<u32> =
            (0u32..).zip(wanted).filter(|(_, row)| rows.binary_search(row).is_ok()).map(|(at, _)| at).collect();
        states.index_select(&Tensor::new(places.as_slice(), &self.decoder.device)?, 0)
    }
}

/// The rows whose states are wanted, for logits or for themselves, ascending.
fn wanted_rows(plan: &StepPlan) -> Cow<'_, [u32]> {
    if plan.hidden_rows.is_empty() {
        return Cow::Borrowed(&plan.logit_rows);
    }
    let mut rows = [plan.logit_rows.as_slice(), &plan.hidden_rows].concat();
    rows.sort_unstable();
    Cow::Owned(rows)
}

impl Forward for CandleForward {
    fn step(&mut self, plan: &StepPlan) -> Result<Logits, ForwardError> {
        let vocab_size = self.vocab_size();
        let context_tokens = self.context_tokens();
        check_plan(plan, PlanLimits { vocab_size, context_tokens, n_blocks: self.n_blocks })?;
        if plan.n_tokens() == 0 {
            return Ok(Logits { vocab_size, ..Logits::default() });
        }
        let hidden_size = self.hidden_size();
        let wanted = wanted_rows(plan);
        let Some(states) = self.decoder.forward(plan, &wanted, &mut self.cache).map_err(failed)? else {
            return Ok(Logits { vocab_size, hidden_size, ..Logits::default() });
        };
        let hidden = self.hidden(plan, &wanted, &states).map_err(|err| failed(err.into()))?;
        let data = if plan.logit_rows.is_empty() {
            Vec::new()
        } else {
            let states = self.among(&plan.logit_rows, &wanted, states).map_err(|err| failed(err.into()))?;
            to_host(self.decoder.head.forward(&states).map_err(failed)?).map_err(|err| failed(err.into()))?
        };
        Ok(Logits { data, vocab_size, hidden, hidden_size })
    }

    fn hidden_size(&self) -> usize {
        self.decoder.config.hidden_size
    }

    fn vocab_size(&self) -> usize {
        self.decoder.config.vocab_size
    }

    fn context_tokens(&self) -> usize {
        self.decoder.config.context_tokens
    }

    fn n_blocks(&self) -> usize {
        self.n_blocks
    }
}

/// Lets the tensors of one step be made of the memory of the last.
///
/// glibc hands large freed blocks back to the system, and each step would fault its memory in again: a fifth of the time
/// of a prefill. Its threshold follows the largest block that was freed, up to 32 MiB, and what it keeps is twice that;
/// so one block is asked for and freed, untouched. Under another allocator this does nothing.
fn keep_scratch_memory() {
    const JUST_UNDER_32_MIB: usize = (32 << 20) - (64 << 10);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(JUST_UNDER_32_MIB)));
}

/// The whole chain of causes, since the planner keeps only text.
fn failed(err: KernelError) -> ForwardError {
    let mut text = err.to_string();
    let mut cause = std::error::Error::source(&err);
    while let Some(err) = cause {
        text = format!("{text}: {err}");
        cause = err.source();
    }
    ForwardError::Device(text)
}

/// The numbers of a contiguous float32 tensor that nobody else holds. On the CPU they are moved out, not copied: a
/// step of 32 rows has 20 MB of logits.
fn to_host(logits: Tensor) -> candle_core::Result<Vec<f32>> {
    let (n, width) = logits.dims2()?;
    if logits.device().is_cpu() {
        let taken = Take::default();
        logits.inplace_op1(&taken)?;
        let data = taken.0.into_inner();
        if data.len() == n * width {
            return Ok(data);
        }
        candle_core::bail!("logits of {n} rows hold {} values, not {}", data.len(), n * width);
    }
    logits.flatten_all()?.to_vec1()
}

/// Takes the storage's vector and leaves an empty one.
#[derive(Default)]
struct Take(Cell<Vec<f32>>);

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _layout: &Layout) -> candle_core::Result<()> {
        let CpuStorage::F32(values) = storage else { candle_core::bail!("logits must be float32") };
        self.0.set(std::mem::take(values));
        Ok(())
    }
}
