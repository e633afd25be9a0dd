//! Gated activations and the small element-wise operations of a decoder.

use candle_core::Tensor;

use crate::error::Result;
use crate::exp::{gelu_tanh, silu};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::path::Path;
use crate::reference;
use crate::tensors::{check_f32, cpu_slices, on_cpu};
use crate::threads::split_rows;

/// Elements that one call of a kernel takes.
const CHUNK: usize = 1024;

/// `silu(gate) * up`, element by element.
///
/// # Errors
/// [`crate::KernelError::Shape`] unless both are contiguous f32 of one shape.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    check_pair("silu_mul", ["gate", "up"], gate, up)?;
    if !on_cpu(gate) {
        return reference::silu_mul(gate, up);
    }
    pairwise("silu_mul", gate, up, 16, Pairs::SiluMul)
}

/// `gelu(gate) * up` with the tanh form of gelu, element by element.
///
/// # Errors
/// [`crate::KernelError::Shape`] unless both are contiguous f32 of one shape.
pub fn gelu_tanh_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    check_pair("gelu_tanh_mul", ["gate", "up"], gate, up)?;
    if !on_cpu(gate) {
        return reference::gelu_tanh_mul(gate, up);
    }
    pairwise("gelu_tanh_mul", gate, up, 16, Pairs::GeluTanhMul)
}

/// `x + y`, element by element.
///
/// # Errors
/// [`crate::KernelError::Shape`] unless both are contiguous f32 of one shape.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    check_pair("add", ["x", "y"], x, y)?;
    if !on_cpu(x) {
        return Ok((x + y)?);
    }
    pairwise("add", x, y, 1, Pairs::Add)
}

/// `x [m, n]` with `bias [n]` added to every row.
///
/// # Errors
/// [`crate::KernelError::Shape`] unless `bias` is `[n]` where `n` is the last dimension of `x`, both contiguous f32.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    check_f32("add_bias", "x", x, x.dims())?;
    check_f32("add_bias", "bias", bias, &x.dims()[x.rank().saturating_sub(1)..])?;
    if !on_cpu(x) || x.elem_count() == 0 {
        return Ok(x.broadcast_add(bias)?);
    }
    let path = Path::current()?;
    let sums = cpu_slices("add_bias", [x, bias], |[x, bias]| {
        let mut sums = vec![0.0; x.len()];
        split_rows(&mut sums, bias.len(), bias.len(), |row, sums| {
            for (i, sums) in sums.chunks_exact_mut(bias.len()).enumerate() {
                path.run(Pairwise {
                    a: &x[(row + i) * bias.len()..][..bias.len()],
                    b: bias,
                    out: sums,
                    pairs: Pairs::Add,
                });
            }
        });
        sums
    })?;
    Ok(Tensor::from_vec(sums, x.shape(), x.device())?)
}

/// `x * factor`, element by element.
///
/// # Errors
/// [`crate::KernelError::Shape`] unless `x` is contiguous f32.
pub fn scale(x: &Tensor, factor: f32) -> Result<Tensor> {
    check_f32("scale", "x", x, x.dims())?;
    Ok((x * f64::from(factor))?)
}

fn check_pair(op: &'static str, names: [&str; 2], a: &Tensor, b: &Tensor) -> Result<()> {
    check_f32(op, names[0], a, a.dims())?;
    check_f32(op, names[1], b, a.dims())
}

/// The operations of two equal shapes.
#[derive(Debug, Clone, Copy)]
enum Pairs {
    SiluMul,
    GeluTanhMul,
    Add,
}

fn pairwise(op: &'static str, a: &Tensor, b: &Tensor, cost: usize, pairs: Pairs) -> Result<Tensor> {
    let path = Path::current()?;
    let out = cpu_slices(op, [a, b], |[a, b]| pairwise_slices(path, a, b, cost, pairs))?;
    Ok(Tensor::from_vec(out, a.shape(), a.device())?)
}

fn pairwise_slices(path: Path, a: &[f32], b: &[f32], cost: usize, pairs: Pairs) -> Vec<f32> {
    let mut out = vec![0.0; a.len()];
    let whole = a.len() / CHUNK * CHUNK;
    let (body, rest) = out.split_at_mut(whole);
    split_rows(body, CHUNK, CHUNK * cost, |chunk, out| {
        let range = chunk * CHUNK..chunk * CHUNK + out.len();
        path.run(Pairwise { a: &a[range.clone()], b: &b[range], out, pairs });
    });
    path.run(Pairwise { a: &a[whole..], b: &b[whole..], out: rest, pairs });
    out
}

struct Pairwise<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    pairs: Pairs,
}

impl Kernel for Pairwise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        match self.pairs {
            Pairs::SiluMul => each::<L>(self.a, self.b, self.out, |a, b| silu(a).mul(b)),
            Pairs::GeluTanhMul => each::<L>(self.a, self.b, self.out, |a, b| gelu_tanh(a).mul(b)),
            Pairs::Add => each::<L>(self.a, self.b, self.out, |a, b| a.add(b)),
        }
    }
}

#[inline(always)]
fn each<L: Lanes>(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(L, L) -> L) {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for ((a, b), out) in a.iter().zip(b).zip(out) {
        f(L::load(a), L::load(b)).store(out);
    }
    if !out_rest.is_empty() {
        let last = f(L::load_some(a_rest, 0.0), L::load_some(b_rest, 0.0)).to_array();
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn close(a: &Tensor, b: &Tensor) {
        let difference = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
        assert!(difference.to_scalar::<f32>().unwrap() < 2e-6);
    }

    #[test]
    fn gates_and_sums_agree_with_candle() {
        for shape in [(1, 7), (3, 1030), (5, 16)] {
            let a = Tensor::randn(0f32, 2f32, shape, &Device::Cpu).unwrap();
            let b = Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap();
            close(&silu_mul(&a, &b).unwrap(), &reference::silu_mul(&a, &b).unwrap());
            close(&gelu_tanh_mul(&a, &b).unwrap(), &reference::gelu_tanh_mul(&a, &b).unwrap());
            close(&add(&a, &b).unwrap(), &(&a + &b).unwrap());
            let bias = b.get(0).unwrap();
            close(&add_bias(&a, &bias).unwrap(), &a.broadcast_add(&bias).unwrap());
            close(&scale(&a, 1.5).unwrap(), &(&a * 1.5).unwrap());
        }
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        let a: Vec<f32> = (0..4099).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let b: Vec<f32> = (0..4099).map(|i| (i as f32 * 0.11).cos()).collect();
        for pairs in [Pairs::SiluMul, Pairs::GeluTanhMul, Pairs::Add] {
            let expected = pairwise_slices(Path::Portable, &a, &b, 1, pairs);
            for path in Path::available() {
                assert_eq!(pairwise_slices(path, &a, &b, 1, pairs), expected, "{path:?} {pairs:?}");
            }
        }
    }

    #[test]
    fn unequal_shapes_are_refused() {
        let a = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
        let b = Tensor::zeros((3, 2), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert!(silu_mul(&a, &b).is_err_and(|error| error.to_string().contains("up has shape")));
        assert!(add(&a, &b.t().unwrap()).is_err_and(|error| error.to_string().contains("contiguous")));
    }
}
