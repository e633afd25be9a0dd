//! What is collected of a job while it is in the engine, and the record it becomes.

use std::time::Instant;

use contract::record::AttemptTimings;
use contract::{ChoiceRecord, Fingerprint, FinishReason, Lease, Leased, Record, TokenEvent, TokenLogprob, Usage};

use crate::engine::sampler::Chosen;
use crate::engine::sequence::{StopReason, TokenOutput};
use crate::text::TextTokenizer;

/// A job in the engine: its request and everything generated so far.
pub struct Collected {
    /// The leased job.
    pub leased: Leased,
    leased_at: Instant,
    prompt_text: String,
    prompt_ids: Vec<u32>,
    prepared_ms: u64,
    first_token_ms: Option<u64>,
    output_ids: Vec<u32>,
    text: String,
    ends: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

impl Collected {
    /// A job that enters the engine now.
    pub fn new(leased: Leased, leased_at: Instant, prompt_text: String, prompt_ids: Vec<u32>) -> Self {
        Self {
            leased,
            prompt_text,
            prompt_ids,
            prepared_ms: millis(leased_at),
            leased_at,
            first_token_ms: None,
            output_ids: Vec::new(),
            text: String::new(),
            ends: Vec::new(),
            logprobs: Vec::new(),
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

    /// Takes a token in; answers the event that tells of it.
    pub fn push(&mut self, output: TokenOutput, tokenizer: &TextTokenizer) -> TokenEvent {
        self.first_token_ms.get_or_insert_with(|| millis(self.leased_at));
        let logprob = render_logprob(&output.chosen, tokenizer);
        self.output_ids.push(output.chosen.id);
        self.text.push_str(&output.text);
        // An answer is far below 4 GiB: the context bounds its tokens, and the vocabulary their length.
        self.ends.push(self.text.len() as u32);
        self.logprobs.extend(logprob.clone());
        TokenEvent { position: output.position, id: output.chosen.id, text: output.text, logprob }
    }

    /// The record of the finished job.
    pub fn into_record(
        self,
        release: Fingerprint,
        reason: FinishReason,
        stop: Option<StopReason>,
        usage: Usage,
    ) -> Record {
        let asked_for_logprobs = self.leased.request.logprobs.is_some();
        let kind = self.leased.request.kind();
        let stop_reason = match stop {
            Some(StopReason::Text(text)) => Some(text.into()),
            // The end-of-text token is the normal end, not something the request named.
            Some(StopReason::Token(id)) if self.leased.request.stop_token_ids.contains(&id) => Some(id.into()),
            _ => None,
        };
        Record {
            v: 1,
            job: self.leased.lease.job,
            attempt: self.leased.lease.attempt,
            release,
            kind,
            seed: self.leased.seed,
            prompt_text: self.prompt_text,
            prompt_ids: self.prompt_ids,
            choices: vec![ChoiceRecord {
                output_ids: self.output_ids,
                text: self.text,
                ends: self.ends,
                logprobs: asked_for_logprobs.then_some(self.logprobs),
                finish_reason: reason,
                stop_reason,
            }],
            usage,
            timings: AttemptTimings {
                prepared_ms: self.prepared_ms,
                first_token_ms: self.first_token_ms.unwrap_or_default(),
                finished_ms: millis(self.leased_at),
            },
            request: self.leased.request,
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
