//! Rules that are sensible, and how their answers are judged.

use contract::openai::parse_completion;
use contract::{Constraint, Rule};
use serde_json::{Value, json};

/// The rule as it comes out of a request with this field.
pub fn constraint(field: &str, value: Value) -> Constraint {
    let mut body = json!({"model": "m", "prompt": "x"});
    body[field] = value;
    parse_completion(&body).unwrap_or_else(|err| panic!("{err}")).request.constraint.unwrap()
}

/// Schemas whose answers are short whatever the model says, so that most of them finish.
pub fn schemas() -> Vec<Value> {
    let object = |properties: Value| {
        let required: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    };
    let word = json!({"type": "string", "maxLength": 12});
    vec![
        object(json!({"ok": {"type": "boolean"}})),
        object(json!({"name": word, "age": {"type": "integer", "minimum": 0, "maximum": 150}})),
        object(json!({"z": {"type": "null"}, "a": {"enum": ["red", "green", 3, null, [1, "x"], {"k": true}]}})),
        object(json!({"tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 4}})),
        object(json!({"point": {"type": "array", "prefixItems": [{"type": "integer", "minimum": -9, "maximum": 9},
            {"type": "integer", "minimum": -9, "maximum": 9}], "items": false, "minItems": 2}})),
        object(json!({"id": {"type": "string", "format": "uuid"}, "ip": {"type": "string", "format": "ipv4"}})),
        object(json!({"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}})),
        object(
            json!({"price": {"type": "number", "minimum": 0, "maximum": 10}, "n": {"type": "integer", "multipleOf": 5,
            "minimum": -100, "maximum": 100}}),
        ),
        object(json!({"value": {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9},
            {"type": "null"}]}})),
        object(json!({"nested": object(json!({"deep": object(json!({"x": {"const": "yes"}}))}))})),
        json!({"$defs": {"colour": {"enum": ["r", "g"]}}, "type": "object", "additionalProperties": false,
            "properties": {"one": {"$ref": "#/$defs/colour"}, "two": {"$ref": "#/$defs/colour"}}, "required": ["two"]}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
            "additionalProperties": false}),
        json!({"type": "object", "patternProperties": {"^x[0-9]$": {"type": "boolean"}}, "additionalProperties": false,
            "maxProperties": 3}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": {"type": "boolean"}, "maxProperties": 2}),
        json!({"type": "object", "oneOf": [object(json!({"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}})),
            object(json!({"kind": {"const": "dog"}, "good": {"const": true}}))]}),
        json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3}),
        json!({"type": ["string", "null"], "maxLength": 5}),
        json!({"enum": ["\"quoted\"", "back\\slash", "line\nbreak", "é漢😀"]}),
        json!({"const": {"a": [1, 2, {"b": null}]}}),
        json!({"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}],
            "additionalProperties": false, "type": "object", "properties": {"a": true, "b": true}}),
        json!({"type": "object", "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#"}},
            "required": ["leaf"], "additionalProperties": false}),
        json!({"title": "As pydantic writes it", "$defs": {"Size": {"enum": ["S", "M"], "title": "Size", "type": "string"}},
            "type": "object", "properties": {"size": {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}],
            "default": null}, "n": {"default": 3, "title": "N", "type": "integer", "maximum": 99, "minimum": 0}},
            "required": ["size"], "additionalProperties": false}),
        json!({"type": "string", "minLength": 2, "maxLength": 4}),
    ]
}

/// Regular expressions in the syntax of the `regex` crate.
pub const REGEXES: &[&str] = &[
    r"[0-9]{3}-[0-9]{4}",
    r"(yes|no|maybe)( indeed)?",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"^[A-Z][a-z]{1,8}$",
    r"(?i)abc|x{2,5}/y",
    r"[^a-z]{4}",
    r"\w{2,6}@\w{2,6}\.com",
    "é|漢字|😀+",
    r"a.c",
    r"[\\/#&~-]{1,3}",
];

pub const CHOICES: &[&[&str]] = &[
    &["positive", "negative", "neutral"],
    &["a", "ab", "abc"],
    &["(x|y)*", "[a-z]+", "\\d", "$^", "a/b", "# not a comment", " leading", "tab\tline\n"],
    &["é", "漢字", "😀"],
    &["only one"],
];

/// What is wrong with a finished answer, if anything is.
pub fn fault(rule: &Rule, text: &str) -> Option<String> {
    match rule {
        Rule::JsonObject => match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(_)) => None,
            other => Some(format!("no object: {other:?}")),
        },
        Rule::JsonSchema(schema) => {
            let value: Value = match serde_json::from_str(text) {
                Ok(value) => value,
                Err(err) => return Some(err.to_string()),
            };
            let schema: Value = serde_json::from_str(schema).unwrap();
            let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
            compiler.enable_format_assertions();
            compiler.add_resource("schema.json", schema).unwrap();
            let validator = compiler.compile("schema.json", &mut schemas).unwrap();
            schemas.validate(&value, validator).err().map(|err| err.to_string())
        }
        Rule::Regex(regex) => {
            let whole = regex::Regex::new(&format!(r"\A(?:{regex})\z")).unwrap();
            (!whole.is_match(text)).then(|| format!("does not match {regex}"))
        }
        Rule::Choice(choices) => (!choices.iter().any(|choice| choice == text)).then(|| "is no choice".to_owned()),
    }
}

/// Every sensible rule.
pub fn all() -> Vec<Constraint> {
    let schemas = schemas().into_iter().map(|schema| constraint("guided_json", schema));
    let regexes = REGEXES.iter().map(|regex| constraint("guided_regex", json!(regex)));
    let choices = CHOICES.iter().map(|choices| constraint("guided_choice", json!(choices)));
    schemas.chain(regexes).chain(choices).collect()
}
