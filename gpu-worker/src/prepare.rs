//! From a request to a sequence the engine can run: rendering, tokenising, limits. Runs on the blocking pool, a bounded
//! number at a time, so that neither the engine nor the event loop waits for it.

use std::sync::Arc;
use std::time::Instant;

use contract::{ErrorCode, Input, JobError, Leased, Prompt, Reading, Request};

use crate::collect::Running;
use crate::engine::random::seed_of_choice;
use crate::engine::sampler::Choosing;
use crate::engine::sequence::{DropMark, OutputText, Piece, Prepared};
use crate::grammar::Grammars;
use crate::scopes::CacheScopes;
use crate::text::{Prompts, TextError, TextStream, TextTokenizer};
use crate::{calls, conversation};

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
    /// With whom each tenant shares beginnings of prompts; `None` where nobody does.
    pub scopes: Option<Arc<CacheScopes>>,
}

/// The prepared sequences of a job with the prompt they came from.
pub struct Ready {
    /// For the engine: one for each answer, in order.
    pub prepared: Vec<Prepared>,
    /// The prompt as text, for the record.
    pub prompt_text: String,
    /// Its token ids.
    pub prompt_ids: Vec<u32>,
    /// How the answers are read.
    pub reading: Reading,
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
        let reading = self.prompts.reading().of(request);
        if request.tools.is_some() && reading.calls.is_none() {
            return Err(invalid(
                "the model's chat template has no way to call functions that this server reads",
                "tools",
            ));
        }
        let (prompt_text, prompt) = self.prompt_of(request)?;
        if prompt.is_empty() {
            return Err(invalid("the prompt is empty: there is nothing to continue", input_param(&request.input)));
        }
        let longest = self.context_tokens.min(self.cache_tokens);
        let room = longest.saturating_sub(prompt.len());
        let wanted = request.max_tokens.map(|tokens| tokens as usize);
        if room == 0 || wanted.is_some_and(|wanted| wanted > room) {
            return Err(self.too_long(prompt.len(), wanted, longest, &request.input));
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
        let calls = match (&request.tools, reading.calls) {
            (Some(tools), Some(syntax)) => calls::grammar(syntax, tools, self.prompts.call_mark(syntax))?,
            _ => None,
        };
        let marks = self.prompts.marks(reading.calls.is_some());
        let sequence = |choice: u32| {
            // Each answer follows the rule by itself.
            let stop_ids = &request.stop_token_ids;
            let grammar = match (constraint, &calls) {
                (Some(rule), _) => Some(self.grammars.grammar(rule, stop_ids)?),
                (None, Some(lark)) => Some(self.grammars.grammar_of_calls(lark.clone(), "tools", stop_ids)?),
                (None, None) => None,
            };
            let tokenizer = Arc::clone(&self.tokenizer);
            let stream =
                TextStream::new(tokenizer, request.stop.clone(), request.include_stop, true).showing(marks.clone());
            Ok(Prepared {
                id: name.sequence(choice),
                scope,
                prompt: prompt.clone(),
                choosing: Choosing {
                    sampling: request.sampling.clone(),
                    seed: seed_of_choice(leased.seed, choice),
                    logprobs: request.logprobs,
                },
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
        Ok(Ready { prepared, prompt_text, prompt_ids: prompt, reading })
    }

    fn prompt_of(&self, request: &Request) -> Result<(String, Vec<u32>), JobError> {
        match &request.input {
            Input::Chat(messages) => {
                let messages = conversation::messages(messages);
                let tools = request.tools.as_ref().map(conversation::tools).transpose();
                let tools = tools.map_err(|err| invalid(err.to_string(), "tools"))?;
                let prompt = self.prompts.chat(&messages, tools.as_ref(), true);
                let prompt = prompt.map_err(|err| text_error(&err, "messages"))?;
                Ok((prompt.text, prompt.ids))
            }
            Input::Completion(Prompt::Text(text)) => {
                let prompt = self.prompts.completion(text, true).map_err(|err| text_error(&err, "prompt"))?;
                Ok((prompt.text, prompt.ids))
            }
            Input::Completion(Prompt::Tokens(ids)) => {
                if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab_size) {
                    return Err(invalid(
                        format!("token id {id} is not in the vocabulary of {} tokens", self.vocab_size),
                        "prompt",
                    ));
                }
                Ok((String::new(), ids.clone()))
            }
        }
    }

    fn too_long(&self, n_prompt: usize, wanted: Option<usize>, longest: usize, input: &Input) -> JobError {
        let holds = if longest < self.context_tokens {
            format!("this server's KV cache holds {longest} tokens (the model could take {})", self.context_tokens)
        } else {
            format!("this model's maximum context length is {longest} tokens")
        };
        let asked = match wanted {
            Some(wanted) => format!("{n_prompt} in the prompt and {wanted} for the answer"),
            None => format!("{n_prompt} in the prompt and at least one for the answer"),
        };
        let message = format!("{holds}, and you asked for {asked}: shorten the prompt or lower max_tokens");
        let param = if n_prompt < longest { "max_tokens" } else { input_param(input) };
        JobError::new(ErrorCode::ContextLengthExceeded, message).with_param(param)
    }
}

fn input_param(input: &Input) -> &'static str {
    match input {
        Input::Chat(_) => "messages",
        Input::Completion(_) => "prompt",
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
