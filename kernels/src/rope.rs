//! Rotary position embedding, the half-split ("neox") form.

use std::sync::OnceLock;

use candle_core::{Device, Tensor};

use crate::error::{KernelError, Result};
use crate::lanes::{Kernel, Lanes};
use crate::path::Path;
use crate::reference;
use crate::tensors::{check_f32, cpu_slice, on_cpu};
use crate::threads::split_rows;

/// Positions computed together the first time one of them is asked for.
const PAGE_POSITIONS: usize = 256;

/// Cosines and sines of every position's angles, computed in f64 and rounded once; filled in as positions are used.
#[derive(Debug)]
pub struct RopeTable {
    head_dim: usize,
    base: f64,
    scale: f64,
    max_positions: usize,
    /// What the frequency of each pair is divided by; empty where nothing is.
    divisors: Box<[f32]>,
    magnitude: f64,
    /// Per page: `[PAGE_POSITIONS][cos: head_dim / 2, sin: head_dim / 2]`.
    pages: Box<[OnceLock<Box<[f32]>>]>,
}

impl RopeTable {
    /// A table for heads of `head_dim` values: pair `i` of position `p` turns by `p * scale * base^(-2i / head_dim)`.
    ///
    /// `scale` is 1 without scaling, and `1 / factor` for linear scaling by `factor`.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when `head_dim` is odd or zero, `max_positions` is zero, or `base` or `scale` is not a
    /// positive finite number.
    pub fn new(head_dim: usize, base: f32, scale: f32, max_positions: usize) -> Result<Self> {
        let refuse = |what: String| Err(KernelError::shape("rope_table", what));
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return refuse(format!("head_dim is {head_dim}, expected an even number of at least 2"));
        }
        if max_positions == 0 {
            return refuse("max_positions is 0".into());
        }
        if !(base.is_finite() && base > 0.0 && scale.is_finite() && scale > 0.0) {
            return refuse(format!("base {base} and scale {scale} must be positive and finite"));
        }
        let (base, scale) = (f64::from(base), f64::from(scale));
        let pages = empty_pages(max_positions);
        Ok(Self { head_dim, base, scale, max_positions, divisors: Box::default(), magnitude: 1.0, pages })
    }

    /// The same table with the frequency of pair `i` divided by `divisors[i]`: how models are taught longer contexts than
    /// they began with.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless there is one positive finite number for each of the `head_dim / 2` pairs.
    pub fn divided_by(self, divisors: &[f32]) -> Result<Self> {
        if divisors.len() != self.head_dim / 2 {
            let what = format!("{} divisors for {} pairs", divisors.len(), self.head_dim / 2);
            return Err(KernelError::shape("rope_table", what));
        }
        if let Some(divisor) = divisors.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
            return Err(KernelError::shape("rope_table", format!("divisor {divisor} must be positive and finite")));
        }
        let pages = empty_pages(self.max_positions);
        Ok(Self { divisors: divisors.into(), pages, ..self })
    }

    /// The same table whose turns also stretch by `magnitude`; a score of a turned query and key grows by its square.
    ///
    /// # Errors
    /// [`KernelError::Shape`] unless `magnitude` is positive and finite.
    pub fn stretched_by(self, magnitude: f32) -> Result<Self> {
        if !(magnitude.is_finite() && magnitude > 0.0) {
            return Err(KernelError::shape("rope_table", format!("magnitude {magnitude} must be positive and finite")));
        }
        let pages = empty_pages(self.max_positions);
        Ok(Self { magnitude: f64::from(magnitude), pages, ..self })
    }

    /// Values of one head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The first position that is refused.
    #[must_use]
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Cosines and sines of `position`, `head_dim / 2` each. The caller has checked `position < max_positions`.
    fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let page = position / PAGE_POSITIONS;
        let rows = self.pages[page].get_or_init(|| self.fill(page * PAGE_POSITIONS));
        rows[position % PAGE_POSITIONS * self.head_dim..][..self.head_dim].split_at(self.head_dim / 2)
    }

    /// Cosines and sines of `positions`, `[n, head_dim / 2]` each.
    fn tensors(&self, positions: &[u32], device: &Device) -> Result<(Tensor, Tensor)> {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            let (c, s) = self.row(*position as usize);
            cos.extend_from_slice(c);
            sin.extend_from_slice(s);
        }
        let shape = (positions.len(), self.head_dim / 2);
        Ok((Tensor::from_vec(cos, shape, device)?, Tensor::from_vec(sin, shape, device)?))
    }

    fn fill(&self, first: usize) -> Box<[f32]> {
        let half = self.head_dim / 2;
        let mut rows = vec![0f32; PAGE_POSITIONS * self.head_dim];
        for (offset, row) in rows.chunks_exact_mut(self.head_dim).enumerate() {
            for pair in 0..half {
                let divisor = self.divisors.get(pair).map_or(1.0, |divisor| f64::from(*divisor));
                let frequency = self.base.powf(-2.0 * pair as f64 / self.head_dim as f64) / divisor;
                let (sin, cos) = ((first + offset) as f64 * self.scale * frequency).sin_cos();
                row[pair] = (cos * self.magnitude) as f32;
                row[half + pair] = (sin * self.magnitude) as f32;
            }
        }
        rows.into_boxed_slice()
    }
}

