//! From a request to a sequence the engine can run: rendering, tokenising, limits. Runs on the blocking pool, a bounded
//! number at a time, so that neither the engine nor the event loop waits for it.

use std::sync::Arc;
use std::time::Instant;

use contract::{Embedding, ErrorCode, Input, JobError, Leased, Message, Prompt, Request, Sampling};

use crate::collect::{PromptSeen, Running};
use crate::engine::random::seed_of_choice;
use crate::engine::sampler::Choosing;
use crate::engine::sequence::{DropMark, NoText, OfPrompt, OutputText, Piece, Prepared};
use crate::grammar::Grammars;
use crate::scopes::CacheScopes;
use crate::text::{Prompts, ShownText, TextError, TextStream, TextTokenizer};

/// What preparing needs to know of the release.
#[derive(Clone)]
pub struct Preparer {
    /// From requests to token ids.
    pub prompts: Arc<Prompts>,
    /// For the output.
    pub tokenizer: Arc<TextTokenizer>,
    /// For answers that keep to a rule.
    pub grammars: Arc<Grammars>,
    /// Longest sequence of the model, in tokens.
    pub context_tokens: usize,
    /// Tokens that the whole cache holds.
    pub cache_tokens: usize,
    /// Entries in the vocabulary.
    pub vocab_size: usize,
    /// Numbers in a hidden state.
    pub hidden_size: usize,
    /// With whom each tenant shares beginnings of prompts; `None` where nobody does.
    pub scopes: Option<Arc<CacheScopes>>,
}

/// The prepared sequences of a job with the prompt they came from.
pub struct Ready {
    /// For the engine: one for each answer, or for each text that becomes a vector, in order.
    pub prepared: Vec<Prepared>,
    /// The prompt, for the record.
    pub prompt: PromptSeen,
}

impl Preparer {
    /// Renders and tokenises; the sequences, named after `name`, end at the job's deadline.
    ///
    /// # Errors
    /// A permanent [`JobError`] that names the request's field at fault.
    pub fn prepare(
        &self,
        name: Running,
        leased: &Leased,
        mark: DropMark,
        leased_at: Instant,
    ) -> Result<Ready, JobError> {
        let request = &leased.request;
        if !request.sampling.is_in_range() {
            // What the API accepted never is: the row was damaged, or written by somebody else.
            return Err(invalid("a sampling parameter is out of range", "request"));
        }
        let (param, (prompt_text, prompt)) = match &request.input {
            Input::Chat(messages) => ("messages", self.chat_prompt(messages)?),
            Input::Completion(prompt) => ("prompt", self.prompt_of(prompt, "prompt")?),
            Input::Embedding(embedding) => return self.vectors(name, leased, embedding, &mark, leased_at),
        };
        if prompt.is_empty() {
            return Err(invalid("the prompt is empty: there is nothing to continue", param));
        }
        let longest = self.longest();
        let room = longest.saturating_sub(prompt.len());
        let wanted = request.max_tokens.map(|tokens| tokens as usize);
        // A prompt that is only read may be as long as the context.
        let fits = prompt.len() <= longest && wanted.map_or(room > 0, |wanted| wanted <= room);
        if !fits {
            return Err(self.too_long(prompt.len(), wanted, param));
        }
        let max_tokens = wanted.unwrap_or(room) as u32;
        if let Some(id) = request.stop_token_ids.iter().find(|id| **id as usize >= self.vocab_size) {
            return Err(invalid(
                format!("token id {id} is not in the vocabulary of {} tokens", self.vocab_size),
                "stop_token_ids",
            ));
        }
        if let Some(id) = request.sampling.logit_bias.keys().find(|id| **id as usize >= self.vocab_size) {
            return Err(invalid(
                format!("token id {id} is not in the vocabulary of {} tokens", self.vocab_size),
                &format!("logit_bias.{id}"),
            ));
        }
        let mut end_ids = request.stop_token_ids.clone();
        if !request.ignore_eos {
            end_ids.extend_from_slice(self.tokenizer.eos_ids());
        }
        let scope = self.scopes.as_ref().map(|scopes| scopes.of(&leased.tenant));
        let constraint = request.constraint.as_ref();
        let prompt_top = request.prompt_top();
        let sequence = |choice: u32| {
            // Each answer follows the rule by itself.
            let grammar = constraint.map(|rule| self.grammars.grammar(rule, &request.stop_token_ids)).transpose()?;
            let tokenizer = Arc::clone(&self.tokenizer);
            let stream = TextStream::new(tokenizer, request.stop.clone(), request.include_stop, true);
            Ok(Prepared {
                id: name.sequence(choice),
                scope,
                prompt: prompt.clone(),
                choosing: Choosing {
                    sampling: request.sampling.clone(),
                    seed: seed_of_choice(leased.seed, choice),
                    logprobs: request.logprobs,
                },
                // The answers have one prompt: it is scored once.
                of_prompt: prompt_top.filter(|_| choice == 0).map_or(OfPrompt::Nothing, OfPrompt::Scores),
                max_tokens,
                min_tokens: request.min_tokens.min(max_tokens),
                end_ids: end_ids.clone(),
                grammar,
                text: Box::new(StreamText { stream: Some(stream), stops: request.stop.clone() }),
                deadline: leased_at.checked_add(leased.deadline_in),
                mark: mark.clone(),
            })
        };
        let prepared = (0..u32::from(request.sampling.n)).map(sequence).collect::<Result<_, JobError>>()?;
        Ok(Ready { prepared, prompt: self.seen(request, prompt_text, prompt) })
    }

