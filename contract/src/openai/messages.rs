//! The conversation of a chat request.

use serde_json::Value;

use super::fields::{Fields, error, text, wrong_type, wrong_value};
use super::{MAX_MESSAGES, MAX_STRING_BYTES, ParseCode, ParseError};
use crate::request::{Message, Role};

/// Most characters of a speaker's name.
const MAX_NAME_CHARS: usize = 64;

/// Reads `messages`.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Vec<Message>, ParseError> {
    let param = fields.path("messages");
    fields.required("messages")?;
    let items = fields.list("messages", MAX_MESSAGES)?.unwrap_or_default();
    if items.is_empty() {
        return Err(wrong_value(param, "is empty: a conversation has at least one message"));
    }
    items.iter().enumerate().map(|(nth, item)| message(item, &format!("{param}[{nth}]"))).collect()
}

fn message(value: &Value, at: &str) -> Result<Message, ParseError> {
    let mut fields = Fields::of(value, at)?;
    fields.required("role")?;
    let role = match fields.string("role", MAX_STRING_BYTES)?.unwrap_or_default() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" => {
            let what = "is a tool's answer; tools are not supported yet";
            return Err(error(fields.path("role"), ParseCode::UnsupportedParameter, what));
        }
        other => {
            let shown: String = other.chars().take(40).collect();
            let what = format_args!("is `{shown}`; it must be system, developer, user or assistant");
            return Err(wrong_value(fields.path("role"), what));
        }
    };
    // Refused before `content`: a message that calls tools often has none, and the tools are the news.
    let empty_list = |v: &Value| v.as_array().is_some_and(Vec::is_empty);
    fields.only("tool_calls", empty_list, "[]")?;
    fields.only("annotations", empty_list, "[]")?;
    for name in ["function_call", "tool_call_id", "audio", "refusal"] {
        fields.unsupported(name)?;
    }
    let content_param = fields.path("content");
    let content = content(fields.required("content")?, &content_param)?;
    let name = fields.string("name", MAX_STRING_BYTES)?;
    if name.is_some_and(|name| name.is_empty() || name.chars().count() > MAX_NAME_CHARS) {
        return Err(wrong_value(fields.path("name"), format_args!("must have 1 to {MAX_NAME_CHARS} characters")));
    }
    fields.finish()?;
    Ok(Message { role, content, name: name.map(str::to_owned) })
}

/// A string, or an array of text parts, which are joined by line breaks as other servers do.
fn content(value: &Value, param: &str) -> Result<String, ParseError> {
    let parts = match value {
        Value::String(_) => return text(value, param, MAX_STRING_BYTES).map(str::to_owned),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(param, "a string or an array of text parts", other)),
    };
    if parts.is_empty() {
        return Err(wrong_value(param, "is an empty array: give a string or at least one text part"));
    }
    let mut joined = String::new();
    for (nth, part) in parts.iter().enumerate() {
        let mut fields = Fields::of(part, format!("{param}[{nth}]"))?;
        fields.required("type")?;
        let kind = fields.string("type", MAX_STRING_BYTES)?.unwrap_or_default();
        if kind != "text" {
            let shown: String = kind.chars().take(40).collect();
            let what = format_args!("is `{shown}`; only `text` parts are supported yet");
            return Err(error(fields.path("type"), ParseCode::UnsupportedParameter, what));
        }
        fields.required("text")?;
        let text = fields.string("text", MAX_STRING_BYTES)?.unwrap_or_default();
        fields.finish()?;
        if nth > 0 {
            joined.push('\n');
        }
        joined.push_str(text);
    }
    if joined.len() > MAX_STRING_BYTES {
        let what = format_args!("has {} bytes in all; {MAX_STRING_BYTES} are the most", joined.len());
        return Err(wrong_value(param, what));
    }
    Ok(joined)
}
