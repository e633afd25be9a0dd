//! Measures the products of the default model's shapes: `cargo run --release -p kernels --example products [FILTER]`.
//!
//! Prints the best of several runs, in 10^9 operations per second (two per weight and row) and in packed gigabytes per
//! second. The weights are random; a matrix larger than the caches is streamed from memory, as in a model.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use kernels::PackedLinear;

/// Bytes of different matrices to go through before one is used again, so that none is still in a cache.
const COLD_BYTES: usize = 128 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!("path {}", kernels::cpu_path());
    for (dtype, k, n) in [
        (GgmlDType::Q5_0, 896, 4864),
        (GgmlDType::Q6K, 4864, 896),
        (GgmlDType::Q4K, 4864, 896),
        (GgmlDType::Q8_0, 896, 151_936),
        (GgmlDType::F16, 896, 4864),
        (GgmlDType::BF16, 896, 4864),
    ] {
        let name = format!("{dtype:?} {k} x {n}");
        if !name.contains(&filter) {
            continue;
        }
        let weight = Tensor::rand(-1f32, 1f32, (n, k), &Device::Cpu)?;
        let blocks = QTensor::quantize(&weight, dtype)?.data()?.into_owned();
        drop(weight);
        let first = PackedLinear::from_ggml(dtype, &blocks, n, k)?;
        let copies = COLD_BYTES.div_ceil(first.packed_bytes());
        let mut layers = vec![first];
        for _ in 1..copies {
            layers.push(PackedLinear::from_ggml(dtype, &blocks, n, k)?);
        }
        println!("{name}: {}, {} MB", layers[0].format_name(), layers[0].packed_bytes() / 1_000_000);
        for m in [1, 2, 4, 8, 16, 32, 64] {
            let x = Tensor::rand(-1f32, 1f32, (m, k), &Device::Cpu)?;
            let mut best = Duration::MAX;
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(600) {
                for layer in &layers {
                    let start = Instant::now();
                    black_box(layer.forward(black_box(&x))?);
                    best = best.min(start.elapsed());
                }
            }
            let seconds = best.as_secs_f64();
            println!(
                "  m = {m:2}: {:7.1} GOP/s, {:5.1} GB/s, {:.3} ms",
                2.0 * (m * n * k) as f64 / seconds / 1e9,
                layers[0].packed_bytes() as f64 / seconds / 1e9,
                seconds * 1e3
            );
        }
    }
    Ok(())
}
