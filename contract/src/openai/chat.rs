//! Bodies of `POST /v1/chat/completions`.

use serde_json::Value;

use super::common::{Common, belongs_elsewhere, top_logprobs};
use super::fields::{Fields, wrong_value};
use super::{ParseError, Parsed, messages, tools};
use crate::request::{Input, Request};

/// Reads a chat request.
///
/// # Errors
/// [`ParseError`] naming the first field that is missing, of the wrong type, out of range, or not honoured.
pub fn parse_chat(body: &Value) -> Result<Parsed, ParseError> {
    parse_at(body, "")
}

/// Reads a chat request that stands at path `at` of a larger body.
pub(super) fn parse_at(body: &Value, at: &str) -> Result<Parsed, ParseError> {
    let mut fields = Fields::of(body, at)?;
    let common = Common::take(&mut fields, None)?;
    let tools = tools::take(&mut fields)?;
    tools::check_beside(tools.as_ref(), &common, &fields)?;
    refuse_unsupported(&mut fields)?;
    belongs_elsewhere(&mut fields, "prompt", "/v1/completions")?;
    belongs_elsewhere(&mut fields, "suffix", "/v1/completions")?;
    let messages = messages::take(&mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    fields.finish()?;
    Ok(Parsed {
        request: Request {
            model: common.model,
            input: Input::Chat(messages),
            sampling: common.sampling,
            max_tokens: common.max_tokens,
            min_tokens: common.min_tokens,
            ignore_eos: common.ignore_eos,
            stop: common.stop,
            include_stop: common.include_stop,
            stop_token_ids: common.stop_token_ids,
            logprobs,
            constraint: common.constraint,
            tools,
        },
        stream: common.stream,
        include_usage: common.include_usage,
        metadata: common.metadata,
        storage: common.storage,
    })
}

fn logprobs(fields: &mut Fields<'_>) -> Result<Option<u8>, ParseError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let param = fields.path("top_logprobs");
    let top = fields.take("top_logprobs").map(|value| top_logprobs(value, &param)).transpose()?.unwrap_or(0);
    if top > 0 && !wanted {
        return Err(wrong_value(param, "needs `logprobs: true`"));
    }
    Ok(wanted.then_some(top))
}

/// Older ways to offer functions, and other outputs than text; the values that ask for none of it pass.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), ParseError> {
    fields.only("functions", |v| v.as_array().is_some_and(Vec::is_empty), "`tools` instead")?;
    fields.only("function_call", |v| v == "none" || v == "auto", "`tool_choice` instead")?;
    fields.only("modalities", |v| v == &serde_json::json!(["text"]), "[\"text\"]")?;
    fields.only("add_generation_prompt", |v| v == true, "true")?;
    fields.only("continue_final_message", |v| v == false, "false")?;
    for name in ["audio", "prediction", "reasoning_effort", "verbosity", "web_search_options", "chat_template"] {
        fields.unsupported(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::request::{Message, Role, Sampling};
    use serde_json::json;

    #[test]
    fn a_small_body_takes_the_defaults() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
        let parsed = parse_chat(&body).unwrap();
        assert_eq!((parsed.stream, parsed.include_usage, parsed.metadata.len()), (false, false, 0));
        let expected = Request {
            model: "m".into(),
            input: Input::Chat(vec![Message::of(Role::User, "Hi")]),
            sampling: Sampling {
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
            },
            max_tokens: None,
            min_tokens: 0,
            ignore_eos: false,
            stop: vec![],
            include_stop: false,
            stop_token_ids: vec![],
            logprobs: None,
            constraint: None,
            tools: None,
        };
        assert_eq!(parsed.request, expected);
    }

    #[test]
    fn every_honoured_field_arrives() {
        let body = json!({
            "model": "m",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "user", "content": "q", "name": "ada"},
                {"role": "assistant", "content": "", "tool_calls": null, "refusal": null, "annotations": []},
                {"role": "system", "content": "s"},
            ],
            "temperature": 0, "top_p": 0.5, "top_k": 40, "min_p": 0.25, "typical_p": 0.75, "seed": -1, "n": 3, "best_of": 3,
            "presence_penalty": -2, "frequency_penalty": 0.5, "repetition_penalty": 1.25,
            "logit_bias": {"0": -100, "4294967295": 2.5},
            "stop": ["x", "y"], "include_stop_str_in_output": true, "stop_token_ids": [7, 8.0], "min_tokens": 2, "max_tokens": 9,
            "max_completion_tokens": 9.0, "ignore_eos": true, "logprobs": true, "top_logprobs": 20,
            "stream": true, "stream_options": {"include_usage": true}, "metadata": {"k": "v"},
        });
        let parsed = parse_chat(&body).unwrap();
        assert!(parsed.stream && parsed.include_usage);
        assert_eq!(parsed.metadata.get("k").map(String::as_str), Some("v"));
        let request = parsed.request;
        let Input::Chat(messages) = &request.input else { panic!("not a chat") };
        let seen: Vec<_> = messages.iter().map(|m| (m.role, m.content.as_str(), m.name.as_deref())).collect();
        assert_eq!(
            seen,
            [
                (Role::System, "a\nb", None),
                (Role::User, "q", Some("ada")),
                (Role::Assistant, "", None),
                (Role::System, "s", None)
            ]
        );
        let sampling = Sampling {
            n: 3,
            logit_bias: BTreeMap::from([(0, -100.0), (4_294_967_295, 2.5)]),
            repetition_penalty: 1.25,
            presence_penalty: -2.0,
            frequency_penalty: 0.5,
            temperature: 0.0,
            top_k: Some(40),
            top_p: 0.5,
            min_p: 0.25,
            typical_p: 0.75,
            seed: Some(u64::MAX),
        };
        assert_eq!(request.sampling, sampling);
        assert_eq!((request.min_tokens, request.max_tokens, request.ignore_eos), (2, Some(9), true));
        assert_eq!((request.stop, request.stop_token_ids), (vec!["x".to_owned(), "y".to_owned()], vec![7, 8]));
        assert_eq!((request.logprobs, request.include_stop), (Some(20), true));
    }

    #[test]
    fn what_asks_for_nothing_passes() {
        let body = json!({
            "model": "m", "messages": [{"role": "user", "content": "Hi"}],
            "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": [],
            "tool_choice": "auto", "parallel_tool_calls": true, "response_format": {"type": "text"},
            "modalities": ["text"], "repetition_penalty": 1.0, "typical_p": 1, "user": "u", "store": false,
            "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k", "top_k": -1,
            "top_logprobs": 0, "audio": null, "reasoning_effort": null, "a_field_of_next_year": null,
        });
        let parsed = parse_chat(&body).unwrap();
        assert_eq!((parsed.request.sampling, parsed.request.logprobs), (Sampling::default(), None));
        assert_eq!(parsed.request.tools, None);
    }
}
