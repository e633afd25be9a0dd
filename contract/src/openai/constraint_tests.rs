//! Rules for the answer as they come over the wire, and those that are refused.

use serde_json::{Value, json};

use super::super::ParseCode::{self, InvalidType, InvalidValue, MissingRequiredParameter, UnsupportedParameter};
use super::super::{parse_chat, parse_completion, parse_job};
use crate::constraint::{Constraint, Rule};

fn with(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn read(fields: Value) -> Option<Constraint> {
    parse_chat(&with(fields)).unwrap().request.constraint
}

fn rule(field: &str, rule: Rule) -> Option<Constraint> {
    Some(Constraint { field: field.into(), rule })
}

#[test]
fn rules_arrive_with_the_field_they_came_from() {
    let schema = json!({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}});
    // The order of the properties is kept: answers are written in it.
    let text = r#"{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}}}"#;
    let as_schema = |field: &str| rule(field, Rule::JsonSchema(text.into()));
    let named = json!({"name": "a_b-1", "schema": schema, "strict": true, "description": "d"});
    let cases = [
        (json!({"response_format": {"type": "text"}}), None),
        (json!({"response_format": null, "guided_json": null}), None),
        (json!({"response_format": {"type": "json_object"}}), rule("response_format", Rule::JsonObject)),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            as_schema("response_format.json_schema.schema"),
        ),
        (json!({"guided_json": schema}), as_schema("guided_json")),
        (json!({"guided_json": text}), as_schema("guided_json")),
        (json!({"structured_outputs": {"json": schema}}), as_schema("structured_outputs.json")),
        (json!({"structured_outputs": {"json": text, "choice": null}}), as_schema("structured_outputs.json")),
        (json!({"guided_json": true}), rule("guided_json", Rule::JsonSchema("{}".into()))),
        (
            json!({"structured_outputs": {"json_object": true, "disable_any_whitespace": false}}),
            rule("structured_outputs.json_object", Rule::JsonObject),
        ),
        (json!({"guided_regex": r"\d+"}), rule("guided_regex", Rule::Regex(r"\d+".into()))),
        (json!({"structured_outputs": {"regex": "a|b"}}), rule("structured_outputs.regex", Rule::Regex("a|b".into()))),
        (json!({"guided_choice": ["x", "é"]}), rule("guided_choice", Rule::Choice(vec!["x".into(), "é".into()]))),
        (
            json!({"structured_outputs": {"choice": ["x"]}}),
            rule("structured_outputs.choice", Rule::Choice(vec!["x".into()])),
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(read(fields.clone()), expected, "{fields}");
        let mut body = json!({"model": "m", "prompt": "Hi"});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        assert_eq!(parse_completion(&body).unwrap().request.constraint, expected, "{fields}");
        let job = json!({"type": "completion", "request": body});
        assert_eq!(parse_job(&job).unwrap().request.constraint, expected, "{fields}");
    }
}

#[test]
fn a_stored_request_without_a_rule_reads_as_before() {
    let request = parse_chat(&with(json!({}))).unwrap().request;
    let stored = serde_json::to_value(&request).unwrap();
    assert!(stored.get("constraint").is_none());
    assert_eq!(serde_json::from_value::<crate::Request>(stored).unwrap(), request);
    let request = parse_chat(&with(json!({"guided_choice": ["a"]}))).unwrap().request;
    let stored = serde_json::to_value(&request).unwrap();
    assert_eq!(stored["constraint"], json!({"field": "guided_choice", "rule": {"choice": ["a"]}}));
    assert_eq!(serde_json::from_value::<crate::Request>(stored).unwrap(), request);
}

