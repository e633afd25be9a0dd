//! The jobs this worker holds, from just before the lease is asked for until the commit is answered.
//!
//! An entry is there *before* the lease is sent, so a cancel that arrives in between finds something to mark.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use contract::{JobId, Lease};
use tokio::sync::Notify;

use crate::engine::sequence::DropMark;

/// How far a held job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The lease is asked for.
    Leasing,
    /// Leased: being prepared, or in the engine.
    Running,
    /// Out of the engine since then, its commit not answered yet.
    Committing(Instant),
}

/// A commit that takes longer waits for a service that is away, and nothing waits for it.
const COMMITS_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Entry {
    phase: Phase,
    /// Sequences it takes in the engine: 1 until its request is known.
    n_sequences: usize,
    mark: DropMark,
}

/// The map of held jobs; shared by puller, pump, committer and heartbeat.
#[derive(Debug, Default)]
pub struct Live {
    entries: Mutex<HashMap<Lease, Entry>>,
    left: Notify,
}

impl Live {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Lease, Entry>> {
        // Every change is a single insert, remove or assignment: a panic elsewhere leaves the map whole.
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Enters a job whose lease is about to be asked for. `None` when it is held already: the wake-up is a duplicate,
    /// and the entry that is there belongs to the job that runs.
    pub fn enter(&self, lease: Lease) -> Option<DropMark> {
        match self.lock().entry(lease) {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(place) => {
                let mark = DropMark::default();
                place.insert(Entry { phase: Phase::Leasing, n_sequences: 1, mark: mark.clone() });
                Some(mark)
            }
        }
    }

    /// The lease was granted: it is to be renewed from now on. The job will take `n_sequences` in the engine.
    pub fn leased(&self, lease: Lease, n_sequences: usize) {
        if let Some(entry) = self.lock().get_mut(&lease) {
            (entry.phase, entry.n_sequences) = (Phase::Running, n_sequences);
        }
    }

    /// It left the engine: its room is free, its lease still needed.
    pub fn committing(&self, lease: Lease) {
        if let Some(entry) = self.lock().get_mut(&lease) {
            entry.phase = Phase::Committing(Instant::now());
        }
    }

    /// It is over.
    pub fn leave(&self, lease: Lease) {
        self.lock().remove(&lease);
        self.left.notify_one();
    }

    /// Marks every attempt of a job: it was cancelled, or has ended elsewhere.
    pub fn mark_job(&self, job: JobId) {
        for (lease, entry) in self.lock().iter() {
            if lease.job == job && !matches!(entry.phase, Phase::Committing(_)) {
                entry.mark.set();
            }
        }
    }

    /// Marks one lease: it was lost. False when it is not held any more, because its job has ended.
    pub fn mark_lease(&self, lease: Lease) -> bool {
        let entries = self.lock();
        let entry = entries.get(&lease);
        entry.inspect(|entry| entry.mark.set()).is_some()
    }

    /// Whether a held lease was lost, or is not held at all.
    pub fn is_lost(&self, lease: Lease) -> bool {
        self.lock().get(&lease).is_none_or(|entry| entry.mark.is_set())
    }

    /// Leases to renew.
    pub fn leases(&self) -> Vec<Lease> {
        let entries = self.lock();
        entries.iter().filter(|(_, entry)| entry.phase != Phase::Leasing).map(|(lease, _)| *lease).collect()
    }

    /// Sequences of jobs that take room in the engine, or are about to.
    pub fn n_active(&self) -> usize {
        let entries = self.lock();
        let active = entries.values().filter(|entry| !matches!(entry.phase, Phase::Committing(_)));
        active.map(|entry| entry.n_sequences).sum()
    }

    /// Jobs that would be lost with this worker, but for those whose commits wait for a service that is away.
    pub fn n_held(&self) -> usize {
        let is_soon_over = |entry: &&Entry| match entry.phase {
            Phase::Leasing | Phase::Running => true,
            Phase::Committing(since) => since.elapsed() < COMMITS_WITHIN,
        };
        self.lock().values().filter(is_soon_over).count()
    }

    /// Waits until some job is held no more. Told to one waiter, also to one that comes later.
    pub async fn left(&self) {
        self.left.notified().await;
    }

    /// Whether nothing is held at all.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_between_asking_and_getting_the_lease_is_seen() {
        let live = Live::default();
        let lease = Lease { job: JobId::new(), attempt: 1 };
        let mark = live.enter(lease).unwrap();
        assert!(live.leases().is_empty(), "a lease that is only asked for is not renewed");
        live.mark_job(lease.job);
        live.leased(lease, 1);
        assert!(mark.is_set());
        assert_eq!(live.leases(), [lease]);
    }

    #[test]
    fn room_is_free_at_the_engines_end_and_the_lease_is_kept_to_the_commit() {
        let live = Live::default();
        let lease = Lease { job: JobId::new(), attempt: 2 };
        let mark = live.enter(lease).unwrap();
        assert_eq!(live.n_active(), 1);
        live.leased(lease, 3);
        assert!(live.enter(lease).is_none(), "a duplicate wake-up leaves the running job's entry alone");
        assert_eq!(live.n_active(), 3);
        live.committing(lease);
        assert_eq!((live.n_active(), live.n_held(), live.leases().len()), (0, 1, 1));
        live.mark_job(lease.job);
        assert!(!mark.is_set(), "the commit decides now, not the mark");
        live.leave(lease);
        assert!(live.is_empty());
    }
}
