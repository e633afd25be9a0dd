//! Chunks of a streamed answer.

use super::bodies::{
    ChatChunk, ChatChunkChoice, ChatDelta, TextChoice, TextCompletion, TextLogprobs, ToolCallDelta, UsageBody,
};
use super::views::{chars, chat_logprobs, completion_id, push_text_logprob, tool_call};
use crate::event::TokenEvent;
use crate::ids::{Fingerprint, JobId};
use crate::outcome::{FinishReason, Usage};
use crate::reading::{Piece, Reader, Reading, call_id};
use crate::request::Kind;
use crate::time::Timestamp;

/// What follows the last chunk.
pub const DONE: &str = "[DONE]";

/// Makes the chunks of one stream: [`Chunks::opening`] for each answer, then [`Chunks::token`] for each token in order, then
/// [`Chunks::rest`] and [`Chunks::closing`] for each answer, and [`Chunks::usage`].
#[derive(Debug, Clone)]
pub struct Chunks {
    kind: Kind,
    id: String,
    created: i64,
    model: String,
    system_fingerprint: String,
    include_usage: bool,
    /// Characters sent so far, of each answer.
    offsets: Vec<u32>,
    job: JobId,
    reading: Reading,
    /// The functions that may be called.
    names: Vec<String>,
    /// Of each answer, unless all text is the message.
    readers: Vec<Told>,
}

/// How far an answer is read.
#[derive(Debug, Clone)]
struct Told {
    reader: Reader,
    n_calls: u32,
}

/// One chunk in the shape of its route.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Chunk {
    /// Of a chat.
    Chat(ChatChunk),
    /// Of a completion.
    Text(TextCompletion),
}

