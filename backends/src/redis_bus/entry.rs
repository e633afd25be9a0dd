//! How events lie in a job's Redis stream, and travel beside it.
//!
//! The id of an entry is `{attempt}-{place}`: place 1 is the start, `position + 1` a token, the highest the end. Redis
//! takes ids in rising order only, so it is Redis that refuses what comes twice, after the end, or from an attempt that
//! is over. An entry holds one or more tokens in a row; its place is that of the last.

use contract::{JobEvent, JobEventBody, JobId, JobState, TokenEvent, TokenLogprob};
use serde::{Deserialize, Serialize};

/// Most tokens of one entry. An engine step gives a job one; more come together when the publisher was behind.
const TOKENS: usize = 64;

/// Where an entry stands in its job's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub attempt: u32,
    pub place: u64,
}

impl EntryId {
    const STARTED: u64 = 1;
    const ENDED: u64 = u64::MAX;

    /// The entry whose last token has this position.
    pub(super) fn token(attempt: u32, position: u32) -> Self {
        Self { attempt, place: u64::from(position) + 1 }
    }

    /// Below every entry of the attempt.
    pub(super) fn floor(attempt: u32) -> Self {
        Self { attempt, place: 0 }
    }

    pub(super) fn is_end(self) -> bool {
        self.place == Self::ENDED
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (attempt, place) = text.split_once('-')?;
        Some(Self { attempt: attempt.parse().ok()?, place: place.parse().ok()? })
    }
}

impl std::fmt::Display for EntryId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.attempt, self.place)
    }
}

/// One entry, ready to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub job: JobId,
    pub id: EntryId,
    /// What the stream keeps: nothing for a start, the state's name for an end, else an array of tokens.
    pub payload: String,
    /// Position of its last token; 0 without tokens.
    pub position: u32,
}

impl Written {
    /// What readers are told: the id, a space, the payload.
    pub(super) fn message(&self) -> String {
        format!("{} {}", self.id, self.payload)
    }
}

/// A token as it is written; its position follows from the entry's id.
#[derive(Serialize)]
#[serde(untagged)]
enum TokenOut<'e> {
    /// Of the first answer: id, text, and its log-probability if there is one.
    First(u32, &'e str, #[serde(skip_serializing_if = "Option::is_none")] Option<&'e TokenLogprob>),
    /// Of a further one, which stands last.
    Further(u32, &'e str, Option<&'e TokenLogprob>, u32),
}

impl<'e> TokenOut<'e> {
    fn of(token: &'e TokenEvent) -> Self {
        let TokenEvent { position: _, id, choice, text, logprob } = token;
        match choice {
            0 => Self::First(*id, text, logprob.as_ref()),
            choice => Self::Further(*id, text, logprob.as_ref(), *choice),
        }
    }
}

#[derive(Deserialize)]
struct TokenIn(u32, String, #[serde(default)] Option<TokenLogprob>, #[serde(default)] u32);

/// The entries that hold these events, in order.
pub(super) fn entries(events: &[JobEvent]) -> Result<Vec<Written>, serde_json::Error> {
    let mut written = Vec::with_capacity(events.len());
    let mut rest = events;
    while let Some((first, after)) = rest.split_first() {
        let (job, attempt) = (first.job, first.attempt);
        let (entry, taken) = match &first.body {
            JobEventBody::Started => {
                let id = EntryId { attempt, place: EntryId::STARTED };
                (Written { job, id, payload: String::new(), position: 0 }, 1)
            }
            JobEventBody::Ended { state } => {
                let id = EntryId { attempt, place: EntryId::ENDED };
                (Written { job, id, payload: serde_json::to_string(state)?, position: 0 }, 1)
            }
            JobEventBody::Token(token) => {
                let mut run = vec![token];
                let mut last = token.position;
                for event in after.iter().take(TOKENS - 1) {
                    match &event.body {
                        JobEventBody::Token(next)
                            if (event.job, event.attempt) == (job, attempt)
                                && last.checked_add(1) == Some(next.position) =>
                        {
                            last = next.position;
                            run.push(next);
                        }
                        _ => break,
                    }
                }
                let out: Vec<TokenOut<'_>> = run.iter().map(|token| TokenOut::of(token)).collect();
                let id = EntryId::token(attempt, last);
                (Written { job, id, payload: serde_json::to_string(&out)?, position: last }, run.len())
            }
        };
        written.push(entry);
        rest = rest.get(taken..).unwrap_or_default();
    }
    Ok(written)
}

/// An entry as a reader sees it.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub id: EntryId,
    pub body: Body,
}

/// What an entry holds.
#[derive(Debug, PartialEq)]
pub(super) enum Body {
    Started,
    /// Tokens in a row, at least one.
    Tokens(Vec<TokenEvent>),
    Ended(JobState),
}

