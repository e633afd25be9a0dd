//! Whose turn it is among the tenants that wait in a queue: start-time fair queuing, with one job as the unit.
//!
//! A queue has a clock that goes on with what it gives: each tenant's next job stands at a time of it, and the smallest
//! is next. A job moves its tenant on by [`ROUND`] over the tenant's weight, and the clock is where the job that was given
//! last stood. A tenant that did not wait for a while stands at the clock and not before it: it is among the next, and saves
//! nothing up. Nobody stands further behind the clock than one step of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One step of a tenant of weight 1, a number that all weights up to 16 divide.
pub(crate) const ROUND: i64 = 720_720;

/// The tenants of a queue that wait, by whose turn it is.
pub(crate) struct Turns {
    clock: i64,
    tenants: Vec<Waiting>,
    /// Where each one stands, and its place above; those at the same time in the order in which they were added.
    order: BinaryHeap<Reverse<(i64, usize)>>,
}

struct Waiting {
    name: String,
    step: i64,
    /// Where it stands, once it was given anything.
    next: Option<i64>,
}

impl Turns {
    /// Nobody waits, and the queue's clock is there.
    pub(crate) fn at(clock: i64) -> Self {
        Self { clock, tenants: Vec::new(), order: BinaryHeap::new() }
    }

    /// A tenant waits, which stands there as far as is known. Returns its place, counted from 0.
    pub(crate) fn add(&mut self, name: String, weight: i64, next: i64) -> usize {
        let step = ROUND / weight.max(1);
        // No further than its step: its weight may have been less when it was last given something.
        let next = next.clamp(self.clock, self.clock.saturating_add(step));
        let place = self.tenants.len();
        self.tenants.push(Waiting { name, step, next: None });
        self.order.push(Reverse((next, place)));
        place
    }

    /// The tenant whose turn it is: its place.
    pub(crate) fn first(&self) -> Option<usize> {
        self.order.peek().map(|Reverse((_, place))| *place)
    }

    /// The first one was given a job.
    pub(crate) fn given(&mut self) {
        if let Some(Reverse((at, place))) = self.order.pop() {
            let tenant = &mut self.tenants[place];
            let next = at.saturating_add(tenant.step);
            (self.clock, tenant.next) = (at, Some(next));
            self.order.push(Reverse((next, place)));
        }
    }

    /// The first one has nothing more that could be given.
    pub(crate) fn has_no_more(&mut self) {
        self.order.pop();
    }

    /// Where the queue's clock is now.
    pub(crate) fn clock(&self) -> i64 {
        self.clock
    }

    /// The tenants that were given something, and where they stand now.
    pub(crate) fn moved(&self) -> impl Iterator<Item = (&str, i64)> {
        self.tenants.iter().filter_map(|tenant| Some((tenant.name.as_str(), tenant.next?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What the store keeps between calls.
    #[derive(Default)]
    struct Kept {
        clock: i64,
        next: BTreeMap<&'static str, i64>,
    }

    impl Kept {
        /// One call for `n` jobs of tenants that have no end of them.
        fn call(&mut self, n: usize, waiting: &[(&'static str, i64)]) -> Vec<&'static str> {
            let mut turns = Turns::at(self.clock);
            for (name, weight) in waiting {
                turns.add((*name).to_owned(), *weight, self.next.get(name).copied().unwrap_or(0));
            }
            let mut given = Vec::new();
            for _ in 0..n {
                given.push(waiting[turns.first().unwrap()].0);
                turns.given();
            }
            for (name, next) in turns.moved() {
                let name = waiting.iter().find(|(known, _)| *known == name).unwrap().0;
                self.next.insert(name, next);
            }
            self.clock = turns.clock();
            given
        }
    }

    fn count(given: &[&str], name: &str) -> usize {
        given.iter().filter(|given| **given == name).count()
    }

    #[test]
    fn equal_weights_take_turns() {
        assert_eq!(Kept::default().call(5, &[("a", 1), ("b", 1)]), ["a", "b", "a", "b", "a"]);
    }

    #[test]
    fn shares_are_by_weight_however_the_calls_are_cut() {
        for size in [1, 2, 3, 4, 400] {
            let mut kept = Kept::default();
            let given: Vec<_> = (0..400 / size).flat_map(|_| kept.call(size, &[("a", 1), ("b", 3)])).collect();
            let (a, b) = (count(&given, "a"), count(&given, "b"));
            assert!(
                a.abs_diff(100 * given.len() / 400) <= 1 && b.abs_diff(300 * given.len() / 400) <= 1,
                "{size}: {a}:{b}"
            );
        }
    }

    #[test]
    fn who_did_not_wait_saves_nothing_up() {
        let mut kept = Kept::default();
        kept.call(1, &[("late", 1)]);
        kept.call(1_000, &[("a", 1)]);
        // From now on as much as the other, not a thousand first; and not last either.
        let given = kept.call(20, &[("a", 1), ("late", 1)]);
        assert_eq!(count(&given, "late"), 10);
        assert!(given[..2].contains(&"late"), "{given:?}");
    }

    #[test]
    fn a_single_job_comes_next_whoever_else_waits() {
        let mut kept = Kept::default();
        for _ in 0..500 {
            kept.call(3, &[("big", 1_000), ("huge", 1_000)]);
        }
        let given = kept.call(4, &[("big", 1_000), ("huge", 1_000), ("small", 1)]);
        assert_eq!(count(&given, "small"), 1, "{given:?}");
    }

    #[test]
    fn the_least_weight_is_not_starved_by_the_greatest() {
        let mut kept = Kept::default();
        let given: Vec<_> = (0..1_002).flat_map(|_| kept.call(3, &[("heavy", 1_000), ("light", 1)])).collect();
        // Of 3,006, one in 1,001, and one more since it was there at once.
        assert!((3..=4).contains(&count(&given, "light")), "{}", count(&given, "light"));
    }

    #[test]
    fn a_greater_weight_counts_at_once() {
        let mut kept = Kept::default();
        kept.call(2, &[("a", 1), ("b", 1)]);
        let given = kept.call(40, &[("a", 1), ("b", 9)]);
        assert!(count(&given, "b") >= 35, "{given:?}");
    }
}
