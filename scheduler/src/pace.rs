//! How deep a queue is filled. Whoever is in a queue comes before whoever is not, whatever the tenants' turns in the store
//! say; so it is given what its workers take within a moment, and no more.

use std::time::Duration;

use tokio::time::Instant;

/// How much of what is taken lies ready. Several times as long as it takes to look again and to publish.
const AHEAD: Duration = Duration::from_millis(50);
/// Ready messages of the slowest queue, so that a worker that has room finds some.
const LEAST: u64 = 4;
/// Ready messages of a queue of which nothing is known.
const FIRST: u64 = 32;
/// What was seen longer ago than this hardly counts any more.
const MEMORY: Duration = Duration::from_millis(100);
/// The shortest time of which a first look makes a rate.
const SHORTEST: Duration = Duration::from_millis(15);
/// A queue in which nothing has happened for so long stands still.
const STILL: Duration = Duration::from_millis(500);

/// How fast a queue is emptied, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Messages taken per second, of late.
    rate: Option<f64>,
    /// What was ready after the last look and what was given then, and when that was.
    left: Option<(u64, Instant)>,
    /// Messages taken by the last look, if none was left then: the workers may have room for many more.
    emptied: u64,
    /// When something was last taken or given.
    moved_at: Option<Instant>,
}

impl Pace {
    /// Takes note of what is ready now; answers how many were taken since the last look.
    pub(crate) fn saw(&mut self, ready: u64, now: Instant) -> u64 {
        let Some((left, looked_at)) = self.left.replace((ready, now)) else { return 0 };
        // More than there were: others published too, or a worker gave some back.
        let taken = left.saturating_sub(ready);
        self.emptied = if ready == 0 { taken } else { 0 };
        if taken > 0 {
            self.moved_at = Some(now);
        }
        if left > 0 {
            self.count(taken, now - looked_at);
        } else if !self.is_moving(now) {
            // It was empty for a while, which says nothing about its workers.
            self.rate = None;
        }
        taken
    }

    /// Smooths over [`MEMORY`], looks that follow one another quickly as well as those that do not.
    fn count(&mut self, taken: u64, during: Duration) {
        let Some(before) = self.rate else {
            self.rate = Some(taken as f64 / during.max(SHORTEST).as_secs_f64());
            return;
        };
        let seconds = during.as_secs_f64().max(1e-6);
        let kept = (-seconds / MEMORY.as_secs_f64()).exp();
        self.rate = Some(before * kept + taken as f64 / seconds * (1.0 - kept));
    }

    /// Takes note of messages that were published after the last look.
    pub(crate) fn gave(&mut self, messages: u64, now: Instant) {
        if messages > 0 {
            self.moved_at = Some(now);
        }
        let (left, looked_at) = self.left.unwrap_or((0, now));
        self.left = Some((left + messages, looked_at));
    }

    /// How many messages should be ready, in a queue of at most `limit`. Twice what was taken where that was all.
    pub(crate) fn depth(&self, limit: u64) -> u64 {
        let depth = match self.rate {
            None => FIRST,
            // A rate is a finite number of messages, so its share is one too.
            Some(rate) => ((rate * AHEAD.as_secs_f64()).round() as u64).max(LEAST),
        };
        depth.max(self.emptied.saturating_mul(2)).min(limit)
    }

