//! The fields that say what an answer must be like: OpenAI's `response_format`, and vLLM's `guided_*` and
//! `structured_outputs`. Limits are checked here, before anything is stored; whether a schema can be followed at all is
//! found out by the worker that compiles it.

use serde_json::Value;

use super::fields::{Fields, error, text, type_name, wrong_type, wrong_value};
use super::{ParseCode, ParseError, json, pattern, schema};
use crate::constraint::{Constraint, Rule};

/// Most bytes of a JSON Schema, and of all choices together.
pub const MAX_RULE_BYTES: usize = 64 * 1024;
/// Most choices.
pub const MAX_CHOICES: usize = 1_000;
/// Most characters of the name of a schema.
const MAX_NAME_CHARS: usize = 64;
/// Most bytes of a schema's description.
const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;

/// Takes the rule for the answer, if the request has one.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<Constraint>, ParseError> {
    let mut found: Option<(String, Constraint)> = None;
    let sources: [Source; 5] = [response_format, guided_json, guided_regex, guided_choice, structured_outputs];
    for source in sources {
        let Some((param, constraint)) = source(fields)? else { continue };
        if let Some((first, _)) = &found {
            return Err(wrong_value(param, format_args!("is a second rule for the answer beside `{first}`: give one")));
        }
        found = Some((param, constraint));
    }
    refuse_grammar(fields, "guided_grammar")?;
    Ok(found.map(|(_, constraint)| constraint))
}

/// What cannot be asked for together with a rule: both would move the answer's end away from where it is complete.
pub(super) fn check_ends(
    constraint: Option<&Constraint>,
    min_tokens: u32,
    ignore_eos: bool,
    fields: &Fields<'_>,
) -> Result<(), ParseError> {
    let Some(constraint) = constraint else { return Ok(()) };
    for (name, given) in [("min_tokens", min_tokens > 0), ("ignore_eos", ignore_eos)] {
        if given {
            let what = format_args!(
                "cannot be asked for together with `{}`: such an answer ends where it is complete; leave one of them out",
                constraint.field
            );
            return Err(wrong_value(fields.path(name), what));
        }
    }
    Ok(())
}

