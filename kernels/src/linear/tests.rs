use candle_core::Device;
use candle_core::quantized::GgmlDType as G;
use proptest::prelude::*;

use super::*;
use crate::lanes::{LANES, Lanes, Wide};
use crate::linear::form::{Codes, Scaling};
use crate::linear::product::Tiles;
use crate::reference;

const QUANTISED: [G; 8] = [G::Q4_0, G::Q4_1, G::Q5_0, G::Q5_1, G::Q8_0, G::Q4K, G::Q5K, G::Q6K];
const FLOATS: [G; 3] = [G::F32, G::F16, G::BF16];

/// Random numbers that need no crate: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1 .. 1.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Blocks whose codes and small scales are random bits, and whose f16 numbers are of a model's size.
fn random_blocks(dtype: G, n: usize, k: usize, random: &mut Random) -> Vec<u8> {
    let size = dtype.type_size();
    let halves: &[usize] = match dtype {
        G::Q4_0 | G::Q5_0 | G::Q8_0 | G::F16 => &[0],
        G::Q4_1 | G::Q5_1 | G::Q4K | G::Q5K => &[0, 2],
        G::Q6K => &[208],
        _ => &[],
    };
    let mut blocks = Vec::new();
    for _ in 0..n * k / dtype.block_size() {
        match dtype {
            G::F32 => blocks.extend(random.value().to_le_bytes()),
            G::BF16 => blocks.extend(half::bf16::from_f32(random.value()).to_le_bytes()),
            _ => {
                let mut block: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                for at in halves {
                    block[*at..at + 2].copy_from_slice(&half::f16::from_f32(random.value() / 16.0).to_le_bytes());
                }
                blocks.extend(block);
            }
        }
    }
    blocks
}

fn dequantised(dtype: G, blocks: &[u8], n: usize, k: usize) -> Vec<f32> {
    reference::dequantize(dtype, blocks, n, k).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The products as `path` computes them.
fn product(path: Path, layer: &PackedLinear, x: &[f32]) -> Vec<f32> {
    Inputs::new(path, x, x.len() / layer.k).multiply(layer).unwrap()
}

/// The weights as they stand in the packed form.
pub(super) fn unpacked<C: Codes, S: Scaling>(tiles: &Tiles<C, S>, n: usize, k: usize) -> Vec<f32> {
    let mut weights = Vec::new();
    for row in 0..n {
        for i in 0..k {
            let (lane, at) = (row % LANES, row / LANES * (k / 32) + i / 32);
            let code = C::group::<Wide>(&tiles.codes[at], i % 32 / 4)[4 * lane + i % 4];
            let scale = S::scales::<Wide>(&tiles.scales[at], i % 32 / 16 * (S::PARTS - 1)).to_array()[lane];
            let min = S::mins::<Wide>(&tiles.scales[at]).to_array()[lane];
            weights.push(scale * (i32::from(code) - tiles.offset) as f32 + min);
        }
    }
    weights
}

#[test]
fn packed_weights_are_the_files_weights_bit_for_bit() {
    let mut random = Random(1);
    for dtype in QUANTISED {
        for (n, k) in [(1, 256), (16, 512), (37, 768)] {
            let blocks = random_blocks(dtype, n, k, &mut random);
            let layer = PackedLinear::from_ggml(dtype, &blocks, n, k).unwrap();
            let Form::Packed(weights) = &layer.form else { panic!("packed for the CPU") };
            let weights = weights.unpacked(n, k);
            let expected = dequantised(dtype, &blocks, n, k);
            for (i, (got, expected)) in weights.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{dtype:?}, weight {} of row {}", i % k, i / k);
            }
        }
    }
}

/// `x` with every block of 32 rounded as the documentation says, in f64.
fn rounded(x: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for block in x.chunks(32) {
        let largest = block.iter().fold(0f32, |a, b| a.max(b.abs()));
        let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
        out.extend(block.iter().map(|v| f64::from((v * inverse).round_ties_even()) * f64::from(largest / 127.0)));
    }
    out
}

