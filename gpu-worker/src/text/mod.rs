//! Everything between a request's text and token ids, and back.
//!
//! [`Prompts`] turns chat messages or a raw prompt into ids; [`TextStream`] turns one sequence's ids into text and
//! finds its stop strings. Both stand on a [`TextTokenizer`], built from a model file's own metadata. Nothing here
//! knows of tensors, jobs or HTTP.

mod added;
mod bytes;
mod chat;
mod gguf_tokenizer;
mod guard;
mod python;
mod reading;
mod stops;
pub mod stream;
pub mod template;
pub mod tokenizer;
mod vocab;

#[cfg(test)]
pub(crate) mod golden_tests;
#[cfg(test)]
mod injection_tests;
#[cfg(test)]
mod reading_tests;
#[cfg(test)]
pub(crate) mod stream_tests;
#[cfg(test)]
mod template_tests;
#[cfg(test)]
mod tokenizer_tests;

pub use chat::{Prompt, Prompts};
pub use stops::StopHit;
pub use stream::{Delta, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::TextTokenizer;

/// Why a text could not be turned into tokens.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A chat request to a model without a chat template. No template is guessed.
    #[error("the model file has no chat template: it is a base model; use /v1/completions with a plain prompt")]
    NoTemplate,
    /// The model's template does not parse: the model file is at fault.
    #[error("the model's chat template is not valid")]
    TemplateSyntax(#[source] Box<minijinja::Error>),
    /// The template itself refused the conversation (`raise_exception`): the request is at fault.
    #[error("the model's chat template refuses these messages: {0}")]
    TemplateRefused(String),
    /// The template failed on these messages, or took more work than it is allowed.
    #[error("the model's chat template failed on these messages: {what}")]
    TemplateFailed {
        /// What the template engine says.
        what: String,
        /// Its full error.
        #[source]
        source: Box<minijinja::Error>,
    },
    /// A message of a role that no template knows.
    #[error("messages[{index}].role {role:?} is not one of system, developer, user, assistant, tool, function")]
    Role {
        /// Place in `messages`.
        index: usize,
        /// The role given.
        role: String,
    },
    /// A tool call whose arguments are not the text of a JSON object.
    #[error("messages[{message}].tool_calls[{call}].function.arguments must be the text of a JSON object")]
    ToolArguments {
        /// Place in `messages`.
        message: usize,
        /// Place in `tool_calls`.
        call: usize,
    },
    /// `messages` is not an array of objects, or holds what cannot be made safe.
    #[error("messages {0}")]
    Messages(&'static str),
    /// The tokenizer gave up on the text.
    #[error("the text could not be tokenized: {0}")]
    Tokenize(String),
}
