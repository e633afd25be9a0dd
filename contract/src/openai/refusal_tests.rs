//! Bodies that must be refused, each with the field at fault and the code; and the fields the API description names.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::ParseCode::{
    self, InvalidType, InvalidValue, MissingRequiredParameter, UnknownParameter, UnsupportedParameter,
};
use super::{ParseError, parse_chat, parse_completion, parse_job};

fn chat_with(field: &str, value: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    body[field] = value;
    body
}

fn completion_with(field: &str, value: Value) -> Value {
    let mut body = json!({"model": "m", "prompt": "Hi"});
    body[field] = value;
    body
}

fn check(error: ParseError, param: &str, code: ParseCode) {
    assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{error}");
    assert!(error.message.contains(param), "`{error}` does not name `{param}`");
}

#[test]
fn shared_parameters_out_of_range_are_named() {
    let long = "x".repeat(129);
    let too_many_biases: Value =
        (0..1_025).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let cases: Vec<(&str, Value, &str, ParseCode)> = vec![
        ("model", json!(null), "model", MissingRequiredParameter),
        ("model", json!(7), "model", InvalidType),
        ("model", json!(""), "model", InvalidValue),
        ("model", json!("m".repeat(513)), "model", InvalidValue),
        ("temperature", json!(-0.1), "temperature", InvalidValue),
        ("temperature", json!(2.1), "temperature", InvalidValue),
        ("temperature", json!("hot"), "temperature", InvalidType),
        ("temperature", json!([1]), "temperature", InvalidType),
        ("top_p", json!(0), "top_p", InvalidValue),
        ("top_p", json!(1.01), "top_p", InvalidValue),
        ("top_k", json!(-2), "top_k", InvalidValue),
        ("top_k", json!(1.5), "top_k", InvalidValue),
        ("top_k", json!(4294967296u64), "top_k", InvalidValue),
        ("min_p", json!(1), "min_p", InvalidValue),
        ("min_p", json!(-1), "min_p", InvalidValue),
        ("seed", json!(1.5), "seed", InvalidValue),
        ("seed", json!("7"), "seed", InvalidType),
        ("seed", json!(u64::MAX), "seed", InvalidValue),
        ("seed", json!(1e300), "seed", InvalidValue),
        ("stop", json!(""), "stop", InvalidValue),
        ("stop", json!(long), "stop", InvalidValue),
        ("stop", json!(["a", ""]), "stop[1]", InvalidValue),
        ("stop", json!(["a", 1]), "stop[1]", InvalidType),
        ("stop", json!(vec!["a"; 9]), "stop", InvalidValue),
        ("stop", json!({"a": 1}), "stop", InvalidType),
        ("stop_token_ids", json!(7), "stop_token_ids", InvalidType),
        ("stop_token_ids", json!([-1]), "stop_token_ids[0]", InvalidValue),
        ("stop_token_ids", json!(["7"]), "stop_token_ids[0]", InvalidType),
        ("stop_token_ids", json!(vec![1; 65]), "stop_token_ids", InvalidValue),
        ("max_tokens", json!(0), "max_tokens", InvalidValue),
        ("max_tokens", json!(16.5), "max_tokens", InvalidValue),
        ("max_tokens", json!("16"), "max_tokens", InvalidType),
        ("max_completion_tokens", json!(-3), "max_completion_tokens", InvalidValue),
        ("min_tokens", json!(-1), "min_tokens", InvalidValue),
        ("ignore_eos", json!("yes"), "ignore_eos", InvalidType),
        ("include_stop_str_in_output", json!(1), "include_stop_str_in_output", InvalidType),
        ("stream", json!(1), "stream", InvalidType),
        ("stream_options", json!({"include_usage": true}), "stream_options", InvalidValue),
        ("metadata", json!(["a"]), "metadata", InvalidType),
        ("metadata", json!({"a": 1}), "metadata.a", InvalidType),
        ("metadata", json!({"a": "x".repeat(513)}), "metadata.a", InvalidValue),
        ("metadata", json!({"a": "\0"}), "metadata.a", InvalidValue),
        ("store", json!(true), "store", UnsupportedParameter),
        ("user", json!(7), "user", InvalidType),
        ("service_tier", json!(false), "service_tier", InvalidType),
        ("n", json!(0), "n", InvalidValue),
        ("n", json!(9), "n", InvalidValue),
        ("n", json!(1.5), "n", InvalidValue),
        ("n", json!("2"), "n", InvalidType),
        ("best_of", json!(0), "best_of", InvalidValue),
        ("best_of", json!(3), "best_of", UnsupportedParameter),
        ("presence_penalty", json!(2.01), "presence_penalty", InvalidValue),
        ("presence_penalty", json!(-3), "presence_penalty", InvalidValue),
        ("frequency_penalty", json!(-2.5), "frequency_penalty", InvalidValue),
        ("frequency_penalty", json!("1"), "frequency_penalty", InvalidType),
        ("repetition_penalty", json!(0), "repetition_penalty", InvalidValue),
        ("repetition_penalty", json!(-1.1), "repetition_penalty", InvalidValue),
        ("repetition_penalty", json!(true), "repetition_penalty", InvalidType),
        ("typical_p", json!(0), "typical_p", InvalidValue),
        ("typical_p", json!(1.5), "typical_p", InvalidValue),
        ("typical_p", json!([1]), "typical_p", InvalidType),
        ("logit_bias", json!([1]), "logit_bias", InvalidType),
        ("logit_bias", json!({"50256": -100.5}), "logit_bias.50256", InvalidValue),
        ("logit_bias", json!({"50256": "1"}), "logit_bias.50256", InvalidType),
        ("logit_bias", json!({"the": 1}), "logit_bias.the", InvalidValue),
        ("logit_bias", json!({"-1": 1}), "logit_bias.-1", InvalidValue),
        ("logit_bias", json!({"+7": 1}), "logit_bias.+7", InvalidValue),
        ("logit_bias", json!({"07": 1}), "logit_bias.07", InvalidValue),
        ("logit_bias", json!({"4294967296": 1}), "logit_bias.4294967296", InvalidValue),
        ("logit_bias", too_many_biases, "logit_bias", InvalidValue),
        ("echo", json!(true), "echo", UnsupportedParameter),
        ("response_format", json!("json_object"), "response_format", InvalidType),
        ("response_format", json!({"type": "yaml"}), "response_format.type", UnsupportedParameter),
        ("guided_json", json!(["a"]), "guided_json", InvalidType),
        ("guided_grammar", json!("start: x"), "guided_grammar", UnsupportedParameter),
        ("prompt_logprobs", json!(1), "prompt_logprobs", UnsupportedParameter),
        ("temprature", json!(0.5), "temprature", UnknownParameter),
        ("", json!(0.5), "", UnknownParameter),
    ];
    for (field, value, param, code) in cases {
        check(parse_chat(&chat_with(field, value.clone())).unwrap_err(), param, code);
        check(parse_completion(&completion_with(field, value.clone())).unwrap_err(), param, code);
        let job = json!({"type": "completion", "request": completion_with(field, value)});
        check(parse_job(&job).unwrap_err(), &format!("request.{param}"), code);
    }
}