fn empty_pages(max_positions: usize) -> Box<[OnceLock<Box<[f32]>>]> {
    (0..max_positions.div_ceil(PAGE_POSITIONS)).map(|_| OnceLock::new()).collect()
}

/// Turns every head of `x [n_tokens, heads, head_dim]` by its token's position.
///
/// # Errors
/// [`KernelError::Shape`] when `x` does not fit `positions` and `table`, or a position is outside the table.
pub fn rope(x: &Tensor, positions: &[u32], table: &RopeTable) -> Result<Tensor> {
    const OP: &str = "rope";
    let &[_, heads, _] = x.dims() else {
        return Err(KernelError::shape(
            OP,
            format!("x has shape {:?}, expected [n_tokens, heads, head_dim]", x.dims()),
        ));
    };
    check_f32(OP, "x", x, &[positions.len(), heads, table.head_dim])?;
    if let Some(position) = positions.iter().find(|position| **position as usize >= table.max_positions) {
        return Err(KernelError::shape(
            OP,
            format!("position {position} is outside the table of {} positions", table.max_positions),
        ));
    }
    if !on_cpu(x) {
        let (cos, sin) = table.tensors(positions, x.device())?;
        return reference::rope(x, &cos, &sin);
    }
    let path = Path::current()?;
    let turned = cpu_slice(OP, x, |x| turn(path, x, positions, heads, table))?;
    Ok(Tensor::from_vec(turned, x.shape(), x.device())?)
}

fn turn(path: Path, x: &[f32], positions: &[u32], heads: usize, table: &RopeTable) -> Vec<f32> {
    let mut turned = vec![0.0; x.len()];
    let width = heads * table.head_dim;
    if width > 0 {
        split_rows(&mut turned, width, 2 * width, |first, turned| {
            for (offset, turned) in turned.chunks_exact_mut(width).enumerate() {
                let token = first + offset;
                let (cos, sin) = table.row(positions[token] as usize);
                path.run(Turn { x: &x[token * width..][..width], cos, sin, turned });
            }
        });
    }
    turned
}

