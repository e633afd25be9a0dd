//! Products with matrices that the file keeps as floats: f32 arithmetic, weights widened exactly as they are read.

use std::ops::Range;

use crate::lanes::{Kernel, LANES, Lanes};
use crate::linear::product::{rows_of, store};
use crate::path::Path;
use crate::threads::{Shared, split};

const MAX_ROWS: usize = 8;

/// How a float weight is stored.
pub(crate) trait Float: Copy + Default + Send + Sync + 'static {
    /// The little-endian value at the start of `bytes`.
    fn read(bytes: &[u8]) -> Self;
    /// Sixteen of them as f32.
    fn widen<L: Lanes>(from: &[Self; LANES]) -> L;
}

impl Float for f32 {
    fn read(bytes: &[u8]) -> Self {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    #[inline(always)]
    fn widen<L: Lanes>(from: &[f32; LANES]) -> L {
        L::load(from)
    }
}

/// The bits of an f16.
#[derive(Debug, Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Half(u16);

impl Float for Half {
    fn read(bytes: &[u8]) -> Self {
        Self(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
    #[inline(always)]
    fn widen<L: Lanes>(from: &[Self; LANES]) -> L {
        L::load_f16(&from.map(|half| half.0))
    }
}

/// A float matrix as `[tile][k]`, sixteen outputs side by side.
pub(crate) struct FloatTiles<T> {
    weights: Vec<[T; LANES]>,
    k: usize,
}

impl<T: Float> FloatTiles<T> {
    /// From `n` rows of `k` little-endian values.
    pub(crate) fn new(bytes: &[u8], n: usize, k: usize) -> Self {
        let mut weights = vec![[T::default(); LANES]; n.div_ceil(LANES) * k];
        for (row, values) in bytes.chunks_exact(k * size_of::<T>()).enumerate() {
            let tile = &mut weights[row / LANES * k..][..k];
            for (weight, value) in tile.iter_mut().zip(values.chunks_exact(size_of::<T>())) {
                weight[row % LANES] = T::read(value);
            }
        }
        Self { weights, k }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.weights)
    }

    /// Writes `[n_rows, n]` products to `out`; `columns` is `[k][n_rows]`.
    pub(crate) fn multiply(&self, path: Path, columns: &[f32], n_rows: usize, n: usize, out: &mut [f32]) {
        let out = Shared::new(out);
        split(n.div_ceil(LANES), self.k * n_rows * 4, |tiles| {
            path.run(Multiply { weights: self, columns, n_rows, tiles, n, out: &out });
        });
    }
}

/// `x [n_rows, k]` as `[k][n_rows]`.
pub(crate) fn transpose(x: &[f32], n_rows: usize, k: usize) -> Vec<f32> {
    let mut columns = vec![0.0; x.len()];
    for (row, values) in x.chunks_exact(k).enumerate() {
        for (i, value) in values.iter().enumerate() {
            columns[i * n_rows + row] = *value;
        }
    }
    columns
}

struct Multiply<'a, T> {
    weights: &'a FloatTiles<T>,
    columns: &'a [f32],
    n_rows: usize,
    tiles: Range<usize>,
    n: usize,
    out: &'a Shared<'a, f32>,
}

impl<T: Float> Kernel for Multiply<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for tile in self.tiles.clone() {
            let mut row = 0;
            while row < self.n_rows {
                let left = self.n_rows - row;
                match left {
                    1 => self.rows::<L, 1>(tile, row),
                    2 | 3 => self.rows::<L, 2>(tile, row),
                    4..MAX_ROWS => self.rows::<L, 4>(tile, row),
                    _ => self.rows::<L, MAX_ROWS>(tile, row),
                }
                row += match left {
                    1 => 1,
                    2 | 3 => 2,
                    4..MAX_ROWS => 4,
                    _ => MAX_ROWS,
                };
            }
        }
    }
}

impl<T: Float> Multiply<'_, T> {
    /// Sixteen outputs of rows `first .. first + R`: one fused multiply-add after the other along `k`.
    #[inline(always)]
    fn rows<L: Lanes, const R: usize>(&self, tile: usize, first: usize) {
        let k = self.weights.k;
        let mut sums = [L::splat(0.0); R];
        let mut at = first;
        for weights in &self.weights.weights[tile * k..][..k] {
            let weights: L = T::widen(weights);
            let values: &[f32; R] = rows_of(self.columns, at);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = weights.fma(L::splat(*value), *sum);
            }
            at += self.n_rows;
        }
        store(self.out, self.n, tile, first, &sums);
    }
}
