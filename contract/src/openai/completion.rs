//! Bodies of `POST /v1/completions`.

use serde_json::Value;

use super::common::{Common, belongs_elsewhere, top_logprobs};
use super::fields::{Fields, error, text, token_id, wrong_type, wrong_value};
use super::{DEFAULT_COMPLETION_TOKENS, MAX_STRING_BYTES, ParseCode, ParseError, Parsed};
use crate::request::{Input, Prompt, Request};

/// Reads a completion request.
///
/// # Errors
/// [`ParseError`] naming the first field that is missing, of the wrong type, out of range, or not honoured.
pub fn parse_completion(body: &Value) -> Result<Parsed, ParseError> {
    parse_at(body, "")
}

/// Reads a completion request that stands at path `at` of a larger body.
pub(super) fn parse_at(body: &Value, at: &str) -> Result<Parsed, ParseError> {
    let mut fields = Fields::of(body, at)?;
    let common = Common::take(&mut fields, Some(DEFAULT_COMPLETION_TOKENS))?;
    fields.unsupported("suffix")?;
    for name in ["messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"] {
        belongs_elsewhere(&mut fields, name, "/v1/chat/completions")?;
    }
    let prompt = prompt(&mut fields)?;
    let param = fields.path("logprobs");
    let logprobs = fields.take("logprobs").map(|value| top_logprobs(value, &param)).transpose()?;
    fields.finish()?;
    Ok(Parsed {
        request: Request {
            model: common.model,
            input: Input::Completion(prompt),
            sampling: common.sampling,
            max_tokens: common.max_tokens,
            min_tokens: common.min_tokens,
            ignore_eos: common.ignore_eos,
            stop: common.stop,
            include_stop: common.include_stop,
            stop_token_ids: common.stop_token_ids,
            logprobs,
            constraint: common.constraint,
            tools: None,
        },
        stream: common.stream,
        include_usage: common.include_usage,
        metadata: common.metadata,
        storage: common.storage,
    })
}

/// A string, token ids, or an array of exactly one of either.
fn prompt(fields: &mut Fields<'_>) -> Result<Prompt, ParseError> {
    let param = fields.path("prompt");
    let value = fields.required("prompt")?;
    match value {
        Value::String(_) => text(value, &param, MAX_STRING_BYTES).map(|text| Prompt::Text(text.to_owned())),
        Value::Array(items) => match items.as_slice() {
            [] => Err(wrong_value(param, "is an empty array: give a text or token ids")),
            [first, ..] if first.is_number() => tokens(items, &param),
            [Value::String(_)] => {
                text(&items[0], &format!("{param}[0]"), MAX_STRING_BYTES).map(|text| Prompt::Text(text.to_owned()))
            }
            [Value::Array(ids)] if ids.is_empty() => {
                Err(wrong_value(format!("{param}[0]"), "is an empty array: give at least one token id"))
            }
            [Value::Array(ids)] => tokens(ids, &format!("{param}[0]")),
            [Value::String(_) | Value::Array(_), ..] => {
                let what = format_args!("has {} prompts; one per request is supported yet", items.len());
                Err(error(param, ParseCode::UnsupportedParameter, what))
            }
            [other, ..] => Err(wrong_type(format!("{param}[0]"), "a string, a token id or an array of them", other)),
        },
        other => Err(wrong_type(param, "a string or an array", other)),
    }
}

fn tokens(items: &[Value], param: &str) -> Result<Prompt, ParseError> {
    let ids: Result<Vec<u32>, ParseError> =
        items.iter().enumerate().map(|(nth, item)| token_id(item, &format!("{param}[{nth}]"))).collect();
    ids.map(Prompt::Tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prompts_come_in_four_forms() {
        let cases = [
            (json!("Hi"), Prompt::Text("Hi".into())),
            (json!(["Hi"]), Prompt::Text("Hi".into())),
            (json!([1, 2, 3.0]), Prompt::Tokens(vec![1, 2, 3])),
            (json!([[1, 4294967295u32]]), Prompt::Tokens(vec![1, u32::MAX])),
            (json!(""), Prompt::Text(String::new())),
        ];
        for (wire, expected) in cases {
            let parsed = parse_completion(&json!({"model": "m", "prompt": wire})).unwrap();
            assert_eq!(parsed.request.input, Input::Completion(expected), "{wire}");
            assert_eq!(parsed.request.max_tokens, Some(16));
        }
    }

    #[test]
    fn logprobs_is_a_number_here() {
        let parsed = parse_completion(&json!({"model": "m", "prompt": "x", "logprobs": 5, "echo": false, "best_of": 1,
            "suffix": null, "max_tokens": 3}));
        let request = parsed.unwrap().request;
        assert_eq!((request.logprobs, request.max_tokens), (Some(5), Some(3)));
    }
}
