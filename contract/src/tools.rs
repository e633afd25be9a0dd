//! Functions that a request offers to the model, and calls of them in a conversation.

use serde::{Deserialize, Serialize};

/// The functions of a request and what the model may do with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The functions, at least one, no name twice.
    pub offered: Vec<Tool>,
    /// Whether it has to call one.
    #[serde(default)]
    pub choice: ToolChoice,
    /// Whether one answer may call several times.
    pub parallel: bool,
}

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name: 1 to 64 of the characters a-z, A-Z, 0-9, `_` and `-`.
    pub name: String,
    /// What it does, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON Schema for its arguments, an object kept as text, as in [`crate::Rule::JsonSchema`]. `None`: it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// Whether arguments keep to the schema also where the model calls by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

/// Whether the model has to call a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// It decides.
    #[default]
    Auto,
    /// It calls at least one.
    Required,
    /// It calls this one, once.
    Function(String),
}

/// One call in an assistant's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the tool's answer names it by.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments: the text of a JSON object.
    pub arguments: String,
}

impl ToolUse {
    /// Whether the answer cannot be anything but calls.
    pub fn is_forced(&self) -> bool {
        self.choice != ToolChoice::Auto
    }

    /// Whether only tokens that keep to the form of a call are chosen, once one has begun.
    pub fn is_constrained(&self) -> bool {
        self.is_forced() || !self.parallel || self.offered.iter().any(|tool| tool.strict)
    }

    /// The functions that may be called.
    pub fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.offered.iter().filter(|tool| match &self.choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Function(name) => tool.name == *name,
        })
    }

    /// Names of the functions.
    pub fn names(&self) -> Vec<String> {
        self.offered.iter().map(|tool| tool.name.clone()).collect()
    }

    /// Bytes of their text.
    pub(crate) fn text_bytes(&self) -> usize {
        let bytes = |tool: &Tool| {
            let (description, parameters) = (tool.description.as_ref(), tool.parameters.as_ref());
            tool.name.len() + description.map_or(0, String::len) + parameters.map_or(0, String::len)
        };
        self.offered.iter().map(bytes).sum()
    }
}
