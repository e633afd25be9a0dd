//! How a model writes calls and thoughts, as its own chat template shows: a conversation with a call in it is rendered,
//! and looked at.

use contract::{CallSyntax, Reading, ThoughtSyntax};
use serde_json::{Value, json};

use super::ChatTemplate;

/// What a template shows of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// How calls and thoughts are written. Calls in a form that no reader here knows are none: such a model is offered no
    /// functions.
    pub(super) reading: Reading,
    /// A message that only calls has no content in the template's eyes, and not an empty one.
    pub(super) wants_null: bool,
}

/// Looks at what `template` renders.
pub(super) fn of(template: &ChatTemplate) -> Shown {
    // An empty text suits most: some look into what a message says before they look whether it says anything.
    let with_text = calls(template, json!(""));
    let calls = with_text.or_else(|| calls(template, Value::Null));
    let wants_null = with_text.is_none() && calls.is_some();
    Shown { reading: Reading { calls, thoughts: thoughts(template) }, wants_null }
}

fn calls(template: &ChatTemplate, content: Value) -> Option<CallSyntax> {
    // Letters and digits, as many as the strictest template asks for.
    let id = "abcdefghi";
    let messages = json!([
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": content,
            "tool_calls": [{"id": id, "type": "function", "function": {"name": "called", "arguments": {"key": 1}}}]},
        {"role": "tool", "tool_call_id": id, "name": "called", "content": "answered"},
    ]);
    let tools = json!([{"type": "function", "function": {
        "name": "offered", "description": "what it does", "parameters": {"type": "object", "properties": {}}}}]);
    let text = template.render(&messages, Some(&tools), true).ok()?;
    if !text.contains("offered") || !text.contains("answered") {
        return None;
    }
    let dense: String = text.split_whitespace().collect();
    let forms = [
        (r#"<tool_call>{"name":"called","arguments":{"key":1}}</tool_call>"#, CallSyntax::Hermes),
        (r#"[TOOL_CALLS][{"name":"called","arguments":{"key":1}"#, CallSyntax::Mistral),
        (r#"{"name":"called","parameters":{"key":1}}"#, CallSyntax::Llama),
    ];
    forms.into_iter().find(|(form, _)| dense.contains(form)).map(|(_, syntax)| syntax)
}

fn thoughts(template: &ChatTemplate) -> Option<ThoughtSyntax> {
    let messages: Value = json!([{"role": "user", "content": "question"}]);
    let begins = template.render(&messages, None, true).is_ok_and(|text| text.trim_end().ends_with("<think>"));
    if begins {
        return Some(ThoughtSyntax::Open);
    }
    // It takes thoughts out of what the model said before.
    template.source().contains("</think>").then_some(ThoughtSyntax::Tagged)
}
