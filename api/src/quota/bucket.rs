//! So much a minute: a bucket that holds a minute's amount and fills evenly.

use std::time::{Duration, Instant};

/// What a limit is of.
const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_NANOS: u128 = MINUTE.as_nanos();

/// What was taken, as the time at which it is there again. So a limit that changes takes effect on what is left: who
/// had used half, has used half.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Time until it is full.
    pub fn reset(&self, now: Instant) -> Duration {
        self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// What can be taken of it now, where `limit` comes in a minute.
    pub fn remaining(&self, limit: u64, now: Instant) -> u64 {
        let left = MINUTE.saturating_sub(self.reset(now)).as_nanos();
        u64::try_from(u128::from(limit) * left / MINUTE_NANOS).unwrap_or(limit)
    }

    /// How long to wait until `amount`, which is at most `limit`, can be taken.
    pub fn wait(&self, amount: u64, limit: u64, now: Instant) -> Duration {
        (self.reset(now) + cost(amount, limit)).saturating_sub(MINUTE)
    }

    /// Takes what [`Bucket::wait`] had no wait for.
    pub fn take(&mut self, amount: u64, limit: u64, now: Instant) {
        self.full_at = Some(now + self.reset(now) + cost(amount, limit));
    }
}

/// The time in which so much comes. Rounded down, so that a whole minute's amount is never more than a minute.
fn cost(amount: u64, limit: u64) -> Duration {
    let nanos = u128::from(amount) * MINUTE_NANOS / u128::from(limit.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn it_holds_a_minutes_amount_and_fills_evenly() {
        let now = Instant::now();
        let mut bucket = Bucket::default();
        assert_eq!((bucket.remaining(6, now), bucket.reset(now)), (6, secs(0)));
        for left in (0..6).rev() {
            assert_eq!(bucket.wait(1, 6, now), secs(0));
            bucket.take(1, 6, now);
            assert_eq!(bucket.remaining(6, now), left);
        }
        // One comes every ten seconds.
        assert_eq!((bucket.wait(1, 6, now), bucket.wait(3, 6, now), bucket.reset(now)), (secs(10), secs(30), secs(60)));
        let later = now + secs(25);
        assert_eq!((bucket.remaining(6, later), bucket.wait(2, 6, later)), (2, secs(0)));
        assert_eq!((bucket.wait(3, 6, later), bucket.reset(later)), (secs(5), secs(35)));
        // It does not fill further than full.
        assert_eq!(bucket.remaining(6, now + secs(1_000)), 6);
    }

    #[test]
    fn amounts_that_divide_no_minute_are_counted_exactly() {
        for limit in [1, 7, 11, 13, 59, 61, 999, 7_777, 1_000_000_000] {
            let now = Instant::now();
            let mut bucket = Bucket::default();
            let steps = limit.min(100);
            for taken in 1..=steps {
                let amount = limit / steps;
                assert_eq!(bucket.wait(amount, limit, now), secs(0), "{limit}");
                bucket.take(amount, limit, now);
                assert_eq!(bucket.remaining(limit, now), limit - taken * amount, "{limit}");
            }
            bucket.take(bucket.remaining(limit, now), limit, now);
            assert_eq!(bucket.remaining(limit, now), 0);
            assert!(bucket.wait(1, limit, now) > Duration::ZERO, "{limit}");
        }
    }

    #[test]
    fn a_new_limit_counts_for_what_is_left() {
        let now = Instant::now();
        let mut bucket = Bucket::default();
        bucket.take(50, 100, now);
        assert_eq!((bucket.remaining(100, now), bucket.remaining(10, now), bucket.remaining(1_000, now)), (50, 5, 500));
    }
}
