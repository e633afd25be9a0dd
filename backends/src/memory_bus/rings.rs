//! All rings, who reads them, and when they go.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::{Gone, JobEvent, JobEventBody, JobId};
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use super::BusLimits;
use super::ring::{Found, Ring};

/// How often old rings are looked for.
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Kept {
    ring: Ring,
    last_append: Instant,
    /// Tells readers that something was added. Dropping it tells them that the ring is gone.
    added: watch::Sender<()>,
}

/// The rings of all jobs.
#[derive(Debug)]
pub(super) struct Rings {
    limits: BusLimits,
    kept: HashMap<JobId, Kept>,
    bytes: usize,
    next_sweep: Instant,
}

/// Nothing under this lock panics half-way, so a poisoned one still guards whole rings.
pub(super) fn lock(rings: &Mutex<Rings>) -> MutexGuard<'_, Rings> {
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rings {
    pub(super) fn new(limits: BusLimits) -> Self {
        Self { limits, kept: HashMap::new(), bytes: 0, next_sweep: Instant::now() }
    }

    /// Adds events in order, then makes room.
    pub(super) fn append(&mut self, events: &[JobEvent]) {
        let now = Instant::now();
        for event in events {
            let kept = self.kept.entry(event.job).or_insert_with(|| Kept::new(now));
            self.bytes -= kept.ring.bytes();
            kept.ring.push(event, self.limits.events_per_job);
            self.bytes += kept.ring.bytes();
            kept.last_append = now;
            kept.added.send_replace(());
        }
        if now >= self.next_sweep || self.bytes > self.limits.total_bytes {
            self.sweep(now);
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.next_sweep = now + SWEEP;
        let keep = self.limits.keep;
        self.kept.retain(|_, kept| {
            let is_read = kept.ring.is_empty() && kept.added.receiver_count() > 0;
            is_read || (!kept.ring.is_empty() && now.duration_since(kept.last_append) < keep)
        });
        self.bytes = self.kept.values().map(|kept| kept.ring.bytes()).sum();
        if self.bytes <= self.limits.total_bytes {
            return;
        }
        let mut oldest: Vec<(Instant, JobId)> = self
            .kept
            .iter()
            .filter(|(_, kept)| !kept.ring.is_empty())
            .map(|(job, kept)| (kept.last_append, *job))
            .collect();
        oldest.sort_unstable();
        // A tenth more than needed, so that the next append does not sort again.
        let target = self.limits.total_bytes / 10 * 9;
        for (_, job) in oldest {
            if self.bytes <= target {
                break;
            }
            if let Some(kept) = self.kept.remove(&job) {
                self.bytes -= kept.ring.bytes();
            }
        }
    }
}

impl Kept {
    fn new(now: Instant) -> Self {
        Self { ring: Ring::default(), last_append: now, added: watch::Sender::new(()) }
    }
}

/// Somebody who reads a job's events. It has a place in the ring instead of a buffer of its own: what is kept and what
/// comes are one sequence, and a slow reader costs nothing.
pub(super) struct Reader {
    rings: Arc<Mutex<Rings>>,
    job: JobId,
    after: u32,
    place: u64,
    added: watch::Receiver<()>,
    over: bool,
}

impl Reader {
    /// A reader that has the tokens up to `after`.
    ///
    /// # Errors
    /// [`Gone`] when tokens after them were dropped.
    pub(super) fn open(rings: Arc<Mutex<Rings>>, job: JobId, after: u32) -> Result<Self, Gone> {
        let (place, added) = {
            let mut guard = lock(&rings);
            let now = Instant::now();
            if now >= guard.next_sweep {
                guard.sweep(now);
            }
            let kept = match guard.kept.entry(job) {
                Entry::Occupied(kept) => kept.into_mut(),
                Entry::Vacant(free) => free.insert(Kept::new(now)),
            };
            (kept.ring.place_after(after).ok_or(Gone)?, kept.added.subscribe())
        };
        Ok(Self { rings, job, after, place, added, over: false })
    }

    /// The next event; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Result<JobEvent, Gone>> {
        while !self.over {
            // Marked as seen before reading, or an event in between would not wake this reader.
            self.added.mark_unchanged();
            match self.read() {
                Found::Dropped => {
                    self.over = true;
                    return Some(Err(Gone));
                }
                Found::Event(event) => match &event.body {
                    JobEventBody::Token(token) if token.position <= self.after => {}
                    JobEventBody::Ended { .. } => {
                        self.over = true;
                        return Some(Ok(event));
                    }
                    _ => return Some(Ok(event)),
                },
                // An error says that the ring was dropped: the next turn reads that.
                Found::Nothing => drop(self.added.changed().await),
            }
        }
        None
    }

    fn read(&mut self) -> Found {
        let rings = lock(&self.rings);
        // A channel without its sender belonged to a ring that was dropped; there may be a later one by now.
        if self.added.has_changed().is_err() {
            return Found::Dropped;
        }
        rings.kept.get(&self.job).map_or(Found::Dropped, |kept| kept.ring.read(&mut self.place))
    }
}
