//! Causal attention over the paged cache.

mod rows;

use candle_core::Tensor;

use crate::error::{KernelError, Result};
use crate::kv::{BLOCK_TOKENS, KvLayer};
use crate::lanes::LANES;
use crate::path::Path;
use crate::reference;
use crate::tensors::{check_f32, cpu_slices, on_cpu};
use crate::threads::{Shared, split};
use rows::{Call, Rows, Scratch};

/// Query vectors (rows times heads of a key-value head) that share one reading of the keys.
const VECTORS: usize = 32;

/// Consecutive rows of one step that belong to one sequence.
#[derive(Debug, Clone, Copy)]
pub struct AttnSpan<'a> {
    /// The first of its rows among the step's rows.
    pub start: usize,
    /// How many rows: 1 for a decoding sequence, the chunk's length for a prefill.
    pub len: usize,
    /// Positions in the cache once this step is written: the rows are positions `context - len .. context`.
    pub context: usize,
    /// The sequence's blocks in position order, at least `context` tokens' worth.
    pub blocks: &'a [u32],
}

/// Causal attention of `q [n_tokens, heads, head_dim]` over the cache, to `[n_tokens, heads * head_dim]`.
///
/// The keys and values of this step are in the cache already ([`crate::write_kv`]). Query heads `h` share key-value head
/// `h / (heads / kv_heads)`. `scale` multiplies the scores; then `softcap`, where given, replaces a score `s` by
/// `softcap * tanh(s / softcap)`; with a `window`, position `p` sees `p - window + 1 ..= p`. The spans must cover the
/// rows of `q` in order, without gap or overlap. A row's result depends on nothing but its query and its sequence's
/// cache: neither on other rows nor on how its prompt was cut into chunks.
///
/// # Errors
/// [`KernelError::Shape`] when the tensors, spans or blocks do not fit together.
pub fn paged_attention(
    q: &Tensor,
    layer: &KvLayer,
    spans: &[AttnSpan<'_>],
    scale: f32,
    window: Option<u32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let heads = check(q, layer, spans, window, softcap)?;
    if !on_cpu(q) {
        return reference::paged_attention(q, layer, spans, scale, window, softcap);
    }
    let path = Path::current()?;
    let mixed = cpu_slices("paged_attention", [q, layer.keys(), layer.values()], |[q, keys, values]| {
        let call = Call {
            keys: keys.as_chunks::<LANES>().0,
            values: values.as_chunks::<LANES>().0,
            kv_heads: layer.kv_heads(),
            group_heads: heads / layer.kv_heads(),
            head_dim: layer.head_dim(),
            scale,
            window: window.map(|window| window as usize),
            softcap,
        };
        attend(path, call, q, spans)
    })?;
    Ok(Tensor::from_vec(mixed, (q.dims()[0], heads * layer.head_dim()), q.device())?)
}

/// Rows of one span that one piece of work takes, for one key-value head.
struct Work<'a> {
    span: &'a AttnSpan<'a>,
    first: usize,
    len: usize,
    kv_head: usize,
}

fn attend(path: Path, call: Call<'_>, q: &[f32], spans: &[AttnSpan<'_>]) -> Vec<f32> {
    let rows_at_once = (VECTORS / call.group_heads).max(1);
    let mut work = Vec::new();
    let mut seen = 0;
    for span in spans {
        for first in (0..span.len).step_by(rows_at_once) {
            let len = rows_at_once.min(span.len - first);
            seen += len * span.context.min(call.window.unwrap_or(usize::MAX));
            work.extend((0..call.kv_heads).map(|kv_head| Work { span, first, len, kv_head }));
        }
    }
    let width = call.group_heads * call.head_dim;
    let mut out = vec![0.0; q.len()];
    let shared = Shared::new(&mut out);
    split(work.len(), seen / work.len() * width / 4, |range| {
        let mut scratch = Scratch::default();
        for Work { span, first, len, kv_head } in &work[range] {
            let at = |row: &usize| ((span.start + first + row) * call.kv_heads + kv_head) * width;
            let starts: Vec<usize> = (0..*len).map(|row| at(&row)).collect();
            let queries: Vec<&[f32]> = starts.iter().map(|start| &q[*start..][..width]).collect();
            // SAFETY: spans do not overlap, so each row of a head belongs to one piece of work, and that to one call.
            #[allow(unsafe_code)]
            let mut outputs: Vec<&mut [f32]> =
                starts.iter().map(|start| unsafe { shared.slice(*start, width) }).collect();
            path.run(Rows {
                call,
                kv_head: *kv_head,
                blocks: span.blocks,
                position: span.context - span.len + first,
                queries: &queries,
                outputs: &mut outputs,
                scratch: &mut scratch,
            });
        }
    });
    out
}

/// Refuses what does not fit together; answers the number of query heads.
fn check(
    q: &Tensor,
    layer: &KvLayer,
    spans: &[AttnSpan<'_>],
    window: Option<u32>,
    softcap: Option<f32>,
) -> Result<usize> {
    let refuse = |what: String| Err(KernelError::shape("paged_attention", what));
    let &[n_tokens, heads, _] = q.dims() else {
        return refuse(format!("q has shape {:?}, expected [n_tokens, heads, head_dim]", q.dims()));
    };
    check_f32("paged_attention", "q", q, &[n_tokens, heads, layer.head_dim()])?;
    if n_tokens == 0 {
        return refuse("q has no rows".into());
    }
    if heads == 0 || !heads.is_multiple_of(layer.kv_heads()) {
        return refuse(format!("{heads} query heads cannot share {} key-value heads", layer.kv_heads()));
    }
    if window == Some(0) {
        return refuse("a window of 0 positions leaves nothing to attend to".into());
    }
    if let Some(cap) = softcap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
        return refuse(format!("softcap is {cap}, expected a positive finite number"));
    }
    let mut next = 0;
    for (index, span) in spans.iter().enumerate() {
        if span.start != next || span.len == 0 || span.len > n_tokens - next {
            return refuse(format!(
                "span {index} covers {} rows from {}, expected at least one row from {next} of {n_tokens}",
                span.len, span.start
            ));
        }
        next += span.len;
        if span.context < span.len {
            return refuse(format!("span {index} has {} rows but a context of {}", span.len, span.context));
        }
        let needed = span.context.div_ceil(BLOCK_TOKENS);
        if span.blocks.len() < needed {
            return refuse(format!("span {index} needs {needed} blocks for its context, got {}", span.blocks.len()));
        }
        if let Some(block) = span.blocks[..needed].iter().find(|block| **block as usize >= layer.n_blocks()) {
            return refuse(format!("span {index} names block {block} of a pool of {}", layer.n_blocks()));
        }
    }
    if next != n_tokens {
        return refuse(format!("the spans cover {next} of {n_tokens} rows"));
    }
    Ok(heads)
}

#[cfg(test)]
mod tests;
