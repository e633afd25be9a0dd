//! Measures attention with the default model's heads: `cargo run --release -p kernels --example attention`.
//!
//! Prints the best of several runs, in 10^9 operations per second: two per query head, visible position and dimension
//! for the scores, and two for the mix.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use kernels::{AttnSpan, BLOCK_TOKENS, KvLayer, paged_attention, write_kv};

const HEADS: usize = 14;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    println!("path {}", kernels::cpu_path());
    for (sequences, len, context) in [
        (1, 1, 200),
        (16, 1, 200),
        (64, 1, 200),
        (1, 1, 8192),
        (16, 1, 2048),
        (1, 128, 128),
        (1, 128, 2048),
        (1, 256, 8192),
    ] {
        let blocks_each = usize::div_ceil(context, BLOCK_TOKENS);
        let mut layer = KvLayer::new(blocks_each * sequences, KV_HEADS, HEAD_DIM, &Device::Cpu)?;
        let n_slots = blocks_each * sequences * BLOCK_TOKENS;
        let random = |heads| Tensor::rand(-1f32, 1f32, (n_slots, heads, HEAD_DIM), &Device::Cpu);
        let slots: Vec<u32> = (0..n_slots as u32).collect();
        write_kv(&mut layer, &random(KV_HEADS)?, &random(KV_HEADS)?, &slots)?;
        let blocks: Vec<u32> = (0..(blocks_each * sequences) as u32).collect();
        let spans: Vec<AttnSpan<'_>> = blocks
            .chunks(blocks_each)
            .enumerate()
            .map(|(i, blocks)| AttnSpan { start: i * len, len, context, blocks })
            .collect();
        let q = Tensor::rand(-1f32, 1f32, (sequences * len, HEADS, HEAD_DIM), &Device::Cpu)?;
        let mut best = Duration::MAX;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(500) {
            let start = Instant::now();
            black_box(paged_attention(black_box(&q), &layer, &spans, 0.125, None, None)?);
            best = best.min(start.elapsed());
        }
        let visible: usize = sequences * (0..len).map(|row| context - row).sum::<usize>();
        let operations = 4.0 * (visible * HEADS * HEAD_DIM) as f64;
        println!(
            "{sequences:2} x {len:3} rows at context {context:4}: {:6.1} GOP/s, {:.3} ms",
            operations / best.as_secs_f64() / 1e9,
            best.as_secs_f64() * 1e3
        );
    }
    Ok(())
}