impl Entry {
    /// Reads what stands in the stream; `None` for what this build does not write.
    pub(super) fn read(id: &str, payload: &[u8]) -> Option<Self> {
        let id = EntryId::parse(id)?;
        let body = match id.place {
            EntryId::STARTED => Body::Started,
            EntryId::ENDED => Body::Ended(serde_json::from_slice(payload).ok()?),
            place => {
                let tokens: Vec<TokenIn> = serde_json::from_slice(payload).ok()?;
                let last = u32::try_from(place.checked_sub(1)?).ok()?;
                let before = last.checked_sub(u32::try_from(tokens.len()).ok()?)?;
                if tokens.is_empty() {
                    return None;
                }
                let event =
                    |(position, TokenIn(id, text, logprob, choice))| TokenEvent { position, id, choice, text, logprob };
                Body::Tokens((before + 1..=last).zip(tokens).map(event).collect())
            }
        };
        Some(Self { id, body })
    }

    /// Reads what readers are told.
    pub(super) fn from_message(message: &[u8]) -> Option<Self> {
        let space = message.iter().position(|byte| *byte == b' ')?;
        let (id, payload) = message.split_at(space);
        Self::read(std::str::from_utf8(id).ok()?, payload.get(1..)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(job: JobId, attempt: u32, position: u32, text: &str) -> JobEvent {
        let body = JobEventBody::Token(TokenEvent { position, id: 7, choice: 0, text: text.into(), logprob: None });
        JobEvent { job, attempt, body }
    }

    #[test]
    fn an_entry_is_small_and_its_id_says_where_it_stands() {
        let (one, two) = (JobId::new(), JobId::new());
        let events = [
            JobEvent { job: one, attempt: 3, body: JobEventBody::Started },
            token(one, 3, 1, "a"),
            token(one, 3, 2, "\"ü"),
            token(two, 1, 3, ""),
            token(two, 1, 5, "x"),
            JobEvent { job: two, attempt: 1, body: JobEventBody::Ended { state: JobState::Succeeded } },
        ];
        let written = entries(&events).unwrap();
        let seen: Vec<String> = written.iter().map(Written::message).collect();
        let expected = [
            "3-1 ",
            r#"3-3 [[7,"a"],[7,"\"ü"]]"#,
            r#"1-4 [[7,""]]"#,
            r#"1-6 [[7,"x"]]"#,
            "1-18446744073709551615 \"succeeded\"",
        ];
        assert_eq!(seen, expected);
        assert_eq!(written.iter().map(|entry| entry.position).collect::<Vec<_>>(), [0, 2, 3, 5, 0]);
    }

    #[test]
    fn tokens_of_further_answers_say_which() {
        let job = JobId::new();
        let event = |position, choice| {
            let body = JobEventBody::Token(TokenEvent { position, id: 7, choice, text: "a".into(), logprob: None });
            JobEvent { job, attempt: 1, body }
        };
        let events = [event(1, 0), event(2, 5)];
        let [entry] = entries(&events).unwrap().try_into().unwrap();
        assert_eq!(entry.message(), r#"1-3 [[7,"a"],[7,"a",null,5]]"#);
        let Some(Entry { body: Body::Tokens(read), .. }) = Entry::from_message(entry.message().as_bytes()) else {
            panic!("not read back")
        };
        assert_eq!(read.iter().map(|token| (token.position, token.choice)).collect::<Vec<_>>(), [(1, 0), (2, 5)]);
    }

    #[test]
    fn long_runs_are_cut() {
        let job = JobId::new();
        let events: Vec<JobEvent> = (1..=130).map(|position| token(job, 1, position, "")).collect();
        let places: Vec<u64> = entries(&events).unwrap().iter().map(|entry| entry.id.place).collect();
        assert_eq!(places, [65, 129, 131]);
    }

    #[test]
    fn what_this_build_does_not_write_is_refused() {
        for message in [
            "",
            "1-1",
            "1 []",
            "x-1 ",
            "1-3 ",
            "1-3 []",
            "1-3 {}",
            "1-3 [[1]]",
            r#"1-2 [[1,"a"],[1,"b"]]"#,
            "1-0 []",
            r#"1-18446744073709551615 "started""#,
            r#"4294967296-3 [[1,"a"]]"#,
            r#"1-4294967297 [[1,"a"]]"#,
            r#"-1-3 [[1,"a"]]"#,
        ] {
            assert_eq!(Entry::from_message(message.as_bytes()), None, "{message}");
        }
        assert_eq!(Entry::from_message(b"1-3 \xff"), None);
    }

    #[test]
    fn ids_sort_as_redis_sorts_them() {
        let ordered =
            [EntryId::floor(2), EntryId { attempt: 2, place: 1 }, EntryId::token(2, 9), EntryId::token(2, 10)];
        assert!(ordered.is_sorted() && EntryId::token(3, 1) > EntryId { attempt: 2, place: u64::MAX });
    }
}