#[test]
fn conversations_that_are_none_are_named() {
    let cases: Vec<(Value, &str, ParseCode)> = vec![
        (json!(null), "messages", MissingRequiredParameter),
        (json!([]), "messages", InvalidValue),
        (json!("Hi"), "messages", InvalidType),
        (json!(["Hi"]), "messages[0]", InvalidType),
        (json!(vec![json!({"role": "user", "content": "x"}); 2049]), "messages", InvalidValue),
        (json!([{"content": "x"}]), "messages[0].role", MissingRequiredParameter),
        (json!([{"role": "robot", "content": "x"}]), "messages[0].role", InvalidValue),
        (json!([{"role": 1, "content": "x"}]), "messages[0].role", InvalidType),
        (json!([{"role": "tool", "content": "x", "tool_call_id": "1"}]), "messages[0].tool_call_id", InvalidValue),
        (json!([{"role": "user"}]), "messages[0].content", MissingRequiredParameter),
        (json!([{"role": "user", "content": 5}]), "messages[0].content", InvalidType),
        (json!([{"role": "user", "content": []}]), "messages[0].content", InvalidValue),
        (json!([{"role": "user", "content": ["x"]}]), "messages[0].content[0]", InvalidType),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0].type",
            UnsupportedParameter,
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text",
            MissingRequiredParameter,
        ),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": "x", "extra": 1}]}]),
            "messages[0].content[0].extra",
            UnknownParameter,
        ),
        (json!([{"role": "user", "content": "x".repeat(1_048_577)}]), "messages[0].content", InvalidValue),
        (json!([{"role": "user", "content": "x", "name": ""}]), "messages[0].name", InvalidValue),
        (json!([{"role": "user", "content": "x", "nme": "a"}]), "messages[0].nme", UnknownParameter),
    ];
    for (messages, param, code) in cases {
        check(parse_chat(&json!({"model": "m", "messages": messages})).unwrap_err(), param, code);
    }
}

