//! The queue of embedded mode: bounded lists of wake-ups in memory. A restart loses them, and the store mends it.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use contract::{Delivery, Published, Queue, QueueError, QueueId, Wake};

/// Wake-ups a queue holds unless said otherwise.
const DEFAULT_LIMIT: usize = 256;

/// A [`Queue`] in memory, for one process.
#[derive(Debug)]
pub struct InProcessQueue {
    limit: usize,
    queues: Mutex<HashMap<QueueId, VecDeque<Wake>>>,
    next_tag: AtomicU64,
}

impl InProcessQueue {
    /// Queues of at most `limit` waiting wake-ups each.
    pub fn new(limit: usize) -> Self {
        Self { limit, queues: Mutex::default(), next_tag: AtomicU64::new(1) }
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<QueueId, VecDeque<Wake>>) -> T) -> T {
        // Nothing in here panics half-way, so a poisoned lock still guards whole lists.
        act(&mut self.queues.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Default for InProcessQueue {
    /// Queues of at most 256 waiting wake-ups.
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

#[async_trait]
impl Queue for InProcessQueue {
    fn is_reachable(&self) -> bool {
        true
    }

    async fn publish(&self, wakes: &[(QueueId, Wake)]) -> Vec<Published> {
        self.with(|queues| {
            let mut publish = |(queue, wake): &(QueueId, Wake)| {
                let waiting = queues.entry(queue.clone()).or_default();
                if waiting.len() >= self.limit {
                    return Published::Full;
                }
                waiting.push_back(*wake);
                Published::Confirmed
            };
            wakes.iter().map(&mut publish).collect()
        })
    }

    async fn take(&self, queue: &QueueId, max: usize) -> Result<Vec<Delivery>, QueueError> {
        Ok(self.with(|queues| {
            let Some(waiting) = queues.get_mut(queue) else { return Vec::new() };
            let taken = waiting.drain(..max.min(waiting.len()));
            let delivery =
                |wake| Delivery { wake, tag: self.next_tag.fetch_add(1, Ordering::Relaxed), queue: queue.clone() };
            let deliveries = taken.map(delivery).collect();
            // Releases come and go; an empty list is not kept for one that may never return.
            if waiting.is_empty() {
                queues.remove(queue);
            }
            deliveries
        }))
    }

    async fn ack(&self, _delivery: Delivery) {
        // It left the list when it was taken.
    }

    async fn put_back(&self, delivery: Delivery) {
        // To the front, where it came from, and even when new ones have filled its place: it was counted before.
        self.with(|queues| queues.entry(delivery.queue).or_default().push_front(delivery.wake));
    }

    async fn arrived(&self) {
        std::future::pending().await
    }

    async fn rest(&self) {}

    async fn ready(&self, queue: &QueueId) -> Result<u64, QueueError> {
        Ok(self.with(|queues| queues.get(queue).map_or(0, |waiting| waiting.len() as u64)))
    }

    fn limit(&self) -> u64 {
        self.limit as u64
    }
}
