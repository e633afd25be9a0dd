//! From an item of a dataset to a request, with the defaults given on the command line.

use contract::Kind;
use contract::openai::batches::{endpoint, kind_of};
use contract::openai::{ParseError, Parsed, parse};
use serde_json::{Map, Value};

/// What a line asks for.
#[derive(Debug)]
pub struct Asked {
    /// The line's own name, or `line-N`.
    pub custom_id: String,
    /// The request, or why it is refused.
    pub request: Result<Body, Refusal>,
}

/// A request: as a route would take it, and as it is understood.
#[derive(Debug)]
pub struct Body {
    /// Which route.
    pub kind: Kind,
    /// Its body, with the defaults filled in.
    pub value: Value,
    /// What that says.
    pub parsed: Parsed,
}

/// Why a line is not run; becomes the 4xx inside its output line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which field.
    pub param: Option<String>,
    /// The code.
    pub code: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Values for fields that a line leaves out.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// `max_tokens`.
    pub max_tokens: Option<u32>,
    /// `temperature`.
    pub temperature: Option<f64>,
    /// `seed`.
    pub seed: Option<i64>,
    /// Render `prompt` lines through the chat template as one user message.
    pub chat: bool,
}

fn refusal(param: Option<&str>, code: &str, message: impl Into<String>) -> Refusal {
    Refusal { param: param.map(str::to_owned), code: code.to_owned(), message: message.into() }
}

impl From<ParseError> for Refusal {
    fn from(err: ParseError) -> Self {
        Refusal { param: err.param, code: err.code.as_str().to_owned(), message: err.message }
    }
}

/// Reads one item. `model` is the name that is served: a line that asks for another one is refused, unless `any_model`.
pub fn read(content: Value, line: u64, model: &str, any_model: bool, defaults: &Defaults) -> Asked {
    let mut custom_id = format!("line-{line}");
    let request = match content {
        Value::Object(mut object) => match object.remove("custom_id") {
            Some(Value::String(id)) => {
                custom_id = id;
                body_of(object, model, any_model, defaults)
            }
            None | Some(Value::Null) => body_of(object, model, any_model, defaults),
            Some(_) => Err(refusal(Some("custom_id"), "invalid_type", "custom_id must be a string")),
        },
        _ => Err(refusal(None, "invalid_type", "the line must be a JSON object")),
    };
    Asked { custom_id, request }
}

fn body_of(object: Map<String, Value>, model: &str, any_model: bool, defaults: &Defaults) -> Result<Body, Refusal> {
    let (kind, mut body) = if object.contains_key("body") || object.contains_key("url") {
        batch_line(object)?
    } else {
        plain_line(object, model, defaults)?
    };
    if kind != Kind::Embedding {
        set_default(&mut body, &["max_tokens", "max_completion_tokens"], defaults.max_tokens.map(Value::from));
        set_default(&mut body, &["temperature"], defaults.temperature.map(Value::from));
        set_default(&mut body, &["seed"], defaults.seed.map(Value::from));
    }
    if any_model {
        body.insert("model".to_owned(), model.into());
    }
    if let Some(asked) = body.get("model").and_then(Value::as_str).filter(|asked| *asked != model) {
        let message = format!(
            "the line asks for model `{asked}` and this run serves `{model}`; pass --any-model to answer with it all the same"
        );
        return Err(refusal(Some("model"), "model_not_found", message));
    }
    if body.get("stream") == Some(&Value::Bool(true)) {
        return Err(refusal(
            Some("stream"),
            "unsupported_parameter",
            "a dataset line cannot be streamed; leave `stream` out",
        ));
    }
    let value = Value::Object(body);
    let parsed = parse(kind, &value)?;
    Ok(Body { kind, value, parsed })
}

/// `{custom_id, method, url, body}`, as OpenAI's batch files have it.
fn batch_line(mut object: Map<String, Value>) -> Result<(Kind, Map<String, Value>), Refusal> {
    match object.remove("method") {
        Some(Value::String(method)) if method == "POST" => {}
        _ => return Err(refusal(Some("method"), "invalid_value", "method must be \"POST\"")),
    }
    let url = object.remove("url");
    let Some(kind) = url.as_ref().and_then(Value::as_str).and_then(kind_of) else {
        let message = format!("url must be one of {}", Kind::ALL.map(endpoint).join(", "));
        return Err(refusal(Some("url"), "invalid_value", message));
    };
    let Some(Value::Object(body)) = object.remove("body") else {
        return Err(refusal(Some("body"), "invalid_type", "body must be a JSON object"));
    };
    if let Some(name) = object.keys().next() {
        let message = format!("`{name}` is not a field of a batch line (custom_id, method, url, body)");
        return Err(refusal(Some(name), "unknown_parameter", message));
    }
    Ok((kind, body))
}