#[test]
fn what_only_one_route_has_is_named_on_it() {
    let chat: Vec<(&str, Value, &str, ParseCode)> = vec![
        ("logprobs", json!(5), "logprobs", InvalidType),
        ("top_logprobs", json!(3), "top_logprobs", InvalidValue),
        ("top_logprobs", json!(21), "top_logprobs", InvalidValue),
        ("tools", json!([{"type": "function"}]), "tools[0].function", MissingRequiredParameter),
        ("tool_choice", json!("required"), "tool_choice", InvalidValue),
        ("parallel_tool_calls", json!("no"), "parallel_tool_calls", InvalidType),
        ("modalities", json!(["text", "audio"]), "modalities", UnsupportedParameter),
        ("reasoning_effort", json!("low"), "reasoning_effort", UnsupportedParameter),
        ("prompt", json!("Hi"), "prompt", UnknownParameter),
    ];
    for (field, value, param, code) in chat {
        check(parse_chat(&chat_with(field, value)).unwrap_err(), param, code);
    }
    let completion: Vec<(&str, Value, &str, ParseCode)> = vec![
        ("prompt", json!(null), "prompt", MissingRequiredParameter),
        ("prompt", json!(7), "prompt", InvalidType),
        ("prompt", json!([]), "prompt", InvalidValue),
        ("prompt", json!([[]]), "prompt[0]", InvalidValue),
        ("prompt", json!(["a", "b"]), "prompt", UnsupportedParameter),
        ("prompt", json!([[1], [2]]), "prompt", UnsupportedParameter),
        ("prompt", json!([1, -2]), "prompt[1]", InvalidValue),
        ("prompt", json!([1, "b"]), "prompt[1]", InvalidType),
        ("prompt", json!([[1, 2.5]]), "prompt[0][1]", InvalidValue),
        ("prompt", json!([true]), "prompt[0]", InvalidType),
        ("prompt", json!("x".repeat(1_048_577)), "prompt", InvalidValue),
        ("suffix", json!("end"), "suffix", UnsupportedParameter),
        ("logprobs", json!(true), "logprobs", InvalidType),
        ("logprobs", json!(21), "logprobs", InvalidValue),
        ("messages", json!([]), "messages", UnknownParameter),
        ("tools", json!([]), "tools", UnknownParameter),
    ];
    for (field, value, param, code) in completion {
        check(parse_completion(&completion_with(field, value)).unwrap_err(), param, code);
    }
}

#[test]
fn fields_that_contradict_one_another_are_named() {
    let mut body = chat_with("max_tokens", json!(5));
    body["max_completion_tokens"] = json!(6);
    check(parse_chat(&body).unwrap_err(), "max_completion_tokens", InvalidValue);
    let mut body = chat_with("max_tokens", json!(5));
    body["min_tokens"] = json!(6);
    check(parse_chat(&body).unwrap_err(), "min_tokens", InvalidValue);
    // A completion without a limit has one of 16.
    check(parse_completion(&completion_with("min_tokens", json!(17))).unwrap_err(), "min_tokens", InvalidValue);
    let mut body = chat_with("stream", json!(true));
    body["stream_options"] = json!({"include_usage": 1});
    check(parse_chat(&body).unwrap_err(), "stream_options.include_usage", InvalidType);
    body["stream_options"] = json!({"usage": true});
    check(parse_chat(&body).unwrap_err(), "stream_options.usage", UnknownParameter);
}

#[test]
fn jobs_that_are_none_are_named() {
    let inner = json!({"model": "m", "prompt": "x"});
    let cases: Vec<(Value, &str, ParseCode)> = vec![
        (json!({"request": inner}), "type", MissingRequiredParameter),
        (json!({"type": "embedding", "request": inner}), "type", InvalidValue),
        (json!({"type": "chat"}), "request", MissingRequiredParameter),
        (json!({"type": "chat", "request": "x"}), "request", InvalidType),
        (json!({"type": "chat", "request": inner}), "request.prompt", UnknownParameter),
        (json!({"type": "completion", "request": inner, "class": "urgent"}), "class", InvalidValue),
        (json!({"type": "completion", "request": inner, "deadline_seconds": 0}), "deadline_seconds", InvalidValue),
        (json!({"type": "completion", "request": inner, "deadline_seconds": 604801}), "deadline_seconds", InvalidValue),
        (json!({"type": "completion", "request": inner, "priority": 3}), "priority", UnknownParameter),
        (json!({"type": "completion", "request": inner, "sequence_key": ""}), "sequence_key", InvalidValue),
        (json!({"type": "completion", "request": inner, "sequence_key": ".."}), "sequence_key", InvalidValue),
        (json!({"type": "completion", "request": inner, "on_failure": "block"}), "on_failure", InvalidValue),
        (
            json!({"type": "completion", "request": inner, "sequence_key": "s", "on_failure": "stop"}),
            "on_failure",
            InvalidValue,
        ),
        (
            json!({"type": "completion", "request": inner, "sequence_key": "s", "on_failure": true}),
            "on_failure",
            InvalidType,
        ),
        (json!({"type": "completion", "request": inner, "metadata": {"": "x"}}), "metadata.", InvalidValue),
        (
            json!({"type": "completion", "request": {"model": "m", "prompt": "x", "stream": true}}),
            "request.stream",
            InvalidValue,
        ),
    ];
    for (body, param, code) in cases {
        check(parse_job(&body).unwrap_err(), param, code);
    }
    for body in [json!([]), json!("x"), json!(null), json!(1)] {
        let error = parse_job(&body).unwrap_err();
        assert_eq!((error.param, error.code), (None, InvalidType));
    }
}

