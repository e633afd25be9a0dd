use candle_core::{DType, Device};
use proptest::prelude::*;

use super::*;
use crate::kv::write_kv;

/// A sequence in a pool that other sequences' numbers, and NaN, surround.
struct Fixture {
    layer: KvLayer,
    blocks: Vec<u32>,
    context: usize,
    q: Tensor,
}

const HEADS: usize = 6;
const KV_HEADS: usize = 2;

fn fixture(context: usize, head_dim: usize, seed: u64) -> Fixture {
    let n_blocks = context.div_ceil(BLOCK_TOKENS) + 5;
    let mut layer = KvLayer::new(n_blocks, KV_HEADS, head_dim, &Device::Cpu).unwrap();
    let random = |heads: usize, phase: u64| {
        let value =
            |i: usize| ((i as f64 * 12.9898 + (seed + phase) as f64 * 78.233).sin() * 43_758.547).fract() as f32;
        let values = (0..context * heads * head_dim).map(value).collect();
        Tensor::from_vec::<_, f32>(values, (context, heads, head_dim), &Device::Cpu).unwrap()
    };
    let slots: Vec<u32> = (0..(n_blocks * BLOCK_TOKENS) as u32).collect();
    let poison = Tensor::full(f32::NAN, (slots.len(), KV_HEADS, head_dim), &Device::Cpu).unwrap();
    write_kv(&mut layer, &poison, &poison, &slots).unwrap();
    // Neither the first block nor neighbours: the table's order must matter.
    let blocks: Vec<u32> = (0..context.div_ceil(BLOCK_TOKENS) as u32).map(|i| n_blocks as u32 - 2 - i).collect();
    let slots: Vec<u32> =
        (0..context).map(|p| blocks[p / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (p % BLOCK_TOKENS) as u32).collect();
    write_kv(&mut layer, &random(KV_HEADS, 1), &random(KV_HEADS, 2), &slots).unwrap();
    Fixture { layer, blocks, context, q: random(HEADS, 3) }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn on_path(path: Path, f: &Fixture, rows: std::ops::Range<usize>, window: Option<u32>, cap: Option<f32>) -> Vec<f32> {
    let q = f.q.narrow(0, rows.start, rows.len()).unwrap();
    let span = AttnSpan { start: 0, len: rows.len(), context: rows.end, blocks: &f.blocks };
    let tensors = [&q, f.layer.keys(), f.layer.values()];
    cpu_slices("test", tensors, |[q, keys, values]| {
        let call = Call {
            keys: keys.as_chunks::<LANES>().0,
            values: values.as_chunks::<LANES>().0,
            kv_heads: KV_HEADS,
            group_heads: HEADS / KV_HEADS,
            head_dim: f.layer.head_dim(),
            scale: 0.3,
            window: window.map(|window| window as usize),
            softcap: cap,
        };
        attend(path, call, q, &[span])
    })
    .unwrap()
}

/// The same in f64, straight from the definition.
fn definition(f: &Fixture, window: Option<u32>, cap: Option<f32>) -> Vec<f32> {
    let head_dim = f.layer.head_dim();
    let (q, keys, values) = (numbers(&f.q), numbers(f.layer.keys()), numbers(f.layer.values()));
    let mut out = Vec::new();
    for position in 0..f.context {
        for head in 0..HEADS {
            let kv_head = head / (HEADS / KV_HEADS);
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
            let page = |p: usize| (f.blocks[p / 16] as usize * KV_HEADS + kv_head) * head_dim * 16;
            let score = |p: usize| {
                let key = |d: usize| f64::from(keys[page(p) + d * 16 + p % 16]);
                let dot: f64 =
                    (0..head_dim).map(|d| f64::from(q[(position * HEADS + head) * head_dim + d]) * key(d)).sum();
                let scaled = dot * f64::from(0.3f32);
                cap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh())
            };
            let weights: Vec<f64> = (first..=position).map(|p| score(p).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let value = |p: usize| f64::from(values[page(p) + p % 16 * head_dim + d]);
                let sum: f64 = weights.iter().enumerate().map(|(i, w)| w * value(first + i)).sum();
                out.push((sum / total) as f32);
            }
        }
    }
    out
}

fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 2e-5, "element {i}: {a} and {b}");
    }
}

