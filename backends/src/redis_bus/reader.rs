//! One reader of one job's events.
//!
//! It reads the stream page by page until it has caught up, then takes messages as they come. Whatever may have been
//! missed (too slow, connection lost) sends it back to the stream, where its place is an entry id. So the only thing that
//! must hold for a gapless answer is checked here, on the tokens' own positions: the next one is next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use contract::{Gone, JobEvent, JobEventBody, JobId};

use super::Inner;
use super::entry::{Body, Entry, EntryId};
use super::hub::{Slot, Taken};
use super::session::Failure;

/// Entries of one page.
const PAGE: usize = 512;
/// How long a reader waits after a failed read, before it waits for a connection.
const RETRY: Duration = Duration::from_millis(100);

/// An entry would leave a hole.
#[derive(Debug, PartialEq)]
struct Hole;

/// What a reader has, and what it will give out next.
#[derive(Debug)]
struct Progress {
    job: JobId,
    /// The reader has the tokens up to here, from before.
    after: u32,
    /// The last entry that was taken.
    last: Option<EntryId>,
    /// Position of the last token of this attempt that was taken; 0 for none.
    position: u32,
    ready: VecDeque<JobEvent>,
}

impl Progress {
    /// Takes an entry; one that it has, or of an attempt that is over, is passed over.
    fn take(&mut self, Entry { id, body }: Entry) -> Result<(), Hole> {
        if self.last.is_some_and(|last| id <= last) {
            return Ok(());
        }
        let is_newer = self.last.is_none_or(|last| id.attempt > last.attempt);
        let position = if is_newer { 0 } else { self.position };
        let known = position.max(self.after);
        if let Body::Tokens(tokens) = &body
            && tokens.first().is_some_and(|first| first.position > known.saturating_add(1))
        {
            return Err(Hole);
        }
        if is_newer {
            self.ready.clear();
        }
        (self.last, self.position) = (Some(id), position);
        let event = |body| JobEvent { job: self.job, attempt: id.attempt, body };
        match body {
            Body::Started => self.ready.push_back(event(JobEventBody::Started)),
            Body::Ended(state) => self.ready.push_back(event(JobEventBody::Ended { state })),
            Body::Tokens(tokens) => {
                self.position = tokens.last().map_or(position, |last| last.position);
                let new = tokens.into_iter().filter(|token| token.position > known);
                self.ready.extend(new.map(|token| event(JobEventBody::Token(token))));
            }
        }
        Ok(())
    }

    /// Where to read on: at the last entry again, whose presence shows that the stream is still the same, or at the last
    /// token that the reader has from before.
    fn start(&self) -> Option<EntryId> {
        self.last.map(|last| last.max(EntryId::token(last.attempt, self.after)))
    }
}

/// See the module's text.
pub(super) struct Reader {
    bus: Arc<Inner>,
    key: String,
    slot: Arc<Slot>,
    progress: Progress,
    /// Whether there may be entries in the stream that it has not seen.
    behind: bool,
    over: bool,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.bus.shared.hub.leave(&self.key, &self.slot) {
            self.bus.shared.release(std::mem::take(&mut self.key));
        }
    }
}

/// Why a page could not be read.
enum NoPage {
    Gone,
    Away,
}

impl Reader {
    /// A reader that has the tokens up to `after`.
    ///
    /// # Errors
    /// [`Gone`] when tokens after them were dropped, and when Redis cannot be asked.
    pub(super) async fn open(bus: Arc<Inner>, job: JobId, after: u32) -> Result<Self, Gone> {
        let key = bus.key(&job);
        let slot = bus.shared.hub.enter(&key);
        let progress = Progress { job, after, last: None, position: 0, ready: VecDeque::new() };
        let mut reader = Self { bus, key, slot, progress, behind: true, over: false };
        // Subscribe before reading, or what comes in between is lost.
        reader.bus.shared.subscribe(&reader.key).await.map_err(|_| Gone)?;
        reader.page().await.map_err(|_| Gone)?;
        if after > 0 && reader.behind {
            // The first page told the attempt; this one tells whether the tokens are there.
            reader.page().await.map_err(|_| Gone)?;
        }
        Ok(reader)
    }