/// Names in a schema, through `allOf` and references into `components`.
fn properties(schema: &Value, components: &Value, into: &mut Vec<String>) {
    for part in schema["allOf"].as_array().into_iter().flatten() {
        properties(part, components, into);
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        properties(&components[name], components, into);
    }
    into.extend(schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned()));
}

#[test]
fn every_described_parameter_is_one_that_the_parser_knows() {
    use utoipa::{PartialSchema, ToSchema};
    let mut named = Vec::new();
    super::requests::ChatRequest::schemas(&mut named);
    let components: serde_json::Map<String, Value> =
        named.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap())).collect();
    let components = Value::Object(components);
    type Parse = fn(&Value) -> Option<ParseError>;
    let routes: [(Value, Value, Parse); 2] = [
        (
            serde_json::to_value(super::requests::ChatRequest::schema()).unwrap(),
            chat_with("user", json!("u")),
            |body| parse_chat(body).err(),
        ),
        (
            serde_json::to_value(super::requests::CompletionRequest::schema()).unwrap(),
            completion_with("user", json!("u")),
            |body| parse_completion(body).err(),
        ),
    ];
    for (schema, body, parse) in routes {
        let mut names = Vec::new();
        properties(&schema, &components, &mut names);
        assert!(names.len() >= 17, "{names:?}");
        for name in names {
            let mut body = body.clone();
            // No parameter takes an object of this shape: a parser that knows the field complains of its value. As a JSON
            // Schema it would do.
            let object = json!({"no": {"such": "value"}});
            body[name.as_str()] = if name == "guided_json" { json!([object]) } else { object };
            let error = parse(&body).unwrap_or_else(|| panic!("`{name}` took anything"));
            assert_ne!(error.code, UnknownParameter, "{name}");
            assert!(error.param.is_some_and(|param| param.starts_with(&name)), "{name}");
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("[a-z_]{0,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever a field holds, the answer is a request in range or an error that names a field.
    #[test]
    fn no_value_panics_or_slips_through(
        field in prop_oneof![
            Just("messages"), Just("prompt"), Just("temperature"), Just("top_k"), Just("top_p"), Just("min_p"), Just("seed"),
            Just("stop"), Just("max_tokens"), Just("min_tokens"), Just("logprobs"), Just("top_logprobs"), Just("metadata"),
            Just("stream_options"), Just("stop_token_ids"), Just("model"), Just("response_format"), Just("other"),
            Just("typical_p"), Just("repetition_penalty"), Just("presence_penalty"), Just("frequency_penalty"), Just("logit_bias"),
            Just("tools"), Just("tool_choice"), Just("parallel_tool_calls"),
        ],
        value in any_json(),
    ) {
        for outcome in [parse_chat(&chat_with(field, value.clone())), parse_completion(&completion_with(field, value.clone()))] {
            match outcome {
                Ok(parsed) => {
                    let sampling = &parsed.request.sampling;
                    prop_assert!((0.0..=2.0).contains(&sampling.temperature));
                    prop_assert!(sampling.top_p > 0.0 && sampling.top_p <= 1.0);
                    prop_assert!((0.0..1.0).contains(&sampling.min_p));
                    prop_assert!(sampling.is_in_range(), "{:?}", sampling);
                    prop_assert!(sampling.top_k != Some(0) && parsed.request.max_tokens != Some(0));
                }
                Err(error) => prop_assert!(error.param.is_some(), "{}", error),
            }
        }
        let _ = parse_job(&json!({"type": "chat", "request": value.clone(), "class": value}));
    }
}
