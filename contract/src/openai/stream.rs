//! Chunks of a streamed answer.

use super::bodies::{ChatChunk, ChatChunkChoice, ChatDelta, TextChoice, TextCompletion, TextLogprobs, UsageBody};
use super::views::{chars, chat_logprobs, completion_id, push_text_logprob};
use crate::event::TokenEvent;
use crate::ids::{Fingerprint, JobId};
use crate::outcome::{FinishReason, Usage};
use crate::request::Kind;
use crate::time::Timestamp;

/// What follows the last chunk.
pub const DONE: &str = "[DONE]";

/// Makes the chunks of one stream, of a chat or a completion: [`Chunks::opening`] for each answer, then [`Chunks::token`] for each token in order, then
/// [`Chunks::closing`] for each answer, and [`Chunks::usage`].
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
        }
    }

    /// The first chunk of an answer to a chat names the role; a completion has none.
    pub fn opening(&self, index: u32) -> Option<Chunk> {
        let delta = ChatDelta { role: Some("assistant".to_owned()), content: Some(String::new()) };
        match self.kind {
            Kind::Chat => Some(self.chat(vec![choice(index, delta)], None)),
            Kind::Completion | Kind::Embedding => None,
        }
    }

    /// The chunk of a token; `None` while it makes nothing visible and carries no log-probability.
    pub fn token(&mut self, token: &TokenEvent) -> Option<Chunk> {
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
                let delta = ChatDelta { role: None, content: Some(token.text.clone()) };
                let logprobs = token.logprob.as_ref().map(|logprob| chat_logprobs(std::slice::from_ref(logprob)));
                self.chat(vec![ChatChunkChoice { logprobs, ..choice(index, delta) }], None)
            }
            Kind::Completion | Kind::Embedding => {
                let logprobs = token.logprob.as_ref().map(|logprob| {
                    let mut shown = TextLogprobs::default();
                    push_text_logprob(&mut shown, logprob, offset);
                    shown
                });
                let choice = TextChoice { text: token.text.clone(), logprobs, ..text_choice(index) };
                self.text(vec![choice], None)
            }
        })
    }

    /// The last chunk of an answer.
    pub fn closing(&self, index: u32, reason: FinishReason, stop_reason: Option<serde_json::Value>) -> Chunk {
        match self.kind {
            Kind::Chat => {
                let last = choice(index, ChatDelta::default());
                self.chat(vec![ChatChunkChoice { finish_reason: Some(reason), stop_reason, ..last }], None)
            }
            Kind::Completion | Kind::Embedding => {
                let choice = TextChoice { finish_reason: Some(reason), stop_reason, ..text_choice(index) };
                self.text(vec![choice], None)
            }
        }
    }

    /// The chunk after them, if usage was asked for.
    pub fn usage(&self, usage: Usage) -> Option<Chunk> {
        let usage = Some(UsageBody::from(usage));
        self.include_usage.then(|| match self.kind {
            Kind::Chat => self.chat(Vec::new(), usage),
            Kind::Completion | Kind::Embedding => self.text(Vec::new(), usage),
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

fn choice(index: u32, delta: ChatDelta) -> ChatChunkChoice {
    ChatChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None }
}

/// Nothing new of an answer to a completion. What is said of its prompt is not streamed.
fn text_choice(index: u32) -> TextChoice {
    TextChoice {
        text: String::new(),
        index,
        logprobs: None,
        finish_reason: None,
        stop_reason: None,
        prompt_logprobs: None,
    }
}
