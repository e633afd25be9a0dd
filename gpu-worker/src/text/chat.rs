//! Prompts of one model: chat messages or raw text, to ids.

use std::sync::Arc;

use contract::{CallSyntax, Reading};
use serde_json::Value;

use super::{ChatTemplate, TextError, TextTokenizer, guard::Guard, reading, reading::Shown};
use crate::load::{LoadError, Metadata};

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool", "function"];

/// A prompt as text and as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// What the model reads, as text; a BOS that only the ids have is not in it.
    pub text: String,
    /// Its token ids, with exactly one BOS where the model wants one.
    pub ids: Vec<u32>,
}

/// Makes prompts for one model. Immutable; share it by `Arc`.
#[derive(Debug)]
pub struct Prompts {
    tokenizer: Arc<TextTokenizer>,
    chat: Option<(ChatTemplate, Guard)>,
    shown: Shown,
    /// Control tokens that are marks of calls and thoughts.
    marks: Vec<u32>,
}

/// Marks of calls, whichever model has them as tokens.
const CALL_MARKS: &[&str] = &["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]"];
/// Marks of thoughts.
const THOUGHT_MARKS: &[&str] = &["<think>", "</think>"];

impl Prompts {
    /// Tokenizer and template of a model file.
    ///
    /// # Errors
    /// As [`TextTokenizer::from_gguf`] and [`ChatTemplate::from_gguf`]. A file without a template is none.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, LoadError> {
        let tokenizer = TextTokenizer::from_gguf(metadata)?;
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
        let template = ChatTemplate::from_gguf(metadata, text(tokenizer.bos_id()), text(tokenizer.eos_id()))?;
        Ok(Self::new(Arc::new(tokenizer), template))
    }

    /// A tokenizer with the template given, or with none.
    pub fn new(tokenizer: Arc<TextTokenizer>, template: Option<ChatTemplate>) -> Self {
        let chat = template.map(|template| {
            let guard = Guard::new(tokenizer.control_texts(), template.source());
            (template, guard)
        });
        let shown = chat.as_ref().map_or_else(Shown::default, |(template, _)| reading::of(template));
        let mut marks = Vec::new();
        if shown.reading.calls.is_some() {
            marks.extend(tokenizer.control_ids(CALL_MARKS));
        }
        if shown.reading.thoughts.is_some() {
            marks.extend(tokenizer.control_ids(THOUGHT_MARKS));
        }
        Self { tokenizer, chat, shown, marks }
    }

    /// How the model writes calls and thoughts.
    pub fn reading(&self) -> Reading {
        self.shown.reading
    }

    /// Control tokens that stand in the text of answers: those that mark thoughts, and with `calls` those that mark calls.
    /// Others are not shown.
    pub fn marks(&self, calls: bool) -> Vec<u32> {
        let is_thought = |id: &u32| self.tokenizer.token_text(*id).is_some_and(|text| THOUGHT_MARKS.contains(&text));
        self.marks.iter().copied().filter(|id| calls || is_thought(id)).collect()
    }

    /// The control token that begins a call, if one does.
    pub fn call_mark(&self, syntax: CallSyntax) -> Option<u32> {
        self.marks.iter().copied().find(|id| self.tokenizer.token_text(*id) == Some(syntax.marker()))
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<TextTokenizer> {
        &self.tokenizer
    }

    /// The model's chat template, if it has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref().map(|(template, _)| template)
    }

    /// The prompt for a conversation: an OpenAI `messages` array (arguments of tool calls as text or as objects) and
    /// `tools`. Control tokens are the template's alone: whatever users write stays text.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] for a base model; [`TextError::Messages`], [`TextError::Role`],
    /// [`TextError::ToolArguments`], [`TextError::TemplateRefused`] and [`TextError::TemplateFailed`] for messages
    /// that are at fault.
    pub fn chat(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<Prompt, TextError> {
        let (template, guard) = self.chat.as_ref().ok_or(TextError::NoTemplate)?;
        let messages = prepared(messages, self.shown.wants_null)?;
        let values: Vec<&Value> = std::iter::once(&messages).chain(tools).collect();
        let mark = guard.choose(&values)?;
        let tools = tools.map(|tools| guard.apply(tools, mark));
        let rendered = template
            .render(&guard.apply(&messages, mark), tools.as_ref(), add_generation_prompt)
            .map_err(|err| unmarked_error(err, mark))?;

        let mut prompt = Prompt { text: String::with_capacity(rendered.len()), ids: Vec::new() };
        let mut at = 0;
        for found in self.tokenizer.control_tokens().find(&rendered) {
            self.append_plain(&rendered[at..found.start], mark, &mut prompt)?;
            prompt.text.push_str(&rendered[found.start..found.end]);
            prompt.ids.push(found.id);
            at = found.end;
        }
        self.append_plain(&rendered[at..], mark, &mut prompt)?;
        prompt.ids = self.tokenizer.with_bos(prompt.ids);
        Ok(prompt)
    }

    /// The prompt of a raw text. With `parse_special` control tokens written out in it count as such.
    ///
    /// # Errors
    /// [`TextError::Tokenize`].
    pub fn completion(&self, text: &str, parse_special: bool) -> Result<Prompt, TextError> {
        Ok(Prompt { text: text.to_owned(), ids: self.tokenizer.encode_prompt(text, parse_special)? })
    }

    fn append_plain(&self, marked: &str, mark: char, prompt: &mut Prompt) -> Result<(), TextError> {
        let plain = marked.replace(mark, "");
        prompt.ids.extend(self.tokenizer.encode(&plain, false)?);
        prompt.text.push_str(&plain);
        Ok(())
    }
}

/// Checks roles, and turns the arguments of tool calls from text into objects, which is what templates take. `wants_null`:
/// no content beside calls is null, and not an empty text.
fn prepared(messages: &Value, wants_null: bool) -> Result<Value, TextError> {
    let mut messages = messages.clone();
    let list = messages.as_array_mut().ok_or(TextError::Messages("must be an array"))?;
    if list.is_empty() {
        return Err(TextError::Messages("must hold at least one message"));
    }
    for (index, message) in list.iter_mut().enumerate() {
        let fields = message.as_object_mut().ok_or(TextError::Messages("must be objects"))?;
        let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
        if !ROLES.contains(&role) {
            return Err(TextError::Role { index, role: role.chars().take(32).collect() });
        }
        let has_calls = fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        if has_calls && fields.get("content").is_none_or(|content| content.is_null() || content == "") {
            let nothing = if wants_null { Value::Null } else { "".into() };
            fields.insert("content".to_owned(), nothing);
        }
        let Some(calls) = fields.get_mut("tool_calls").and_then(Value::as_array_mut) else { continue };
        for (call_idx, call) in calls.iter_mut().enumerate() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let parsed = match &*arguments {
                // No arguments are often sent as no text.
                Value::String(text) if text.trim().is_empty() => Some(serde_json::json!({})),
                Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
                given => Some(given.clone()).filter(Value::is_object),
            };
            *arguments = parsed.ok_or(TextError::ToolArguments { message: index, call: call_idx })?;
        }
    }
    Ok(messages)
}

fn unmarked_error(err: TextError, mark: char) -> TextError {
    match err {
        TextError::TemplateRefused(message) => TextError::TemplateRefused(message.replace(mark, "")),
        TextError::TemplateFailed { what, source } => {
            TextError::TemplateFailed { what: what.replace(mark, ""), source }
        }
        other => other,
    }
}
