//! What is collected of a job while it is in the engine, and the record it becomes.

use std::collections::VecDeque;
use std::time::Instant;

use contract::record::AttemptTimings;
use contract::{
    ChoiceRecord, Fingerprint, FinishReason, JobError, Lease, Leased, MAX_CHOICES, Reading, Record, TokenEvent,
    TokenLogprob, Usage,
};

use crate::engine::sampler::Chosen;
use crate::engine::sequence::{Ending, SequenceId, StopReason, TokenOutput};
use crate::text::TextTokenizer;

/// Names a job in the engine, and with it the sequences of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Running(pub u64);

impl Running {
    /// The sequence of the answer `choice`, which is below [`MAX_CHOICES`].
    pub fn sequence(self, choice: u32) -> SequenceId {
        SequenceId(self.0 * u64::from(MAX_CHOICES) + u64::from(choice))
    }

    /// The job of a sequence, and which of its answers it is.
    pub fn of(id: SequenceId) -> (Self, u32) {
        let per_job = u64::from(MAX_CHOICES);
        (Self(id.0 / per_job), (id.0 % per_job) as u32)
    }
}

/// Why a job has no record, though it was in the engine. The later ones win: of answers that end in several of these
/// ways, the job ends in the last one.
#[derive(Debug, Clone, PartialEq)]
pub enum Unfinished {
    /// A step failed, or its numbers were not finite.
    Failed(JobError),
    /// Its deadline passed.
    DeadlinePassed,
    /// It was not wanted any more.
    Dropped,
}

/// A job in the engine: its request and everything generated so far.
pub struct Collected {
    /// The leased job.
    pub leased: Leased,
    leased_at: Instant,
    prompt_text: String,
    prompt_ids: Vec<u32>,
    prepared_ms: u64,
    first_token_ms: Option<u64>,
    answers: Vec<Answer>,
    /// Tokens told of.
    position: u32,
    /// The answer whose next token is told of next.
    turn: usize,
    reading: Reading,
}

/// One answer.
#[derive(Default)]
struct Answer {
    output_ids: Vec<u32>,
    text: String,
    ends: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    /// Tokens that wait for their turn: those of another answer come first.
    untold: VecDeque<TokenEvent>,
    ending: Option<Ending>,
    usage: Usage,
}

impl Collected {
    /// A job that enters the engine now.
    pub fn new(leased: Leased, leased_at: Instant, prompt_text: String, prompt_ids: Vec<u32>) -> Self {
        Self {
            answers: (0..leased.request.sampling.n).map(|_| Answer::default()).collect(),
            leased,
            prompt_text,
            prompt_ids,
            prepared_ms: millis(leased_at),
            leased_at,
            first_token_ms: None,
            position: 0,
            turn: 0,
            reading: Reading::default(),
        }
    }

    /// Its answers are read so.
    #[must_use]
    pub fn read_as(self, reading: Reading) -> Self {
        Self { reading, ..self }
    }

    /// Its lease.
    pub fn lease(&self) -> Lease {
        self.leased.lease
    }

    /// When its deadline passes.
    pub fn deadline(&self) -> Instant {
        self.leased_at + self.leased.deadline_in
    }

    /// Milliseconds from the lease to the first token, once there is one.
    pub fn first_token_ms(&self) -> Option<u64> {
        self.first_token_ms
    }

    /// Takes a token in; [`Collected::told`] gives the events that tell of it.
    pub fn push(&mut self, output: TokenOutput, tokenizer: &TextTokenizer) {
        self.first_token_ms.get_or_insert_with(|| millis(self.leased_at));
        let (_, choice) = Running::of(output.id);
        let Some(answer) = self.answers.get_mut(choice as usize) else { return };
        let logprob = render_logprob(&output.chosen, tokenizer);
        let (id, text) = (output.chosen.id, output.text);
        answer.output_ids.push(id);
        answer.text.push_str(&text);
        // An answer is far below 4 GiB: the context bounds its tokens, and the vocabulary their length.
        answer.ends.push(answer.text.len() as u32);
        answer.logprobs.extend(logprob.clone());
        // Its position is given when its turn comes.
        answer.untold.push_back(TokenEvent { position: 0, id, choice, text, logprob });
    }

    /// The next token to tell of, if it has come. Answers take turns, so that every attempt tells of the same tokens in the
    /// same order, however the engine was busy; one that has ended is passed over.
    pub fn told(&mut self) -> Option<TokenEvent> {
        for _ in 0..self.answers.len() {
            let answer = &mut self.answers[self.turn];
            let event = answer.untold.pop_front();
            if event.is_none() && answer.ending.is_none() {
                return None;
            }
            self.turn = (self.turn + 1) % self.answers.len();
            if let Some(mut event) = event {
                self.position += 1;
                event.position = self.position;
                return Some(event);
            }
        }
        None
    }

    /// Takes in how an answer ended and what its sequence used.
    pub fn end(&mut self, choice: u32, ending: Ending, usage: Usage) {
        if let Some(answer) = self.answers.get_mut(choice as usize) {
            answer.ending = Some(ending);
            answer.usage = usage;
        }
    }

