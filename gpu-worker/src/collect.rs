//! What is collected of a job while it is in the engine, and the record it becomes.

use std::collections::VecDeque;
use std::time::Instant;

use contract::record::AttemptTimings;
use contract::{
    ChoiceRecord, Embedding, Fingerprint, Input, JobError, Lease, Leased, MAX_CHOICES, MAX_EMBEDDED, PromptToken,
    Record, TokenEvent, TokenLogprob, TokenScore, TopToken, Usage, Vector,
};

use crate::engine::sampler::{Chosen, Scored};
use crate::engine::sequence::{Ending, PromptGives, PromptOutput, SequenceId, StopReason, TokenOutput};
use crate::text::{ShownToken, TextTokenizer};

/// Sequences that a job can have: one for each answer, or for each text that becomes a vector.
const PER_JOB: u64 = MAX_EMBEDDED as u64;
const _: () = assert!(PER_JOB >= MAX_CHOICES as u64, "a name has room for every answer");

/// Names a job in the engine, and with it the sequences of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Running(pub u64);

impl Running {
    /// The sequence of the answer, or of the text, `choice`, which is below [`MAX_EMBEDDED`].
    pub fn sequence(self, choice: u32) -> SequenceId {
        SequenceId(self.0 * PER_JOB + u64::from(choice))
    }

    /// The job of a sequence, and which of its answers or texts it is.
    pub fn of(id: SequenceId) -> (Self, u32) {
        (Self(id.0 / PER_JOB), (id.0 % PER_JOB) as u32)
    }
}

/// A job's prompt as its worker made it. Empty for vectors, whose texts are many.
#[derive(Debug, Default)]
pub struct PromptSeen {
    /// As text.
    pub text: String,
    /// Its token ids.
    pub ids: Vec<u32>,
    /// What its tokens stand for, if they are to be scored.
    pub tokens: Option<Vec<ShownToken>>,
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
    /// The prompt's tokens with their scores, if they were asked for.
    prompt_tokens: Option<Vec<PromptToken>>,
    /// Scores that have come.
    n_scored: usize,
    prepared_ms: u64,
    first_token_ms: Option<u64>,
    answers: Vec<Answer>,
    /// Tokens told of.
    position: u32,
    /// The answer whose next token is told of next.
    turn: usize,
}

/// One answer, or one text that becomes a vector.
#[derive(Default)]
struct Answer {
    output_ids: Vec<u32>,
    text: String,
    ends: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    /// Tokens that wait for their turn: those of another answer come first.
    untold: VecDeque<TokenEvent>,
    vector: Vector,
    ending: Option<Ending>,
    usage: Usage,
}