impl Chunk {
    /// One line of JSON.
    pub fn to_json(&self) -> String {
        // Strings, whole and finite numbers, and maps with string keys always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Chunks {
    /// The stream of a job; `include_usage` as in `stream_options`.
    pub fn new(
        kind: Kind,
        job: &JobId,
        accepted_at: Timestamp,
        model: &str,
        release: &Fingerprint,
        include_usage: bool,
    ) -> Self {
        Self {
            kind,
            id: completion_id(kind, job),
            created: accepted_at.unix_seconds(),
            model: model.to_owned(),
            system_fingerprint: release.short().to_owned(),
            include_usage,
            offsets: Vec::new(),
            job: *job,
            reading: Reading::default(),
            names: Vec::new(),
            readers: Vec::new(),
        }
    }

    /// Reads the answers of a chat as `reading` says, before any token came. `names`: the functions that may be called.
    #[must_use]
    pub fn reading(self, reading: Reading, names: Vec<String>) -> Self {
        Self { reading, names, ..self }
    }

    /// The first chunk of an answer to a chat names the role; a completion has none.
    pub fn opening(&self, index: u32) -> Option<Chunk> {
        let delta =
            ChatDelta { role: Some("assistant".to_owned()), content: Some(String::new()), ..ChatDelta::default() };
        match self.kind {
            Kind::Chat => Some(self.chat(vec![choice(index, delta)], None)),
            Kind::Completion => None,
        }
    }

    /// The chunk of a token; `None` while it makes nothing visible and carries no log-probability.
    pub fn token(&mut self, token: &TokenEvent) -> Option<Chunk> {
        if self.kind == Kind::Chat && !self.reading.is_plain() {
            return self.read_token(token);
        }
        if token.text.is_empty() && token.logprob.is_none() {
            return None;
        }
        let index = token.choice;
        if self.offsets.len() <= index as usize {
            self.offsets.resize(index as usize + 1, 0);
        }
        let offset = self.offsets[index as usize];
        self.offsets[index as usize] = offset.saturating_add(chars(&token.text));
        Some(match self.kind {
            Kind::Chat => {
                let delta = ChatDelta { content: Some(token.text.clone()), ..ChatDelta::default() };
                self.chat(vec![of_token(token, delta)], None)
            }
            Kind::Completion => {
                let logprobs = token.logprob.as_ref().map(|logprob| {
                    let mut shown = TextLogprobs::default();
                    push_text_logprob(&mut shown, logprob, offset);
                    shown
                });
                let choice =
                    TextChoice { text: token.text.clone(), index, logprobs, finish_reason: None, stop_reason: None };
                self.text(vec![choice], None)
            }
        })
    }

    fn read_token(&mut self, token: &TokenEvent) -> Option<Chunk> {
        let piece = self.told(token.choice).reader.push(&token.text);
        if piece.is_empty() && token.logprob.is_none() {
            return None;
        }
        let delta = self.delta(token.choice, piece);
        Some(self.chat(vec![of_token(token, delta)], None))
    }

    /// What was held back of an answer that has ended, if that shows something.
    pub fn rest(&mut self, index: u32) -> Option<Chunk> {
        if self.kind != Kind::Chat || self.reading.is_plain() {
            return None;
        }
        let unread = Reader::new(Reading::default(), Vec::new());
        let piece = std::mem::replace(&mut self.told(index).reader, unread).finish();
        if piece.is_empty() {
            return None;
        }
        let delta = self.delta(index, piece);
        Some(self.chat(vec![choice(index, delta)], None))
    }

    fn told(&mut self, index: u32) -> &mut Told {
        let index = index as usize;
        while self.readers.len() <= index {
            let reader = Reader::new(self.reading, self.names.clone());
            self.readers.push(Told { reader, n_calls: 0 });
        }
        &mut self.readers[index]
    }

    fn delta(&mut self, index: u32, piece: Piece) -> ChatDelta {
        let (job, syntax) = (self.job, self.reading.calls);
        let told = self.told(index);
        let mut tool_calls = Vec::with_capacity(piece.calls.len());
        for (call, syntax) in piece.calls.into_iter().zip(syntax.into_iter().cycle()) {
            let nth = told.n_calls;
            told.n_calls += 1;
            tool_calls.push(ToolCallDelta { index: nth, call: tool_call(call_id(syntax, &job, index, nth), call) });
        }
        // A chunk that only has a log-probability says that nothing was said.
        let is_silent = piece.content.is_empty() && !(tool_calls.is_empty() && piece.thoughts.is_empty());
        ChatDelta {
            role: None,
            content: (!is_silent).then_some(piece.content),
            reasoning_content: Some(piece.thoughts).filter(|thoughts| !thoughts.is_empty()),
            tool_calls: Some(tool_calls).filter(|calls| !calls.is_empty()),
        }
    }

    /// The last chunk of an answer.
    pub fn closing(&self, index: u32, reason: FinishReason, stop_reason: Option<serde_json::Value>) -> Chunk {
        match self.kind {
            Kind::Chat => {
                let last = choice(index, ChatDelta::default());
                self.chat(vec![ChatChunkChoice { finish_reason: Some(reason), stop_reason, ..last }], None)
            }
            Kind::Completion => {
                let choice =
                    TextChoice { text: String::new(), index, logprobs: None, finish_reason: Some(reason), stop_reason };
                self.text(vec![choice], None)
            }
        }
    }

    /// The chunk after them, if usage was asked for.
    pub fn usage(&self, usage: Usage) -> Option<Chunk> {
        let usage = Some(UsageBody::from(usage));
        self.include_usage.then(|| match self.kind {
            Kind::Chat => self.chat(Vec::new(), usage),
            Kind::Completion => self.text(Vec::new(), usage),
        })
    }

    fn chat(&self, choices: Vec<ChatChunkChoice>, usage: Option<UsageBody>) -> Chunk {
        Chunk::Chat(ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".to_owned(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: self.system_fingerprint.clone(),
            choices,
            usage: self.include_usage.then_some(usage),
        })
    }

    fn text(&self, choices: Vec<TextChoice>, usage: Option<UsageBody>) -> Chunk {
        Chunk::Text(TextCompletion {
            id: self.id.clone(),
            object: "text_completion".to_owned(),
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: self.include_usage.then_some(usage),
            system_fingerprint: self.system_fingerprint.clone(),
        })
    }
}

/// What a token brought, with its log-probability if it was asked for.
fn of_token(token: &TokenEvent, delta: ChatDelta) -> ChatChunkChoice {
    let logprobs = token.logprob.as_ref().map(|logprob| chat_logprobs(std::slice::from_ref(logprob)));
    ChatChunkChoice { logprobs, ..choice(token.choice, delta) }
}

fn choice(index: u32, delta: ChatDelta) -> ChatChunkChoice {
    ChatChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None }
}
