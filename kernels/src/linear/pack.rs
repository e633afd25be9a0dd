//! Choosing and filling the packed form of a matrix.

use candle_core::quantized::GgmlDType;

use crate::error::{KernelError, Result};
use crate::lanes::LANES;
use crate::linear::float::{FloatTiles, Half};
use crate::linear::form::{Block, Bytes, Codes, FiveBits, HalfScale, Nibbles, ScaleAndMin, ScalePerHalf, Scaling};
use crate::linear::pairs::PairTiles;
use crate::linear::product::Tiles;
use crate::linear::quantise::BLOCK;
use crate::linear::{Inputs, ggml};
use crate::reference::check_bytes;
use crate::threads::{Shared, split};

/// A matrix in its packed form.
pub(crate) enum Weights {
    Q4_0(Tiles<Nibbles, HalfScale>),
    Q5_0(Tiles<FiveBits, HalfScale>),
    Q8_0(Tiles<Bytes, HalfScale>),
    Q4Min(Tiles<Nibbles, ScaleAndMin>),
    Q5Min(Tiles<FiveBits, ScaleAndMin>),
    Q6K(Tiles<Bytes, ScalePerHalf>),
    F32(FloatTiles<f32>),
    F16(FloatTiles<Half>),
    Bf16(PairTiles),
}

/// Evaluates one expression for whatever tiles a quantised matrix has, another for the floats, another for bf16 pairs.
macro_rules! each_kind {
    ($weights:expr, $tiles:ident => $quantised:expr, $floats:ident => $float:expr, $pairs:ident => $pair:expr) => {
        match $weights {
            Weights::Q4_0($tiles) => $quantised,
            Weights::Q5_0($tiles) => $quantised,
            Weights::Q8_0($tiles) => $quantised,
            Weights::Q4Min($tiles) => $quantised,
            Weights::Q5Min($tiles) => $quantised,
            Weights::Q6K($tiles) => $quantised,
            Weights::F32($floats) => $float,
            Weights::F16($floats) => $float,
            Weights::Bf16($pairs) => $pair,
        }
    };
}

impl Weights {
    pub(crate) fn from_ggml(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize) -> Result<Self> {
        check_bytes(dtype, blocks, n, k)?;
        Ok(match dtype {
            GgmlDType::F32 => Self::F32(FloatTiles::new(blocks, n, k)),
            GgmlDType::F16 => Self::F16(FloatTiles::new(blocks, n, k)),
            GgmlDType::BF16 => Self::Bf16(PairTiles::new(blocks, n, k)),
            GgmlDType::Q4_0 => Self::Q4_0(tiles(dtype, blocks, n, k)),
            GgmlDType::Q5_0 => Self::Q5_0(tiles(dtype, blocks, n, k)),
            GgmlDType::Q8_0 => Self::Q8_0(tiles(dtype, blocks, n, k)),
            GgmlDType::Q4_1 | GgmlDType::Q4K => Self::Q4Min(tiles(dtype, blocks, n, k)),
            GgmlDType::Q5_1 | GgmlDType::Q5K => Self::Q5Min(tiles(dtype, blocks, n, k)),
            GgmlDType::Q6K => Self::Q6K(tiles(dtype, blocks, n, k)),
            other => {
                return Err(KernelError::Format {
                    dtype: format!("{other:?}"),
                    what: "use Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16 or F32".into(),
                });
            }
        })
    }

    pub(crate) fn format_name(&self) -> &'static str {
        match self {
            Self::Q4_0(_) => "4-bit codes, f16 scale per 32",
            Self::Q5_0(_) => "5-bit codes, f16 scale per 32",
            Self::Q8_0(_) => "8-bit codes, f16 scale per 32",
            Self::Q4Min(_) => "4-bit codes, f32 scale and minimum per 32",
            Self::Q5Min(_) => "5-bit codes, f32 scale and minimum per 32",
            Self::Q6K(_) => "8-bit codes, f32 scale per 16",
            Self::F32(_) => "f32",
            Self::F16(_) => "f16",
            Self::Bf16(_) => "bf16 pairs",
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        each_kind!(self, tiles => tiles.bytes(), floats => floats.bytes(), pairs => pairs.bytes())
    }

    /// Writes the products of the inputs with this matrix, `[m, n]`, to `out`.
    pub(crate) fn multiply(&self, inputs: &mut Inputs<'_>, n: usize, out: &mut [f32]) {
        let (path, m) = (inputs.path, inputs.m);
        each_kind!(
            self,
            tiles => tiles.multiply(path, inputs.rounded(), n, out),
            floats => floats.multiply(path, inputs.columns(), m, n, out),
            pairs => pairs.multiply(path, inputs.pairs(), n, out)
        );
    }

    /// Weight by weight, as they stand in the packed form.
    #[cfg(test)]
    pub(crate) fn unpacked(&self, n: usize, k: usize) -> Vec<f32> {
        each_kind!(self, tiles => super::tests::unpacked(tiles, n, k), _floats => panic!("not quantised"), _pairs => panic!("not quantised"))
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.format_name(), self.bytes())
    }
}

/// Reads and lays out every block, on all threads.
fn tiles<C: Codes, S: Scaling>(dtype: GgmlDType, blocks: &[u8], n: usize, k: usize) -> Tiles<C, S> {
    let (n_tiles, n_blocks) = (n.div_ceil(LANES), k / BLOCK);
    let row_bytes = blocks.len() / n;
    let mut codes = vec![C::pack(&Block::ZERO); n_tiles * n_blocks];
    let mut scales = vec![S::pack(&Block::ZERO); n_tiles * n_blocks];
    let shared = (Shared::new(&mut codes), Shared::new(&mut scales));
    split(n_tiles, n_blocks * BLOCK * LANES, |range| {
        let (first, len) = (range.start * n_blocks, range.len() * n_blocks);
        // SAFETY: `split` hands every tile to exactly one call.
        #[allow(unsafe_code)]
        let (codes, scales) = unsafe { (shared.0.slice(first, len), shared.1.slice(first, len)) };
        for (index, (codes, scales)) in codes.iter_mut().zip(scales).enumerate() {
            let (tile, block_index) = (range.start + index / n_blocks, index % n_blocks);
            // Outputs past the last one stay zero.
            let mut block = Block::ZERO;
            for lane in 0..LANES.min(n - tile * LANES) {
                let row = &blocks[(tile * LANES + lane) * row_bytes..][..row_bytes];
                let part = ggml::part(dtype, row, block_index);
                block.codes[lane] = part.codes;
                block.scales[0][lane] = part.scales[0];
                block.scales[1][lane] = part.scales[1];
                block.mins[lane] = part.min;
            }
            (*codes, *scales) = (C::pack(&block), S::pack(&block));
        }
    });
    let offset = ggml::offset(dtype).expect("only formats with codes are laid out in tiles");
    Tiles { codes, scales, offset }
}