#[test]
fn what_is_no_rule_is_named() {
    let long = "x".repeat(65_537);
    let refs: Vec<Value> = (0..513).map(|_| json!({"$ref": "#/$defs/a"})).collect();
    let many: serde_json::Map<String, Value> = (0..513).map(|n| (format!("p{n}"), json!({}))).collect();
    let cases: Vec<(Value, &str, ParseCode)> = vec![
        (json!({"response_format": {}}), "response_format.type", MissingRequiredParameter),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema", MissingRequiredParameter),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
            "response_format.json_schema.schema",
            MissingRequiredParameter,
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}),
            "response_format.json_schema.name",
            InvalidValue,
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 5}}}),
            "response_format.json_schema.schema",
            InvalidType,
        ),
        (json!({"guided_json": "{"}), "guided_json", InvalidValue),
        (json!({"guided_json": false}), "guided_json", InvalidValue),
        (json!({"guided_json": {"title": long}}), "guided_json", InvalidValue),
        (json!({"guided_json": {"x-guidance": {}}}), "guided_json.x-guidance", InvalidValue),
        (json!({"guided_json": {"properties": many}}), "guided_json.properties", InvalidValue),
        (json!({"guided_json": {"enum": vec![1; 1_001]}}), "guided_json.enum", InvalidValue),
        (json!({"guided_json": {"anyOf": refs}}), "guided_json.anyOf", InvalidValue),
        (json!({"guided_json": {"items": {"pattern": "a{5000}"}}}), "guided_json.items.pattern", InvalidValue),
        (json!({"guided_json": {"patternProperties": {"(": {}}}}), "guided_json.patternProperties", InvalidValue),
        (json!({"guided_json": {"$ref": "http://169.254.169.254/"}}), "guided_json.$ref", InvalidValue),
        (json!({"guided_json": {"$ref": "file:///etc/passwd"}}), "guided_json.$ref", InvalidValue),
        (json!({"guided_json": {"multipleOf": 0}}), "guided_json.multipleOf", InvalidValue),
        (json!({"guided_json": {"multipleOf": 0.00001}}), "guided_json.multipleOf", InvalidValue),
        (json!({"guided_json": {"multipleOf": 1e9}}), "guided_json.multipleOf", InvalidValue),
        (json!({"guided_json": {"allOf": [{"multipleOf": 3}, {"multipleOf": 7}]}}), "guided_json", InvalidValue),
        (json!({"guided_regex": "("}), "guided_regex", InvalidValue),
        (json!({"guided_regex": ""}), "guided_regex", InvalidValue),
        (json!({"guided_regex": 5}), "guided_regex", InvalidType),
        (json!({"guided_choice": []}), "guided_choice", InvalidValue),
        (json!({"guided_choice": ["a", ""]}), "guided_choice[1]", InvalidValue),
        (json!({"guided_choice": ["a", 1]}), "guided_choice[1]", InvalidType),
        (json!({"guided_choice": vec!["a"; 1_001]}), "guided_choice", InvalidValue),
        (json!({"guided_choice": [long]}), "guided_choice[0]", InvalidValue),
        (json!({"structured_outputs": {}}), "structured_outputs", InvalidValue),
        (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "structured_outputs", InvalidValue),
        (json!({"structured_outputs": {"grammar": "start: x"}}), "structured_outputs.grammar", UnsupportedParameter),
        (
            json!({"structured_outputs": {"structural_tag": {}}}),
            "structured_outputs.structural_tag",
            UnsupportedParameter,
        ),
        (
            json!({"structured_outputs": {"regex": "a", "disable_any_whitespace": true}}),
            "structured_outputs.disable_any_whitespace",
            UnsupportedParameter,
        ),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex", InvalidValue),
        (json!({"guided_regex": "a", "min_tokens": 1}), "min_tokens", InvalidValue),
        (json!({"response_format": {"type": "json_object"}, "ignore_eos": true}), "ignore_eos", InvalidValue),
    ];
    for (fields, param, code) in cases {
        let error = parse_chat(&with(fields.clone())).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{error}");
        assert!(error.message.contains(param), "`{error}` does not name `{param}`");
    }
}
