//! Chat templates: the Jinja that a model file carries, rendered within bounds.
//!
//! A template comes with a model file and is trusted no more than that: it has no access to files or the host, its work
//! and memory are bounded by fuel, and the few operations whose memory fuel does not see are refused.

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, ValueKind},
};
use time::OffsetDateTime;

use super::{TextError, python};
use crate::load::{LoadError, Metadata};

/// What a rendering may cost: a unit for each instruction and for each 64 bytes made, so at most 64 MB of text.
const FUEL: u64 = 1_000_000;
/// Longest template source.
const MAX_SOURCE_BYTES: usize = 1 << 20;
const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts that it knows as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`].
    pub fn from_source(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let syntax = |err: Error| TextError::TemplateSyntax(Box::new(err));
        if source.len() > MAX_SOURCE_BYTES {
            let what = format!("longer than {MAX_SOURCE_BYTES} bytes");
            return Err(syntax(Error::new(ErrorKind::SyntaxError, what)));
        }
        let mut environment = Environment::new();
        let whitespace = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(whitespace.map_err(syntax)?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(print);
        environment.set_unknown_method_callback(method);
        environment.add_filter("tojson", |state: &State<'_, '_>, value: &Value, options: Kwargs| {
            python::tojson(state, value, options)
        });
        // Widths in a format string make gigabytes that no fuel is taken for.
        environment.remove_filter("format");
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
        });
        environment.add_function("strftime_now", |format: &str| python::strftime(OffsetDateTime::now_utc(), format));
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(syntax)?;
        Ok(Self { environment, source: source.to_owned(), bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The template of a model file, `None` where it has none. `bos` and `eos` as in [`Self::from_source`].
    ///
    /// # Errors
    /// [`LoadError::BadMetadata`] for a template that does not parse.
    pub fn from_gguf(metadata: &Metadata, bos: &str, eos: &str) -> Result<Option<Self>, LoadError> {
        let key = "tokenizer.chat_template";
        let Some(source) = metadata.opt_string(key)? else { return Ok(None) };
        Self::from_source(source, bos, eos).map(Some).map_err(|err| {
            LoadError::bad_metadata(key, format!("is no template that can be rendered: {}", cause(&err)))
        })
    }

    /// Renders `messages` (an array of objects) and `tools` (an array, or nothing) as transformers'
    /// `apply_chat_template` does; with `add_generation_prompt` the text ends where the model is to go on.
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] when the template raises an exception, [`TextError::TemplateFailed`] for any
    /// other failure, running out of fuel among them.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let context = minijinja::context! {
            messages => Value::from(Serde(messages)),
            // transformers passes None, not an undefined name.
            tools => tools.map_or(Value::from(()), |tools| Value::from(Serde(tools))),
            documents => Value::from(()),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(context).map_err(failed)
    }

    /// The source as it stands in the file.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// What the template engine says of a template that does not parse.
pub(super) fn cause(err: &TextError) -> String {
    std::error::Error::source(err).map(ToString::to_string).unwrap_or_default()
}

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn failed(err: Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&err);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TextError::TemplateRefused(message.clone());
        }
        cause = current.source();
    }
    TextError::TemplateFailed { what: err.to_string(), source: Box::new(err) }
}

/// Prints a value as Python would, where Rust would print it otherwise.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone())?;
            out.write_str(&python::float(number)).map_err(Error::from)
        }
        kind @ (ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) => {
            let what = format!("the template prints a {kind} where it expects text");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// Python's methods on strings, lists and dicts, but `format`: see the `format` filter.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == "format" {
        return Err(Error::new(ErrorKind::UnknownMethod, "str.format is not available to chat templates"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Turns `{% generation %}` blocks, which mark text for training and print as they are, into blocks that Jinja has.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // Behind the opening, or `{%}` would end before it begins.
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let inside = &rest[start + 2..][..length];
        let end = start + 2 + length + 2;
        let (marks, word) = (['-', '+'], inside.trim_matches(|c: char| c.is_whitespace() || "-+".contains(c)));
        let stand_in = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str(&rest[..start]);
        match stand_in {
            Some(stand_in) => {
                let open = inside.chars().next().filter(|c| marks.contains(c)).map(String::from).unwrap_or_default();
                let close = inside.chars().last().filter(|c| marks.contains(c)).map(String::from).unwrap_or_default();
                out.push_str(&format!("{{%{open} {stand_in} {close}%}}"));
            }
            None => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out + rest
}
