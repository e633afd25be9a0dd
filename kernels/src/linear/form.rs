//! How quantised weights lie in memory: tiles of sixteen outputs, block after block of 32 along `k`.
//!
//! A block of a tile is eight groups of four `k`; unpacked, a group is one cache line with four bytes for each of the
//! sixteen outputs, which is what the byte dot product eats. Codes are unsigned: `weight = scale * (code - offset) + min`.

use crate::lanes::{LANES, Lanes, Line};

/// One block of a tile as it is read from a file: what the layouts pack.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// `[output][i]`.
    pub(crate) codes: [[u8; 32]; LANES],
    /// `[half][output]`; both halves are equal where a block has one scale.
    pub(crate) scales: [[f32; LANES]; 2],
    /// As the scales.
    pub(crate) mins: [[f32; LANES]; 2],
}

impl Block {
    /// Weights that multiply to zero.
    pub(crate) const ZERO: Self = Self { codes: [[0; 32]; LANES], scales: [[0.0; LANES]; 2], mins: [[0.0; LANES]; 2] };

    /// The sixty-four codes of a group.
    fn group(&self, group: usize) -> [u8; 64] {
        std::array::from_fn(|i| self.codes[i / 4][4 * group + i % 4])
    }
}

/// How the codes of a block lie.
pub(crate) trait Codes: 'static {
    /// A block's worth.
    type Packed: Copy + Send + Sync;
    /// Lays out a block's codes.
    fn pack(block: &Block) -> Self::Packed;
    /// The codes of group `group`, 0..8.
    fn group<L: Lanes>(packed: &Self::Packed, group: usize) -> L::Codes;
}

/// A byte for each code, for formats of more than five bits.
pub(crate) struct Bytes;

impl Codes for Bytes {
    type Packed = [Line; 8];

    fn pack(block: &Block) -> [Line; 8] {
        std::array::from_fn(|group| Line(block.group(group)))
    }
    #[inline(always)]
    fn group<L: Lanes>(packed: &[Line; 8], group: usize) -> L::Codes {
        L::codes(&packed[group])
    }
}

/// Four bits for each code, for formats of no more: groups 0..4 are the low nibbles of four lines, groups 4..8 the high ones.
pub(crate) struct Nibbles;

impl Codes for Nibbles {
    type Packed = [Line; 4];

    fn pack(block: &Block) -> [Line; 4] {
        std::array::from_fn(|line| {
            let (low, high) = (block.group(line), block.group(line + 4));
            Line(std::array::from_fn(|i| low[i] & 15 | high[i] << 4))
        })
    }
    #[inline(always)]
    fn group<L: Lanes>(packed: &[Line; 4], group: usize) -> L::Codes {
        if group < 4 { L::low_nibbles(&packed[group]) } else { L::high_nibbles(&packed[group - 4]) }
    }
}

/// Five bits for each code: nibbles, and a line with the fifth bits, eight bytes for each group.
pub(crate) struct FiveBits;

impl Codes for FiveBits {
    type Packed = ([Line; 4], [u64; 8]);

    fn pack(block: &Block) -> ([Line; 4], [u64; 8]) {
        let fifth =
            |group| block.group(group).iter().enumerate().fold(0, |bits, (i, code)| bits | u64::from(code >> 4) << i);
        (Nibbles::pack(block), std::array::from_fn(fifth))
    }
    #[inline(always)]
    fn group<L: Lanes>((nibbles, fifth): &([Line; 4], [u64; 8]), group: usize) -> L::Codes {
        L::add_16(Nibbles::group::<L>(nibbles, group), fifth[group])
    }
}

/// How the scales and minima of a block lie.
pub(crate) trait Scaling: 'static {
    /// A block's worth.
    type Packed: Copy + Send + Sync;
    /// Scales per block: 1, or 2 where each 16 values have their own.
    const PARTS: usize;
    /// True where weights have a minimum.
    const HAS_MINS: bool;

    /// Lays out a block's scales and minima.
    fn pack(block: &Block) -> Self::Packed;
    /// The scales of part `part`, 0..`PARTS`.
    fn scales<L: Lanes>(packed: &Self::Packed, part: usize) -> L;
    /// What is added to every weight of part `part`; zeros without minima.
    fn mins<L: Lanes>(packed: &Self::Packed, part: usize) -> L;
}

/// One f16 scale: `Q4_0`, `Q5_0`, `Q8_0`.
pub(crate) struct HalfScale;

impl Scaling for HalfScale {
    type Packed = [u16; LANES];
    const PARTS: usize = 1;
    const HAS_MINS: bool = false;

    fn pack(block: &Block) -> [u16; LANES] {
        // These scales were f16 in the file, so nothing is lost.
        block.scales[0].map(|scale| half::f16::from_f32(scale).to_bits())
    }
    #[inline(always)]
    fn scales<L: Lanes>(packed: &[u16; LANES], _part: usize) -> L {
        L::load_f16(packed)
    }
    #[inline(always)]
    fn mins<L: Lanes>(_packed: &[u16; LANES], _part: usize) -> L {
        L::splat(0.0)
    }
}

/// An f32 scale for each half block: `Q3_K`, `Q6_K`.
pub(crate) struct ScalePerHalf;

impl Scaling for ScalePerHalf {
    type Packed = [[f32; LANES]; 2];
    const PARTS: usize = 2;
    const HAS_MINS: bool = false;

    fn pack(block: &Block) -> [[f32; LANES]; 2] {
        block.scales
    }
    #[inline(always)]
    fn scales<L: Lanes>(packed: &[[f32; LANES]; 2], part: usize) -> L {
        L::load(&packed[part])
    }
    #[inline(always)]
    fn mins<L: Lanes>(_packed: &[[f32; LANES]; 2], _part: usize) -> L {
        L::splat(0.0)
    }
}

/// An f32 scale and minimum: `Q4_1`, `Q5_1`, `Q4_K`, `Q5_K`.
pub(crate) struct ScaleAndMin;

impl Scaling for ScaleAndMin {
    type Packed = [[f32; LANES]; 2];
    const PARTS: usize = 1;
    const HAS_MINS: bool = true;

    fn pack(block: &Block) -> [[f32; LANES]; 2] {
        [block.scales[0], block.mins[0]]
    }
    #[inline(always)]
    fn scales<L: Lanes>(packed: &[[f32; LANES]; 2], _part: usize) -> L {
        L::load(&packed[0])
    }
    #[inline(always)]
    fn mins<L: Lanes>(packed: &[[f32; LANES]; 2], _part: usize) -> L {
        L::load(&packed[1])
    }
}

/// An f32 scale and minimum for each half block: `Q2_K`.
pub(crate) struct ScaleAndMinPerHalf;

impl Scaling for ScaleAndMinPerHalf {
    type Packed = [[[f32; LANES]; 2]; 2];
    const PARTS: usize = 2;
    const HAS_MINS: bool = true;

    fn pack(block: &Block) -> [[[f32; LANES]; 2]; 2] {
        [block.scales, block.mins]
    }
    #[inline(always)]
    fn scales<L: Lanes>(packed: &[[[f32; LANES]; 2]; 2], part: usize) -> L {
        L::load(&packed[0][part])
    }
    #[inline(always)]
    fn mins<L: Lanes>(packed: &[[[f32; LANES]; 2]; 2], part: usize) -> L {
        L::load(&packed[1][part])
    }
}
