//! The conversation of a chat request.

use std::collections::HashSet;

use serde_json::Value;

use super::fields::{Fields, error, text, wrong_type, wrong_value};
use super::{MAX_MESSAGES, MAX_STRING_BYTES, MAX_TOOL_CALL_ID_CHARS, MAX_TOOLS, ParseCode, ParseError, json, tools};
use crate::request::{Message, Role};
use crate::tools::ToolCall;

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
    let mut messages: Vec<Message> = Vec::with_capacity(items.len());
    let mut called: HashSet<String> = HashSet::new();
    for (nth, item) in items.iter().enumerate() {
        let message = message(item, &format!("{param}[{nth}]"))?;
        if let Some(id) = message.tool_call_id.as_ref().filter(|id| !called.contains(*id)) {
            let what = format_args!("is `{id}`, and no assistant's message before it has a call with this id");
            return Err(wrong_value(format!("{param}[{nth}].tool_call_id"), what));
        }
        called.extend(message.tool_calls.iter().map(|call| call.id.clone()));
        messages.push(message);
    }
    Ok(messages)
}

fn message(value: &Value, at: &str) -> Result<Message, ParseError> {
    let mut fields = Fields::of(value, at)?;
    fields.required("role")?;
    let role = match fields.string("role", MAX_STRING_BYTES)?.unwrap_or_default() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        "function" => {
            let what = "is OpenAI's older way to answer a call: give `tool` and a `tool_call_id`";
            return Err(error(fields.path("role"), ParseCode::UnsupportedParameter, what));
        }
        other => {
            let shown: String = other.chars().take(40).collect();
            let what = format_args!("is `{shown}`; it must be system, developer, user, assistant or tool");
            return Err(wrong_value(fields.path("role"), what));
        }
    };
    let tool_calls = if role == Role::Assistant { tool_calls(&mut fields)? } else { Vec::new() };
    let thoughts = match role {
        Role::Assistant => fields.string("reasoning_content", MAX_STRING_BYTES)?.map(str::to_owned),
        Role::System | Role::User | Role::Tool => None,
    };
    let tool_call_id = match role {
        Role::Tool => Some(call_id(&mut fields, "tool_call_id")?),
        Role::System | Role::User | Role::Assistant => None,
    };
    fields.only("annotations", |v: &Value| v.as_array().is_some_and(Vec::is_empty), "[]")?;
    for name in ["function_call", "audio", "refusal"] {
        fields.unsupported(name)?;
    }
    let content_param = fields.path("content");
    let content = match fields.take("content") {
        None if !tool_calls.is_empty() => String::new(),
        None => return Err(error(content_param, ParseCode::MissingRequiredParameter, "is required")),
        Some(value) => content(value, &content_param)?,
    };
    let name = fields.string("name", MAX_STRING_BYTES)?;
    if name.is_some_and(|name| name.is_empty() || name.chars().count() > MAX_NAME_CHARS) {
        return Err(wrong_value(fields.path("name"), format_args!("must have 1 to {MAX_NAME_CHARS} characters")));
    }
    fields.finish()?;
    Ok(Message { role, content, name: name.map(str::to_owned), thoughts, tool_calls, tool_call_id })
}

/// The calls of an assistant's message.
fn tool_calls(fields: &mut Fields<'_>) -> Result<Vec<ToolCall>, ParseError> {
    let param = fields.path("tool_calls");
    let items = fields.list("tool_calls", MAX_TOOLS)?.unwrap_or_default();
    items.iter().enumerate().map(|(nth, item)| tool_call(item, &format!("{param}[{nth}]"))).collect()
}

fn tool_call(value: &Value, at: &str) -> Result<ToolCall, ParseError> {
    let mut fields = Fields::of(value, at)?;
    let id = call_id(&mut fields, "id")?;
    fields.required("type")?;
    if fields.string("type", MAX_STRING_BYTES)? != Some("function") {
        let what = "must be \"function\": nothing else is supported";
        return Err(error(fields.path("type"), ParseCode::UnsupportedParameter, what));
    }
    let mut function = Fields::of(fields.required("function")?, fields.path("function"))?;
    fields.finish()?;
    let name = tools::name(&mut function)?;
    function.required("arguments")?;
    let arguments = function.string("arguments", MAX_STRING_BYTES)?.unwrap_or_default();
    let is_object = || json::parse(arguments.as_bytes()).is_ok_and(|value| value.is_object());
    // No arguments are often sent as no text.
    if !arguments.trim().is_empty() && !is_object() {
        return Err(wrong_value(function.path("arguments"), "must be the text of a JSON object"));
    }
    let arguments = arguments.to_owned();
    function.finish()?;
    Ok(ToolCall { id, name, arguments })
}

fn call_id(fields: &mut Fields<'_>, name: &'static str) -> Result<String, ParseError> {
    fields.required(name)?;
    let id = fields.string(name, MAX_STRING_BYTES)?.unwrap_or_default();
    if id.is_empty() || id.chars().count() > MAX_TOOL_CALL_ID_CHARS {
        let what = format_args!("must have 1 to {MAX_TOOL_CALL_ID_CHARS} characters");
        return Err(wrong_value(fields.path(name), what));
    }
    Ok(id.to_owned())
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