    /// Whether all answers have ended: the job is done with the engine.
    pub fn has_ended(&self) -> bool {
        self.answers.iter().all(|answer| answer.ending.is_some())
    }

    /// Tokens used: those of the prompt once.
    pub fn usage(&self) -> Usage {
        let usages = || self.answers.iter().map(|answer| answer.usage);
        Usage {
            prompt_tokens: usages().map(|usage| usage.prompt_tokens).max().unwrap_or(0),
            // What the first of them found in the cache; the others may have found what it left there.
            cached_tokens: usages().map(|usage| usage.cached_tokens).min().unwrap_or(0),
            output_tokens: usages().map(|usage| usage.output_tokens).sum(),
        }
    }

    /// The record of the finished job.
    ///
    /// # Errors
    /// [`Unfinished`] when an answer did not run to its end.
    pub fn into_record(self, release: Fingerprint) -> Result<Record, Unfinished> {
        let (kind, usage) = (self.leased.request.kind(), self.usage());
        let asked_for_logprobs = self.leased.request.logprobs.is_some();
        let mut choices = Vec::with_capacity(self.answers.len());
        let mut unfinished: Option<Unfinished> = None;
        for answer in self.answers {
            let why = match answer.ending {
                Some(Ending::Finished { reason, stop }) => {
                    let stop_reason = match stop {
                        Some(StopReason::Text(text)) => Some(text.into()),
                        // The end-of-text token is the normal end, not something the request named.
                        Some(StopReason::Token(id)) if self.leased.request.stop_token_ids.contains(&id) => {
                            Some(id.into())
                        }
                        _ => None,
                    };
                    choices.push(ChoiceRecord {
                        output_ids: answer.output_ids,
                        text: answer.text,
                        ends: answer.ends,
                        logprobs: asked_for_logprobs.then_some(answer.logprobs),
                        finish_reason: reason,
                        stop_reason,
                    });
                    continue;
                }
                Some(Ending::Failed(error)) => Unfinished::Failed(error),
                Some(Ending::DeadlinePassed) => Unfinished::DeadlinePassed,
                Some(Ending::Dropped) | None => Unfinished::Dropped,
            };
            unfinished = match unfinished {
                Some(known) if known.rank() >= why.rank() => Some(known),
                _ => Some(why),
            };
        }
        if let Some(why) = unfinished {
            return Err(why);
        }
        let mut record = Record {
            v: 1,
            job: self.leased.lease.job,
            attempt: self.leased.lease.attempt,
            release,
            kind,
            seed: self.leased.seed,
            prompt_text: self.prompt_text,
            prompt_ids: self.prompt_ids,
            choices,
            usage,
            timings: AttemptTimings {
                prepared_ms: self.prepared_ms,
                first_token_ms: self.first_token_ms.unwrap_or_default(),
                finished_ms: millis(self.leased_at),
            },
            request: self.leased.request,
            reading: self.reading,
        };
        name_calls(&mut record);
        Ok(record)
    }
}

/// Says of answers that the model ended whether it ended them to call.
fn name_calls(record: &mut Record) {
    if record.reading.calls.is_none() {
        return;
    }
    let ended = |choice: &ChoiceRecord| choice.finish_reason == FinishReason::Stop;
    let calls: Vec<bool> =
        record.choices.iter().map(|choice| ended(choice) && !record.read(choice).calls.is_empty()).collect();
    for (choice, calls) in record.choices.iter_mut().zip(calls) {
        if calls {
            choice.finish_reason = FinishReason::ToolCalls;
        }
    }
}

impl Unfinished {
    fn rank(&self) -> u8 {
        match self {
            Unfinished::Failed(_) => 0,
            Unfinished::DeadlinePassed => 1,
            Unfinished::Dropped => 2,
        }
    }
}