#[test]
fn products_agree_with_the_definition_in_f64() {
    let mut random = Random(2);
    for dtype in QUANTISED.into_iter().chain(FLOATS) {
        for (m, n, k) in [(1, 1, 256), (3, 50, 256), (11, 16, 1024), (2, 33, 768)] {
            let blocks = random_blocks(dtype, n, k, &mut random);
            let layer = PackedLinear::from_ggml(dtype, &blocks, n, k).unwrap();
            let x = random.values(m * k);
            let weights = dequantised(dtype, &blocks, n, k);
            let exact: Vec<f64> = match dtype {
                G::BF16 => x.iter().map(|x| half::bf16::from_f32(*x).to_f64()).collect(),
                G::F32 | G::F16 => x.iter().map(|x| f64::from(*x)).collect(),
                _ => rounded(&x),
            };
            let tensor = Tensor::from_slice(&x, (m, k), &Device::Cpu).unwrap();
            let got = layer.forward(&tensor).unwrap();
            assert_eq!(got.dims(), [m, n]);
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            for row in 0..m {
                for output in 0..n {
                    let terms = (0..k).map(|i| exact[row * k + i] * f64::from(weights[output * k + i]));
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                    let got = f64::from(got[row * n + output]);
                    assert!((got - sum).abs() <= 2e-6 * size, "{dtype:?} {m}x{n}x{k}: {got}, expected {sum}");
                }
            }
        }
    }
}

#[test]
fn rounding_activations_costs_less_than_a_percent() {
    let mut random = Random(3);
    for dtype in QUANTISED {
        let (m, n, k) = (4, 64, 1024);
        let blocks = random_blocks(dtype, n, k, &mut random);
        let layer = PackedLinear::from_ggml(dtype, &blocks, n, k).unwrap();
        let x = Tensor::from_vec(random.values(m * k), (m, k), &Device::Cpu).unwrap();
        let expected = reference::linear(&x, &reference::dequantize(dtype, &blocks, n, k).unwrap()).unwrap();
        let norm = |t: &Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
        let error = norm(&(layer.forward(&x).unwrap() - &expected).unwrap()) / norm(&expected);
        assert!(error < 0.01, "{dtype:?}: {error}");
    }
}

#[test]
fn a_row_gives_the_same_bits_alone_and_among_others_on_every_path() {
    let mut random = Random(4);
    for dtype in QUANTISED.into_iter().chain(FLOATS) {
        let (n, k) = (45, 512);
        let blocks = random_blocks(dtype, n, k, &mut random);
        let layer = PackedLinear::from_ggml(dtype, &blocks, n, k).unwrap();
        let x = random.values(67 * k);
        let alone: Vec<f32> = x.chunks(k).flat_map(|row| product(Path::Portable, &layer, row)).collect();
        for path in Path::available() {
            for m in (1..=18).chain([31, 64, 67]) {
                assert_eq!(product(path, &layer, &x[..m * k]), alone[..m * n], "{dtype:?} {path:?} {m} rows");
            }
        }
    }
}

#[test]
fn several_matrices_of_one_input_give_what_each_gives() {
    let mut random = Random(5);
    let (m, k) = (5, 512);
    let layers: Vec<PackedLinear> = QUANTISED
        .into_iter()
        .chain(FLOATS)
        .enumerate()
        .map(|(i, dtype)| {
            let n = 16 + 7 * i;
            PackedLinear::from_ggml(dtype, &random_blocks(dtype, n, k, &mut random), n, k).unwrap()
        })
        .collect();
    let x = Tensor::from_vec(random.values(m * k), (m, k), &Device::Cpu).unwrap();
    let many = PackedLinear::forward_many(&layers.iter().collect::<Vec<_>>(), &x).unwrap();
    for (layer, got) in layers.iter().zip(many) {
        let alone = layer.forward(&x).unwrap();
        assert_eq!(got.to_vec2::<f32>().unwrap(), alone.to_vec2::<f32>().unwrap());
    }
}

