//! The parameters that both OpenAI routes share.

use std::collections::BTreeMap;

use serde_json::Value;

use super::constraint;
use super::fields::{Fields, integer, join, text, token_id, wrong_type, wrong_value};
use super::{
    MAX_LOGIT_BIASES, MAX_METADATA_KEY_CHARS, MAX_METADATA_PAIRS, MAX_METADATA_VALUE_CHARS, MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS, MAX_STOPS, MAX_STRING_BYTES, ParseCode, ParseError, fields,
};
use crate::constraint::Constraint;
use crate::request::{MAX_CHOICES, Sampling};
use crate::retention::Storage;

/// Most bytes of a name (model, user, cache key).
const MAX_NAME_BYTES: usize = 512;

/// What both routes read alike.
pub(super) struct Common {
    pub model: String,
    pub sampling: Sampling,
    pub max_tokens: Option<u32>,
    pub min_tokens: u32,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub include_stop: bool,
    pub stop_token_ids: Vec<u32>,
    pub stream: bool,
    pub include_usage: bool,
    pub metadata: BTreeMap<String, String>,
    pub storage: Storage,
    pub constraint: Option<Constraint>,
    pub prompt_logprobs: Option<u8>,
}

/// What `max_tokens` can be, and what it is when the body names no limit.
pub(super) struct TokenLimits {
    /// 0 where the prompt alone is an answer, else 1.
    pub least: i64,
    pub default: Option<u32>,
}

impl Common {
    /// Takes the shared fields.
    pub fn take(fields: &mut Fields<'_>, limits: TokenLimits) -> Result<Self, ParseError> {
        let model = model(fields)?;
        let sampling = sampling(fields)?;
        let max_tokens = max_tokens(fields, limits.least)?.or(limits.default);
        let min_tokens = fields.integer("min_tokens", 0, i64::from(u32::MAX))?.unwrap_or(0);
        let min_tokens = u32::try_from(min_tokens).unwrap_or(u32::MAX);
        if let Some(max) = max_tokens.filter(|max| min_tokens > *max) {
            let what = format_args!("is {min_tokens}, more than `max_tokens`, which is {max}");
            return Err(wrong_value(fields.path("min_tokens"), what));
        }
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        let (stop, stop_token_ids) = (stops(fields)?, stop_token_ids(fields)?);
        let include_stop = fields.boolean("include_stop_str_in_output")?.unwrap_or(false);
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = stream_options(fields, stream)?;
        let metadata = metadata(fields)?;
        let storage = storage(fields)?;
        let constraint = constraint::take(fields)?;
        constraint::check_ends(constraint.as_ref(), min_tokens, ignore_eos, fields)?;
        let prompt_logprobs = prompt_logprobs(fields, stream)?;
        take_without_effect(fields)?;
        refuse_unsupported(fields)?;
        Ok(Self {
            model,
            sampling,
            max_tokens,
            min_tokens,
            ignore_eos,
            stop,
            include_stop,
            stop_token_ids,
            stream,
            include_usage,
            metadata,
            storage,
            constraint,
            prompt_logprobs,
        })
    }
}

pub(super) fn model(fields: &mut Fields<'_>) -> Result<String, ParseError> {
    fields.required("model")?;
    let name = fields.string("model", MAX_NAME_BYTES)?.unwrap_or_default();
    if name.is_empty() {
        return Err(wrong_value(fields.path("model"), "is empty: name one of the models of GET /v1/models"));
    }
    Ok(name.to_owned())
}

fn sampling(fields: &mut Fields<'_>) -> Result<Sampling, ParseError> {
    let defaults = Sampling::default();
    let temperature = fields.number("temperature", |x| (0.0..=2.0).contains(&x), "between 0 and 2")?;
    let top_p = fields.number("top_p", |x| x > 0.0 && x <= 1.0, "above 0 and at most 1")?;
    let min_p = fields.number("min_p", |x| (0.0..1.0).contains(&x), "at least 0 and below 1")?;
    // -1 and 0 both mean "off" among the servers that know this parameter.
    let top_k = fields.integer("top_k", -1, i64::from(u32::MAX))?.filter(|k| *k > 0);
    let typical_p = fields.number("typical_p", |x| x > 0.0 && x <= 1.0, "above 0 and at most 1")?;
    let repetition = fields.number("repetition_penalty", |x| x > 0.0, "above 0")?;
    let mut penalty = |name| fields.number(name, |x| (-2.0..=2.0).contains(&x), "between -2 and 2");
    let (presence, frequency) = (penalty("presence_penalty")?, penalty("frequency_penalty")?);
    let seed = fields.integer("seed", i64::MIN, i64::MAX)?;
    Ok(Sampling {
        n: choices(fields)?,
        logit_bias: logit_bias(fields)?,
        // Above 0 and finite in single precision too.
        repetition_penalty: repetition
            .map_or(defaults.repetition_penalty, |x| x.clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)) as f32),
        presence_penalty: presence.map_or(defaults.presence_penalty, |x| x as f32),
        frequency_penalty: frequency.map_or(defaults.frequency_penalty, |x| x as f32),
        temperature: temperature.map_or(defaults.temperature, |x| x as f32),
        top_k: top_k.and_then(|k| u32::try_from(k).ok()),
        // A positive value too small for single precision still keeps the likeliest token.
        top_p: top_p.map_or(defaults.top_p, |x| (x as f32).max(f32::MIN_POSITIVE)),
        // Single precision would round a value just below 1 up to it.
        min_p: min_p.map_or(defaults.min_p, |x| (x as f32).min(1.0f32.next_down())),
        typical_p: typical_p.map_or(defaults.typical_p, |x| (x as f32).max(f32::MIN_POSITIVE)),
        seed: seed.map(|seed| seed as u64),
    })
}

