//! Rounding activations to signed bytes, per block of 32 along the row.

use std::ops::Range;

use crate::lanes::{Kernel, Lanes};
use crate::path::Path;
use crate::threads::{Shared, split};

/// Values that share one activation scale.
pub(crate) const BLOCK: usize = 32;

/// Blocks whose largest value is smaller count as zeros: the inverse of their scale would overflow.
const SMALLEST: f32 = f32::from_bits(27 << 23); // 2^-100

/// Rows whose sums a product keeps in registers together.
const MAX_ROWS: usize = 8;

/// The rows in groups of at most [`MAX_ROWS`], as even as can be: nine are better five and four than eight and one.
#[inline(always)]
pub(crate) fn row_groups(n_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = n_rows - first;
        let rows = first..first + left.div_ceil(left.div_ceil(MAX_ROWS).max(1));
        first = rows.end;
        Some(rows).filter(|rows| !rows.is_empty())
    })
}

/// Rows of activations as signed bytes. Everything lies as `[group of rows][block][row of the group]`, which is the
/// order in which a product reads it.
pub(crate) struct Rounded {
    pub(crate) n_rows: usize,
    pub(crate) n_blocks: usize,
    /// The values of a block, four signed bytes in each integer, the first in the lowest bits.
    pub(crate) values: Vec<[i32; BLOCK / 4]>,
    /// What the bytes are multiplied by: largest magnitude / 127. Not a number where a value is not finite.
    pub(crate) scales: Vec<f32>,
    /// The sums of the bytes of each half block.
    pub(crate) sums: Vec<[i32; 2]>,
}

impl Rounded {
    /// Rounds `x [n_rows, k]`, `k` a multiple of [`BLOCK`].
    pub(crate) fn new(path: Path, x: &[f32], n_rows: usize, k: usize) -> Self {
        let n_blocks = k / BLOCK;
        let mut values = vec![[0; BLOCK / 4]; n_blocks * n_rows];
        let mut scales = vec![0.0; n_blocks * n_rows];
        let mut sums = vec![[0; 2]; n_blocks * n_rows];
        let shared = (Shared::new(&mut values), Shared::new(&mut scales), Shared::new(&mut sums));
        split(n_blocks, n_rows * BLOCK, |blocks| {
            for rows in row_groups(n_rows) {
                let first = rows.start * n_blocks + blocks.start * rows.len();
                let len = blocks.len() * rows.len();
                // SAFETY: `split` hands every block to exactly one call, and every row is in one group.
                #[allow(unsafe_code)]
                let (values, scales, sums) =
                    unsafe { (shared.0.slice(first, len), shared.1.slice(first, len), shared.2.slice(first, len)) };
                path.run(Round { x, k, rows, first_block: blocks.start, values, scales, sums });
            }
        });
        Self { n_rows, n_blocks, values, scales, sums }
    }
}

struct Round<'a> {
    x: &'a [f32],
    k: usize,
    rows: Range<usize>,
    first_block: usize,
    values: &'a mut [[i32; BLOCK / 4]],
    scales: &'a mut [f32],
    sums: &'a mut [[i32; 2]],
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, k, rows, first_block, values, scales, sums } = self;
        let mut starts = (first_block..).flat_map(|block| rows.clone().map(move |row| row * k + block * BLOCK));
        for ((values, scale), sums) in values.iter_mut().zip(scales).zip(sums) {
            if let Some(block) = starts.next().and_then(|start| x[start..].first_chunk::<BLOCK>()) {
                *scale = round_block(block, values, sums);
            }
        }
    }
}

/// Rounds one block, nearest and ties to even; answers its scale.
#[inline(always)]
fn round_block(x: &[f32; BLOCK], values: &mut [i32; BLOCK / 4], sums: &mut [i32; 2]) -> f32 {
    // Added to a number below 2^22 this leaves its nearest integer, ties to even, in the lowest bits.
    const TO_INTEGER: f32 = 12_582_912.0;
    // Magnitudes compare as their bits do, and infinities and NaN come out on top.
    let mut largest = 0u32;
    for value in x {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return f32::NAN;
    }
    if largest < SMALLEST {
        return 0.0;
    }
    let inverse = 127.0 / largest;
    let mut bytes = [0i8; BLOCK];
    for i in 0..BLOCK {
        bytes[i] = (x[i] * inverse + TO_INTEGER).to_bits() as i8;
    }
    for (half, sum) in sums.iter_mut().enumerate() {
        *sum = bytes[half * 16..][..16].iter().map(|byte| i32::from(*byte)).sum();
    }
    for (i, value) in values.iter_mut().enumerate() {
        *value = i32::from_le_bytes([0, 1, 2, 3].map(|j| bytes[4 * i + j] as u8));
    }
    largest / 127.0
}
