//! Functions as clients offer them, and what is refused of them.

use serde_json::{Value, json};

use crate::openai::ParseCode::{
    self, InvalidType, InvalidValue, MissingRequiredParameter, UnknownParameter, UnsupportedParameter,
};
use crate::openai::{MAX_TOOLS, parse_chat};
use crate::request::{Input, Role};
use crate::tools::{Tool, ToolCall, ToolChoice, ToolUse};

/// As OpenAI's documentation offers it.
fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "Current weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
            "additionalProperties": false,
        },
    }})
}

fn body(more: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn tools(more: Value) -> Option<ToolUse> {
    parse_chat(&body(more)).unwrap().request.tools
}

#[test]
fn functions_arrive_with_their_schema_as_text() {
    let mut strict = weather();
    strict["function"]["strict"] = json!(true);
    strict["function"]["name"] = json!("a-B_9");
    let bare = json!({"type": "function", "function": {"name": "now", "description": null, "strict": false}});
    let found = tools(json!({"tools": [weather(), strict, bare]})).unwrap();
    let parameters = r#"{"type":"object","properties":{"place":{"type":"string"},"days":{"type":"integer"}},"required":["place"],"additionalProperties":false}"#;
    let tool = |name: &str, strict| Tool {
        name: name.into(),
        description: Some("Current weather of a place.".into()),
        parameters: Some(parameters.into()),
        strict,
    };
    let now = Tool { name: "now".into(), description: None, parameters: None, strict: false };
    let offered = vec![tool("get_weather", false), tool("a-B_9", true), now];
    assert_eq!(found, ToolUse { offered, choice: ToolChoice::Auto, parallel: true });
}

#[test]
fn choices_are_honoured() {
    let choice = |choice: Value| tools(json!({"tools": [weather()], "tool_choice": choice})).map(|tools| tools.choice);
    assert_eq!(choice(json!(null)), Some(ToolChoice::Auto));
    assert_eq!(choice(json!("auto")), Some(ToolChoice::Auto));
    assert_eq!(choice(json!("required")), Some(ToolChoice::Required));
    assert_eq!(choice(json!("none")), None);
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    assert_eq!(choice(named), Some(ToolChoice::Function("get_weather".into())));
    assert!(!tools(json!({"tools": [weather()], "parallel_tool_calls": false})).unwrap().parallel);
    for nothing in
        [json!({}), json!({"tools": []}), json!({"tools": null, "tool_choice": "auto", "parallel_tool_calls": false})]
    {
        assert_eq!(tools(nothing), None);
    }
}

#[test]
fn functions_that_are_none_are_named() {
    let with = |pointer: &str, value: Value| {
        let mut tool = weather();
        match tool.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => tool["function"][pointer.rsplit('/').next().unwrap()] = value,
        }
        json!({"tools": [tool]})
    };
    let many: Vec<Value> =
        (0..=MAX_TOOLS).map(|nth| json!({"type": "function", "function": {"name": format!("f{nth}")}})).collect();
    let long = json!({"type": "object", "description": "x".repeat(65_536)});
    let wide: Vec<Value> = (0..5)
        .map(|nth| json!({"type": "function", "function": {"name": format!("f{nth}"), "description": "x".repeat(60_000)}}))
        .collect();
    let cases: Vec<(Value, &str, ParseCode)> = vec![
        (json!({"tools": "f"}), "tools", InvalidType),
        (json!({"tools": many}), "tools", InvalidValue),
        (json!({"tools": wide}), "tools", InvalidValue),
        (json!({"tools": ["f"]}), "tools[0]", InvalidType),
        (json!({"tools": [{"function": {"name": "f"}}]}), "tools[0].type", MissingRequiredParameter),
        (json!({"tools": [{"type": "custom", "custom": {"name": "f"}}]}), "tools[0].type", UnsupportedParameter),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function", MissingRequiredParameter),
        (json!({"tools": [{"type": "function", "function": {}}]}), "tools[0].function.name", MissingRequiredParameter),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}, "more": 1}]}),
            "tools[0].more",
            UnknownParameter,
        ),
        (with("/function/name", json!("")), "tools[0].function.name", InvalidValue),
        (with("/function/name", json!("a b")), "tools[0].function.name", InvalidValue),
        (with("/function/name", json!("x".repeat(65))), "tools[0].function.name", InvalidValue),
        (with("/function/name", json!(7)), "tools[0].function.name", InvalidType),
        (with("/function/description", json!(7)), "tools[0].function.description", InvalidType),
        (with("/function/strict", json!("yes")), "tools[0].function.strict", InvalidType),
        (with("/function/returns", json!({})), "tools[0].function.returns", UnknownParameter),
        (with("/function/parameters", json!([])), "tools[0].function.parameters", InvalidType),
        (with("/function/parameters", json!({"type": "string"})), "tools[0].function.parameters.type", InvalidValue),
        (with("/function/parameters", long), "tools[0].function.parameters", InvalidValue),
        (json!({"tools": [weather(), weather()]}), "tools[1].function.name", InvalidValue),
        (json!({"tools": [weather()], "parallel_tool_calls": "no"}), "parallel_tool_calls", InvalidType),
        (json!({"tools": [weather()], "tool_choice": "always"}), "tool_choice", InvalidValue),
        (json!({"tools": [weather()], "tool_choice": true}), "tool_choice", InvalidType),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "allowed_tools"}}),
            "tool_choice.type",
            UnsupportedParameter,
        ),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "function"}}),
            "tool_choice.function",
            MissingRequiredParameter,
        ),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice.function.name",
            InvalidValue,
        ),
        (json!({"tool_choice": "required"}), "tool_choice", InvalidValue),
        (
            json!({"tools": [], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice",
            InvalidValue,
        ),
        (json!({"functions": [{"name": "f"}]}), "functions", UnsupportedParameter),
        (json!({"function_call": {"name": "f"}}), "function_call", UnsupportedParameter),
        (
            json!({"tools": [weather()], "response_format": {"type": "json_object"}}),
            "response_format",
            UnsupportedParameter,
        ),
        (json!({"tools": [weather()], "guided_regex": "a"}), "guided_regex", UnsupportedParameter),
        (json!({"tools": [weather()], "tool_choice": "required", "min_tokens": 1}), "min_tokens", InvalidValue),
        (json!({"tools": [weather()], "parallel_tool_calls": false, "ignore_eos": true}), "ignore_eos", InvalidValue),
    ];
    for (more, param, code) in cases {
        let error = parse_chat(&body(more.clone())).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{error} {more}");
    }
    assert!(
        tools(json!({"tools": [weather()], "tool_choice": "none", "response_format": {"type": "json_object"}}))
            .is_none()
    );
    assert!(tools(json!({"tools": [weather()], "min_tokens": 1, "ignore_eos": true})).is_some());
}

