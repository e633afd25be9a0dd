//! The product of rounded activations with quantised weights.
//!
//! For every row and output the order is fixed: block by block along `k`, the exact integer sum of the block (per half
//! block where each half has a scale), then one fused multiply-add into one f32. Rows are taken up to eight at a time
//! only to load weights less often; no operation of one row sees another.

use std::ops::Range;

use crate::lanes::{Kernel, LANES, Lanes};
use crate::linear::form::{Codes, Scaling};
use crate::linear::quantise::{Rounded, row_groups};
use crate::path::Path;
use crate::threads::{Shared, split};

/// A quantised matrix.
pub(crate) struct Tiles<C: Codes, S: Scaling> {
    /// `[tile][block]`, as are the scales.
    pub(crate) codes: Vec<C::Packed>,
    pub(crate) scales: Vec<S::Packed>,
    pub(crate) offset: i32,
}

impl<C: Codes, S: Scaling> Tiles<C, S> {
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.codes) + size_of_val(&*self.scales)
    }

    /// Writes `[n_rows, n]` products to `out`.
    pub(crate) fn multiply(&self, path: Path, rows: &Rounded, n: usize, out: &mut [f32]) {
        // What the offset of the codes adds to each integer sum, taken off before the sum begins.
        let starts: Vec<[i32; 2]> = if S::PARTS == 1 {
            rows.sums.iter().map(|[a, b]| [-self.offset * (a + b), 0]).collect()
        } else {
            rows.sums.iter().map(|[a, b]| [-self.offset * a, -self.offset * b]).collect()
        };
        let mins: Vec<[f32; 2]> = match (S::HAS_MINS, S::PARTS) {
            (false, _) => Vec::new(),
            (true, 1) => {
                rows.scales.iter().zip(&rows.sums).map(|(scale, [a, b])| [scale * (a + b) as f32, 0.0]).collect()
            }
            (true, _) => {
                let halves = |(scale, sums): (&f32, &[i32; 2])| sums.map(|sum| scale * sum as f32);
                rows.scales.iter().zip(&rows.sums).map(halves).collect()
            }
        };
        let out = Shared::new(out);
        let cost = rows.n_blocks * rows.n_rows * 16;
        split(n.div_ceil(LANES), cost, |tiles| {
            path.run(Multiply { weights: self, rows, starts: &starts, mins: &mins, tiles, n, out: &out });
        });
    }
}

/// The tiles of one thread, all rows.
struct Multiply<'a, C: Codes, S: Scaling> {
    weights: &'a Tiles<C, S>,
    rows: &'a Rounded,
    starts: &'a [[i32; 2]],
    mins: &'a [[f32; 2]],
    tiles: Range<usize>,
    n: usize,
    out: &'a Shared<'a, f32>,
}

impl<C: Codes, S: Scaling> Kernel for Multiply<'_, C, S> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for tile in self.tiles.clone() {
            for rows in row_groups(self.rows.n_rows) {
                match rows.len() {
                    1 => self.rows::<L, 1>(tile, rows.start),
                    2 => self.rows::<L, 2>(tile, rows.start),
                    3 => self.rows::<L, 3>(tile, rows.start),
                    4 => self.rows::<L, 4>(tile, rows.start),
                    5 => self.rows::<L, 5>(tile, rows.start),
                    6 => self.rows::<L, 6>(tile, rows.start),
                    7 => self.rows::<L, 7>(tile, rows.start),
                    _ => self.rows::<L, 8>(tile, rows.start),
                }
            }
        }
    }
}

impl<C: Codes, S: Scaling> Multiply<'_, C, S> {
    /// Sixteen outputs of rows `first .. first + R`.
    #[inline(always)]
    fn rows<L: Lanes, const R: usize>(&self, tile: usize, first: usize) {
        let n_blocks = self.rows.n_blocks;
        let blocks = tile * n_blocks..(tile + 1) * n_blocks;
        let weights = self.weights.codes[blocks.clone()].iter().zip(&self.weights.scales[blocks.clone()]);
        // The first rows of a tile bring the next one into the cache.
        let next = if first == 0 { blocks.end } else { self.weights.codes.len() };
        let ahead = self.weights.codes[next..].iter().zip(&self.weights.scales[next..]);
        let mut ahead = ahead.take(n_blocks);
        let mut sums = [L::splat(0.0); R];
        let mut at = first * n_blocks;
        for (codes, scales) in weights {
            if let Some((codes, scales)) = ahead.next() {
                L::prefetch(codes);
                L::prefetch(scales);
            }
            let values: &[_; R] = rows_of(&self.rows.values, at);
            let row_scales: &[_; R] = rows_of(&self.rows.scales, at);
            let starts: &[_; R] = rows_of(self.starts, at);
            for part in 0..S::PARTS {
                let mut ints = [L::ints(0); R];
                for (ints, starts) in ints.iter_mut().zip(starts) {
                    *ints = L::ints(starts[part]);
                }
                let groups = 8 / S::PARTS;
                for group in part * groups..(part + 1) * groups {
                    let codes = C::group::<L>(codes, group);
                    for (ints, values) in ints.iter_mut().zip(values) {
                        *ints = L::dot4(*ints, codes, values[group]);
                    }
                }
                let scales: L = S::scales(scales, part);
                for ((sum, ints), row_scale) in sums.iter_mut().zip(ints).zip(row_scales) {
                    *sum = L::from_ints(ints).fma(scales.mul(L::splat(*row_scale)), *sum);
                }
            }
            if S::HAS_MINS {
                let row_mins: &[_; R] = rows_of(self.mins, at);
                for part in 0..S::PARTS {
                    let mins: L = S::mins(scales, part);
                    for (sum, row_min) in sums.iter_mut().zip(row_mins) {
                        *sum = mins.fma(L::splat(row_min[part]), *sum);
                    }
                }
            }
            at += R;
        }
        store(self.out, self.n, tile, first, &sums);
    }
}

/// `R` neighbours from `at` on.
#[inline(always)]
pub(crate) fn rows_of<T, const R: usize>(all: &[T], at: usize) -> &[T; R] {
    all[at..].first_chunk().expect("rows are taken only while enough are left")
}

/// Writes a tile's outputs of the rows from `first` on; the last tile may be narrower than its lanes.
#[inline(always)]
pub(crate) fn store<L: Lanes, const R: usize>(
    out: &Shared<'_, f32>,
    n: usize,
    tile: usize,
    first: usize,
    sums: &[L; R],
) {
    let column = tile * LANES;
    let width = LANES.min(n - column);
    for (row, sum) in sums.iter().enumerate() {
        // SAFETY: a tile belongs to one thread, and its columns of a row to this call alone.
        #[allow(unsafe_code)]
        let part = unsafe { out.slice((first + row) * n + column, width) };
        match part.first_chunk_mut::<LANES>() {
            Some(all) => sum.store(all),
            None => part.copy_from_slice(&sum.to_array()[..width]),
        }
    }
}
