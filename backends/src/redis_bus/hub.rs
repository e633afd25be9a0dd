//! Who in this process wants to hear of what: one subscribed connection serves all readers of all jobs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Messages that wait for one reader. Who is further behind reads the stream instead.
const WAITING: usize = 64;

/// What a reader finds that looks for messages.
#[derive(Debug)]
pub(super) enum Taken {
    /// Messages in order; none for now, perhaps.
    Messages(VecDeque<Arc<[u8]>>),
    /// Some may have been missed: the stream has them.
    Missed,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Arc<[u8]>>,
    missed: bool,
}

/// Where the messages of one reader wait.
#[derive(Debug, Default)]
pub(super) struct Slot {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

impl Slot {
    /// Takes what waits. Clear it before reading the stream: what comes later is kept from then on.
    pub(super) fn take(&self) -> Taken {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut waiting.missed) {
            return Taken::Missed;
        }
        Taken::Messages(std::mem::take(&mut waiting.messages))
    }

    /// Waits until there is something to take, perhaps for nothing. Cancel safe.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    fn push(&self, message: &Arc<[u8]>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.missed {
            return;
        }
        if waiting.messages.len() < WAITING {
            waiting.messages.push_back(message.clone());
        } else {
            waiting.messages.clear();
            waiting.missed = true;
        }
        drop(waiting);
        self.filled.notify_one();
    }

    fn missed(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.messages.clear();
        waiting.missed = true;
        drop(waiting);
        self.filled.notify_one();
    }
}

/// The slots by channel.
#[derive(Debug, Default)]
pub(super) struct Hub {
    slots: Mutex<HashMap<String, Vec<Arc<Slot>>>>,
}

impl Hub {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Arc<Slot>>>> {
        // Nothing under this lock panics half-way.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new slot for a channel.
    pub(super) fn enter(&self, channel: &str) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        self.lock().entry(channel.to_owned()).or_default().push(slot.clone());
        slot
    }

    /// The slot is not needed any more; answers whether nobody else wants the channel.
    pub(super) fn leave(&self, channel: &str, slot: &Arc<Slot>) -> bool {
        let mut slots = self.lock();
        let Some(of_channel) = slots.get_mut(channel) else { return true };
        of_channel.retain(|other| !Arc::ptr_eq(other, slot));
        let empty = of_channel.is_empty();
        if empty {
            slots.remove(channel);
        }
        empty
    }

    /// From now on the channel is wanted, whoever leaves.
    pub(super) fn keep(&self, channel: &str) {
        self.lock().entry(channel.to_owned()).or_default();
    }

    /// Whether somebody wants the channel.
    pub(super) fn wants(&self, channel: &str) -> bool {
        self.lock().contains_key(channel)
    }

    /// All channels that somebody wants.
    pub(super) fn channels(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// A message came.
    pub(super) fn dispatch(&self, channel: &str, message: &[u8]) {
        let message: Arc<[u8]> = message.into();
        for slot in self.lock().get(channel).into_iter().flatten() {
            slot.push(&message);
        }
    }

    /// Messages may have been lost: all readers must look for themselves.
    pub(super) fn all_missed(&self) {
        for slot in self.lock().values().flatten() {
            slot.missed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(taken: Taken) -> Option<Vec<String>> {
        match taken {
            Taken::Messages(messages) => {
                Some(messages.iter().map(|message| String::from_utf8_lossy(message).into_owned()).collect())
            }
            Taken::Missed => None,
        }
    }

    #[test]
    fn every_reader_of_a_channel_gets_its_messages() {
        let hub = Hub::default();
        let (a, b, other) = (hub.enter("job"), hub.enter("job"), hub.enter("other"));
        hub.dispatch("job", b"1");
        assert!(!hub.leave("job", &a));
        hub.dispatch("job", b"2");
        hub.dispatch("nobody", b"3");
        assert_eq!(texts(a.take()), Some(vec!["1".to_owned()]));
        assert_eq!(texts(b.take()), Some(vec!["1".to_owned(), "2".to_owned()]));
        assert_eq!(texts(other.take()), Some(vec![]));
        assert!(hub.leave("job", &b) && !hub.wants("job") && hub.wants("other"));
    }

    #[test]
    fn a_full_slot_forgets_and_says_so_once() {
        let hub = Hub::default();
        let slot = hub.enter("job");
        for _ in 0..=WAITING {
            hub.dispatch("job", b"1");
        }
        hub.dispatch("job", b"2");
        assert_eq!(texts(slot.take()), None);
        hub.dispatch("job", b"3");
        assert_eq!(texts(slot.take()), Some(vec!["3".to_owned()]));
        hub.all_missed();
        assert_eq!(texts(slot.take()), None);
    }
}