type Found = Option<(String, Constraint)>;
type Source = fn(&mut Fields<'_>) -> Result<Found, ParseError>;

fn rule(param: String, field: &str, rule: Rule) -> Found {
    Some((param, Constraint { field: field.to_owned(), rule }))
}

fn response_format(fields: &mut Fields<'_>) -> Result<Found, ParseError> {
    let Some(value) = fields.take("response_format") else { return Ok(None) };
    let mut format = Fields::of(value, fields.path("response_format"))?;
    format.required("type")?;
    match format.string("type", MAX_DESCRIPTION_BYTES)? {
        Some("text") => format.finish().map(|()| None),
        Some("json_object") => {
            format.finish()?;
            Ok(rule(fields.path("response_format"), "response_format", Rule::JsonObject))
        }
        Some("json_schema") => {
            let mut named = Fields::of(format.required("json_schema")?, format.path("json_schema"))?;
            format.finish()?;
            name(&mut named)?;
            named.string("description", MAX_DESCRIPTION_BYTES)?;
            // Answers always keep to the schema, whether it is asked for strictly or not.
            named.boolean("strict")?;
            let param = named.path("schema");
            let schema = json_schema(named.required("schema")?, &param)?;
            named.finish()?;
            Ok(rule(param, "response_format.json_schema.schema", schema))
        }
        _ => Err(error(
            format.path("type"),
            ParseCode::UnsupportedParameter,
            "must be \"text\", \"json_object\" or \"json_schema\": nothing else is supported",
        )),
    }
}

/// OpenAI's rule for the name of a schema.
fn name(named: &mut Fields<'_>) -> Result<(), ParseError> {
    named.required("name")?;
    let name = named.string("name", MAX_DESCRIPTION_BYTES)?.unwrap_or_default();
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !fits || name.is_empty() || name.len() > MAX_NAME_CHARS {
        let what = format_args!("must be 1 to {MAX_NAME_CHARS} of the characters a-z, A-Z, 0-9, _ and -");
        return Err(wrong_value(named.path("name"), what));
    }
    Ok(())
}

fn guided_json(fields: &mut Fields<'_>) -> Result<Found, ParseError> {
    let Some(value) = fields.take("guided_json") else { return Ok(None) };
    let param = fields.path("guided_json");
    let schema = json_schema(value, &param)?;
    Ok(rule(param, "guided_json", schema))
}

fn guided_regex(fields: &mut Fields<'_>) -> Result<Found, ParseError> {
    let Some(value) = fields.take("guided_regex") else { return Ok(None) };
    let param = fields.path("guided_regex");
    let regex = regex(value, &param)?;
    Ok(rule(param, "guided_regex", regex))
}

fn guided_choice(fields: &mut Fields<'_>) -> Result<Found, ParseError> {
    let Some(value) = fields.take("guided_choice") else { return Ok(None) };
    let param = fields.path("guided_choice");
    let choice = choice(value, &param)?;
    Ok(rule(param, "guided_choice", choice))
}

/// vLLM's newer form: an object with exactly one of `json`, `json_object`, `regex` and `choice`.
fn structured_outputs(fields: &mut Fields<'_>) -> Result<Found, ParseError> {
    let Some(value) = fields.take("structured_outputs") else { return Ok(None) };
    let param = fields.path("structured_outputs");
    let mut inner = Fields::of(value, param.clone())?;
    let mut rules: Vec<(&'static str, Rule)> = Vec::new();
    if let Some(value) = inner.take("json") {
        rules.push(("structured_outputs.json", json_schema(value, &inner.path("json"))?));
    }
    if inner.boolean("json_object")? == Some(true) {
        rules.push(("structured_outputs.json_object", Rule::JsonObject));
    }
    if let Some(value) = inner.take("regex") {
        rules.push(("structured_outputs.regex", regex(value, &inner.path("regex"))?));
    }
    if let Some(value) = inner.take("choice") {
        rules.push(("structured_outputs.choice", choice(value, &inner.path("choice"))?));
    }
    refuse_grammar(&mut inner, "grammar")?;
    inner.unsupported("structural_tag")?;
    for name in ["disable_fallback", "disable_any_whitespace", "disable_additional_properties"] {
        inner.only(name, |v| v == false, "false")?;
    }
    inner.unsupported("whitespace_pattern")?;
    if rules.len() != 1 {
        let n = rules.len();
        let what =
            format_args!("has {n} rules for the answer; give one of `json`, `json_object`, `regex` and `choice`");
        return Err(wrong_value(param, what));
    }
    inner.finish()?;
    Ok(rules.pop().and_then(|(field, only)| rule(param, field, only)))
}

fn refuse_grammar(fields: &mut Fields<'_>, name: &'static str) -> Result<(), ParseError> {
    match fields.take(name) {
        None => Ok(()),
        Some(_) => Err(error(
            fields.path(name),
            ParseCode::UnsupportedParameter,
            "is not supported: give a JSON Schema, a regular expression or choices instead",
        )),
    }
}

/// A JSON Schema, or its text.
fn json_schema(value: &Value, param: &str) -> Result<Rule, ParseError> {
    let read;
    let schema = match value {
        Value::String(text) => {
            let parsed = json::parse(text.as_bytes());
            read =
                parsed.map_err(|bad| wrong_value(param, format_args!("is a text that is no JSON: {}", bad.message)))?;
            &read
        }
        other => other,
    };
    match schema {
        // The schema that allows everything.
        Value::Bool(true) => return Ok(Rule::JsonSchema("{}".to_owned())),
        Value::Bool(false) => return Err(wrong_value(param, "is `false`: no answer is valid under it")),
        Value::Object(_) => {}
        other => {
            let what = format_args!("must be a JSON Schema, that is an object, not {}", type_name(other));
            return Err(error(param, ParseCode::InvalidType, what));
        }
    }
    schema::check(schema, param)?;
    let text = schema.to_string();
    if text.len() > MAX_RULE_BYTES {
        return Err(wrong_value(param, format_args!("has {} bytes; {MAX_RULE_BYTES} are the most", text.len())));
    }
    Ok(Rule::JsonSchema(text))
}

fn regex(value: &Value, param: &str) -> Result<Rule, ParseError> {
    let text = text(value, param, MAX_RULE_BYTES)?;
    if text.is_empty() {
        return Err(wrong_value(param, "is empty: only an answer without text would match it"));
    }
    pattern::check(text).map_err(|bad| wrong_value(param, bad))?;
    Ok(Rule::Regex(text.to_owned()))
}

fn choice(value: &Value, param: &str) -> Result<Rule, ParseError> {
    let items = value.as_array().ok_or_else(|| wrong_type(param, "an array of strings", value))?;
    if items.is_empty() || items.len() > MAX_CHOICES {
        return Err(wrong_value(param, format_args!("has {} items; it must have 1 to {MAX_CHOICES}", items.len())));
    }
    let mut choices = Vec::with_capacity(items.len());
    for (nth, item) in items.iter().enumerate() {
        let at = format!("{param}[{nth}]");
        let choice = text(item, &at, MAX_RULE_BYTES)?;
        if choice.is_empty() {
            return Err(wrong_value(at, "is empty: a choice has at least one character"));
        }
        choices.push(choice.to_owned());
    }
    let bytes: usize = choices.iter().map(String::len).sum();
    if bytes > MAX_RULE_BYTES {
        return Err(wrong_value(param, format_args!("has {bytes} bytes in all; {MAX_RULE_BYTES} are the most")));
    }
    Ok(Rule::Choice(choices))
}

#[cfg(test)]
#[path = "constraint_tests.rs"]
mod tests;