    /// The prompt as the record has it, with what its tokens stand for where they are scored.
    fn seen(&self, request: &Request, text: String, ids: Vec<u32>) -> PromptSeen {
        let (is_scored, is_text) =
            (request.prompt_top().is_some(), !matches!(&request.input, Input::Completion(Prompt::Tokens(_))));
        if !is_scored && (is_text || !request.echo) {
            return PromptSeen { text, ids, tokens: None };
        }
        let shown = ShownText::of(&self.tokenizer, is_text.then_some(text), &ids);
        PromptSeen { text: shown.text, ids, tokens: is_scored.then_some(shown.tokens) }
    }

    /// One sequence for each text, without an answer.
    fn vectors(
        &self,
        name: Running,
        leased: &Leased,
        embedding: &Embedding,
        mark: &DropMark,
        leased_at: Instant,
    ) -> Result<Ready, JobError> {
        if let Some(dimensions) = embedding.dimensions.filter(|dimensions| *dimensions as usize > self.hidden_size) {
            let message = format!("{dimensions} are asked for, and this model's vectors have {}", self.hidden_size);
            return Err(invalid(message, "dimensions"));
        }
        let is_one = embedding.inputs.len() == 1;
        let mut prepared = Vec::with_capacity(embedding.inputs.len());
        for (nth, input) in (0u32..).zip(&embedding.inputs) {
            let param = if is_one { "input".to_owned() } else { format!("input[{nth}]") };
            let (_, prompt) = self.prompt_of(input, &param)?;
            if prompt.is_empty() {
                return Err(invalid("the text is empty: a vector needs a token", &param));
            }
            if prompt.len() > self.longest() {
                return Err(self.too_long(prompt.len(), Some(0), &param));
            }
            prepared.push(Prepared {
                id: name.sequence(nth),
                scope: self.scopes.as_ref().map(|scopes| scopes.of(&leased.tenant)),
                prompt,
                choosing: Choosing { sampling: Sampling::default(), seed: leased.seed, logprobs: None },
                of_prompt: OfPrompt::Vector(embedding.pooling),
                max_tokens: 0,
                min_tokens: 0,
                end_ids: Vec::new(),
                grammar: None,
                text: Box::new(NoText),
                deadline: leased_at.checked_add(leased.deadline_in),
                mark: mark.clone(),
            });
        }
        Ok(Ready { prepared, prompt: PromptSeen::default() })
    }

    /// Tokens that a sequence can have.
    fn longest(&self) -> usize {
        self.context_tokens.min(self.cache_tokens)
    }

    fn chat_prompt(&self, messages: &[Message]) -> Result<(String, Vec<u32>), JobError> {
        let messages = serde_json::to_value(messages)
            .map_err(|err| invalid(format!("the messages cannot be rendered: {err}"), "messages"))?;
        let prompt = self.prompts.chat(&messages, None, true).map_err(|err| text_error(&err, "messages"))?;
        Ok((prompt.text, prompt.ids))
    }

    fn prompt_of(&self, prompt: &Prompt, param: &str) -> Result<(String, Vec<u32>), JobError> {
        match prompt {
            Prompt::Text(text) => {
                let prompt = self.prompts.completion(text, true).map_err(|err| text_error(&err, param))?;
                Ok((prompt.text, prompt.ids))
            }
            Prompt::Tokens(ids) => {
                if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab_size) {
                    return Err(invalid(
                        format!("token id {id} is not in the vocabulary of {} tokens", self.vocab_size),
                        param,
                    ));
                }
                Ok((String::new(), ids.clone()))
            }
        }
    }

    fn too_long(&self, n_prompt: usize, wanted: Option<usize>, param: &str) -> JobError {
        let longest = self.longest();
        let holds = if longest < self.context_tokens {
            format!("this server's KV cache holds {longest} tokens (the model could take {})", self.context_tokens)
        } else {
            format!("this model's maximum context length is {longest} tokens")
        };
        let (asked, advice) = match wanted {
            Some(0) => (format!("{n_prompt} in `{param}`"), "shorten it"),
            Some(wanted) => (
                format!("{n_prompt} in the prompt and {wanted} for the answer"),
                "shorten the prompt or lower max_tokens",
            ),
            None => (
                format!("{n_prompt} in the prompt and at least one for the answer"),
                "shorten the prompt or lower max_tokens",
            ),
        };
        let message = format!("{holds}, and you asked for {asked}: {advice}");
        let param = if n_prompt < longest { "max_tokens" } else { param };
        JobError::new(ErrorCode::ContextLengthExceeded, message).with_param(param)
    }
}

fn invalid(message: impl Into<String>, param: &str) -> JobError {
    JobError::new(ErrorCode::InvalidRequest, message).with_param(param)
}

fn text_error(err: &TextError, param: &str) -> JobError {
    invalid(err.to_string(), param)
}

/// A [`TextStream`] as the engine sees it.
struct StreamText {
    /// `None` once finished.
    stream: Option<TextStream>,
    stops: Vec<String>,
}

impl OutputText for StreamText {
    fn push(&mut self, id: u32, watch_stops: bool) -> Piece {
        let Some(stream) = &mut self.stream else { return Piece::default() };
        let delta = if watch_stops { stream.push(id) } else { stream.push_ignoring_stops(id) };
        let stop = delta.stop.map(|hit| self.stops.get(hit.which).cloned().unwrap_or_default());
        Piece { text: delta.text, stop }
    }

    fn finish(&mut self) -> String {
        self.stream.take().map(TextStream::finish).unwrap_or_default()
    }
}
