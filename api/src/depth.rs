//! How deep the queues of interactive jobs are, as far as this process knows, and so which jobs it publishes itself.
//!
//! Whoever is in a queue comes before whoever is not, whatever the tenants' turns in the store say. So this process
//! publishes only into a queue that is known to be shallow, and leaves the other jobs to the feeder, which takes them in
//! turn. Once it has left one it leaves all, until the queue was seen empty: new jobs would overtake those that were left,
//! and could keep the queue so full that the feeder adds nothing to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contract::{Class, NewJob, Queue, QueueId};

/// Messages up to which a queue is shallow: what a few workers take at once, so that a burst of calls starts at once, and
/// several times what waits where the workers keep up. Each API process counts for itself.
const ROOM: u64 = 16;
/// Until a queue that is published to is looked at again. The feeder looks about as often.
const FRESH: Duration = Duration::from_millis(25);
/// What was seen longer ago than this says nothing any more.
const KNOWN: Duration = Duration::from_secs(1);
/// What is known of a queue is kept for so long after its last job: releases come and go.
const KEPT: Duration = Duration::from_secs(60);

/// What this process knows of the queues. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Depths {
    port: Arc<dyn Queue>,
    queues: Arc<Mutex<Queues>>,
}

/// Places of jobs that are being accepted, given back when dropped.
pub(crate) struct Places {
    depths: Depths,
    taken: BTreeMap<QueueId, u64>,
    are_published: bool,
}

impl Depths {
    /// Nothing is known yet.
    pub fn of(port: Arc<dyn Queue>) -> Self {
        Self { port, queues: Arc::default() }
    }

    /// Decides, just before they are accepted, which of these jobs their caller publishes. Never waits: where the last
    /// count is old, the queue is looked at meanwhile, by a task of the runtime that this is called on.
    pub fn take_places(&self, jobs: &mut [NewJob]) -> Places {
        let now = Instant::now();
        let (mut taken, mut to_look_at) = (BTreeMap::new(), Vec::new());
        let mut queues = self.lock();
        for job in jobs {
            if job.class != Class::Interactive || !job.delay.is_zero() {
                continue;
            }
            let queue = QueueId { release: job.release.clone(), class: job.class };
            let depth = queues.depth(&queue, now);
            job.published_by_caller = depth.take_place(now);
            if depth.begin_look(now) {
                to_look_at.push(queue.clone());
            }
            if job.published_by_caller {
                *taken.entry(queue).or_default() += 1;
            }
        }
        drop(queues);
        for queue in to_look_at {
            tokio::spawn(self.clone().look(queue));
        }
        Places { depths: self.clone(), taken, are_published: false }
    }

