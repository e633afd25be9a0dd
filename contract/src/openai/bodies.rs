//! Answers of the OpenAI-compatible routes, as types. Nullable members are always there, as the official clients expect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::outcome::{FinishReason, Usage};

/// Tokens used, in OpenAI's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageBody {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated, the ending one included.
    pub completion_tokens: u32,
    /// Both together.
    pub total_tokens: u32,
    /// More about the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// More about the tokens of the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens whose keys and values were already in the cache.
    pub cached_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.output_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// The answer of `POST /v1/chat/completions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    /// `chatcmpl-` and the job's id.
    pub id: String,
    /// Always `chat.completion`.
    pub object: String,
    /// When the job was accepted, in Unix seconds.
    pub created: i64,
    /// The model name of the request.
    pub model: String,
    /// The answers, `n` of them.
    pub choices: Vec<ChatChoice>,
    /// Tokens used.
    pub usage: UsageBody,
    /// The first 12 digits of the release's fingerprint.
    pub system_fingerprint: String,
}

/// One answer of a chat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Its place in the list.
    pub index: u32,
    /// The message.
    pub message: AssistantMessage,
    /// If asked for.
    #[schema(required)]
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ends.
    pub finish_reason: FinishReason,
    /// The stop string or stop token id that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
}

/// What the model says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: String,
    /// The text; null where there is none beside `tool_calls` or `reasoning_content`.
    #[schema(required)]
    pub content: Option<String>,
    /// What the model thought before it answered, of models that tell it apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Functions that it calls; left out where it calls none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallBody>>,
    /// Always null: models here do not refuse in a field of its own.
    #[schema(required)]
    pub refusal: Option<String>,
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallBody {
    /// What the answer of the function is to name: `tool_call_id`.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Which function, and with what.
    pub function: CalledFunction,
}

/// A function that is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CalledFunction {
    /// One of the functions that the request offers.
    pub name: String,
    /// The text of a JSON object. It keeps to the function's `parameters` if the call was forced or the function is
    /// `strict`; otherwise it is as the model wrote it.
    pub arguments: String,
}

/// A call of a function in a stream: always whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallDelta {
    /// Which call of the answer, from 0.
    pub index: u32,
    /// The call.
    #[serde(flatten)]
    pub call: ToolCallBody,
}

/// Log-probabilities of a chat's tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry per generated token, the ending one included.
    pub content: Vec<ChatTokenLogprob>,
    /// Always null.
    #[schema(required)]
    pub refusal: Option<Vec<ChatTokenLogprob>>,
}

/// One generated token and its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// The token's text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes; null for tokens that stand for no text.
    #[schema(required)]
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens at this position, best first; as many as asked for.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// One of the most likely tokens at a position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatTopLogprob {
    /// The token's text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes; null for tokens that stand for no text.
    #[schema(required)]
    pub bytes: Option<Vec<u8>>,
}

/// One event of a streamed chat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    /// The same in all chunks.
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: String,
    /// When the job was accepted, in Unix seconds.
    pub created: i64,
    /// The model name of the request.
    pub model: String,
    /// The first 12 digits of the release's fingerprint.
    pub system_fingerprint: String,
    /// What is new; empty in the chunk that carries the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Only with `stream_options.include_usage`: null, and in the last chunk the usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UsageBody>)]
    pub usage: Option<Option<UsageBody>>,
}

/// What is new of one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Which answer.
    pub index: u32,
    /// The new text.
    pub delta: ChatDelta,
    /// Of the token that brought it, if asked for.
    #[schema(required)]
    pub logprobs: Option<ChatLogprobs>,
    /// Null until the last chunk of this answer.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
    /// The stop string or stop token id that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
}

/// A piece of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first chunk only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The new text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// New text of the thoughts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// New calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// The answer of `POST /v1/completions`, and each event of a streamed one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextCompletion {
    /// `cmpl-` and the job's id.
    pub id: String,
    /// Always `text_completion`.
    pub object: String,
    /// When the job was accepted, in Unix seconds.
    pub created: i64,
    /// The model name of the request.
    pub model: String,
    /// The answers, `n` of them; in a stream the one that has something new. Empty in the chunk that carries the usage.
    pub choices: Vec<TextChoice>,
    /// Tokens used. In a stream only with `stream_options.include_usage`: null, and in the last chunk the usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UsageBody>)]
    pub usage: Option<Option<UsageBody>>,
    /// The first 12 digits of the release's fingerprint.
    pub system_fingerprint: String,
}

/// One answer of a completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextChoice {
    /// The text, or what is new of it.
    pub text: String,
    /// Its place in the list.
    pub index: u32,
    /// If asked for.
    #[schema(required)]
    pub logprobs: Option<TextLogprobs>,
    /// Why it ends; null in a stream until the last chunk of this answer.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
    /// The stop string or stop token id that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
}

/// Log-probabilities of a completion's tokens: lists of one length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextLogprobs {
    /// Text of each generated token, the ending one included.
    pub tokens: Vec<String>,
    /// Natural logarithm of each one's probability.
    pub token_logprobs: Vec<f32>,
    /// The most likely tokens at each position; the chosen one is always among them.
    pub top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where the text that each token made visible begins, in characters from the start of the answer.
    pub text_offset: Vec<u32>,
}

/// The answer of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: String,
    /// The models.
    pub data: Vec<ModelBody>,
}

/// A model as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelBody {
    /// The name to use in requests.
    pub id: String,
    /// Always `model`.
    pub object: String,
    /// When this server started to offer it, in Unix seconds.
    pub created: i64,
    /// Always `penstock`.
    pub owned_by: String,
    /// Fingerprint of the release behind the name.
    pub release: String,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Whether it takes chats; without a chat template in its file it only takes completions.
    pub chat: bool,
    /// Whether its chats take functions to call (`tools`): its chat template has a way that this server reads.
    pub tools: bool,
}
