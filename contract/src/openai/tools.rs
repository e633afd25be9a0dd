//! Functions that a chat offers: `tools`, `tool_choice`, `parallel_tool_calls`.

use serde_json::Value;

use super::common::Common;
use super::constraint::MAX_RULE_BYTES;
use super::fields::{Fields, error, type_name, wrong_type, wrong_value};
use super::{MAX_STRING_BYTES, MAX_TOOL_NAME_CHARS, MAX_TOOLS, MAX_TOOLS_BYTES, ParseCode, ParseError, schema};
use crate::tools::{Tool, ToolChoice, ToolUse};

/// Takes the functions that the model may call; `None` where there are none, or it shall call none.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<ToolUse>, ParseError> {
    let param = fields.path("tools");
    let items = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    let mut offered: Vec<Tool> = Vec::with_capacity(items.len());
    for (nth, item) in items.iter().enumerate() {
        let at = format!("{param}[{nth}]");
        let tool = tool(item, &at)?;
        if offered.iter().any(|other| other.name == tool.name) {
            let what = format_args!("is `{}`, as of a function before it: a name stands once", tool.name);
            return Err(wrong_value(format!("{at}.function.name"), what));
        }
        offered.push(tool);
    }
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let choice = choice(fields, &offered)?;
    let Some(choice) = choice.filter(|_| !offered.is_empty()) else { return Ok(None) };
    let tools = ToolUse { offered, choice, parallel };
    let bytes = tools.text_bytes();
    if bytes > MAX_TOOLS_BYTES {
        return Err(wrong_value(param, format_args!("has {bytes} bytes in all; {MAX_TOOLS_BYTES} are the most")));
    }
    // Only schemas that the engine of grammars meets are bounded as those of `response_format` are.
    for (nth, tool) in tools.offered.iter().enumerate() {
        let is_met = tool.strict || tools.is_forced() && tools.callable().any(|other| other.name == tool.name);
        let parameters = items[nth].pointer("/function/parameters").filter(|value| is_met && !value.is_null());
        if let Some(parameters) = parameters {
            schema::check(parameters, &format!("{param}[{nth}].function.parameters"))?;
        }
    }
    Ok(Some(tools))
}

/// What cannot be asked for together with functions.
pub(super) fn check_beside(tools: Option<&ToolUse>, common: &Common, fields: &Fields<'_>) -> Result<(), ParseError> {
    let Some(tools) = tools else { return Ok(()) };
    if let Some(rule) = &common.constraint {
        let what = "cannot be given together with `tools`: an answer that keeps to the rule calls nothing; give \
                    `tool_choice: \"none\"`, or leave one of them out";
        return Err(error(fields.path(&rule.field), ParseCode::UnsupportedParameter, what));
    }
    if !tools.is_constrained() {
        return Ok(());
    }
    for (name, given) in [("min_tokens", common.min_tokens > 0), ("ignore_eos", common.ignore_eos)] {
        if given {
            let what = "cannot be asked for together with calls that are forced, `strict` or one at most: such an answer \
                        ends where they are complete; leave it out";
            return Err(wrong_value(fields.path(name), what));
        }
    }
    Ok(())
}

fn tool(value: &Value, at: &str) -> Result<Tool, ParseError> {
    let mut fields = Fields::of(value, at)?;
    fields.required("type")?;
    let kind = fields.string("type", MAX_STRING_BYTES)?.unwrap_or_default();
    if kind != "function" {
        let shown: String = kind.chars().take(40).collect();
        let what = format_args!("is `{shown}`; only `function` is supported");
        return Err(error(fields.path("type"), ParseCode::UnsupportedParameter, what));
    }
    let mut function = Fields::of(fields.required("function")?, fields.path("function"))?;
    fields.finish()?;
    let name = name(&mut function)?;
    let description = function.string("description", MAX_STRING_BYTES)?.map(str::to_owned);
    let strict = function.boolean("strict")?.unwrap_or(false);
    let param = function.path("parameters");
    let parameters = function.take("parameters").map(|value| parameters(value, &param)).transpose()?;
    function.finish()?;
    Ok(Tool { name, description, parameters, strict })
}

/// OpenAI's rule for names of functions.
pub(super) fn name(function: &mut Fields<'_>) -> Result<String, ParseError> {
    function.required("name")?;
    let name = function.string("name", MAX_STRING_BYTES)?.unwrap_or_default();
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !fits || name.is_empty() || name.len() > MAX_TOOL_NAME_CHARS {
        let what = format_args!("must be 1 to {MAX_TOOL_NAME_CHARS} of the characters a-z, A-Z, 0-9, _ and -");
        return Err(wrong_value(function.path("name"), what));
    }
    Ok(name.to_owned())
}

/// A JSON Schema of an object.
fn parameters(value: &Value, param: &str) -> Result<String, ParseError> {
    let Value::Object(schema) = value else {
        let what = format_args!("must be a JSON Schema, that is an object, not {}", type_name(value));
        return Err(error(param, ParseCode::InvalidType, what));
    };
    if schema.get("type").is_some_and(|kind| kind != "object") {
        let what = "must be \"object\": arguments have names";
        return Err(wrong_value(format!("{param}.type"), what));
    }
    let text = value.to_string();
    if text.len() > MAX_RULE_BYTES {
        return Err(wrong_value(param, format_args!("has {} bytes; {MAX_RULE_BYTES} are the most", text.len())));
    }
    Ok(text)
}

/// `None`: no function is to be called.
fn choice(fields: &mut Fields<'_>, offered: &[Tool]) -> Result<Option<ToolChoice>, ParseError> {
    let param = fields.path("tool_choice");
    let needs_tools = || wrong_value(&param, "asks for a call, and `tools` has no function: offer one");
    match fields.take("tool_choice") {
        None => Ok(Some(ToolChoice::Auto)),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some(ToolChoice::Auto)),
            "required" if offered.is_empty() => Err(needs_tools()),
            "required" => Ok(Some(ToolChoice::Required)),
            _ => {
                let shown: String = word.chars().take(40).collect();
                let what =
                    format_args!("is `{shown}`; it must be none, auto, required or an object that names a function");
                Err(wrong_value(&param, what))
            }
        },
        Some(value @ Value::Object(_)) => {
            let mut named = Fields::of(value, param.as_str())?;
            named.required("type")?;
            if named.string("type", MAX_STRING_BYTES)? != Some("function") {
                let what = "must be \"function\": nothing else is supported";
                return Err(error(named.path("type"), ParseCode::UnsupportedParameter, what));
            }
            let mut function = Fields::of(named.required("function")?, named.path("function"))?;
            named.finish()?;
            let name = name(&mut function)?;
            let at = function.path("name");
            function.finish()?;
            if offered.is_empty() {
                return Err(needs_tools());
            }
            if !offered.iter().any(|tool| tool.name == name) {
                return Err(wrong_value(at, format_args!("is `{name}`, and no function of `tools` has this name")));
            }
            Ok(Some(ToolChoice::Function(name)))
        }
        Some(other) => Err(wrong_type(param, "a string or an object", other)),
    }
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
