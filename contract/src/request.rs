//! A request as the rooms reason with it: validated, without the quirks of any wire format.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::constraint::Constraint;
use crate::tools::{ToolCall, ToolUse};

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
    /// A function that the model called.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said. Nothing beside `tool_calls` counts as no content.
    pub content: String,
    /// The speaker's name, if the client gave one; templates may show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the model thought before it said this; templates may show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thoughts: Option<String>,
    /// Functions that the model called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a function answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of text alone.
    pub fn of(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), name: None, thoughts: None, tool_calls: Vec::new(), tool_call_id: None }
    }

    /// Whether only a template that knows of tools can render it.
    pub fn is_of_tools(&self) -> bool {
        self.role == Role::Tool || !self.tool_calls.is_empty()
    }

    fn text_bytes(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
        self.content.len() + self.thoughts.as_ref().map_or(0, String::len) + calls.sum::<usize>()
    }
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

/// Most answers to one request.
pub const MAX_CHOICES: u8 = 8;

/// How tokens are chosen. What is at its neutral value is not written, so that requests which do not use it look as they
/// did before it was there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Answers to draw, 1 to [`MAX_CHOICES`]; each has random numbers of its own under the same seed.
    #[serde(default = "one_choice", skip_serializing_if = "is_one_choice")]
    pub n: u8,
    /// Added to the logits of these tokens, by id, before anything else; each from -100 to 100.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// Above 0. The logits of tokens that prompt or output have already are divided by it where positive, and multiplied
    /// otherwise; 1 is off.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub repetition_penalty: f32,
    /// Taken from the logits of tokens that the output has already; -2 to 2, 0 is off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub presence_penalty: f32,
    /// Taken from the logit of a token once for each time that the output has it; -2 to 2, 0 is off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub frequency_penalty: f32,
    /// 0 to 2; 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the most likely tokens; `None` keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Keep the most likely tokens that together have this probability, in (0, 1].
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one, in [0, 1).
    pub min_p: f32,
    /// Of what is left, keep the tokens whose information is nearest to the entropy and that together have this
    /// probability, in (0, 1]; 1 is off.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub typical_p: f32,
    /// The seed the client asked for; without one, one is drawn at acceptance and kept with the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            n: 1,
            logit_bias: BTreeMap::new(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            seed: None,
        }
    }
}

impl Sampling {
    /// Whether every number is in its range: what a request can ask for. A file may hold anything.
    pub fn is_in_range(&self) -> bool {
        let penalty = |penalty: f32| (-2.0..=2.0).contains(&penalty);
        let share = |share: f32| share > 0.0 && share <= 1.0;
        (1..=MAX_CHOICES).contains(&self.n)
            && (0.0..=2.0).contains(&self.temperature)
            && self.top_k != Some(0)
            && share(self.top_p)
            && (0.0..1.0).contains(&self.min_p)
            && share(self.typical_p)
            && penalty(self.presence_penalty)
            && penalty(self.frequency_penalty)
            && self.repetition_penalty > 0.0
            && self.repetition_penalty.is_finite()
            && self.logit_bias.values().all(|bias| (-100.0..=100.0).contains(bias))
    }
}

fn one_choice() -> u8 {
    1
}

fn is_one_choice(n: &u8) -> bool {
    *n == 1
}

fn one() -> f32 {
    1.0
}

fn is_one(number: &f32) -> bool {
    *number == 1.0
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
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
    /// Texts that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Show the text that ended the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_stop: bool,
    /// Token ids that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Log-probabilities of the chosen tokens, with this many of the likeliest beside each (0 to 20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u8>,
    /// What the answer must be like; without it, any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
    /// Functions that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolUse>,
}

impl Request {
    /// Chat or completion.
    pub fn kind(&self) -> Kind {
        match self.input {
            Input::Chat(_) => Kind::Chat,
            Input::Completion(_) => Kind::Completion,
        }
    }

    /// Bytes of text in the input, those of the tools included; 0 for token prompts.
    pub fn input_bytes(&self) -> usize {
        let tools = self.tools.as_ref().map_or(0, ToolUse::text_bytes);
        match &self.input {
            Input::Chat(messages) => messages.iter().map(Message::text_bytes).sum::<usize>() + tools,
            Input::Completion(Prompt::Text(text)) => text.len(),
            Input::Completion(Prompt::Tokens(_)) => 0,
        }
    }

    /// A guess at the tokens this job will take (prompt at four bytes a token, and the outputs asked for): for
    /// capacity arithmetic and what a tenant may ask for in a minute, never for the limits of a model.
    pub fn estimated_tokens(&self) -> u32 {
        let prompt = match &self.input {
            Input::Completion(Prompt::Tokens(ids)) => ids.len(),
            _ => self.input_bytes() / 4,
        };
        let output = self.max_tokens.unwrap_or(256).saturating_mul(u32::from(self.sampling.n));
        u32::try_from(prompt).unwrap_or(u32::MAX).saturating_add(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a build without penalties wrote it, and reads it.
    const OLD: &str = r#"{"temperature":0.5,"top_k":40,"top_p":1.0,"min_p":0.0,"seed":7}"#;

    #[test]
    fn what_is_not_used_is_not_written_and_need_not_be_there() {
        let sampling = Sampling { temperature: 0.5, top_k: Some(40), seed: Some(7), ..Sampling::default() };
        assert_eq!(serde_json::to_string(&sampling).unwrap(), OLD);
        assert_eq!(serde_json::from_str::<Sampling>(OLD).unwrap(), sampling);
    }

    #[test]
    fn what_is_used_is_read_back() {
        let sampling = Sampling {
            n: 3,
            logit_bias: BTreeMap::from([(0, -100.0), (50_256, 0.1)]),
            repetition_penalty: 1.1,
            presence_penalty: -2.0,
            frequency_penalty: 0.3,
            typical_p: 0.95,
            ..Sampling::default()
        };
        let text = serde_json::to_string(&sampling).unwrap();
        assert!(text.contains(r#""logit_bias":{"0":-100.0,"50256":0.1}"#), "{text}");
        assert_eq!(serde_json::from_str::<Sampling>(&text).unwrap(), sampling);
    }
}
