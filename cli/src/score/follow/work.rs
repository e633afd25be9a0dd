//! The loop: what comes is read while there is room, answered together, and acknowledged when its answer is durable.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant};

use backends::rabbitmq::Answer;
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesOrdered, FuturesUnordered};
use serde_json::Value;

use super::super::output::{Line, Place, Totals};
use super::super::reading::Reading;
use super::super::request::{Body, read};
use super::scorer::Scorer;
use super::shown::{Shown, Status};
use super::sink::{Put, Sink, Ticket};
use super::source::{Received, Source};
use crate::embedded::{self, Running};
use crate::terminal;

/// How often the display is renewed.
const LOOK: Duration = Duration::from_secs(1);

/// Everything that one run works with, and how far it is.
pub struct Work {
    /// Where lines come from.
    pub source: Source,
    /// Where answers go.
    pub sink: Sink,
    /// How lines become requests.
    pub reading: Reading,
    /// Most lines under way, from reading to a durable answer.
    pub concurrency: usize,
    /// Answers in the order of the input.
    pub is_ordered: bool,
    /// How long what is under way may go on after a stop.
    pub drain: Duration,
    /// Removed where the process ends at once.
    pub scratch: Option<PathBuf>,
    /// What was done so far.
    pub summary: Summary,
    /// Lines that were read.
    pub n_read: u64,
    /// The display.
    pub shown: Shown,
    /// Ends when somebody stops the run. One for all of it: a signal that comes while nobody looks is kept.
    pub asked: Pin<Box<dyn Future<Output = std::io::Result<()>>>>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The input has ended, or somebody stopped the run.
    Ended,
    /// As many lines as the turn was to have are answered.
    Full,
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Lines whose answers are durable.
    pub totals: Totals,
    /// Somebody stopped it.
    pub is_stopped: bool,
    /// Lines that were read and have no answer.
    pub unanswered: usize,
    /// Answers that nobody waited for any more: their messages came again.
    pub again: u64,
    /// What has no answer comes again.
    pub is_queue: bool,
}