/// What only describes a function to the model may say anything; what the answer must keep to is bounded.
#[test]
fn schemas_are_bounded_where_arguments_keep_to_them() {
    let far = |strict: bool| {
        json!({"type": "function", "function": {"name": "f", "strict": strict,
            "parameters": {"type": "object", "properties": {"a": {"$ref": "http://localhost/"}}}}})
    };
    let refused = |more: Value| parse_chat(&body(more)).unwrap_err().param;
    let param = Some("tools[1].function.parameters.properties.a.$ref".to_owned());
    assert!(tools(json!({"tools": [weather(), far(false)]})).is_some());
    assert_eq!(refused(json!({"tools": [weather(), far(true)]})), param);
    assert_eq!(refused(json!({"tools": [weather(), far(false)], "tool_choice": "required"})), param);
    let named = |name: &str| json!({"tools": [weather(), far(false)], "tool_choice": {"type": "function", "function": {"name": name}}});
    assert_eq!(refused(named("f")), param);
    assert!(tools(named("get_weather")).is_some());
}

#[test]
fn conversations_with_calls_arrive() {
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        // As OpenAI's package writes a message of its own down.
        {"content": null, "refusal": null, "role": "assistant", "annotations": null, "audio": null, "function_call": null,
            "reasoning_content": "Two at once.",
            "tool_calls": [
                {"id": "call_1", "function": {"arguments": "{\"place\": \"Z\u{fc}rich\"}", "name": "get_weather"}, "type": "function"},
                {"id": "call_2", "function": {"arguments": "", "name": "now"}, "type": "function"},
            ]},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "{\"celsius\": 7}"},
    ]);
    let request = parse_chat(&body(json!({"messages": messages}))).unwrap().request;
    let Input::Chat(messages) = &request.input else { panic!("not a chat") };
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let calls = [call("call_1", "get_weather", "{\"place\": \"Z\u{fc}rich\"}"), call("call_2", "now", "")];
    assert_eq!(
        (messages[1].role, messages[1].content.as_str(), &messages[1].tool_calls[..]),
        (Role::Assistant, "", &calls[..])
    );
    assert_eq!(messages[1].thoughts.as_deref(), Some("Two at once."));
    assert_eq!((messages[2].role, messages[2].tool_call_id.as_deref()), (Role::Tool, Some("call_2")));
    assert_eq!((messages[2].content.as_str(), messages[3].content.as_str()), ("noon", "{\"celsius\": 7}"));
    assert_eq!(request.input_bytes(), 8 + 12 + 11 + 20 + 3 + 4 + 14);
    let written = serde_json::to_string(&request).unwrap();
    assert_eq!(serde_json::from_str::<crate::Request>(&written).unwrap(), request);
}