#[test]
fn values_that_are_not_finite_and_blocks_of_zeros_do_not_pass_as_numbers() {
    let mut random = Random(6);
    let blocks = random_blocks(G::Q5_0, 20, 64, &mut random);
    let layer = PackedLinear::from_ggml(G::Q5_0, &blocks, 20, 64).unwrap();
    for path in Path::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.values(2 * 64);
            x[70] = bad;
            let got = product(path, &layer, &x);
            assert!(got[..20].iter().all(|v| v.is_finite()) && got[20..].iter().all(|v| v.is_nan()), "{path:?}");
        }
        assert!(product(path, &layer, &[0.0; 64]).iter().all(|v| *v == 0.0));
        assert!(product(path, &layer, &[1e-38; 64]).iter().all(|v| *v == 0.0));
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |dtype, bytes: usize, n, k, part: &str| {
        let error = PackedLinear::from_ggml(dtype, &vec![0; bytes], n, k).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(G::Q5_0, 22, 1, 33, "blocks of 32");
    refused(G::Q4K, 144, 1, 128, "blocks of 256");
    refused(G::Q8_0, 33, 1, 32, "34");
    refused(G::Q8_0, 0, usize::MAX, 64, "needs None bytes");
    refused(G::Q2K, 84, 1, 256, "Q2K");
    refused(G::F32, 0, 0, 4, "empty");
    let layer = PackedLinear::from_ggml(G::Q8_0, &[0; 34], 1, 32).unwrap();
    let wrong = Tensor::zeros((2, 64), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(layer.forward(&wrong).unwrap_err().to_string().contains("[2, 64], expected [2, 32]"));
    assert!(layer.forward(&wrong.narrow(1, 0, 32).unwrap()).unwrap_err().to_string().contains("contiguous"));
    assert!(layer.forward(&wrong.narrow(0, 0, 0).unwrap()).is_err());
}

#[test]
fn an_odd_number_of_bf16_values_has_a_zero_beside_the_last() {
    let mut random = Random(7);
    let (m, n, k) = (9, 19, 33);
    let blocks = random_blocks(G::BF16, n, k, &mut random);
    let layer = PackedLinear::from_ggml(G::BF16, &blocks, n, k).unwrap();
    let x: Vec<f32> = random.values(m * k).iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    let weights = dequantised(G::BF16, &blocks, n, k);
    for path in Path::available() {
        for (i, got) in product(path, &layer, &x).into_iter().enumerate() {
            let terms = x[i / n * k..][..k].iter().zip(&weights[i % n * k..][..k]);
            let sum: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(got) - sum).abs() < 1e-5, "{path:?}: {got}, expected {sum}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_shapes_give_the_same_bits_on_every_path(
        format in 0usize..11, m in 1usize..20, n in 1usize..70, blocks in 1usize..6, seed: u64,
    ) {
        let dtype = [&QUANTISED[..], &FLOATS[..]].concat()[format];
        let k = blocks * dtype.block_size().max(32);
        let mut random = Random(seed);
        let layer = PackedLinear::from_ggml(dtype, &random_blocks(dtype, n, k, &mut random), n, k).unwrap();
        let x = random.values(m * k);
        let expected = product(Path::Portable, &layer, &x);
        for path in Path::available() {
            prop_assert_eq!(&product(path, &layer, &x), &expected);
        }
    }
}

/// Candle rounds activations per 256 values, ours per 32: both stay near the product of the dequantised weights.
#[test]
fn a_matrix_on_a_device_multiplies_as_the_file_says() {
    let (m, n, k) = (3, 32, 512);
    for dtype in [G::Q4K, G::Q6K, G::Q5_0, G::Q8_0, G::F16, G::F32] {
        let mut random = Random(dtype.type_size() as u64);
        let blocks = random_blocks(dtype, n, k, &mut random);
        let x = Tensor::from_vec(random.values(m * k), (m, k), &Device::Cpu).unwrap();
        let packed = PackedLinear::from_ggml(dtype, &blocks, n, k).unwrap().forward(&x).unwrap();
        let uploaded = PackedLinear::upload(dtype, &blocks, n, k, &Device::Cpu).unwrap();
        assert_eq!(uploaded.packed_bytes(), blocks.len());
        let many = PackedLinear::forward_many(&[&uploaded, &uploaded], &x).unwrap();
        let norm = |t: &Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
        let difference = norm(&(&many[1] - &packed).unwrap()) / norm(&packed);
        assert!(difference < 0.02, "{dtype:?}: {difference}");
    }
    assert!(PackedLinear::upload(G::Q8_0, &[0; 33], 1, 32, &Device::Cpu).is_err());
}
