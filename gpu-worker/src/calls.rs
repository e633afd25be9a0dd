//! Grammars of function calls: of answers that have to call, and of such as call in the right form or not at all.
//!
//! A call is spelled as the model's own template spells it, with arguments under the function's schema in its middle.

use contract::{CallSyntax, ErrorCode, JobError, Tool, ToolChoice, ToolUse};
use serde_json::{Value, json};

use crate::grammar::with_options;

/// Most calls of an answer that has to call: a model that finds no end is stopped here.
const MOST_CALLS: usize = 16;

/// The text of any length, and of at least a character.
const TEXTS: &str = "TEXT: /(.|\\n)*/\nSOME: /(.|\\n)+/\n";

/// The grammar of answers under `tools`, in the Lark of `llguidance`; `None` where the model may write what it likes.
/// `mark`: the control token that begins a call, if one does.
///
/// # Errors
/// [`ErrorCode::InvalidRequest`] for a schema that is no JSON object.
pub fn grammar(syntax: CallSyntax, tools: &ToolUse, mark: Option<u32>) -> Result<Option<String>, JobError> {
    if !tools.is_constrained() {
        return Ok(None);
    }
    let is_forced = tools.is_forced();
    let several = tools.parallel && !matches!(tools.choice, ToolChoice::Function(_));
    // What may come after the first call.
    let more = |next: &str| if several { format!(" ({next}){{0,{}}}", MOST_CALLS - 1) } else { String::new() };
    let marker = literal(syntax.marker());
    // A control token is no text: what comes before it needs no look-out for it.
    let (before, mark) = match mark {
        Some(id) => ("SOME? mark", format!("mark: <[{id}]>\n")),
        None => ("opened", format!("mark: {marker}\nopened[lazy]: TEXT {marker}\n")),
    };
    let begin = if is_forced { "mark" } else { before };
    let start = match syntax {
        CallSyntax::Hermes if is_forced => format!("mark body{}", more("\"\\n\" mark body")),
        CallSyntax::Hermes if several => format!("({before} body)* SOME?"),
        CallSyntax::Hermes => format!("({before} body) | SOME?"),
        // One call, as its templates take no more in a message. Text that begins as JSON does would be a call that keeps to
        // nothing.
        CallSyntax::Llama if is_forced => "call".to_owned(),
        CallSyntax::Llama => "call | OTHER?".to_owned(),
        CallSyntax::Mistral if is_forced => format!("{begin} list"),
        CallSyntax::Mistral => format!("({begin} list) | SOME?"),
    };
    let form = match syntax {
        CallSyntax::Hermes => format!("{mark}body: \"\\n\" call \"\\n</tool_call>\"\n{TEXTS}"),
        CallSyntax::Llama => "OTHER: /[ \\t\\r\\n]*[^{ \\t\\r\\n](.|\\n)*/\n".to_owned(),
        CallSyntax::Mistral => {
            format!("{mark}list: / ?\\[/ call{} \"]\"\n{TEXTS}", more("/, ?/ call"))
        }
    };
    let key = if syntax == CallSyntax::Llama { "parameters" } else { "arguments" };
    let (mut names, mut calls) = (Vec::new(), String::new());
    for (nth, tool) in tools.callable().enumerate() {
        let head = literal(&format!("{{\"name\": \"{}\", \"{key}\": ", tool.name));
        calls.push_str(&format!("call_{nth}: {head} {} \"}}\"\n", arguments(tool, is_forced)?));
        names.push(format!("call_{nth}"));
    }
    Ok(Some(format!("start: {start}\n{form}call: {}\n{calls}", names.join(" | "))))
}

/// What the arguments of a call are.
fn arguments(tool: &Tool, is_forced: bool) -> Result<String, JobError> {
    let schema = match &tool.parameters {
        None => return Ok(literal("{}")),
        Some(_) if !is_forced && !tool.strict => json!({"type": "object"}),
        Some(text) => match serde_json::from_str(text) {
            Ok(Value::Object(mut schema)) => {
                schema.entry("type").or_insert_with(|| "object".into());
                Value::Object(schema)
            }
            _ => {
                let message = format!("the schema of `{}` is no JSON object", tool.name);
                return Err(JobError::new(ErrorCode::InvalidRequest, message).with_param("tools"));
            }
        },
    };
    Ok(format!("%json {}", with_options(schema)))
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
