//! Sixteen f32 lanes, and the operations that all kernels are written in.
//!
//! A kernel is written once, generic over [`Lanes`], and compiled for each [`Path`]. Every operation here is exact or
//! correctly rounded in every implementation, and no kernel sums lanes but by [`Lanes::sum`], so that all paths give the
//! same bits.
#![allow(unsafe_code)]
#![expect(clippy::needless_range_loop, reason = "lanes are counted, so that the compiler sees whole vectors")]

use half::f16;

use crate::path::Path;

/// Lanes of a vector, and outputs of a weight tile.
pub(crate) const LANES: usize = 16;

/// Four bytes for each of the sixteen lanes: one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

/// A piece of work compiled for each path. `run` and all that it calls per element must be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// What it answers.
    type Output;
    /// Does the work with the lanes of one path.
    fn run<L: Lanes>(self) -> Self::Output;
}

/// Sixteen f32 values.
pub(crate) trait Lanes: Copy {
    /// Sixteen i32 values.
    type Ints: Copy;
    /// Four unsigned bytes in each of sixteen lanes.
    type Codes: Copy;

    fn splat(value: f32) -> Self;
    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    fn load_f16(from: &[u16; LANES]) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    fn fma(self, factor: Self, term: Self) -> Self;
    /// `self > other ? self : other` per lane, so `other` where either is not a number.
    fn max(self, other: Self) -> Self;
    /// `self < other ? self : other` per lane, so `other` where either is not a number.
    fn min(self, other: Self) -> Self;
    /// To the nearest whole number, ties to even.
    fn round(self) -> Self;
    /// 2 to the power of `self`, a whole number in -126 ..= 127.
    fn pow2(self) -> Self;

    fn ints(value: i32) -> Self::Ints;
    fn from_ints(ints: Self::Ints) -> Self;
    fn codes(line: &Line) -> Self::Codes;
    /// The low four bits of every byte.
    fn low_nibbles(line: &Line) -> Self::Codes;
    /// The high four bits of every byte.
    fn high_nibbles(line: &Line) -> Self::Codes;
    /// `codes` with 16 added to byte `i` where bit `i` of `bits` is set.
    fn add_16(codes: Self::Codes, bits: u64) -> Self::Codes;
    /// Adds to each lane the products of its four unsigned bytes with the four signed bytes of `four`.
    fn dot4(sum: Self::Ints, codes: Self::Codes, four: i32) -> Self::Ints;

    /// Adds to each lane the product of the high halves of its pair and of `pair`, bf16 each, then that of the low ones:
    /// two fused multiply-adds.
    fn dot2(self, pairs: &[u32; LANES], pair: u32) -> Self;

    /// Asks for `what` to be brought into the cache.
    fn prefetch<T>(what: &T);

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut array = [0.0; LANES];
        self.store(&mut array);
        array
    }

    /// The first lanes from `from`, the rest `fill`.
    #[inline(always)]
    fn load_some(from: &[f32], fill: f32) -> Self {
        let mut array = [fill; LANES];
        array[..from.len()].copy_from_slice(from);
        Self::load(&array)
    }

    /// The largest lane, by halving; not a number only where a lane is not.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut array = self.to_array();
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                let other = array[lane + width];
                array[lane] = if other > array[lane] { other } else { array[lane] };
            }
        }
        array[0]
    }

    /// The sum of the lanes, by halving: lanes 0..8 plus lanes 8..16, and so on.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut array = self.to_array();
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                array[lane] += array[lane + width];
            }
        }
        array[0]
    }
}

/// The lanes as an array, for the compiler to vectorise as the path allows.
#[derive(Clone, Copy)]
pub(crate) struct Wide([f32; LANES]);

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> Wide {
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    Wide(out)
}