    /// The next event; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Result<JobEvent, Gone>> {
        while !self.over {
            if let Some(event) = self.progress.ready.pop_front() {
                self.over = matches!(event.body, JobEventBody::Ended { .. });
                return Some(Ok(event));
            }
            if !self.behind {
                self.listen().await;
                continue;
            }
            match self.page().await {
                Ok(()) => {}
                Err(NoPage::Gone) => {
                    self.over = true;
                    return Some(Err(Gone));
                }
                Err(NoPage::Away) => {
                    tokio::time::sleep(RETRY).await;
                    self.bus.shared.is_up().await;
                }
            }
        }
        None
    }

    /// Takes the messages that wait, or waits for one.
    async fn listen(&mut self) {
        match self.slot.take() {
            Taken::Missed => self.behind = true,
            Taken::Messages(messages) if messages.is_empty() => {
                // Long silence: the stream may have gone with age, which Redis tells nobody.
                let aged = self.bus.keep + self.bus.keep / 16;
                self.behind = tokio::time::timeout(aged, self.slot.filled()).await.is_err();
            }
            Taken::Messages(messages) => {
                for message in messages {
                    let taken = Entry::from_message(&message).map(|entry| self.progress.take(entry));
                    if taken != Some(Ok(())) {
                        // The stream tells more: it has what is missing, or it has a hole as well.
                        self.behind = true;
                        return;
                    }
                }
            }
        }
    }

    /// Takes the next page of the stream.
    async fn page(&mut self) -> Result<(), NoPage> {
        let start = self.progress.start();
        // A reader that has tokens from before needs to know the attempt to skip them.
        let most = if start.is_none() && self.progress.after > 0 { 1 } else { PAGE };
        let entries = self.bus.range(&self.key, start, most).await.map_err(|failure| match failure {
            Failure::Away(_) => NoPage::Away,
            Failure::Refused(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the events of a job cannot be read");
                NoPage::Gone
            }
        })?;
        if start.is_some() && start == self.progress.last {
            let lost = match entries.first() {
                None => true,
                // Nothing tells how many tokens were before the end.
                Some((first, _)) => EntryId::parse(first).is_none_or(|id| id.is_end() && Some(id) != start),
            };
            if lost {
                return Err(NoPage::Gone);
            }
        }
        self.behind = entries.len() == most;
        for (id, payload) in entries {
            let entry = Entry::read(&id, &payload).ok_or_else(|| {
                tracing::warn!(job.id = %self.progress.job, entry = id, "an entry of the bus that this build cannot read");
                NoPage::Gone
            })?;
            self.progress.take(entry).map_err(|Hole| NoPage::Gone)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use contract::{JobState, TokenEvent};

    use super::*;

    fn progress(after: u32) -> Progress {
        Progress { job: JobId::new(), after, last: None, position: 0, ready: VecDeque::new() }
    }

    fn tokens(attempt: u32, positions: std::ops::RangeInclusive<u32>) -> Entry {
        let id = EntryId::token(attempt, *positions.end());
        let token = |position| TokenEvent { position, id: attempt, choice: 0, text: String::new(), logprob: None };
        Entry { id, body: Body::Tokens(positions.map(token).collect()) }
    }

    /// What is ready, as attempt and position.
    fn ready(progress: &Progress) -> Vec<(u32, u32)> {
        let position = |event: &JobEvent| match &event.body {
            JobEventBody::Token(token) => token.position,
            JobEventBody::Started => 0,
            JobEventBody::Ended { .. } => u32::MAX,
        };
        progress.ready.iter().map(|event| (event.attempt, position(event))).collect()
    }

    #[test]
    fn a_hole_is_seen_and_changes_nothing() {
        let mut reader = progress(0);
        assert_eq!(reader.take(tokens(1, 2..=3)), Err(Hole));
        assert_eq!(reader.take(tokens(1, 1..=3)), Ok(()));
        assert_eq!(reader.take(tokens(1, 5..=5)), Err(Hole));
        assert_eq!(reader.take(tokens(2, 2..=2)), Err(Hole));
        assert_eq!(reader.take(tokens(1, 4..=4)), Ok(()));
        assert_eq!(ready(&reader), [(1, 1), (1, 2), (1, 3), (1, 4)]);
    }

    #[test]
    fn what_the_reader_has_is_passed_over() {
        let mut reader = progress(3);
        for entry in [tokens(1, 3..=5), tokens(1, 3..=5), tokens(1, 4..=4), tokens(1, 6..=6)] {
            assert_eq!(reader.take(entry), Ok(()));
        }
        assert_eq!(ready(&reader), [(1, 4), (1, 5), (1, 6)]);
        assert_eq!(progress(3).take(tokens(1, 5..=5)), Err(Hole));
    }

    #[test]
    fn a_newer_attempt_starts_anew_and_an_older_one_is_over() {
        let mut reader = progress(1);
        let end = |attempt| Entry { id: EntryId { attempt, place: u64::MAX }, body: Body::Ended(JobState::Succeeded) };
        for entry in [tokens(1, 1..=4), tokens(2, 1..=1), tokens(1, 5..=5), end(1), tokens(2, 2..=2), end(2)] {
            assert_eq!(reader.take(entry), Ok(()));
        }
        assert_eq!(ready(&reader), [(2, 2), (2, u32::MAX)]);
    }

    #[test]
    fn reading_goes_on_where_the_reader_is() {
        let mut reader = progress(9);
        assert_eq!(reader.start(), None);
        reader.take(tokens(2, 1..=1)).unwrap();
        assert_eq!(reader.start(), Some(EntryId::token(2, 9)));
        reader.take(tokens(2, 2..=12)).unwrap();
        assert_eq!(reader.start(), Some(EntryId::token(2, 12)));
    }
}
