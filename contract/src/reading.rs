//! How the text of an answer is read: which of it is the message, which are calls of functions, and which are thoughts.
//!
//! A record keeps an answer's text as the model wrote it, with its own marks; whoever shows it reads it here. The reader
//! takes one character at a time, so what it finds does not depend on how the text was cut into tokens, and a stream and
//! its whole are read alike. A call is given once it is whole and known to be one: what turns out to be none is content.

mod call;
mod scan;
mod thought;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::JobId;
use crate::request::{Input, Request};
use call::CallReader;
use thought::ThoughtReader;

/// How a model writes what is not plain text, or how an answer is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Reading {
    /// Its calls of functions; `None`: it has no way to call, or none were offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallSyntax>,
    /// Its thoughts; `None`: they are not told apart from the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thoughts: Option<ThoughtSyntax>,
}

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallSyntax {
    /// `<tool_call>`, a JSON object with `name` and `arguments`, `</tool_call>`: Hermes, Qwen 2.5, Qwen 3.
    Hermes,
    /// A JSON object with `name` and `parameters` from the answer's beginning on, maybe behind `<|python_tag|>`; more of
    /// them behind semicolons: Llama 3.
    Llama,
    /// `[TOOL_CALLS]` and a JSON array of objects with `name` and `arguments`: Mistral.
    Mistral,
}

/// How a model writes thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThoughtSyntax {
    /// An answer that begins with `<think>` thinks until `</think>`.
    Tagged,
    /// The prompt has opened them: an answer thinks from its beginning to `</think>`.
    Open,
}

impl CallSyntax {
    /// What stands before a call, where something does.
    pub fn marker(self) -> &'static str {
        match self {
            CallSyntax::Hermes => "<tool_call>",
            CallSyntax::Llama => "<|python_tag|>",
            CallSyntax::Mistral => "[TOOL_CALLS]",
        }
    }

    /// The word in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            CallSyntax::Hermes => "hermes",
            CallSyntax::Llama => "llama",
            CallSyntax::Mistral => "mistral",
        }
    }
}

impl ThoughtSyntax {
    /// The word in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            ThoughtSyntax::Tagged => "tagged",
            ThoughtSyntax::Open => "open",
        }
    }
}

impl Reading {
    /// Whether all text is the message.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// How the answers to `request` are read, of a model that writes as `self` says.
    pub fn of(self, request: &Request) -> Self {
        // What begins as a rule or a forced call says does not begin with thoughts.
        let is_free = request.constraint.is_none() && !request.tools.as_ref().is_some_and(|tools| tools.is_forced());
        let is_chat = matches!(request.input, Input::Chat(_));
        Self {
            calls: self.calls.filter(|_| request.tools.is_some()),
            thoughts: self.thoughts.filter(|_| is_chat && is_free),
        }
    }

    /// Reads a whole answer. `names`: the functions that may be called.
    pub fn read(self, names: &[String], text: &str) -> Piece {
        if self.is_plain() {
            return Piece { content: text.to_owned(), ..Piece::default() };
        }
        let mut reader = Reader::new(self, names.to_vec());
        let mut whole = reader.push(text);
        whole.append(reader.finish());
        whole
    }
}

/// What a piece of an answer's text brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// Of the thoughts.
    pub thoughts: String,
    /// Of the message.
    pub content: String,
    /// Calls, each whole.
    pub calls: Vec<FoundCall>,
}

/// A call that a model wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundCall {
    /// The function, one that was offered.
    pub name: String,
    /// Its arguments: the text of a JSON object, as the model wrote it.
    pub arguments: String,
}

impl Piece {
    /// Whether it brought nothing.
    pub fn is_empty(&self) -> bool {
        self.thoughts.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }

    /// Takes in what came after it.
    pub fn append(&mut self, next: Piece) {
        self.thoughts.push_str(&next.thoughts);
        self.content.push_str(&next.content);
        self.calls.extend(next.calls);
    }
}

/// Reads one answer while it grows.
#[derive(Debug, Clone)]
pub struct Reader {
    thoughts: Option<ThoughtReader>,
    calls: Option<CallReader>,
}

impl Reader {
    /// At the beginning of an answer. `names`: the functions that may be called.
    pub fn new(reading: Reading, names: Vec<String>) -> Self {
        Self {
            thoughts: reading.thoughts.map(ThoughtReader::new),
            calls: reading.calls.map(|syntax| CallReader::new(syntax, names)),
        }
    }

    /// Takes the next text of the answer.
    pub fn push(&mut self, text: &str) -> Piece {
        let mut piece = Piece::default();
        let mut message = String::new();
        let message = match &mut self.thoughts {
            None => text,
            Some(reader) => {
                reader.push(text, &mut piece.thoughts, &mut message);
                &message
            }
        };
        match &mut self.calls {
            None => piece.content.push_str(message),
            Some(reader) => reader.push(message, &mut piece),
        }
        piece
    }

    /// What was still held back, once the answer has ended.
    pub fn finish(self) -> Piece {
        let (mut piece, mut message) = (Piece::default(), String::new());
        if let Some(reader) = self.thoughts {
            reader.finish(&mut piece.thoughts, &mut message);
        }
        match self.calls {
            None => piece.content.push_str(&message),
            Some(mut reader) => {
                reader.push(&message, &mut piece);
                reader.finish(&mut piece);
            }
        }
        piece
    }
}

/// The id of a call: the same whichever attempt gave it, and as long as the model's own template wants it.
pub fn call_id(syntax: CallSyntax, job: &JobId, choice: u32, nth: u32) -> String {
    let digest = Sha256::digest(format!("{job}/{choice}/{nth}"));
    let letters = digest.iter().map(|byte| {
        const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        char::from(LETTERS[usize::from(*byte) % LETTERS.len()])
    });
    match syntax {
        // Its templates take ids of nine letters and digits and no others.
        CallSyntax::Mistral => letters.take(9).collect(),
        CallSyntax::Hermes | CallSyntax::Llama => format!("call_{}", letters.take(24).collect::<String>()),
    }
}