impl Summary {
    /// Whether the exit status is 0: all was answered, and with success where the input ended by itself.
    pub fn is_well(&self) -> bool {
        self.unanswered == 0 && (self.is_stopped || self.totals.failed == 0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { succeeded, failed } = self.totals;
        let begin = if self.is_stopped { "stopped: " } else { "" };
        write!(f, "{begin}{} lines: {succeeded} succeeded, {failed} failed", succeeded + failed)?;
        if self.unanswered > 0 {
            write!(f, ", {} without an answer", self.unanswered)?;
            if self.is_queue {
                write!(f, ", which are in the queue again")?;
            }
        }
        if self.again > 0 {
            write!(f, "; {} answers dropped after a lost connection, whose messages came again", self.again)?;
        }
        Ok(())
    }
}

/// An answer on its way to the sink.
struct Answered {
    ticket: Ticket,
    answer: Answer,
}

/// Lines that are being answered.
enum Scoring<'a> {
    Ordered(FuturesOrdered<LocalBoxFuture<'a, anyhow::Result<Answered>>>),
    Unordered(FuturesUnordered<LocalBoxFuture<'a, anyhow::Result<Answered>>>),
}

impl<'a> Scoring<'a> {
    fn push(&mut self, answering: LocalBoxFuture<'a, anyhow::Result<Answered>>) {
        match self {
            Self::Ordered(lines) => lines.push_back(answering),
            Self::Unordered(lines) => lines.push(answering),
        }
    }

    /// The next answer; waits for ever while there is none to come.
    async fn next(&mut self) -> anyhow::Result<Answered> {
        let next = match self {
            Self::Ordered(lines) => lines.next().await,
            Self::Unordered(lines) => lines.next().await,
        };
        match next {
            Some(answered) => answered,
            None => std::future::pending().await,
        }
    }
}

impl Work {
    /// Works until the input ends, somebody stops it, or so many lines are answered.
    ///
    /// # Errors
    /// Input, output or engine fail; what has no durable answer is not acknowledged.
    pub async fn turn(&mut self, scorer: &Scorer, running: Option<&Running>, most: u64) -> anyhow::Result<Turn> {
        let mut scoring = match self.is_ordered {
            true => Scoring::Ordered(FuturesOrdered::new()),
            false => Scoring::Unordered(FuturesUnordered::new()),
        };
        // When each line under way was read; in the order in which they were.
        let mut begun: BTreeMap<u64, Instant> = BTreeMap::new();
        let (mut is_open, mut drain_until) = (true, None);
        let full_at = self.n_read.saturating_add(most);
        let mut look = tokio::time::interval(LOOK);
        while (is_open && self.n_read < full_at) || !begun.is_empty() {
            let may_read = is_open && self.n_read < full_at && begun.len() < self.concurrency;
            tokio::select! {
                received = self.source.next(), if may_read => match received? {
                    Some(received) => {
                        begun.insert(self.n_read, Instant::now());
                        scoring.push(self.answering(scorer, received));
                        self.n_read += 1;
                    }
                    None => is_open = false,
                },
                answered = scoring.next() => {
                    let Answered { ticket, answer } = answered?;
                    if self.source.is_live(ticket.tag) {
                        self.sink.put(ticket, answer, self.source.lost(ticket.tag));
                    } else {
                        begun.remove(&ticket.number);
                        self.summary.again += 1;
                    }
                }
                put = self.sink.done() => self.settle(put?, &mut begun),
                _ = look.tick() => {
                    let status = self.status(&begun);
                    self.shown.at(Instant::now(), &status);
                }
                stop = &mut self.asked, if !self.summary.is_stopped => {
                    stop?;
                    (is_open, self.summary.is_stopped) = (false, true);
                    drain_until = Some(tokio::time::Instant::now() + self.drain);
                    self.source.stop();
                    self.say_stopping(begun.len());
                }
                () = drained(drain_until) => break,
                () = ended(running) => anyhow::bail!("the engine ended"),
            }
        }
        self.summary.unanswered = begun.len();
        Ok(if is_open { Turn::Full } else { Turn::Ended })
    }

    fn settle(&mut self, put: Put, begun: &mut BTreeMap<u64, Instant>) {
        match put {
            Put::Durable(ticket) => {
                self.source.ack(ticket.tag);
                begun.remove(&ticket.number);
                let totals = &mut self.summary.totals;
                *(if ticket.has_succeeded { &mut totals.succeeded } else { &mut totals.failed }) += 1;
            }
            Put::NotWanted(ticket) => {
                begun.remove(&ticket.number);
                self.summary.again += 1;
            }
        }
    }

    /// The end: sees the last acknowledgements on their way, and says what was done.
    pub async fn close(self) -> Summary {
        self.source.close().await;
        drop(self.shown);
        terminal::say(&self.summary.to_string());
        self.summary
    }

    fn status(&self, begun: &BTreeMap<u64, Instant>) -> Status {
        let Totals { succeeded, failed } = self.summary.totals;
        Status {
            done: succeeded + failed,
            failed,
            under_way: begun.len(),
            oldest: begun.first_key_value().map(|(_, at)| at.elapsed()),
            waiting: self.source.waiting(),
            trouble: self.sink.trouble(),
        }
    }

    /// Says what happens now; asked once more, the process ends at once.
    fn say_stopping(&self, under_way: usize) {
        let seconds = self.drain.as_secs();
        terminal::say(&format!("stopping: nothing more is read; {under_way} lines under way have {seconds} s to end"));
        let scratch = self.scratch.clone();
        tokio::spawn(async move {
            if embedded::asked_to_stop().await.is_ok() {
                if let Some(scratch) = scratch {
                    // What stays is removed by the next run.
                    let _removed_or_left = std::fs::remove_dir_all(scratch);
                }
                terminal::say("stopped at once");
                std::process::exit(130);
            }
        });
    }

    /// The way of a line to its answer.
    fn answering<'a>(&self, scorer: &'a Scorer, received: Received) -> LocalBoxFuture<'a, anyhow::Result<Answered>> {
        let number = self.n_read;
        let (tag, key, correlation_id) = (received.tag, received.key.clone(), received.correlation_id.clone());
        let (place, asked) = read_line(&self.reading, received);
        Box::pin(async move {
            let line = match asked {
                Ok(body) => scorer.answer(&place, body, &key).await?,
                Err(line) => line,
            };
            let ticket = Ticket { number, tag, has_succeeded: line.has_succeeded() };
            Ok(Answered { ticket, answer: Answer { body: line.to_bytes(), message_id: key, correlation_id } })
        })
    }
}