/// The heads of one token.
struct Turn<'a> {
    x: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    turned: &'a mut [f32],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let half = self.cos.len();
        let heads = self.x.chunks_exact(2 * half).zip(self.turned.chunks_exact_mut(2 * half));
        for (from, to) in heads {
            let (a, b) = from.split_at(half);
            let (first, second) = to.split_at_mut(half);
            let angles = self.cos.iter().zip(self.sin);
            for ((((a, b), (cos, sin)), first), second) in a.iter().zip(b).zip(angles).zip(first).zip(second) {
                *first = a * cos - b * sin;
                *second = a * sin + b * cos;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_agree_with_the_definition_in_f64() {
        let (heads, head_dim) = (3, 10);
        let table = RopeTable::new(head_dim, 10_000.0, 0.5, 5_000).unwrap();
        let positions = [0u32, 1, 255, 256, 4_999];
        let x: Vec<f32> = (0..positions.len() * heads * head_dim).map(|i| (i as f32 * 0.3).sin()).collect();
        let tensor = Tensor::from_slice(&x, (positions.len(), heads, head_dim), &Device::Cpu).unwrap();
        let got = rope(&tensor, &positions, &table).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (token, position) in positions.iter().enumerate() {
            for head in 0..heads {
                let start = (token * heads + head) * head_dim;
                for pair in 0..head_dim / 2 {
                    let angle = f64::from(*position) * 0.5 * 10_000f64.powf(-2.0 * pair as f64 / head_dim as f64);
                    let (a, b) = (f64::from(x[start + pair]), f64::from(x[start + pair + head_dim / 2]));
                    let expected = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()];
                    let pair = [got[start + pair], got[start + pair + head_dim / 2]];
                    assert!(expected.iter().zip(pair).all(|(e, g)| (e - f64::from(g)).abs() < 3e-7));
                }
            }
        }
        let (cos, sin) = table.tensors(&positions, &Device::Cpu).unwrap();
        let plain = reference::rope(&tensor, &cos, &sin).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(plain.iter().zip(&got).all(|(a, b)| (a - b).abs() < 3e-7));
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        let table = RopeTable::new(64, 1e6, 1.0, 100).unwrap();
        let x: Vec<f32> = (0..40 * 2 * 64).map(|i| (i as f32 * 0.7).cos()).collect();
        let positions: Vec<u32> = (30..70).collect();
        let expected = turn(Path::Portable, &x, &positions, 2, &table);
        for path in Path::available() {
            assert_eq!(turn(path, &x, &positions, 2, &table), expected, "{path:?}");
        }
    }

    #[test]
    fn divisors_and_magnitude_change_the_turns_as_defined() {
        let plain = RopeTable::new(4, 100.0, 1.0, 300).unwrap();
        // A row computed before a change must not outlive it.
        plain.row(7);
        let table = plain.divided_by(&[1.0, 4.0]).unwrap().stretched_by(1.5).unwrap();
        // Pairs of a head of 4 with base 100 turn by 1 and by 1/10 a position; the second by 1/40 when divided by 4.
        let (cos, sin) = table.row(270);
        for (pair, angle) in [270.0f64, 270.0 / 40.0].into_iter().enumerate() {
            assert!((f64::from(cos[pair]) - 1.5 * angle.cos()).abs() < 3e-7);
            assert!((f64::from(sin[pair]) - 1.5 * angle.sin()).abs() < 3e-7);
        }
        let refused = |divisors: &[f32]| RopeTable::new(4, 100.0, 1.0, 8).unwrap().divided_by(divisors).is_err();
        assert!(refused(&[1.0]) && refused(&[1.0, 0.0]) && refused(&[f32::NAN, 1.0]));
        assert!(RopeTable::new(4, 100.0, 1.0, 8).unwrap().stretched_by(0.0).is_err());
    }

    #[test]
    fn a_position_outside_the_table_is_refused() {
        let table = RopeTable::new(4, 1e4, 1.0, 8).unwrap();
        let x = Tensor::zeros((1, 1, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert!(rope(&x, &[8], &table).is_err_and(|error| error.to_string().contains("position 8")));
        assert!(RopeTable::new(5, 1e4, 1.0, 8).is_err() && RopeTable::new(4, f32::NAN, 1.0, 8).is_err());
    }
}