fn millis(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

fn render_logprob(chosen: &Chosen, tokenizer: &TextTokenizer) -> Option<TokenLogprob> {
    let (own, top) = chosen.logprobs.as_ref()?;
    // As a client reads it: ` the`, not the vocabulary's spelling; control tokens stand for no text.
    let show = |id: u32| match tokenizer.token_bytes(id).filter(|_| !tokenizer.is_special(id)) {
        Some(bytes) => (String::from_utf8_lossy(&bytes).into_owned(), Some(bytes)),
        None => (tokenizer.token_text(id).unwrap_or_default().to_owned(), None),
    };
    let (token, bytes) = show(chosen.id);
    let top = top.iter().map(|(id, logprob)| {
        let (token, bytes) = show(*id);
        contract::record::TopLogprob { token, bytes, logprob: *logprob }
    });
    Some(TokenLogprob { token, bytes, logprob: *own, top: top.collect() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract::openai::parse_completion;
    use contract::openai::views::replay;
    use contract::{Class, ErrorCode, JobId, TenantId};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::text::stream_tests::BYTES;

    const NAME: Running = Running(41);

    fn job(n: usize) -> Collected {
        let request = parse_completion(&json!({"model": "m", "prompt": "x", "n": n})).unwrap().request;
        let leased = Leased {
            lease: Lease { job: JobId::new(), attempt: 1 },
            tenant: TenantId::local(),
            class: Class::Standard,
            request,
            seed: 1,
            losses: 0,
            deadline_in: Duration::from_secs(60),
            traceparent: None,
        };
        Collected::new(leased, Instant::now(), "x".into(), vec![120])
    }

    fn push(job: &mut Collected, choice: u32, id: u32) {
        let text = char::from_u32(id).unwrap().to_string();
        let chosen = Chosen { id, logprobs: None };
        job.push(TokenOutput { id: NAME.sequence(choice), position: 0, chosen, text }, &BYTES);
    }

    fn finish(job: &mut Collected, choice: u32, output_tokens: u32) {
        let ending = Ending::Finished { reason: FinishReason::Stop, stop: None };
        job.end(choice, ending, Usage { prompt_tokens: 1, cached_tokens: 0, output_tokens });
    }

    fn told(job: &mut Collected) -> Vec<(u32, u32, u32)> {
        std::iter::from_fn(|| job.told()).map(|token| (token.position, token.choice, token.id)).collect()
    }

    #[test]
    fn a_sequence_names_its_job_and_answer() {
        for (job, choice) in [(0, 0), (1, 7), (u64::MAX / 8, 7)] {
            assert_eq!(Running::of(Running(job).sequence(choice)), (Running(job), choice));
        }
    }

    #[test]
    fn answers_take_turns_and_one_that_has_ended_is_passed_over() {
        let mut job = job(3);
        push(&mut job, 2, 97);
        assert_eq!(told(&mut job), [], "the first answer comes first");
        push(&mut job, 0, 98);
        assert_eq!(told(&mut job), [(1, 0, 98)]);
        push(&mut job, 1, 99);
        assert_eq!(told(&mut job), [(2, 1, 99), (3, 2, 97)]);
        push(&mut job, 2, 100);
        finish(&mut job, 2, 2);
        push(&mut job, 0, 101);
        assert_eq!(told(&mut job), [(4, 0, 101)], "the second answer may yet go on");
        finish(&mut job, 1, 1);
        assert_eq!(told(&mut job), [(5, 2, 100)]);
        push(&mut job, 0, 102);
        assert_eq!(told(&mut job), [(6, 0, 102)]);
        assert!(!job.has_ended());
        finish(&mut job, 0, 3);
        assert_eq!(told(&mut job), []);
        assert!(job.has_ended());
        assert_eq!(job.usage(), Usage { prompt_tokens: 1, cached_tokens: 0, output_tokens: 6 });
        let record = job.into_record(Fingerprint("ab".into())).unwrap();
        let texts: Vec<_> = record.choices.iter().map(|choice| choice.text.as_str()).collect();
        assert_eq!(texts, ["bef", "c", "ad"]);
        assert_eq!(record.streamed_ids(), [98, 99, 97, 101, 100, 102]);
    }

    #[test]
    fn a_job_ends_as_the_worst_of_its_answers() {
        let failed = || Ending::Failed(JobError::new(ErrorCode::NotFinite, "x"));
        let ended = |endings: [Ending; 2]| {
            let mut job = job(3);
            push(&mut job, 0, 97);
            finish(&mut job, 0, 1);
            for (choice, ending) in (1..).zip(endings) {
                job.end(choice, ending, Usage::default());
            }
            job.into_record(Fingerprint("ab".into())).unwrap_err()
        };
        let why = Unfinished::Failed(JobError::new(ErrorCode::NotFinite, "x"));
        assert_eq!(ended([failed(), Ending::Finished { reason: FinishReason::Stop, stop: None }]), why);
        assert_eq!(ended([Ending::DeadlinePassed, failed()]), Unfinished::DeadlinePassed);
        assert_eq!(ended([Ending::Dropped, Ending::DeadlinePassed]), Unfinished::Dropped);
    }

    proptest! {
        /// However the engine was busy with the answers, what is told is what the record gives again.
        #[test]
        fn the_order_of_the_stream_does_not_depend_on_the_engine(
            lengths in proptest::collection::vec(1usize..6, 1..9), picks in proptest::collection::vec(any::<usize>(), 60),
        ) {
            let mut job = job(lengths.len());
            let mut left: Vec<(u32, usize)> = (0..).zip(lengths.iter().copied()).collect();
            let (mut events, mut picks) = (Vec::new(), picks.into_iter());
            while !left.is_empty() {
                let at = picks.next().unwrap() % left.len();
                let (choice, n) = left[at];
                push(&mut job, choice, 97 + n as u32);
                left[at].1 -= 1;
                if n == 1 {
                    left.remove(at);
                    finish(&mut job, choice, lengths[choice as usize] as u32);
                }
                events.extend(std::iter::from_fn(|| job.told()));
            }
            prop_assert!(job.has_ended());
            let record = job.into_record(Fingerprint("ab".into())).unwrap();
            prop_assert_eq!(events, replay(&record, 0).unwrap());
        }
    }
}
