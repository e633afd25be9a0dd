//! Outliving errors: waits that double up to a cap, and one log line per wait instead of a flood.

use std::fmt::Display;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);
/// At the longest wait, one line in so many failures.
const LINE_EVERY: u32 = 12;

/// How a loop bears with its backends.
pub(crate) struct Patience {
    work: &'static str,
    failures: u32,
}

impl Patience {
    pub(crate) fn new(work: &'static str) -> Self {
        Self { work, failures: 0 }
    }

    /// Takes note of a failure; says how long to wait before the next try.
    pub(crate) fn failed(&mut self, err: &dyn std::error::Error) -> Duration {
        let wait = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        if wait < LONGEST || self.failures.is_multiple_of(LINE_EVERY) {
            tracing::warn!(
                work = self.work,
                error = %Chain(err),
                failures = self.failures + 1,
                wait_ms = wait.as_millis(),
                "the scheduler waits for its backends"
            );
        }
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Takes note that it works.
    pub(crate) fn succeeded(&mut self) {
        if self.failures > 0 {
            tracing::info!(work = self.work, failures = self.failures, "the scheduler's backends are back");
            self.failures = 0;
        }
    }
}

/// An error with all that caused it.
pub(crate) struct Chain<'e>(pub(crate) &'e dyn std::error::Error);

impl Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_seconds_and_start_again() {
        let mut patience = Patience::new("test");
        let err = std::io::Error::other("down");
        let waits: Vec<u128> = (0..7).map(|_| patience.failed(&err).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        patience.succeeded();
        assert_eq!(patience.failed(&err).as_millis(), 250);
        for _ in 0..100 {
            assert!(patience.failed(&err) <= LONGEST);
        }
    }
}