    async fn look(self, queue: QueueId) {
        let ready = self.port.ready(&queue).await;
        if let Err(error) = &ready {
            tracing::debug!(queue = %queue, error = error as &dyn std::error::Error, "a queue could not be looked at");
        }
        if let Some(depth) = self.lock().0.get_mut(&queue) {
            depth.looked(ready.ok(), Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Nothing in here panics half-way.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// The queue has the messages, as far as is known: they count until the next look. Those of a broker that does not
    /// answer do not: the next call is to find out, and its client to be told.
    pub fn published(mut self) {
        self.are_published = true;
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut queues = self.depths.lock();
        for (queue, places) in &self.taken {
            if let Some(depth) = queues.0.get_mut(queue) {
                depth.give_back(*places, self.are_published);
            }
        }
    }
}

#[derive(Default)]
struct Queues(HashMap<QueueId, Depth>);

impl Queues {
    /// What is known of a queue that a job comes to; what has not been asked for in a while is forgotten whenever there is
    /// a new one.
    fn depth(&mut self, queue: &QueueId, now: Instant) -> &mut Depth {
        if !self.0.contains_key(queue) {
            self.0.retain(|_, depth| now.saturating_duration_since(depth.used_at) < KEPT);
        }
        self.0.entry(queue.clone()).or_insert_with(|| Depth::unknown(now))
    }
}

/// What is known of one queue. Its messages are never more than what was seen, published and under way together.
struct Depth {
    /// Ready messages at the last look and when that was, unless it failed.
    seen: Option<(u64, Instant)>,
    /// Messages published since that look began; after one that failed, since the last one that did not.
    published: u64,
    /// Jobs that have a place and are not published yet.
    under_way: u64,
    /// A look is under way, and so many of the published messages were there before it.
    looking: Option<u64>,
    /// Jobs were left to the feeder, and the queue was not seen empty since.
    is_left: bool,
    used_at: Instant,
}

impl Depth {
    fn unknown(now: Instant) -> Self {
        Self { seen: None, published: 0, under_way: 0, looking: None, is_left: false, used_at: now }
    }

    /// False: the job is the feeder's.
    fn take_place(&mut self, now: Instant) -> bool {
        self.used_at = now;
        let seen = self.seen.filter(|(_, at)| now.saturating_duration_since(*at) < KNOWN);
        let ready = seen.map_or(0, |(ready, _)| ready);
        self.is_left |= ready.saturating_add(self.published + self.under_way) >= ROOM;
        if !self.is_left {
            self.under_way += 1;
        }
        !self.is_left
    }

    fn give_back(&mut self, places: u64, are_published: bool) {
        // Fewer where it was forgotten meanwhile.
        self.under_way = self.under_way.saturating_sub(places);
        if are_published {
            self.published += places;
        }
    }

    /// Whether the caller is to look at the queue now. One look at a time; after one that failed there is another at once,
    /// and where jobs come quickly there is one before they have taken all the room.
    fn begin_look(&mut self, now: Instant) -> bool {
        let is_recent = self.seen.is_some_and(|(_, at)| now.saturating_duration_since(at) < FRESH);
        let is_fresh = is_recent && self.published < ROOM / 2;
        let begins = !is_fresh && self.looking.is_none();
        if begins {
            self.looking = Some(self.published);
        }
        begins
    }

    /// The look has ended; without a number if it failed.
    fn looked(&mut self, ready: Option<u64>, now: Instant) {
        let before = self.looking.take().unwrap_or(0);
        self.seen = ready.map(|ready| (ready, now));
        if let Some(ready) = ready {
            self.published = self.published.saturating_sub(before);
            self.is_left &= ready > 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::Fingerprint;

    use super::*;

    /// A queue that nobody takes from, and whoever publishes to it.
    struct Watched {
        depth: Depth,
        ready: u64,
        now: Instant,
    }

    impl Watched {
        fn new() -> Self {
            let now = Instant::now();
            Self { depth: Depth::unknown(now), ready: 0, now }
        }

        /// Jobs that come one after another and are published where they may be; answers how many were.
        fn burst(&mut self, jobs: u64) -> u64 {
            let mut published = 0;
            for _ in 0..jobs {
                if self.depth.take_place(self.now) {
                    self.depth.give_back(1, true);
                    published += 1;
                }
            }
            self.ready += published;
            published
        }

        /// A look after so long.
        fn look(&mut self, after_ms: u64) {
            self.now += Duration::from_millis(after_ms);
            assert!(self.depth.begin_look(self.now));
            self.depth.looked(Some(self.ready), self.now);
        }
    }

    #[test]
    fn a_burst_is_published_up_to_the_room() {
        let mut queue = Watched::new();
        assert_eq!(queue.burst(300), ROOM, "nothing is known yet");
        for _ in 0..100 {
            queue.look(25);
            assert_eq!(queue.burst(300), 0);
        }
        // An old count does not open it, however old.
        queue.now += KEPT;
        assert_eq!(queue.burst(300), 0);
    }

    #[test]
    fn jobs_that_are_being_accepted_have_their_places() {
        let mut queue = Watched::new();
        let taken = (0..100).filter(|_| queue.depth.take_place(queue.now)).count() as u64;
        assert_eq!(taken, ROOM);
        // The queue is empty, and they are still to come.
        queue.look(25);
        assert_eq!(queue.burst(100), 0);
        // Refused, all of them.
        queue.depth.give_back(ROOM, false);
        queue.look(25);
        assert_eq!(queue.burst(100), ROOM);
    }

    #[test]
    fn once_jobs_were_left_all_are_until_the_queue_is_seen_empty() {
        let mut queue = Watched::new();
        queue.burst(ROOM + 1);
        for ready in [ROOM, 3, 1] {
            queue.ready = ready;
            queue.look(25);
            assert_eq!(queue.burst(1), 0, "{ready}");
        }
        queue.ready = 0;
        queue.look(25);
        assert_eq!(queue.burst(1), 1);
    }

    #[test]
    fn what_others_published_counts() {
        let mut queue = Watched::new();
        queue.ready = ROOM - 2;
        queue.look(0);
        assert_eq!(queue.burst(10), 2);
    }

    #[test]
    fn messages_that_come_during_a_look_count_after_it() {
        let mut queue = Watched::new();
        queue.burst(4);
        assert!(queue.depth.begin_look(queue.now));
        assert!(!queue.depth.begin_look(queue.now), "one at a time");
        queue.burst(5);
        // It saw those before it, and perhaps none of the others.
        queue.depth.looked(Some(4), queue.now);
        assert_eq!(queue.burst(100), ROOM - 9);
    }

    #[test]
    fn a_queue_that_keeps_up_is_looked_at_now_and_then_and_never_closed() {
        // Every third job of a hundred a second; every eighth, half the room, of a thousand.
        for (every_ms, expected) in [(10, 1_000), (1, 375)] {
            let (mut queue, mut looks) = (Watched::new(), 0);
            for _ in 0..3_000 {
                queue.now += Duration::from_millis(every_ms);
                assert_eq!(queue.burst(1), 1);
                // Taken at once.
                queue.ready = 0;
                if queue.depth.begin_look(queue.now) {
                    queue.depth.looked(Some(0), queue.now);
                    looks += 1;
                }
            }
            assert_eq!(looks, expected);
        }
    }

    #[test]
    fn after_a_pause_the_first_jobs_are_published_whatever_was_seen_before_it() {
        let mut queue = Watched::new();
        queue.ready = 200;
        queue.look(0);
        queue.now += KNOWN;
        queue.ready = 0;
        assert_eq!(queue.burst(1), 1);
        assert!(queue.depth.begin_look(queue.now));
    }

    #[test]
    fn a_look_that_fails_tells_nothing_and_is_tried_again() {
        let mut queue = Watched::new();
        assert_eq!(queue.burst(5), 5);
        for _ in 0..3 {
            assert!(queue.depth.begin_look(queue.now), "at the next job, without a pause");
            queue.depth.looked(None, queue.now);
        }
        assert_eq!(queue.burst(100), ROOM - 5);
        queue.ready = 0;
        queue.look(0);
        assert_eq!(queue.burst(100), ROOM);
    }

    #[test]
    fn queues_that_nobody_asks_for_are_forgotten() {
        let queue = |n: u64| QueueId { release: Fingerprint(format!("{n:064}")), class: Class::Interactive };
        let (mut queues, now) = (Queues::default(), Instant::now());
        for n in 0..1_000 {
            // One of them has jobs all the time.
            for of in [0, n] {
                let now = now + n as u32 * Duration::from_secs(1);
                queues.depth(&queue(of), now).take_place(now);
            }
            assert!(queues.0.len() <= 61, "{}", queues.0.len());
        }
        assert!(queues.0.contains_key(&queue(0)));
    }
}
