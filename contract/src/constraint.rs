//! What an answer must be like, beyond being text: JSON, JSON of a schema, a match of a regular expression, one of some
//! texts. The rule travels with the request; the engine lets only such tokens be chosen as keep to it.

use serde::{Deserialize, Serialize};

/// A rule for the answer, and where in the request it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// The request's field, as a path from the OpenAI body: `response_format.json_schema.schema`, `guided_regex`. Errors
    /// point at it.
    pub field: String,
    /// The rule.
    pub rule: Rule,
}

/// What the whole answer is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A JSON object.
    JsonObject,
    /// JSON that is valid under this JSON Schema, an object kept as text: a store that orders keys anew would change the
    /// order in which properties are written.
    JsonSchema(String),
    /// A text that this regular expression matches from its beginning to its end.
    Regex(String),
    /// One of these texts, at least one.
    Choice(Vec<String>),
}

/// Which kind of rule, for whoever may not know the rule itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleKind {
    /// [`Rule::JsonObject`]
    JsonObject,
    /// [`Rule::JsonSchema`]
    JsonSchema,
    /// [`Rule::Regex`]
    Regex,
    /// [`Rule::Choice`]
    Choice,
}

impl Rule {
    /// Its kind.
    pub fn kind(&self) -> RuleKind {
        match self {
            Rule::JsonObject => RuleKind::JsonObject,
            Rule::JsonSchema(_) => RuleKind::JsonSchema,
            Rule::Regex(_) => RuleKind::Regex,
            Rule::Choice(_) => RuleKind::Choice,
        }
    }
}
