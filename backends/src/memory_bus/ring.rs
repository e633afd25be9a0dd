//! The events of one job's current attempt, the oldest dropped first.

use std::collections::VecDeque;

use contract::{JobEvent, JobEventBody};

/// What one event takes beside its text.
const EVENT_BYTES: usize = size_of::<JobEvent>();

/// A job's events. Each has a running number that goes on over attempts, which is where readers keep their place.
#[derive(Debug, Default)]
pub(super) struct Ring {
    attempt: u32,
    events: VecDeque<JobEvent>,
    /// Number of the first event that is kept.
    first: u64,
    /// Number of the current attempt's first event.
    attempt_first: u64,
    /// Highest token position of the current attempt that was dropped; 0 for none.
    dropped: u32,
    bytes: usize,
}

/// What a reader finds at its place.
pub(super) enum Found {
    /// The next event.
    Event(JobEvent),
    /// Nothing yet.
    Nothing,
    /// What was there has been dropped.
    Dropped,
}

impl Ring {
    /// Adds an event; one of an attempt that is over is passed over.
    pub(super) fn push(&mut self, event: &JobEvent, most: usize) {
        if event.attempt < self.attempt {
            return;
        }
        if event.attempt > self.attempt {
            self.attempt = event.attempt;
            self.first += self.events.len() as u64;
            self.attempt_first = self.first;
            self.events.clear();
            self.dropped = 0;
            self.bytes = 0;
        }
        self.bytes += size(event);
        self.events.push_back(event.clone());
        while self.events.len() > most {
            let Some(old) = self.events.pop_front() else { break };
            self.first += 1;
            self.bytes -= size(&old);
            if let JobEventBody::Token(token) = old.body {
                self.dropped = self.dropped.max(token.position);
            }
        }
    }

    /// The event at `place`, which moves past it. A place in an earlier attempt moves to the start of this one.
    pub(super) fn read(&self, place: &mut u64) -> Found {
        *place = (*place).max(self.attempt_first);
        let Some(idx) = place.checked_sub(self.first) else { return Found::Dropped };
        let event = usize::try_from(idx).ok().and_then(|idx| self.events.get(idx));
        match event {
            None => Found::Nothing,
            Some(event) => {
                *place += 1;
                Found::Event(event.clone())
            }
        }
    }

    /// The place of a new reader that has the tokens up to `after`; `None` when later ones were dropped.
    pub(super) fn place_after(&self, after: u32) -> Option<u64> {
        (self.dropped <= after).then_some(self.first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// About how much memory an event takes.
fn size(event: &JobEvent) -> usize {
    let JobEventBody::Token(token) = &event.body else { return EVENT_BYTES };
    let logprob = token.logprob.as_ref().map_or(0, |logprob| {
        let piece = |text: &str, bytes: &Option<Vec<u8>>| text.len() + bytes.as_ref().map_or(0, Vec::len);
        let top = logprob.top.iter().map(|top| size_of_val(top) + piece(&top.token, &top.bytes));
        piece(&logprob.token, &logprob.bytes) + top.sum::<usize>()
    });
    EVENT_BYTES + token.text.len() + logprob
}
