//! Products with bf16 matrices: activations rounded to bf16 too, two of `k` at a time.
//!
//! For every row and output the order is fixed, pair after pair along `k`: a fused multiply-add of the pair's second
//! product, then one of its first. That is what the dot product of AVX-512 BF16 does, so the other paths give the same
//! bits; only where a sum is below 2^-126, which the instruction takes for zero, may they differ.

use std::ops::Range;

use half::bf16;

use crate::lanes::{Kernel, LANES, Lanes};
use crate::linear::product::{rows_of, store};
use crate::linear::quantise::row_groups;
use crate::path::Path;
use crate::threads::{Shared, split};

/// Pairs of one tile that are brought into the cache together.
const AHEAD: usize = 16;

/// Two neighbours along `k`, the first in the low half.
fn pair(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

/// A number too small to be normal counts as zero, as the instruction has it.
fn flushed(bits: u16) -> u16 {
    if bits & 0x7f80 == 0 { bits & 0x8000 } else { bits }
}

/// A bf16 matrix as `[tile][k / 2]`, a pair for each of sixteen outputs side by side.
pub(crate) struct PairTiles {
    weights: Vec<[u32; LANES]>,
    n_pairs: usize,
}

impl PairTiles {
    /// From `n` rows of `k` little-endian bf16 values.
    pub(crate) fn new(bytes: &[u8], n: usize, k: usize) -> Self {
        let n_pairs = k.div_ceil(2);
        let mut weights = vec![[0; LANES]; n.div_ceil(LANES) * n_pairs];
        for (row, values) in bytes.chunks_exact(k * 2).enumerate() {
            let tile = &mut weights[row / LANES * n_pairs..][..n_pairs];
            for (pairs, four) in tile.iter_mut().zip(values.chunks(4)) {
                let at = |i: usize| {
                    four.get(2 * i..2 * i + 2).map_or(0, |two| flushed(u16::from_le_bytes([two[0], two[1]])))
                };
                pairs[row % LANES] = pair(at(0), at(1));
            }
        }
        Self { weights, n_pairs }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.weights)
    }

    /// Writes `[n_rows, n]` products to `out`.
    pub(crate) fn multiply(&self, path: Path, rows: &RoundedPairs, n: usize, out: &mut [f32]) {
        let out = Shared::new(out);
        split(n.div_ceil(LANES), self.n_pairs * rows.n_rows * 4, |tiles| {
            path.run(Multiply { weights: self, rows, tiles, n, out: &out });
        });
    }
}

/// Rows of activations as pairs of bf16, nearest and ties to even: `[group of rows][pair][row of the group]`.
pub(crate) struct RoundedPairs {
    n_rows: usize,
    pairs: Vec<u32>,
}

impl RoundedPairs {
    /// Rounds `x [n_rows, k]`.
    pub(crate) fn new(x: &[f32], n_rows: usize, k: usize) -> Self {
        let n_pairs = k.div_ceil(2);
        let mut pairs = vec![0; n_rows * n_pairs];
        let round = |value: &f32| flushed(bf16::from_f32(*value).to_bits());
        for group in row_groups(n_rows) {
            let all = &mut pairs[group.start * n_pairs..group.end * n_pairs];
            for (at, row) in group.clone().enumerate() {
                let places = all[at..].iter_mut().step_by(group.len());
                for (place, two) in places.zip(x[row * k..][..k].chunks(2)) {
                    *place = pair(round(&two[0]), two.get(1).map_or(0, round));
                }
            }
        }
        Self { n_rows, pairs }
    }
}

/// The tiles of one thread, all rows.
struct Multiply<'a> {
    weights: &'a PairTiles,
    rows: &'a RoundedPairs,
    tiles: Range<usize>,
    n: usize,
    out: &'a Shared<'a, f32>,
}

impl Kernel for Multiply<'_> {
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

impl Multiply<'_> {
    /// Sixteen outputs of rows `first .. first + R`.
    #[inline(always)]
    fn rows<L: Lanes, const R: usize>(&self, tile: usize, first: usize) {
        let n_pairs = self.weights.n_pairs;
        let weights = &self.weights.weights[tile * n_pairs..][..n_pairs];
        // The first rows of a tile bring the next one into the cache.
        let next = if first == 0 { (tile + 1) * n_pairs } else { self.weights.weights.len() };
        let mut ahead = self.weights.weights[next..].chunks(AHEAD).take(n_pairs.div_ceil(AHEAD));
        let mut sums = [L::splat(0.0); R];
        let mut at = first * n_pairs;
        for weights in weights.chunks(AHEAD) {
            if let Some(next) = ahead.next().and_then(|next| next.first_chunk::<AHEAD>()) {
                L::prefetch(next);
            }
            for weights in weights {
                let values: &[u32; R] = rows_of(&self.rows.pairs, at);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = sum.dot2(weights, *value);
                }
                at += R;
            }
        }
        store(self.out, self.n, tile, first, &sums);
    }
}
