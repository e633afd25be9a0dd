//! The dynamic batcher: gathers what is done in a single pass (vectors, scores of given texts), so that it is computed
//! together. A batch is as large as it may be, or its oldest member has waited as long as it may.
//!
//! Generation needs none: who is there takes part in the next step, and stays for many.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::sequence::Prepared;

/// When a batch is let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SingleLimits {
    /// Sequences of a single pass that are computed at once, at least 1.
    pub largest_batch: usize,
    /// Longest time that one waits for others.
    pub longest_wait: Duration,
}

impl Default for SingleLimits {
    fn default() -> Self {
        Self { largest_batch: 32, longest_wait: Duration::from_millis(2) }
    }
}

/// Sequences that wait for company, in order of arrival.
pub(super) struct SingleBatcher {
    limits: SingleLimits,
    waiting: VecDeque<(Instant, Prepared)>,
}

impl SingleBatcher {
    pub(super) fn new(limits: SingleLimits) -> Self {
        let limits = SingleLimits { largest_batch: limits.largest_batch.max(1), ..limits };
        Self { limits, waiting: VecDeque::new() }
    }

    /// Takes one in that arrived now.
    pub(super) fn push(&mut self, prepared: Prepared, now: Instant) {
        self.waiting.push_back((now, prepared));
    }

    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How long until a batch is due, if nobody else comes: zero when one is, `None` when nobody waits.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        let (oldest, _) = self.waiting.front()?;
        if self.waiting.len() >= self.limits.largest_batch {
            return Some(Duration::ZERO);
        }
        Some(self.limits.longest_wait.saturating_sub(now.saturating_duration_since(*oldest)))
    }

    /// Those of the batch that is due, the ones that have waited longest; none when none is. `n_running` are still being
    /// computed: with them it is no larger than it may be.
    pub(super) fn take(&mut self, n_running: usize, now: Instant) -> impl Iterator<Item = Prepared> + '_ {
        let room = self.limits.largest_batch.saturating_sub(n_running);
        let n = if self.due_in(now) == Some(Duration::ZERO) { room.min(self.waiting.len()) } else { 0 };
        self.waiting.drain(..n).map(|(_, prepared)| prepared)
    }

    /// All of them: nothing is computed any more.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Prepared> + '_ {
        self.waiting.drain(..).map(|(_, prepared)| prepared)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::prepared;
    use super::*;

    const WAIT: Duration = Duration::from_millis(10);

    fn batcher(now: Instant, ids: std::ops::Range<u64>) -> SingleBatcher {
        let mut batcher = SingleBatcher::new(SingleLimits { largest_batch: 4, longest_wait: WAIT });
        for id in ids {
            batcher.push(prepared(id, 3, 0), now);
        }
        batcher
    }

    fn ids(batch: impl Iterator<Item = Prepared>) -> Vec<u64> {
        batch.map(|prepared| prepared.id.0).collect()
    }

    #[test]
    fn a_batch_waits_until_it_is_full_or_its_oldest_has_waited_enough() {
        let start = Instant::now();
        let mut batcher = batcher(start, 0..0);
        assert_eq!(batcher.due_in(start), None);
        batcher.push(prepared(1, 3, 0), start);
        batcher.push(prepared(2, 3, 0), start + WAIT / 2);
        assert_eq!(batcher.due_in(start + WAIT / 2), Some(WAIT / 2), "the oldest counts");
        assert_eq!(ids(batcher.take(0, start + WAIT / 2)), [0u64; 0]);
        assert_eq!(ids(batcher.take(0, start + WAIT)), [1, 2], "its time is over");
        assert!(batcher.is_empty());
        for id in 3..9 {
            batcher.push(prepared(id, 3, 0), start);
        }
        assert_eq!(batcher.due_in(start), Some(Duration::ZERO), "it is full");
        assert_eq!(ids(batcher.take(0, start)), [3, 4, 5, 6]);
        assert_eq!(ids(batcher.take(0, start)), [0u64; 0], "two are left, and may wait");
        assert_eq!(ids(batcher.take_all()), [7, 8]);
    }

    #[test]
    fn those_that_are_computed_count() {
        let now = Instant::now();
        let mut batcher = batcher(now, 0..9);
        assert_eq!(ids(batcher.take(4, now)), [0u64; 0]);
        assert_eq!(ids(batcher.take(3, now)), [0]);
        assert_eq!(ids(batcher.take(7, now)), [0u64; 0]);
        assert_eq!(ids(batcher.take(0, now)), [1, 2, 3, 4]);
    }
}