#[test]
fn calls_that_are_none_are_named() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let with = |pointer: &str, value: Value| {
        let mut call = call.clone();
        *call.pointer_mut(pointer).unwrap() = value;
        json!([{"role": "assistant", "tool_calls": [call]}])
    };
    let answer = |id: Value| json!([{"role": "assistant", "content": "x", "tool_calls": [call]}, {"role": "tool", "content": "x", "tool_call_id": id}]);
    let at = |rest: &str| format!("messages[0].tool_calls[0].{rest}");
    let cases: Vec<(Value, String, ParseCode)> = vec![
        (json!([{"role": "assistant", "content": null}]), "messages[0].content".into(), MissingRequiredParameter),
        (json!([{"role": "assistant", "tool_calls": []}]), "messages[0].content".into(), MissingRequiredParameter),
        (
            json!([{"role": "user", "content": "x", "tool_calls": [call]}]),
            "messages[0].tool_calls".into(),
            UnknownParameter,
        ),
        (
            json!([{"role": "user", "content": "x", "tool_call_id": "c"}]),
            "messages[0].tool_call_id".into(),
            UnknownParameter,
        ),
        (json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id".into(), MissingRequiredParameter),
        (json!([{"role": "function", "content": "x", "name": "f"}]), "messages[0].role".into(), UnsupportedParameter),
        (with("/id", json!(null)), at("id"), MissingRequiredParameter),
        (with("/id", json!("x".repeat(129))), at("id"), InvalidValue),
        (with("/type", json!("custom")), at("type"), UnsupportedParameter),
        (with("/function", json!("f")), at("function"), InvalidType),
        (with("/function/name", json!("a b")), at("function.name"), InvalidValue),
        (with("/function/arguments", json!({})), at("function.arguments"), InvalidType),
        (with("/function/arguments", json!("[1]")), at("function.arguments"), InvalidValue),
        (with("/function/arguments", json!("{\"a\": ")), at("function.arguments"), InvalidValue),
        (with("/function/arguments", json!("{\"a\":1,\"a\":1}")), at("function.arguments"), InvalidValue),
        (answer(json!("")), "messages[1].tool_call_id".into(), InvalidValue),
        (answer(json!("d")), "messages[1].tool_call_id".into(), InvalidValue),
        (answer(json!(null)), "messages[1].tool_call_id".into(), MissingRequiredParameter),
    ];
    for (messages, param, code) in cases {
        let error = parse_chat(&body(json!({"messages": messages.clone()}))).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some(param.as_str()), code), "{error} {messages}");
    }
    assert!(parse_chat(&body(json!({"messages": answer(json!("c"))}))).is_ok());
}
