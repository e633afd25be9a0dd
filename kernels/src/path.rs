//! Which instructions the CPU kernels run on.

use std::sync::OnceLock;

use crate::error::{KernelError, Result};
use crate::lanes::{Kernel, run_on};

/// The variable that forces a lower path, for comparing them and for reproducing another machine's numbers.
pub(crate) const VARIABLE: &str = "PENSTOCK_CPU_KERNELS";

/// One compiled version of the kernels. All of them do the same operations in the same order, so all give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// What every machine of the target has.
    Portable,
    /// The same code compiled for AVX2 and FMA.
    Avx2,
    /// AVX-512 with the byte dot product (VNNI).
    Avx512,
    /// That with the dot product of bf16 pairs.
    Avx512Bf16,
}

impl Path {
    /// Best first.
    const ALL: [Self; 4] = [Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Portable];

    /// The paths that this machine can run, best first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|path| path.is_available())
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && Self::Avx2.is_available()
            }
            Self::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && Self::Avx512.is_available(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// The path of this process: the best one, unless the variable forces another. Read once.
    pub(crate) fn current() -> Result<Self> {
        static CURRENT: OnceLock<std::result::Result<Path, String>> = OnceLock::new();
        let current = CURRENT.get_or_init(|| match std::env::var(VARIABLE) {
            Err(std::env::VarError::NotPresent) => Self::choose(None),
            Err(error) => Err(error.to_string()),
            Ok(name) => Self::choose(Some(&name)),
        });
        current.clone().map_err(|what| KernelError::Path { variable: VARIABLE, what })
    }

    /// The path called `name`, or the best one.
    fn choose(name: Option<&str>) -> std::result::Result<Self, String> {
        let wanted = match name {
            None | Some("") => None,
            Some("portable") => Some(Self::Portable),
            Some("avx2") => Some(Self::Avx2),
            Some("avx512") => Some(Self::Avx512),
            Some("avx512-bf16") => Some(Self::Avx512Bf16),
            Some(other) => return Err(format!("{other:?} is not one of portable, avx2, avx512, avx512-bf16")),
        };
        match wanted {
            None => Ok(Self::available().next().unwrap_or(Self::Portable)),
            Some(path) if path.is_available() => Ok(path),
            Some(path) => Err(format!("this machine cannot run {}", path.name())),
        }
    }

    /// The name in a release's numerics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-vnni-bf16",
        }
    }

    /// Runs `kernel` compiled for this path.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_available(), "a path is only ever chosen where the machine has it");
        run_on(self, kernel)
    }
}

/// The instructions that the CPU kernels run on, for a release's numerics: `"avx512-vnni-bf16"`, `"avx512-vnni"`, `"avx2"` or
/// `"portable"`.
///
/// All of them give the same bits, but for sums of bf16 products below 2^-126, which the first one takes for zero.
/// `PENSTOCK_CPU_KERNELS` (`portable`, `avx2`, `avx512` or `avx512-bf16`) forces one; a value that is
/// unknown, or that this machine cannot run, reads as `"refused"` here, and every kernel then refuses to run.
#[must_use]
pub fn cpu_path() -> &'static str {
    Path::current().map_or("refused", Path::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_path_is_taken_and_a_wrong_name_is_refused() {
        assert_eq!(Path::choose(Some("portable")), Ok(Path::Portable));
        assert_eq!(Path::choose(None), Path::choose(Some("")));
        assert!(Path::choose(Some("avx1024")).is_err_and(|what| what.contains("avx1024")));
    }
}
