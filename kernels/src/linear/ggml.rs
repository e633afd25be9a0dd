//! Reading the GGUF block formats into codes, scales and minima, bit for bit.

use candle_core::quantized::GgmlDType;
use half::f16;

/// Where the codes of a format start, and what they are offset by.
///
/// `None` for formats that have no packed form here.
pub(crate) fn offset(dtype: GgmlDType) -> Option<i32> {
    match dtype {
        GgmlDType::Q4_0 => Some(8),
        GgmlDType::Q5_0 => Some(16),
        GgmlDType::Q8_0 => Some(128),
        GgmlDType::Q6K => Some(32),
        GgmlDType::Q3K => Some(4),
        GgmlDType::Q4_1 | GgmlDType::Q5_1 | GgmlDType::Q2K | GgmlDType::Q4K | GgmlDType::Q5K => Some(0),
        _ => None,
    }
}

/// 32 consecutive weights: `weight[i] = scales[i / 16] * (codes[i] - offset) + mins[i / 16]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) codes: [u8; 32],
    pub(crate) scales: [f32; 2],
    pub(crate) mins: [f32; 2],
}

/// The weights `32 * index ..` of a row in one of the formats that [`offset`] knows.
pub(crate) fn part(dtype: GgmlDType, row: &[u8], index: usize) -> Part {
    let per_block = dtype.block_size() / 32;
    let block = &row[index / per_block * dtype.type_size()..][..dtype.type_size()];
    let sub = index % per_block;
    match dtype {
        GgmlDType::Q4_0 => simple(block, None, &[], &block[2..]),
        GgmlDType::Q4_1 => simple(block, Some(&block[2..4]), &[], &block[4..]),
        GgmlDType::Q5_0 => simple(block, None, &block[2..6], &block[6..]),
        GgmlDType::Q5_1 => simple(block, Some(&block[2..4]), &block[4..8], &block[8..]),
        GgmlDType::Q8_0 => {
            let scale = half(block);
            Part { codes: std::array::from_fn(|i| block[2 + i] ^ 0x80), scales: [scale; 2], mins: [0.0; 2] }
        }
        GgmlDType::Q2K => q2_k(block, sub),
        GgmlDType::Q3K => q3_k(block, sub),
        GgmlDType::Q4K => k_quant(block, sub, &[], &block[16..]),
        GgmlDType::Q5K => k_quant(block, sub, &block[16..48], &block[48..]),
        GgmlDType::Q6K => q6_k(block, sub),
        other => unreachable!("{other:?} was refused before its blocks are read"),
    }
}

/// The f16 at the start of `bytes`.
fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The formats of 32 weights: low nibbles are the first sixteen, high ones the rest, `high` their fifth bits.
fn simple(block: &[u8], min: Option<&[u8]>, high: &[u8], nibbles: &[u8]) -> Part {
    let codes = std::array::from_fn(|i| {
        let low = if i < 16 { nibbles[i] & 15 } else { nibbles[i - 16] >> 4 };
        let fifth = high.get(i / 8).map_or(0, |byte| byte >> (i % 8) & 1);
        low | fifth << 4
    });
    Part { codes, scales: [half(block); 2], mins: [min.map_or(0.0, half); 2] }
}

/// `Q4_K` and `Q5_K`: 256 weights as four pairs of 32, a pair in the low and high nibbles of 32 bytes.
fn k_quant(block: &[u8], sub: usize, high: &[u8], nibbles: &[u8]) -> Part {
    let packed = &block[4..16];
    let (scale, min) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4)
    };
    let codes = std::array::from_fn(|i| {
        let low = nibbles[sub / 2 * 32 + i] >> (sub % 2 * 4) & 15;
        let fifth = high.get(i).map_or(0, |byte| byte >> sub & 1);
        low | fifth << 4
    });
    Part { codes, scales: [half(block) * f32::from(scale); 2], mins: [-(half(&block[2..]) * f32::from(min)); 2] }
}

/// `Q6_K`: 256 weights in two halves of 128, four runs of 32 in each; low four bits, high two bits, a scale per 16.
fn q6_k(block: &[u8], sub: usize) -> Part {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let (side, run) = (sub / 4, sub % 4);
    let codes = std::array::from_fn(|i| {
        let nibble = low[side * 64 + run % 2 * 32 + i] >> (run / 2 * 4) & 15;
        nibble | (high[side * 32 + i] >> (2 * run) & 3) << 4
    });
    let scale = |half_index: usize| half(&block[208..]) * f32::from(scales[2 * sub + half_index] as i8);
    Part { codes, scales: [scale(0), scale(1)], mins: [0.0; 2] }
}

/// The two low bits of 32 weights of a block of 256: four runs of 32 lie over one another in 32 bytes, twice.
fn two_bits(packed: &[u8], sub: usize, i: usize) -> u8 {
    packed[sub / 4 * 32 + i] >> (2 * (sub % 4)) & 3
}

/// `Q2_K`: two bits, and per 16 a scale in the low nibble of a byte and a minimum in the high one.
fn q2_k(block: &[u8], sub: usize) -> Part {
    let (packed, low) = (&block[2 * sub..2 * sub + 2], &block[16..80]);
    let (scale, min) = (half(&block[80..]), half(&block[82..]));
    Part {
        codes: std::array::from_fn(|i| two_bits(low, sub, i)),
        scales: std::array::from_fn(|half_index| scale * f32::from(packed[half_index] & 15)),
        mins: std::array::from_fn(|half_index| -(min * f32::from(packed[half_index] >> 4))),
    }
}

/// `Q3_K`: two low bits, a third for each of eight runs in 32 bytes, and per 16 a scale of six bits less 32.
fn q3_k(block: &[u8], sub: usize) -> Part {
    let (high, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let scale = |half_index: usize| {
        let nth = 2 * sub + half_index;
        let nibble = packed[nth % 8] >> (nth / 8 * 4) & 15;
        let bits = nibble | (packed[8 + nth % 4] >> (2 * (nth / 4)) & 3) << 4;
        half(&block[108..]) * f32::from(bits as i8 - 32)
    };
    Part {
        codes: std::array::from_fn(|i| two_bits(low, sub, i) | (high[i] >> sub & 1) << 2),
        scales: [scale(0), scale(1)],
        mins: [0.0; 2],
    }
}
