//! A fault point for whole-system tests: a sequence with a given seed takes its worker down with it, as a request does
//! that trips a bug in a kernel or eats all memory.

use super::planner::Planner;

/// The variable that arms it: a seed, as a decimal number.
pub const ABORT_ON_SEED: &str = "PENSTOCK_FAULT_ABORT_ON_SEED";

/// An armed or unarmed fault point.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultPoint {
    abort_on_seed: Option<u64>,
}

impl FaultPoint {
    /// Reads [`ABORT_ON_SEED`]; says so loudly when it is armed.
    pub fn from_env() -> Self {
        let abort_on_seed = std::env::var(ABORT_ON_SEED).ok().and_then(|seed| seed.parse().ok());
        if let Some(seed) = abort_on_seed {
            tracing::warn!(seed, "fault point armed: this worker aborts when it runs a job with this seed");
        }
        Self { abort_on_seed }
    }

    /// Ends the process if the seed is among the running ones.
    pub(super) fn check(self, planner: &Planner) {
        if self.abort_on_seed.is_some_and(|seed| planner.is_running_seed(seed)) {
            tracing::error!("fault point: aborting");
            std::process::abort();
        }
    }
}