impl Lanes for Wide {
    type Ints = [i32; LANES];
    type Codes = [u8; 64];

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        Self(from.map(|bits| f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        zip(self.0, other.0, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        zip(self.0, other.0, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        zip(self.0, other.0, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        zip(self.0, other.0, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        let mut out = term.0;
        for lane in 0..LANES {
            out[lane] = self.0[lane].mul_add(factor.0[lane], out[lane]);
        }
        Self(out)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        zip(self.0, other.0, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        zip(self.0, other.0, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        Self(self.0.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23)))
    }
    #[inline(always)]
    fn ints(value: i32) -> [i32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    fn from_ints(ints: [i32; LANES]) -> Self {
        Self(ints.map(|value| value as f32))
    }
    #[inline(always)]
    fn codes(line: &Line) -> [u8; 64] {
        line.0
    }
    #[inline(always)]
    fn low_nibbles(line: &Line) -> [u8; 64] {
        line.0.map(|byte| byte & 15)
    }
    #[inline(always)]
    fn high_nibbles(line: &Line) -> [u8; 64] {
        line.0.map(|byte| byte >> 4)
    }
    #[inline(always)]
    fn add_16(mut codes: [u8; 64], bits: u64) -> [u8; 64] {
        for (i, code) in codes.iter_mut().enumerate() {
            *code += ((bits >> i & 1) as u8) << 4;
        }
        codes
    }
    #[inline(always)]
    fn dot2(self, pairs: &[u32; LANES], pair: u32) -> Self {
        let (low, high) = (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000));
        let mut out = self.0;
        for lane in 0..LANES {
            out[lane] = f32::from_bits(pairs[lane] & 0xffff_0000).mul_add(high, out[lane]);
            out[lane] = f32::from_bits(pairs[lane] << 16).mul_add(low, out[lane]);
        }
        Self(out)
    }
    #[inline(always)]
    fn prefetch<T>(_what: &T) {}
    #[inline(always)]
    fn dot4(mut sum: [i32; LANES], codes: [u8; 64], four: i32) -> [i32; LANES] {
        let four = four.to_le_bytes().map(|byte| i32::from(byte as i8));
        for lane in 0..LANES {
            for i in 0..4 {
                sum[lane] += i32::from(codes[4 * lane + i]) * four[i];
            }
        }
        sum
    }
}

/// Runs `kernel` compiled for `path`; [`Path::run`] has checked that the machine has it.
pub(crate) fn run_on<K: Kernel>(path: Path, kernel: K) -> K::Output {
    match path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Path::run`, the only caller, has asserted that the machine has the path's features.
        Path::Avx512Bf16 => unsafe { x86::avx512_bf16(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Path::Avx512 => unsafe { x86::avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Path::Avx2 => unsafe { x86::avx2(kernel) },
        _ => kernel.run::<Wide>(),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Kernel, LANES, Lanes, Line, Wide};

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Wide>()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    pub(super) fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Zmm<false>>()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma")]
    pub(super) fn avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Zmm<true>>()
    }

    /// One 512-bit register, with the dot product of bf16 pairs or without. Only [`avx512`] and [`avx512_bf16`] name this
    /// type, so the instructions below run nowhere else.
    #[derive(Clone, Copy)]
    pub(super) struct Zmm<const BF16: bool>(__m512);

    // SAFETY of the whole block: reached only through `avx512` and `avx512_bf16`, whose features cover every intrinsic used
    // with their `BF16`; the pointers of loads and stores come from references to arrays of the vector's size.
    impl<const BF16: bool> Lanes for Zmm<BF16> {
        type Ints = __m512i;
        type Codes = __m512i;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        fn load(from: &[f32; LANES]) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn load_f16(from: &[u16; LANES]) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) })
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn fma(self, factor: Self, term: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_min_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn round(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
        }
        #[inline(always)]
        fn pow2(self) -> Self {
            // SAFETY: see above.
            Self(unsafe {
                let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
            })
        }
        #[inline(always)]
        fn ints(value: i32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        fn from_ints(ints: __m512i) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_cvtepi32_ps(ints) })
        }
        #[inline(always)]
        fn codes(line: &Line) -> __m512i {
            // SAFETY: see above; a `Line` is aligned to its 64 bytes.
            unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
        }
        #[inline(always)]
        fn low_nibbles(line: &Line) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_and_si512(Self::codes(line), _mm512_set1_epi8(15)) }
        }
        #[inline(always)]
        fn high_nibbles(line: &Line) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(Self::codes(line)), _mm512_set1_epi8(15)) }
        }
        #[inline(always)]
        fn add_16(codes: __m512i, bits: u64) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16)) }
        }
        #[inline(always)]
        fn dot2(self, pairs: &[u32; LANES], pair: u32) -> Self {
            // SAFETY: see above; the branch with the bf16 instruction is compiled into `avx512_bf16` alone.
            Self(unsafe {
                let (pairs, pair) = (_mm512_loadu_si512(pairs.as_ptr().cast()), _mm512_set1_epi32(pair as i32));
                if BF16 {
                    let (pairs, pair) = (
                        std::mem::transmute::<__m512i, __m512bh>(pairs),
                        std::mem::transmute::<__m512i, __m512bh>(pair),
                    );
                    _mm512_dpbf16_ps(self.0, pairs, pair)
                } else {
                    let low = |pairs| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
                    let high =
                        |pairs| _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
                    _mm512_fmadd_ps(low(pairs), low(pair), _mm512_fmadd_ps(high(pairs), high(pair), self.0))
                }
            })
        }
        #[inline(always)]
        fn prefetch<T>(what: &T) {
            let start = std::ptr::from_ref(what).cast::<i8>();
            for line in (0..size_of::<T>()).step_by(64) {
                // SAFETY: inside `what`, which is not even read.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(start.add(line)) }
            }
        }
        #[inline(always)]
        fn dot4(sum: __m512i, codes: __m512i, four: i32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(four)) }
        }
    }
}