#[test]
fn agrees_with_the_definition_among_poisoned_slots() {
    for (context, head_dim) in [(1, 64), (16, 16), (17, 48), (64, 80), (65, 64), (150, 256)] {
        let f = fixture(context, head_dim, context as u64);
        for (window, cap) in
            [(None, None), (Some(1), None), (Some(16), Some(2.0)), (Some(33), None), (Some(1000), None)]
        {
            let got = on_path(Path::current().unwrap(), &f, 0..context, window, cap);
            assert_close(&got, &definition(&f, window, cap));
        }
    }
}

#[test]
fn the_candle_reference_agrees_with_the_definition() {
    let f = fixture(37, 32, 9);
    let span = AttnSpan { start: 0, len: 37, context: 37, blocks: &f.blocks };
    for (window, cap) in [(None, None), (Some(5), Some(1.5))] {
        let got = reference::paged_attention(&f.q, &f.layer, &[span], 0.3, window, cap).unwrap();
        assert_close(&numbers(&got), &definition(&f, window, cap));
    }
}

#[test]
fn every_path_gives_the_same_bits() {
    let f = fixture(131, 80, 4);
    for (window, cap) in [(None, None), (Some(20), Some(1.0))] {
        let expected = on_path(Path::Portable, &f, 0..131, window, cap);
        for path in Path::available() {
            assert_eq!(on_path(path, &f, 0..131, window, cap), expected, "{path:?}");
        }
    }
}

#[test]
fn many_sequences_in_one_call_give_what_each_gives_alone() {
    let f = fixture(140, 64, 7);
    // The same cache as three sequences: a long prefill, a decode and a short prefill.
    let parts = [20..140, 90..91, 0..33];
    let q = Tensor::cat(&parts.clone().map(|p| f.q.narrow(0, p.start, p.len()).unwrap()), 0).unwrap();
    let mut start = 0;
    let spans = parts.clone().map(|p| {
        let span = AttnSpan { start, len: p.len(), context: p.end, blocks: &f.blocks };
        start += p.len();
        span
    });
    let together = numbers(&paged_attention(&q, &f.layer, &spans, 0.3, Some(50), None).unwrap());
    let alone: Vec<f32> =
        parts.into_iter().flat_map(|p| on_path(Path::current().unwrap(), &f, p, Some(50), None)).collect();
    assert_eq!(together, alone);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_prompt_cut_anywhere_gives_the_same_bits(context in 2usize..200, seed in 0u64..1000, window in prop::option::of(1u32..100)) {
        let f = fixture(context, 64, seed);
        let path = Path::current().unwrap();
        let whole = on_path(path, &f, 0..context, window, None);
        let mut cut = Vec::new();
        let mut first = 0;
        let mut step = seed as usize % 37 + 1;
        while first < context {
            let end = (first + step).min(context);
            cut.extend(on_path(path, &f, first..end, window, None));
            (first, step) = (end, step * 5 % 41 + 1);
        }
        prop_assert_eq!(whole, cut);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let f = fixture(20, 16, 1);
    let refused = |q: &Tensor, span: AttnSpan<'_>, window, part: &str| {
        let error = paged_attention(q, &f.layer, &[span], 1.0, window, None).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let good = AttnSpan { start: 0, len: 20, context: 20, blocks: &f.blocks };
    refused(&f.q, AttnSpan { start: 1, ..good }, None, "from 1");
    refused(&f.q, AttnSpan { len: 19, ..good }, None, "19 of 20");
    refused(&f.q, AttnSpan { len: 21, ..good }, None, "21 rows");
    refused(&f.q, AttnSpan { context: 19, ..good }, None, "context of 19");
    refused(&f.q, AttnSpan { context: 33, ..good }, None, "needs 3 blocks");
    refused(&f.q, AttnSpan { blocks: &[0, 99], ..good }, None, "block 99");
    refused(&f.q, good, Some(0), "window of 0");
    let q = Tensor::zeros((20, 3, 16), DType::F32, &Device::Cpu).unwrap();
    refused(&q, good, None, "3 query heads");
}