/// How many answers are asked for. All that are drawn are shown: `best_of` can only say the same.
fn choices(fields: &mut Fields<'_>) -> Result<u8, ParseError> {
    let n = fields.integer("n", 1, i64::from(MAX_CHOICES))?.unwrap_or(1);
    if let Some(best_of) = fields.integer("best_of", 1, i64::from(u32::MAX))?.filter(|best_of| *best_of != n) {
        let what =
            format_args!("is {best_of} while `n` is {n}: drawing more than is shown is not supported, give `n` alone");
        return Err(fields::error(fields.path("best_of"), ParseCode::UnsupportedParameter, what));
    }
    Ok(u8::try_from(n).unwrap_or(MAX_CHOICES))
}

/// What is added to the logits of tokens, by id. No vocabulary is known here: ids beyond one are refused where it is.
fn logit_bias(fields: &mut Fields<'_>) -> Result<BTreeMap<u32, f32>, ParseError> {
    let param = fields.path("logit_bias");
    let Some(value) = fields.take("logit_bias") else { return Ok(BTreeMap::new()) };
    let pairs = value.as_object().ok_or_else(|| wrong_type(&param, "an object of numbers by token id", value))?;
    if pairs.len() > MAX_LOGIT_BIASES {
        return Err(wrong_value(param, format_args!("has {} token ids; {MAX_LOGIT_BIASES} are the most", pairs.len())));
    }
    let mut biases = BTreeMap::new();
    for (key, value) in pairs {
        let at = join(&param, &key.chars().take(MAX_METADATA_KEY_CHARS).collect::<String>());
        // One spelling per id: `7` and `+07` would be two entries for one token.
        let id = key.parse::<u32>().ok().filter(|id| id.to_string() == *key);
        let id = id.ok_or_else(|| wrong_value(&at, "is no token id: give a whole number such as \"50256\""))?;
        let bias = value.as_f64().ok_or_else(|| wrong_type(&at, "a number", value))?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(wrong_value(at, format_args!("is {value}; it must be between -100 and 100")));
        }
        biases.insert(id, bias as f32);
    }
    Ok(biases)
}

fn max_tokens(fields: &mut Fields<'_>, least: i64) -> Result<Option<u32>, ParseError> {
    let old = fields.integer("max_tokens", least, i64::from(u32::MAX))?;
    let new = fields.integer("max_completion_tokens", least, i64::from(u32::MAX))?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let what = format_args!("is {new} while `max_tokens` is {old}: they mean the same, give one");
        return Err(wrong_value(fields.path("max_completion_tokens"), what));
    }
    Ok(new.or(old).and_then(|n| u32::try_from(n).ok()))
}

fn stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ParseError> {
    let param = fields.path("stop");
    let one = |value: &Value, param: &str| -> Result<String, ParseError> {
        let stop = text(value, param, MAX_STRING_BYTES)?;
        if stop.is_empty() {
            return Err(wrong_value(param, "is empty: a stop string has at least one character"));
        }
        let chars = stop.chars().count();
        if chars > MAX_STOP_CHARS {
            return Err(wrong_value(param, format_args!("has {chars} characters; {MAX_STOP_CHARS} are the most")));
        }
        Ok(stop.to_owned())
    };
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(value @ Value::String(_)) => Ok(vec![one(value, &param)?]),
        Some(Value::Array(items)) if items.len() > MAX_STOPS => {
            Err(wrong_value(param, format_args!("has {} items; {MAX_STOPS} are the most", items.len())))
        }
        Some(Value::Array(items)) => {
            items.iter().enumerate().map(|(nth, item)| one(item, &format!("{param}[{nth}]"))).collect()
        }
        Some(other) => Err(wrong_type(param, "a string or an array of strings", other)),
    }
}

fn stop_token_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, ParseError> {
    let param = fields.path("stop_token_ids");
    let items = fields.list("stop_token_ids", MAX_STOP_TOKEN_IDS)?.unwrap_or_default();
    items.iter().enumerate().map(|(nth, item)| token_id(item, &format!("{param}[{nth}]"))).collect()
}

fn stream_options(fields: &mut Fields<'_>, stream: bool) -> Result<bool, ParseError> {
    let Some(value) = fields.take("stream_options") else { return Ok(false) };
    let param = fields.path("stream_options");
    if !stream {
        return Err(wrong_value(param, "is only allowed with `stream: true`"));
    }
    let mut options = Fields::of(value, param)?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", |v| v == false, "false")?;
    options.only("continuous_usage_stats", |v| v == false, "false")?;
    options.finish()?;
    Ok(include_usage)
}