/// `{prompt, …}`, `{messages, …}` or `{input, …}` with the fields of the OpenAI body beside it.
fn plain_line(
    mut object: Map<String, Value>,
    model: &str,
    defaults: &Defaults,
) -> Result<(Kind, Map<String, Value>), Refusal> {
    let has = |name| object.contains_key(name);
    let kind = match (has("messages"), has("prompt"), has("input")) {
        (true, false, false) => Kind::Chat,
        (false, true, false) => Kind::Completion,
        (false, false, true) => Kind::Embedding,
        (false, false, false) => {
            let message =
                "the line needs `prompt`, `messages`, `input`, or the fields of a batch line (method, url, body)";
            return Err(refusal(None, "missing_required_parameter", message));
        }
        _ => {
            let first = if has("prompt") { "prompt" } else { "input" };
            let message = "give one of `prompt`, `messages` and `input`";
            return Err(refusal(Some(first), "invalid_value", message));
        }
    };
    if !object.contains_key("model") {
        object.insert("model".to_owned(), model.into());
    }
    if kind == Kind::Completion && defaults.chat {
        let prompt = object.remove("prompt").unwrap_or_default();
        let message = serde_json::json!([{"role": "user", "content": prompt}]);
        object.insert("messages".to_owned(), message);
        return Ok((Kind::Chat, object));
    }
    Ok((kind, object))
}

fn set_default(body: &mut Map<String, Value>, names: &[&str], value: Option<Value>) {
    let given = names.iter().any(|name| body.get(*name).is_some_and(|value| !value.is_null()));
    if let (false, Some(value), Some(name)) = (given, value, names.first()) {
        body.insert((*name).to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(line: Value) -> Asked {
        read(line, 7, "m", false, &Defaults { max_tokens: Some(5), ..Defaults::default() })
    }

    #[test]
    fn texts_for_vectors_take_no_defaults_of_answers() {
        let line = ask(json!({"input": ["a", "b"]})).request.unwrap();
        assert_eq!((line.kind, line.parsed.request.max_tokens), (Kind::Embedding, Some(0)));
        let line = ask(json!({"method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "a"}}));
        assert_eq!(line.request.unwrap().kind, Kind::Embedding);
    }

    #[test]
    fn the_three_forms_are_read() {
        let batch = ask(json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9}}));
        assert_eq!((batch.custom_id.as_str(), batch.request.unwrap().parsed.request.max_tokens), ("a", Some(9)));
        let messages = ask(json!({"messages": [{"role": "user", "content": "hi"}]}));
        assert_eq!(
            (messages.custom_id.as_str(), messages.request.unwrap().parsed.request.max_tokens),
            ("line-7", Some(5))
        );
        let prompt = ask(json!({"prompt": "hi", "temperature": 0, "max_tokens": 3}));
        assert_eq!(prompt.request.unwrap().parsed.request.max_tokens, Some(3));
    }

    #[test]
    fn bad_lines_name_the_field() {
        let cases = [
            (json!([]), None),
            (json!({}), None),
            (json!({"custom_id": 3, "prompt": "x"}), Some("custom_id")),
            (json!({"prompt": "x", "messages": []}), Some("prompt")),
            (json!({"prompt": "x", "label": 1}), Some("label")),
            (json!({"prompt": "x", "temperature": "hot"}), Some("temperature")),
            (json!({"prompt": "x", "model": "other"}), Some("model")),
            (json!({"prompt": "x", "stream": true}), Some("stream")),
            (json!({"method": "GET", "url": "/v1/completions", "body": {}}), Some("method")),
            (json!({"method": "POST", "url": "/v1/images/generations", "body": {}}), Some("url")),
            (json!({"method": "POST", "url": "/v1/embeddings", "body": {}}), Some("model")),
            (json!({"input": "x", "messages": []}), Some("input")),
            (json!({"input": ""}), Some("input")),
            (json!({"method": "POST", "url": "/v1/completions", "body": []}), Some("body")),
            (json!({"method": "POST", "url": "/v1/completions", "body": {}, "extra": 1}), Some("extra")),
            (json!({"messages": []}), Some("messages")),
        ];
        for (line, param) in cases {
            let refusal = ask(line.clone()).request.unwrap_err();
            assert_eq!(refusal.param.as_deref(), param, "{line}: {refusal:?}");
        }
    }
}
