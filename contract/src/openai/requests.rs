//! Request bodies as the API description shows them. The parsers decide; a test holds both lists of fields together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::bodies::ToolCallBody;
use super::webhooks::HookRequest;
use crate::ids::Class;
use crate::request::Kind;
use crate::sequence::OnFailure;

/// Parameters that both OpenAI routes take. Accepted without effect: `user`, `service_tier`, `safety_identifier`,
/// `prompt_cache_key`. Any field that is not honoured is a 400 that names it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SharedParameters {
    /// A model of `GET /v1/models`.
    #[schema(required)]
    pub model: String,
    /// Most tokens to generate. Chat: as many as the context has room for; completion: 16.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// The same as `max_tokens`.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<u32>,
    /// End-of-text tokens and stops cannot come before this many tokens. Not with a rule for the answer.
    pub min_tokens: Option<u32>,
    /// Answers to draw; default 1.
    #[schema(minimum = 1, maximum = 8)]
    pub n: Option<u8>,
    /// The same as `n`, or left out.
    #[schema(minimum = 1, maximum = 8)]
    pub best_of: Option<u8>,
    /// 0 is greedy; default 1.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Keep the most likely tokens that together have this probability, above 0; default 1.
    #[schema(maximum = 1)]
    pub top_p: Option<f64>,
    /// Keep this many of the most likely tokens; -1 and 0 keep all.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Drop tokens less likely than this share of the most likely one, below 1.
    #[schema(minimum = 0)]
    pub min_p: Option<f64>,
    /// Of what the other filters leave, keep the tokens whose information is nearest to the entropy and that together
    /// have this probability, above 0; default 1, which keeps all.
    #[schema(maximum = 1)]
    pub typical_p: Option<f64>,
    /// Taken from the logits of tokens that the output has already; default 0.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Taken from the logit of a token once for each time that the output has it; default 0.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Above 0: logits of tokens that prompt or output have already are divided by it where positive, and multiplied
    /// otherwise; default 1.
    #[schema(minimum = 0)]
    pub repetition_penalty: Option<f64>,
    /// Added to logits before anything else, by token id, at most 1,024: `{"50256": -100}`. From -100 to 100. Reported
    /// log-probabilities are the model's own, without this and the penalties.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// The same seed, release and request give the same tokens. Without one, one is drawn and kept with the job.
    pub seed: Option<i64>,
    /// One text, or up to 8, of up to 128 characters, that end the answer and are not shown.
    pub stop: Option<Value>,
    /// Show the stop text that ended the answer.
    pub include_stop_str_in_output: Option<bool>,
    /// Up to 64 token ids that end the answer.
    #[schema(max_items = 64)]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Go on after end-of-text tokens, up to `max_tokens`. Not with a rule for the answer.
    pub ignore_eos: Option<bool>,
    /// What the answer must be: any text, a JSON object, or JSON that is valid under a schema. Such an answer is complete
    /// unless `finish_reason` is `length`, or a stop of the request cut it (then `stop_reason` names it).
    pub response_format: Option<ResponseFormat>,
    /// vLLM's form of the same: a JSON Schema, as an object or its text.
    pub guided_json: Option<Value>,
    /// The answer is a text that this regular expression matches from beginning to end; up to 1,024 characters.
    #[schema(max_length = 1024)]
    pub guided_regex: Option<String>,
    /// The answer is one of these texts.
    #[schema(min_items = 1, max_items = 1000)]
    pub guided_choice: Option<Vec<String>>,
    /// vLLM's newer form: exactly one of its members.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Only with `stream: true`.
    pub stream_options: Option<StreamOptions>,
    /// Up to 16 pairs, kept with the job.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Only `false`: request and answer are removed five minutes after the end, and no trajectory is kept. Of a batch's
    /// line, not before the batch has ended; its output file has the answer for a time of its own.
    pub store: Option<bool>,
}

/// Options of a stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send one more chunk with the usage before the end.
    pub include_usage: Option<bool>,
}

/// What the answer must be. One rule per request: this, `structured_outputs`, or one of `guided_*`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    #[schema(pattern = "^(text|json_object|json_schema)$", example = "json_object")]
    pub kind: String,
    /// With `json_schema`.
    pub json_schema: Option<NamedSchema>,
}

/// A JSON Schema with a name.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// Its name; without effect.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub name: String,
    /// Without effect: say in the messages what is wanted.
    pub description: Option<String>,
    /// The schema, up to 64 KiB. Properties are written in its order. A keyword that cannot be enforced is refused.
    #[schema(value_type = Object)]
    pub schema: Value,
    /// Either way the answer keeps to the schema.
    pub strict: Option<bool>,
}

/// vLLM's form of a rule for the answer: exactly one member.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct StructuredOutputs {
    /// A JSON Schema, as an object or its text.
    pub json: Option<Value>,
    /// Any JSON object.
    pub json_object: Option<bool>,
    /// A regular expression for the whole answer.
    #[schema(max_length = 1024)]
    pub regex: Option<String>,
    /// The answer is one of these texts.
    #[schema(min_items = 1, max_items = 1000)]
    pub choice: Option<Vec<String>>,
}

