//! A request as the rooms reason with it: validated, without the quirks of any wire format.

use serde::{Deserialize, Serialize};

use crate::constraint::Constraint;

/// What kind of work a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Messages in, one message out, through the model's chat template.
    Chat,
    /// Text or tokens in, text out.
    Completion,
}

impl Kind {
    /// The word used in JSON and SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Chat => "chat",
            Kind::Completion => "completion",
        }
    }
}

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions (`developer` on the wire counts as this).
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// The speaker's name, if the client gave one; templates may show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The prompt of a completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prompt {
    /// Text, tokenised by the worker. The client owns the whole prompt here, so control tokens written out in it count as
    /// such (fill-in-the-middle needs them); in a conversation they never do.
    Text(String),
    /// Token ids, used as they are: no BOS is added.
    Tokens(Vec<u32>),
}

/// What the model is to answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// A conversation, at least one message.
    Chat(Vec<Message>),
    /// A text to continue.
    Completion(Prompt),
}

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 to 2; 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the most likely tokens; `None` keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Keep the most likely tokens that together have this probability, in (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one, in [0, 1).
    pub min_p: f32,
    /// The seed the client asked for; without one, one is drawn at acceptance and kept with the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0, seed: None }
    }
}

/// A validated request for one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The model name the client used.
    pub model: String,
    /// What to answer.
    pub input: Input,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate; `None`: as many as the context has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// End-of-text tokens and stops cannot come before this many tokens.
    #[serde(default)]
    pub min_tokens: u32,
    /// Go on after end-of-text tokens, up to `max_tokens`.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Texts that end the answer; not shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Token ids that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Log-probabilities of the chosen tokens, with this many of the likeliest beside each (0 to 20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u8>,
    /// What the answer must be like; without it, any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
}

impl Request {
    /// Chat or completion.
    pub fn kind(&self) -> Kind {
        match self.input {
            Input::Chat(_) => Kind::Chat,
            Input::Completion(_) => Kind::Completion,
        }
    }

    /// Bytes of text in the input; 0 for token prompts.
    pub fn input_bytes(&self) -> usize {
        match &self.input {
            Input::Chat(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Input::Completion(Prompt::Text(text)) => text.len(),
            Input::Completion(Prompt::Tokens(_)) => 0,
        }
    }

    /// A guess at the tokens this job will take (prompt at four bytes a token, and the output asked for): for
    /// capacity arithmetic and what a tenant may ask for in a minute, never for the limits of a model.
    pub fn estimated_tokens(&self) -> u32 {
        let prompt = match &self.input {
            Input::Completion(Prompt::Tokens(ids)) => ids.len(),
            _ => self.input_bytes() / 4,
        };
        u32::try_from(prompt).unwrap_or(u32::MAX).saturating_add(self.max_tokens.unwrap_or(256))
    }
}
