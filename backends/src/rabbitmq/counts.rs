//! What went wrong and was mended, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) unreadable: Counter,
    pub(super) returned: Counter,
    pub(super) late_slices: Counter,
    pub(super) reopened: Counter,
    pub(super) stale_answers: Counter,
    pub(super) lost_answers: Counter,
    pub(super) connections: Counter,
}

impl Counters {
    pub(super) fn read(&self) -> RabbitCounts {
        RabbitCounts {
            unreadable: self.unreadable.get(),
            returned: self.returned.get(),
            late: self.late_slices.get(),
            reopened: self.reopened.get(),
            stale_answers: self.stale_answers.get(),
            lost_answers: self.lost_answers.get(),
            connections: self.connections.get(),
        }
    }
}

/// What a [`super::RabbitQueue`] has seen since it was made. All of it was mended; what grows steadily wants a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RabbitCounts {
    /// Messages that were no wake-ups of this version, and were dead-lettered.
    pub unreadable: u64,
    /// Published messages that came back because their queue was gone.
    pub returned: u64,
    /// Times that a queue's confirms did not come in time.
    pub late: u64,
    /// Consumers that ended or fell silent and were opened again.
    pub reopened: u64,
    /// Acknowledgements and returns of deliveries of an earlier connection, which the broker has taken back by itself.
    pub stale_answers: u64,
    /// Acknowledgements and returns that did not reach the broker; it delivers these messages again.
    pub lost_answers: u64,
    /// Connections for taking that were made: 1 where nothing was ever lost.
    pub connections: u64,
}
