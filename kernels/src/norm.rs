//! Root-mean-square normalisation.

use candle_core::Tensor;

use crate::error::{KernelError, Result};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::path::Path;
use crate::reference;
use crate::tensors::{check_f32, cpu_slices, on_cpu};
use crate::threads::{Shared, split};

/// `x / sqrt(mean(x²) + eps) * weight` for every row of `x [m, d]`, `weight [d]`.
///
/// For a norm per head pass the view `[m * heads, head_dim]`.
///
/// # Errors
/// [`KernelError::Shape`] when `x` is not `[m, d]` or `weight` not `[d]`, both contiguous f32.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    const OP: &str = "rms_norm";
    let (_, d) = check(OP, x, weight)?;
    if !on_cpu(x) {
        return reference::rms_norm(x, weight, eps);
    }
    let path = Path::current()?;
    let normed = cpu_slices(OP, [x, weight], |[x, weight]| {
        let mut normed = vec![0.0; x.len()];
        normalise(path, Sums::Given(x), weight, eps, d, &mut normed);
        normed
    })?;
    Ok(Tensor::from_vec(normed, x.shape(), x.device())?)
}

/// `sum = x + residual` and its norm, `(sum, rms_norm(sum))`, in one pass over the rows.
///
/// # Errors
/// [`KernelError::Shape`] when `x` and `residual` are not `[m, d]` or `weight` not `[d]`, all contiguous f32.
pub fn add_rms_norm(x: &Tensor, residual: &Tensor, weight: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    const OP: &str = "add_rms_norm";
    let (_, d) = check(OP, x, weight)?;
    check_f32(OP, "residual", residual, x.dims())?;
    if !on_cpu(x) {
        let sum = (x + residual)?;
        let normed = reference::rms_norm(&sum, weight, eps)?;
        return Ok((sum, normed));
    }
    let path = Path::current()?;
    let (sum, normed) = cpu_slices(OP, [x, residual, weight], |[x, residual, weight]| {
        let (mut sum, mut normed) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        normalise(path, Sums::Added(x, residual, &mut sum), weight, eps, d, &mut normed);
        (sum, normed)
    })?;
    let tensor = |values| Tensor::from_vec(values, x.shape(), x.device());
    Ok((tensor(sum)?, tensor(normed)?))
}

fn check(op: &'static str, x: &Tensor, weight: &Tensor) -> Result<(usize, usize)> {
    let &[m, d] = x.dims() else {
        return Err(KernelError::shape(op, format!("x has shape {:?}, expected [m, d]", x.dims())));
    };
    if d == 0 {
        return Err(KernelError::shape(op, "the rows of x are empty"));
    }
    check_f32(op, "x", x, &[m, d])?;
    check_f32(op, "weight", weight, &[d])?;
    Ok((m, d))
}

/// The rows to normalise.
enum Sums<'a> {
    Given(&'a [f32]),
    /// Two terms, and where their sums go.
    Added(&'a [f32], &'a [f32], &'a mut [f32]),
}

fn normalise(path: Path, rows: Sums<'_>, weight: &[f32], eps: f32, d: usize, normed: &mut [f32]) {
    let n_rows = normed.len() / d;
    let normed = Shared::new(normed);
    match rows {
        Sums::Given(x) => split(n_rows, d * 2, |range| {
            for row in range {
                // SAFETY: `split` hands every row to exactly one call.
                #[allow(unsafe_code)]
                let normed = unsafe { normed.slice(row * d, d) };
                path.run(Norm { x: &x[row * d..][..d], weight, eps, normed });
            }
        }),
        Sums::Added(x, residual, sums) => {
            let sums = Shared::new(sums);
            split(n_rows, d * 3, |range| {
                for row in range {
                    // SAFETY: as above.
                    #[allow(unsafe_code)]
                    let (sum, normed) = unsafe { (sums.slice(row * d, d), normed.slice(row * d, d)) };
                    for ((sum, x), residual) in sum.iter_mut().zip(&x[row * d..]).zip(&residual[row * d..]) {
                        *sum = x + residual;
                    }
                    path.run(Norm { x: sum, weight, eps, normed });
                }
            });
        }
    }
}

/// One row: squares are summed in sixteen lanes along the row, then the lanes by halving.
struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    normed: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        let mut squares = L::splat(0.0);
        for chunk in chunks {
            let x = L::load(chunk);
            squares = x.fma(x, squares);
        }
        let x = L::load_some(rest, 0.0);
        let squares = x.fma(x, squares).sum();
        let inverse = 1.0 / (squares / self.x.len() as f32 + self.eps).sqrt();
        for ((normed, x), weight) in self.normed.iter_mut().zip(self.x).zip(self.weight) {
            *normed = x * inverse * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn random(shape: (usize, usize)) -> Tensor {
        Tensor::randn(0f32, 3f32, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn norms_agree_with_candle() {
        for (m, d) in [(1, 1), (3, 17), (2, 896), (67, 640), (5, 64)] {
            let (x, residual) = (random((m, d)), random((m, d)));
            let weight = random((1, d)).get(0).unwrap();
            let largest = |a: &Tensor, b: &Tensor| {
                (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap()
            };
            let expected = reference::rms_norm(&x, &weight, 1e-6).unwrap();
            assert!(largest(&rms_norm(&x, &weight, 1e-6).unwrap(), &expected) < 2e-5);
            let (sum, normed) = add_rms_norm(&x, &residual, &weight, 1e-6).unwrap();
            let expected = (&x + &residual).unwrap();
            assert_eq!(largest(&sum, &expected), 0.0);
            assert!(largest(&normed, &reference::rms_norm(&expected, &weight, 1e-6).unwrap()) < 2e-5);
        }
    }

    #[test]
    fn every_path_and_every_number_of_rows_gives_the_same_bits() {
        let d = 83;
        let x: Vec<f32> = (0..67 * d).map(|i| (i as f32 * 0.73).sin()).collect();
        let weight: Vec<f32> = (0..d).map(|i| 1.0 + i as f32 / 64.0).collect();
        let mut all = vec![0.0; x.len()];
        normalise(Path::Portable, Sums::Given(&x), &weight, 1e-5, d, &mut all);
        for path in Path::available() {
            for (row, expected) in all.chunks_exact(d).enumerate() {
                let mut alone = vec![0.0; d];
                normalise(path, Sums::Given(&x[row * d..][..d]), &weight, 1e-5, d, &mut alone);
                assert_eq!(alone, expected, "{path:?} row {row}");
            }
        }
    }
}