    /// Whether something was taken or given a moment ago, so that another look may find a change.
    pub(crate) fn is_moving(&self, now: Instant) -> bool {
        self.moved_at.is_some_and(|moved_at| now.saturating_duration_since(moved_at) < STILL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 256;

    /// A queue, the messages in it, and the time.
    struct Watched {
        pace: Pace,
        ready: u64,
        now: Instant,
    }

    impl Watched {
        /// A queue that nobody knew, at its first look.
        fn new() -> Self {
            let mut watched = Self { pace: Pace::default(), ready: 0, now: Instant::now() };
            watched.look(0, 0);
            watched
        }

        /// After so long, in which so many were taken, looks and fills up; answers the depth.
        fn look(&mut self, after_ms: u64, taken: u64) -> u64 {
            self.now += Duration::from_millis(after_ms);
            self.ready -= taken;
            self.pace.saw(self.ready, self.now);
            let depth = self.pace.depth(LIMIT);
            let given = depth.saturating_sub(self.ready);
            self.pace.gave(given, self.now);
            self.ready += given;
            depth
        }

        /// A look after 15 ms in which all were taken.
        fn emptied(&mut self) -> u64 {
            self.look(15, self.ready)
        }
    }

    #[test]
    fn a_thousand_a_second_have_fifty_ready() {
        let mut queue = Watched::new();
        assert_eq!(queue.ready, 32, "nothing is known yet");
        for _ in 0..100 {
            assert_eq!(queue.look(15, 15), 50);
        }
        // Half as fast: 500/s × 50 ms, within a few times 100 ms.
        let depths: Vec<u64> = (0..40).map(|n| queue.look(15, 7 + n % 2)).collect();
        assert!((24..=26).contains(&depths[39]), "{depths:?}");
        assert!(depths.is_sorted_by(|a, b| a + 1 >= *b), "{depths:?}");
    }

    #[test]
    fn looks_that_come_quickly_tell_the_same() {
        let mut queue = Watched::new();
        queue.look(15, 15);
        for _ in 0..100 {
            assert_eq!(queue.look(1, 1), 50);
        }
        // Fifteen at once are no 15,000 a second: 1,000 × e^-0.01 + 15,000 × (1 - e^-0.01) = 1,139.3.
        assert_eq!(queue.look(1, 15), 57);
    }

    #[test]
    fn a_queue_that_is_found_empty_is_given_twice_as_much_each_time() {
        let mut queue = Watched::new();
        // Slow, then all at once: after 3 s without anything taken a look every 250 ms knows that nothing moves.
        for _ in 0..12 {
            queue.look(250, 0);
        }
        assert_eq!(queue.ready, 32, "what is in it stays in it");
        assert_eq!(queue.look(1_000, 28), 4, "28/s × 50 ms are less than the least");
        let depths: Vec<u64> = (0..8).map(|_| queue.emptied()).collect();
        assert_eq!(depths, [8, 16, 32, 64, 128, 256, 256, 256]);
    }

    #[test]
    fn the_first_burst_is_not_waited_for() {
        let mut queue = Watched::new();
        // 32 in 15 ms are 2,133/s, of which 50 ms are 107.
        assert_eq!(queue.emptied(), 107);
        // 107 in 15 ms.
        assert_eq!(queue.emptied(), 214);
    }

    #[test]
    fn a_queue_that_stands_still_gets_no_more() {
        let mut queue = Watched::new();
        queue.look(15, 15);
        assert!(queue.pace.is_moving(queue.now));
        let ready = queue.ready;
        for _ in 0..20 {
            queue.look(250, 0);
            assert_eq!(queue.ready, ready);
        }
        assert_eq!(queue.pace.depth(LIMIT), 4);
        assert!(!queue.pace.is_moving(queue.now));
    }

    #[test]
    fn an_empty_queue_is_forgotten_after_half_a_second() {
        let mut queue = Watched::new();
        for _ in 0..12 {
            queue.look(250, 0);
        }
        // All are taken, and nobody has any more to give.
        let mut pace = queue.pace;
        // 32 in 15 ms after nothing for long: 32 / 0.015 × (1 - e^-0.15) = 297.2/s, of which 50 ms are 15.
        for (after_ms, expected) in [(15, 64), (250, 15), (514, 15), (515, 32), (60_000, 32)] {
            pace.saw(0, queue.now + Duration::from_millis(after_ms));
            assert_eq!(pace.depth(LIMIT), expected, "after {after_ms} ms");
        }
    }

    #[test]
    fn what_a_worker_gives_back_was_not_taken() {
        let mut queue = Watched::new();
        queue.look(15, 15);
        // It stops, and what it had fetched is in the queue again.
        queue.ready += 16;
        assert!(queue.look(15, 0) < 50);
        queue.ready += 16;
        queue.look(600, 0);
        // Another one starts and takes all.
        assert_eq!(queue.ready, 82);
        assert_eq!(queue.emptied(), 164);
    }

    #[test]
    fn a_depth_is_never_above_the_limit_and_never_nothing() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        assert_eq!((pace.depth(8), pace.depth(1)), (8, 1));
        // Whatever is seen: a sequence that visits all kinds of numbers.
        let mut seed = 1_u64;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            now += Duration::from_micros(seed >> 44);
            pace.saw((seed >> 20) % 300, now);
            for limit in [1, 3, LIMIT] {
                assert!((LEAST.min(limit)..=limit).contains(&pace.depth(limit)), "{pace:?}");
            }
            pace.gave((seed >> 32) % 300, now);
        }
    }
}
