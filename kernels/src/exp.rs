//! The exponential and what is made of it, the same bits on every path.

use crate::lanes::Lanes;

/// e to the power of `x`, within 2 units in the last place for -87 ..= 88 and held at the ends outside.
///
/// The polynomial and the split of ln 2 are those of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    // The constant comes first, so that what is not a number stays so.
    let x = L::splat(88.0).min(L::splat(-87.0).max(x));
    let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
    let r = n.fma(L::splat(-0.693_359_4), x);
    let r = n.fma(L::splat(2.121_944_4e-4), r);
    let mut poly = L::splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        poly = poly.fma(r, L::splat(coefficient));
    }
    let one = L::splat(1.0);
    poly.fma(r.mul(r), r).add(one).mul(n.pow2())
}

/// The hyperbolic tangent, within 2e-7 absolute.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    one.sub(L::splat(2.0).div(exp(x.add(x)).add(one)))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(x: L) -> L {
    x.div(L::splat(1.0).add(exp(L::splat(0.0).sub(x))))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    let cubic = x.mul(x).fma(L::splat(0.044_715), one);
    let inner = x.mul(cubic).mul(L::splat(0.797_884_6));
    x.mul(L::splat(0.5)).mul(tanh(inner).add(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Kernel, LANES};
    use crate::path::Path;

    struct Map<F: Functions>(Vec<f32>, F);

    trait Functions: Copy {
        fn apply<L: Lanes>(self, x: L) -> L;
    }

    #[derive(Clone, Copy)]
    enum Which {
        Exp,
        Tanh,
        Silu,
        Gelu,
    }

    impl Functions for Which {
        #[inline(always)]
        fn apply<L: Lanes>(self, x: L) -> L {
            match self {
                Self::Exp => exp(x),
                Self::Tanh => tanh(x),
                Self::Silu => silu(x),
                Self::Gelu => gelu_tanh(x),
            }
        }
    }

    impl<F: Functions> Kernel for Map<F> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<f32> {
            self.0
                .chunks(LANES)
                .flat_map(|chunk| self.1.apply(L::load_some(chunk, 0.0)).to_array()[..chunk.len()].to_vec())
                .collect()
        }
    }

    fn grid() -> Vec<f32> {
        (-40_000..=40_000).map(|i| i as f32 * 0.002).collect()
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        for which in [Which::Exp, Which::Tanh, Which::Silu, Which::Gelu] {
            let expected = Path::Portable.run(Map(grid(), which));
            for path in Path::available() {
                let got = path.run(Map(grid(), which));
                assert!(expected.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()), "{path:?}");
            }
        }
    }

    #[test]
    fn values_agree_with_f64() {
        let check = |which, f: fn(f64) -> f64, relative: f64, absolute: f64| {
            for (x, got) in grid().into_iter().zip(Path::Portable.run(Map(grid(), which))) {
                let expected = f(f64::from(x));
                let error = (f64::from(got) - expected).abs();
                assert!(error <= absolute + relative * expected.abs(), "f({x}) = {got}, expected {expected}");
            }
        };
        check(Which::Exp, f64::exp, 2.5e-7, 0.0);
        check(Which::Tanh, f64::tanh, 0.0, 2e-7);
        check(Which::Silu, |x| x / (1.0 + (-x).exp()), 5e-7, 1e-30);
        let gelu =
            |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh());
        check(Which::Gelu, gelu, 5e-7, 1e-6);
    }

    #[test]
    fn ends_are_held_and_nan_stays() {
        let got = Path::Portable.run(Map(vec![f32::NEG_INFINITY, 0.0, f32::NAN], Which::Exp));
        assert!(got[0] > 0.0 && got[0] < 2e-38);
        assert_eq!(got[1], 1.0);
        assert!(got[2].is_nan());
    }
}