/// From a line to its request, or to the answer that it is none.
fn read_line(reading: &Reading, received: Received) -> (Place, Result<Body, Line>) {
    let name = received.name.unwrap_or_else(|| format!("line-{}", received.line));
    let mut place = Place { line: received.line, custom_id: name, release: reading.release.clone() };
    let content = match received.content {
        Ok(content) => content,
        Err(why) => {
            let line = Line::of_unreadable(&place, &why);
            return (place, Err(line));
        }
    };
    let mut defaults = reading.defaults.clone();
    defaults.seed = defaults.seed.or(received.seed);
    let has_own_name = content.get("custom_id").is_some_and(Value::is_string);
    let asked = read(content, received.line, &reading.model, reading.any_model, &defaults);
    if has_own_name {
        place.custom_id = asked.custom_id;
    }
    let body = asked.request.map_err(|refusal| Line::of_refusal(&place, &refusal));
    (place, body)
}

/// Ends when the time after a stop is over; never, while nobody has stopped the run.
async fn drained(until: Option<tokio::time::Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Ends when the engine has; never, where there is none.
async fn ended(running: Option<&Running>) {
    match running {
        Some(running) => embedded::ended(running).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::request::Defaults;
    use super::*;
    use serde_json::json;

    fn received(content: Result<Value, String>) -> Received {
        Received {
            line: 4,
            content,
            name: Some("mine".into()),
            correlation_id: None,
            key: "k".into(),
            seed: Some(11),
            tag: None,
        }
    }

    fn reading(defaults: Defaults) -> Reading {
        Reading { model: "m".into(), release: "r".into(), any_model: false, defaults }
    }

    #[test]
    fn a_message_gives_its_name_and_seed_to_a_line_that_has_none() {
        let plain = reading(Defaults::default());
        let (place, body) = read_line(&plain, received(Ok(json!({"prompt": "x"}))));
        assert_eq!(place.custom_id, "mine");
        assert_eq!(body.unwrap().parsed.request.sampling.seed, Some(11));
        let (place, body) = read_line(&plain, received(Ok(json!({"prompt": "x", "custom_id": "own", "seed": 3}))));
        assert_eq!(place.custom_id, "own");
        assert_eq!(body.unwrap().parsed.request.sampling.seed, Some(3));
        let seeded = reading(Defaults { seed: Some(5), ..Defaults::default() });
        let (_, body) = read_line(&seeded, received(Ok(json!({"prompt": "x"}))));
        assert_eq!(body.unwrap().parsed.request.sampling.seed, Some(5));
    }

    #[test]
    fn what_is_no_request_is_answered_under_its_name() {
        let plain = reading(Defaults::default());
        for content in [Err("not valid JSON".to_owned()), Ok(json!([1])), Ok(json!({"custom_id": 3, "prompt": "x"}))] {
            let (_, body) = read_line(&plain, received(content));
            let line: Value = serde_json::from_slice(&body.unwrap_err().to_bytes()).unwrap();
            assert_eq!((&line["custom_id"], &line["line"]), (&json!("mine"), &json!(4)), "{line}");
        }
    }

    #[test]
    fn a_summary_says_what_became_of_everything() {
        let done = Summary { totals: Totals { succeeded: 3, failed: 1 }, ..Summary::default() };
        assert_eq!(done.to_string(), "4 lines: 3 succeeded, 1 failed");
        assert!(!done.is_well());
        let stopped = Summary { is_stopped: true, ..done };
        assert!(stopped.is_well());
        let cut = Summary { unanswered: 2, is_queue: true, again: 1, ..stopped };
        assert_eq!(
            cut.to_string(),
            "stopped: 4 lines: 3 succeeded, 1 failed, 2 without an answer, which are in the queue again; \
             1 answers dropped after a lost connection, whose messages came again"
        );
        assert!(!cut.is_well());
    }
}