/// Body of `POST /v1/chat/completions`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// The shared parameters.
    #[serde(flatten)]
    pub shared: SharedParameters,
    /// The conversation, 1 to 2,048 messages.
    #[schema(min_items = 1, max_items = 2048)]
    pub messages: Vec<ChatMessage>,
    /// Log-probabilities of the generated tokens.
    pub logprobs: Option<bool>,
    /// Most likely tokens beside each; needs `logprobs`.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u8>,
    /// Functions that the model may call, up to 128, for models whose chat template knows of them. Not with a rule for the
    /// answer.
    #[schema(max_items = 128)]
    pub tools: Option<Vec<ToolRequest>>,
    /// `auto` (the default): the model decides. `none`: no function is offered. `required`: it calls one or several.
    /// `{"type": "function", "function": {"name": …}}`: it calls this one, once.
    pub tool_choice: Option<ToolChoiceRequest>,
    /// With `false` an answer has one call at most; default `true`.
    pub parallel_tool_calls: Option<bool>,
}

/// A function that the model may call.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ToolRequest {
    /// `function`.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$", example = "function")]
    pub kind: String,
    /// The function.
    pub function: FunctionRequest,
}

/// What the model is told of a function.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct FunctionRequest {
    /// Its name, unlike that of every other one.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// A JSON Schema of its arguments, an object, up to 64 KiB. Left out: it takes none.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Arguments keep to the schema also where the model calls by itself. Forced calls always do.
    pub strict: Option<bool>,
}

/// Whether functions are called.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoiceRequest {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// This one.
    Named(NamedToolChoice),
}

/// The function to call.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct NamedToolChoice {
    /// `function`.
    #[serde(rename = "type")]
    #[schema(pattern = "^function$", example = "function")]
    pub kind: String,
    /// Which.
    pub function: FunctionName,
}

/// Names a function.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct FunctionName {
    /// Its name.
    #[schema(pattern = "^[a-zA-Z0-9_-]{1,64}$")]
    pub name: String,
}

/// One message.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// `system` (or `developer`), `user`, `assistant` or `tool`.
    #[schema(example = "user", pattern = "^(system|developer|user|assistant|tool)$")]
    pub role: String,
    /// A string, or an array of `{"type":"text","text":…}` parts, joined by line breaks. Null only beside `tool_calls`.
    pub content: Value,
    /// The speaker's name; templates may show it.
    pub name: Option<String>,
    /// Of an assistant: what it thought, as its answer had it; templates may show it.
    pub reasoning_content: Option<String>,
    /// Of an assistant: the functions that it called, up to 128.
    #[schema(max_items = 128)]
    pub tool_calls: Option<Vec<ToolCallBody>>,
    /// Of a tool: the id of the call, in a message before it, that this is the answer to.
    pub tool_call_id: Option<String>,
}

/// Body of `POST /v1/completions`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// The shared parameters.
    #[serde(flatten)]
    pub shared: SharedParameters,
    /// A string, token ids, or an array of exactly one of either.
    #[schema(required)]
    pub prompt: Value,
    /// Log-probabilities of the generated tokens, with this many of the likeliest beside each.
    #[schema(maximum = 20)]
    pub logprobs: Option<u8>,
}

/// The inner body of a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InnerRequest {
    /// With `type: "chat"`.
    Chat(ChatRequest),
    /// With `type: "completion"`.
    Completion(CompletionRequest),
}

/// Body of `POST /v1/jobs`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobRequest {
    /// Which OpenAI body `request` is.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The OpenAI body; `stream` cannot be true in it.
    pub request: InnerRequest,
    /// How urgent it is; default `standard`.
    pub class: Option<Class>,
    /// From acceptance, or from `run_after` if that is later, to the deadline; default by class: 120, 3,600 or 86,400.
    #[schema(minimum = 1, maximum = 604_800)]
    pub deadline_seconds: Option<u64>,
    /// Up to 16 pairs of strings, kept with the job and usable as a filter.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Jobs of one key run one at a time in order of acceptance.
    pub sequence_key: Option<String>,
    /// What the jobs behind it do when it ends as `failed` or `expired`: run on (`skip`, the default), or wait until
    /// `POST /v1/sequences/{key}/resume` (`block`). Only with `sequence_key`.
    pub on_failure: Option<OnFailure>,
    /// Where it alone is told of, beside the webhooks of its tenant.
    pub webhook: Option<HookRequest>,
    /// It does not run before this; `deadline_seconds` counts from then. Not with `sequence_key`.
    #[schema(format = DateTime)]
    pub run_after: Option<String>,
    /// How long after its end request, result, trajectory and metadata are kept. Default: the server's policy.
    #[schema(minimum = 60, maximum = 315_360_000)]
    pub keep_seconds: Option<u64>,
    /// With `false` they are removed five minutes after the end, and no trajectory is kept. Not with `keep_seconds`.
    pub store: Option<bool>,
}
