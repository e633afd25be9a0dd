//! Times steps of a real model without an engine around it: `step_time MODEL.gguf [CONTEXT]`.
//!
//! Prefill in chunks of 256 tokens, and decode at several batch sizes with CONTEXT (150) tokens in each cache.
#![allow(clippy::unwrap_used, reason = "an example for the workbench")]

use std::time::{Duration, Instant};

use gpu_worker::engine::plan::{Forward, StepPlan};
use gpu_worker::forward::{candle::CandleForward, push_span};
use gpu_worker::load::gguf::{LoadOptions, load};

const CHUNK: usize = 256;
const BATCHES: [usize; 5] = [1, 4, 16, 32, 64];

fn main() {
    // A thread of its own, as in the engine: the allocator treats the main thread differently.
    std::thread::spawn(measure).join().unwrap();
}

fn measure() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: step_time MODEL.gguf [CONTEXT]");
    let context: usize = args.next().map_or(150, |context| context.parse().unwrap());
    let start = Instant::now();
    let model = load(path.as_ref(), &candle_core::Device::Cpu, LoadOptions::default()).unwrap();
    let blocks_each = (context + 64).max(2 * CHUNK).div_ceil(16);
    let mut forward = CandleForward::new(model, blocks_each * BATCHES[BATCHES.len() - 1]).unwrap();
    println!("loaded in {:.2?}: {}", start.elapsed(), forward.numerics());

    let blocks =
        |seat: usize| (seat * blocks_each..(seat + 1) * blocks_each).map(|block| block as u32).collect::<Vec<_>>();
    let ids: Vec<u32> = (0..2 * CHUNK as u32).map(|i| 1000 + i * 37 % 20_000).collect();
    let mut faults = page_faults();
    let prefill = best(5, || {
        let mut plan = StepPlan::default();
        push_span(&mut plan, &ids[..CHUNK], 0, &blocks(0), CHUNK - 1..CHUNK);
        step(&mut forward, &plan)
    });
    println!("prefill {CHUNK} at 0:    {:7.1} tokens/s", CHUNK as f64 / prefill.as_secs_f64());
    let prefill = best(3, || {
        let mut plan = StepPlan::default();
        push_span(&mut plan, &ids[CHUNK..], CHUNK, &blocks(0), CHUNK - 1..CHUNK);
        step(&mut forward, &plan)
    });
    println!("prefill {CHUNK} at {CHUNK}:  {:7.1} tokens/s", CHUNK as f64 / prefill.as_secs_f64());

    println!("{} page faults a step", (page_faults() - faults) / 8);
    faults = page_faults();
    for batch in BATCHES {
        let steps: Vec<Duration> = (0..12)
            .map(|nth| {
                let mut plan = StepPlan::default();
                for (seat, &id) in ids[..batch].iter().enumerate() {
                    push_span(&mut plan, &[id], context + nth, &blocks(seat), 0..1);
                }
                step(&mut forward, &plan)
            })
            .collect();
        println!("{} page faults a step", (page_faults() - faults) / 12);
        faults = page_faults();
        let mut sorted = steps.clone();
        sorted.sort();
        let median = sorted[sorted.len() / 2].as_secs_f64();
        println!(
            "decode batch {batch:2}: {:7.1} tokens/s (median step {:.2} ms, best {:.2} ms)",
            batch as f64 / median,
            median * 1e3,
            sorted[0].as_secs_f64() * 1e3
        );
    }
}

fn step(forward: &mut CandleForward, plan: &StepPlan) -> Duration {
    let start = Instant::now();
    let logits = forward.step(plan).unwrap();
    assert!(logits.data.iter().step_by(997).all(|logit| logit.is_finite()));
    start.elapsed()
}

/// Page faults of this process so far that needed no disk; 0 where the system does not tell.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().nth(7).and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn best(n: usize, mut run: impl FnMut() -> Duration) -> Duration {
    (0..n).map(|_| run()).min().expect("n is at least 1")
}