impl Collected {
    /// A job that enters the engine now.
    pub fn new(leased: Leased, leased_at: Instant, prompt: PromptSeen) -> Self {
        let n_answers = match &leased.request.input {
            Input::Chat(_) | Input::Completion(_) => usize::from(leased.request.sampling.n),
            Input::Embedding(embedding) => embedding.inputs.len(),
        };
        let unscored = |ShownToken { text, offset }| PromptToken { token: text, offset, score: None };
        Self {
            answers: (0..n_answers).map(|_| Answer::default()).collect(),
            leased,
            prompt_text: prompt.text,
            prompt_ids: prompt.ids,
            prompt_tokens: prompt.tokens.map(|tokens| tokens.into_iter().map(unscored).collect()),
            n_scored: 0,
            prepared_ms: millis(leased_at),
            leased_at,
            first_token_ms: None,
            position: 0,
            turn: 0,
        }
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

    /// Takes in what a prompt gave.
    pub fn prompt(&mut self, output: PromptOutput, tokenizer: &TextTokenizer) {
        match output.gives {
            PromptGives::Scores(scores) => {
                // Nothing comes before the first token, so it has no score.
                let unscored = self.prompt_tokens.iter_mut().flatten().skip(1 + self.n_scored);
                self.n_scored += scores.len();
                for (token, scored) in unscored.zip(scores) {
                    token.score = Some(render_score(scored, tokenizer));
                }
            }
            PromptGives::Vector(pooled) => {
                let Input::Embedding(how) = &self.leased.request.input else { return };
                let (_, nth) = Running::of(output.id);
                if let Some(answer) = self.answers.get_mut(nth as usize) {
                    answer.vector = Vector(finished(pooled, how));
                }
            }
        }
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

    /// Tokens used: those of the prompt once, or those of all texts.
    pub fn usage(&self) -> Usage {
        let usages = || self.answers.iter().map(|answer| answer.usage);
        if let Input::Embedding(_) = self.leased.request.input {
            let sum = |of: fn(Usage) -> u32| usages().map(of).fold(0, u32::saturating_add);
            return Usage {
                prompt_tokens: sum(|usage| usage.prompt_tokens),
                cached_tokens: sum(|usage| usage.cached_tokens),
                output_tokens: 0,
            };
        }
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
        let is_embedding = matches!(self.leased.request.input, Input::Embedding(_));
        let (mut choices, mut vectors) = (Vec::new(), Vec::new());
        let mut unfinished: Option<Unfinished> = None;
        for answer in self.answers {
            let why = match answer.ending {
                Some(Ending::Finished { .. }) if is_embedding => {
                    vectors.push(answer.vector);
                    continue;
                }
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
        Ok(Record {
            v: 1,
            job: self.leased.lease.job,
            attempt: self.leased.lease.attempt,
            release,
            kind,
            seed: self.leased.seed,
            prompt_text: self.prompt_text,
            prompt_ids: self.prompt_ids,
            prompt_tokens: self.prompt_tokens,
            choices,
            vectors,
            usage,
            timings: AttemptTimings {
                prepared_ms: self.prepared_ms,
                first_token_ms: self.first_token_ms.unwrap_or_default(),
                finished_ms: millis(self.leased_at),
            },
            request: self.leased.request,
        })
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

fn render_score(scored: Scored, tokenizer: &TextTokenizer) -> TokenScore {
    let top = scored.top.into_iter().map(|(id, logprob)| TopToken { id, token: tokenizer.show(id).0, logprob });
    TokenScore { logprob: scored.logprob, rank: scored.rank, top: top.collect() }
}

/// A pooled vector as it was asked for: cut, then made one long. One without a length stays as it is.
fn finished(mut pooled: Vec<f32>, how: &Embedding) -> Vec<f32> {
    if let Some(dimensions) = how.dimensions {
        pooled.truncate(dimensions as usize);
        pooled.shrink_to_fit();
    }
    // In double precision, in which no square of a number overflows.
    let length = pooled.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if how.normalize && length > 0.0 {
        for x in &mut pooled {
            *x = (f64::from(*x) / length) as f32;
        }
    }
    pooled
}

fn render_logprob(chosen: &Chosen, tokenizer: &TextTokenizer) -> Option<TokenLogprob> {
    let (own, top) = chosen.logprobs.as_ref()?;
    let (token, bytes) = tokenizer.show(chosen.id);
    let top = top.iter().map(|(id, logprob)| {
        let (token, bytes) = tokenizer.show(*id);
        contract::record::TopLogprob { token, bytes, logprob: *logprob }
    });
    Some(TokenLogprob { token, bytes, logprob: *own, top: top.collect() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract::openai::views::replay;
    use contract::openai::{parse_completion, parse_embedding};
    use contract::{Class, ErrorCode, FinishReason, JobId, Request, TenantId};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::engine::sequence::PromptGives::{Scores, Vector as Pooled};
    use crate::text::stream_tests::BYTES;

    const NAME: Running = Running(41);

    fn job(n: usize) -> Collected {
        let request = parse_completion(&json!({"model": "m", "prompt": "x", "n": n})).unwrap().request;
        let prompt = PromptSeen { text: "x".into(), ids: vec![120], tokens: None };
        Collected::new(leased(request), Instant::now(), prompt)
    }

    fn leased(request: Request) -> Leased {
        Leased {
            lease: Lease { job: JobId::new(), attempt: 1 },
            tenant: TenantId::local(),
            class: Class::Standard,
            request,
            seed: 1,
            losses: 0,
            deadline_in: Duration::from_secs(60),
            traceparent: None,
        }
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
        for (job, choice) in [(0, 0), (1, 7), (u64::MAX / 2_048, 2_047)] {
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

    #[test]
    fn scores_come_in_pieces_and_belong_to_the_tokens_behind_the_first() {
        let body = json!({"model": "m", "prompt": "abcd", "max_tokens": 0, "echo": true, "logprobs": 1});
        let request = parse_completion(&body).unwrap().request;
        let tokens = (0..4).map(|nth| ShownToken { text: format!("t{nth}"), offset: nth });
        let prompt = PromptSeen { text: "abcd".into(), ids: vec![97, 98, 99, 100], tokens: Some(tokens.collect()) };
        let mut job = Collected::new(leased(request), Instant::now(), prompt);
        let score = |logprob| Scored { logprob, rank: 1, top: vec![(97, -0.25)] };
        for scores in [vec![score(-1.0), score(-2.0)], vec![score(-3.0)]] {
            job.prompt(PromptOutput { id: NAME.sequence(0), gives: Scores(scores) }, &BYTES);
        }
        finish(&mut job, 0, 0);
        let record = job.into_record(Fingerprint("ab".into())).unwrap();
        let scored: Vec<_> = record.prompt_tokens.unwrap();
        let logprobs: Vec<_> = scored.iter().map(|token| token.score.as_ref().map(|score| score.logprob)).collect();
        assert_eq!(logprobs, [None, Some(-1.0), Some(-2.0), Some(-3.0)]);
        assert_eq!((scored[3].token.as_str(), scored[3].offset), ("t3", 3));
        assert_eq!(scored[1].score.as_ref().unwrap().top[0].token, "a");
        assert_eq!((record.choices[0].output_ids.len(), record.choices[0].logprobs.as_deref()), (0, Some(&[][..])));
    }

    #[test]
    fn vectors_are_cut_made_one_long_and_in_the_order_of_their_texts() {
        let vectors = |fields: serde_json::Value| {
            let mut body = json!({"model": "m", "input": ["a", "b"]});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let request = parse_embedding(&body).unwrap().request;
            let mut job = Collected::new(leased(request), Instant::now(), PromptSeen::default());
            for (nth, pooled) in [(1, vec![0.0, 0.0, 5.0]), (0, vec![3.0, -4.0, 12.0])] {
                job.prompt(PromptOutput { id: NAME.sequence(nth), gives: Pooled(pooled) }, &BYTES);
                let ending = Ending::Finished { reason: FinishReason::Length, stop: None };
                job.end(nth, ending, Usage { prompt_tokens: 5 + nth, cached_tokens: nth, output_tokens: 0 });
            }
            assert!(job.has_ended());
            let record = job.into_record(Fingerprint("ab".into())).unwrap();
            assert_eq!(record.usage, Usage { prompt_tokens: 11, cached_tokens: 1, output_tokens: 0 });
            assert_eq!(record.choices, []);
            record.vectors.into_iter().map(|vector| vector.0).collect::<Vec<_>>()
        };
        assert_eq!(vectors(json!({"normalize": false})), [[3.0, -4.0, 12.0], [0.0, 0.0, 5.0]]);
        assert_eq!(vectors(json!({})), [[3.0 / 13.0, -4.0 / 13.0, 12.0 / 13.0], [0.0, 0.0, 1.0]]);
        // The second has no length behind the cut.
        assert_eq!(vectors(json!({"dimensions": 2})), [[0.6, -0.8], [0.0, 0.0]]);
        assert_eq!(vectors(json!({"dimensions": 2, "normalize": false})), [[3.0, -4.0], [0.0, 0.0]]);
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