/// vLLM's list of the prompt's log-probabilities. Streams tell of new tokens, and there is no chunk that it belongs to.
fn prompt_logprobs(fields: &mut Fields<'_>, stream: bool) -> Result<Option<u8>, ParseError> {
    let param = fields.path("prompt_logprobs");
    let Some(value) = fields.take("prompt_logprobs") else { return Ok(None) };
    let top = top_logprobs(value, &param)?;
    if stream {
        return Err(wrong_value(param, "cannot be given with `stream: true`: streams tell of new tokens only"));
    }
    Ok(Some(top))
}

/// The client's own pairs: at most 16, of strings.
pub(super) fn metadata(fields: &mut Fields<'_>) -> Result<BTreeMap<String, String>, ParseError> {
    let param = fields.path("metadata");
    let Some(value) = fields.take("metadata") else { return Ok(BTreeMap::new()) };
    let pairs = value.as_object().ok_or_else(|| wrong_type(&param, "an object of strings", value))?;
    if pairs.len() > MAX_METADATA_PAIRS {
        return Err(wrong_value(param, format_args!("has {} pairs; {MAX_METADATA_PAIRS} are the most", pairs.len())));
    }
    let mut metadata = BTreeMap::new();
    for (key, value) in pairs {
        let at = join(&param, &key.chars().take(MAX_METADATA_KEY_CHARS).collect::<String>());
        if key.is_empty() || key.chars().count() > MAX_METADATA_KEY_CHARS {
            return Err(wrong_value(at, format_args!("must have a key of 1 to {MAX_METADATA_KEY_CHARS} characters")));
        }
        let text = text(value, &at, MAX_STRING_BYTES)?;
        if text.chars().count() > MAX_METADATA_VALUE_CHARS {
            return Err(wrong_value(at, format_args!("is longer than {MAX_METADATA_VALUE_CHARS} characters")));
        }
        if key.contains('\0') || text.contains('\0') {
            return Err(wrong_value(at, "has a NUL character, which databases cannot keep"));
        }
        metadata.insert(key.clone(), text.to_owned());
    }
    Ok(metadata)
}

/// Fields that change nothing here, whatever their value: checked for type and dropped.
pub(super) fn take_without_effect(fields: &mut Fields<'_>) -> Result<(), ParseError> {
    for name in ["user", "service_tier", "safety_identifier", "prompt_cache_key"] {
        fields.string(name, MAX_NAME_BYTES)?;
    }
    Ok(())
}

/// `store: false`: nothing stays of it. With `true` OpenAI's clients would look for it at routes that are not there.
pub(super) fn storage(fields: &mut Fields<'_>) -> Result<Storage, ParseError> {
    match fields.boolean("store")? {
        None => Ok(Storage::AsSet),
        Some(false) => Ok(Storage::RunOnly),
        Some(true) => {
            let what = "is not supported as true: leave it out, and the answer is kept as that of any job, to be read again at \
                        `/v1/jobs`; with false it is removed soon after the end";
            Err(fields::error(fields.path("store"), ParseCode::UnsupportedParameter, what))
        }
    }
}

fn is_number(value: &Value, expected: f64) -> bool {
    value.as_f64() == Some(expected)
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Known features that are not there yet: the value that asks for nothing passes, since clients like to send it.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), ParseError> {
    fields.only("length_penalty", |v| is_number(v, 1.0), "1")?;
    fields.only("priority", |v| is_number(v, 0.0), "0")?;
    for name in ["use_beam_search", "return_token_ids"] {
        fields.only(name, |v| v == false, "false")?;
    }
    for name in ["skip_special_tokens", "spaces_between_special_tokens"] {
        fields.only(name, |v| v == true, "true")?;
    }
    for name in ["chat_template_kwargs", "vllm_xargs"] {
        fields.only(name, is_empty_object, "{}")?;
    }
    for name in ["bad_words", "truncate_prompt_tokens", "cache_salt", "logits_processors"] {
        fields.unsupported(name)?;
    }
    Ok(())
}

/// The number of likeliest tokens to show at `name`: 0 to 20.
pub(super) fn top_logprobs(value: &Value, param: &str) -> Result<u8, ParseError> {
    let n = integer(value, param, 0, i64::from(super::MAX_TOP_LOGPROBS))?;
    Ok(u8::try_from(n).unwrap_or(super::MAX_TOP_LOGPROBS))
}

/// A field that is the route's own and absent from the other one gets a hint there.
pub(super) fn belongs_elsewhere(fields: &mut Fields<'_>, name: &'static str, route: &str) -> Result<(), ParseError> {
    match fields.take(name) {
        None => Ok(()),
        Some(_) => {
            let what = format_args!("belongs to {route}, not here");
            Err(fields::error(fields.path(name), ParseCode::UnknownParameter, what))
        }
    }
}
