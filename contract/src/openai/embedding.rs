//! Bodies of `POST /v1/embeddings`.

use serde_json::Value;

use super::common::{belongs_elsewhere, metadata, model, storage, take_without_effect};
use super::fields::{Fields, text, token_id, wrong_type, wrong_value};
use super::{MAX_STRING_BYTES, ParseError, Parsed};
use crate::request::{Embedding, Input, MAX_EMBEDDED, Pooling, Prompt, Request, Sampling, VectorFormat};

/// Most bytes of a word that is one of a few.
const MAX_WORD_BYTES: usize = 64;

/// Reads a request for vectors.
///
/// # Errors
/// [`ParseError`] naming the first field that is missing, of the wrong type, out of range, or not honoured.
pub fn parse_embedding(body: &Value) -> Result<Parsed, ParseError> {
    parse_at(body, "")
}

/// Reads a request for vectors that stands at path `at` of a larger body.
pub(super) fn parse_at(body: &Value, at: &str) -> Result<Parsed, ParseError> {
    let mut fields = Fields::of(body, at)?;
    let model = model(&mut fields)?;
    for (name, route) in [("messages", "/v1/chat/completions"), ("prompt", "/v1/completions")] {
        belongs_elsewhere(&mut fields, name, route)?;
    }
    let inputs = inputs(&mut fields)?;
    let format =
        word(&mut fields, "encoding_format", &[("float", VectorFormat::Float), ("base64", VectorFormat::Base64)])?;
    let pooling = word(&mut fields, "pooling", &[("last", Pooling::Last), ("mean", Pooling::Mean)])?;
    let dimensions = fields.integer("dimensions", 1, i64::from(u32::MAX))?.and_then(|n| u32::try_from(n).ok());
    let normalize = fields.boolean("normalize")?.unwrap_or(true);
    let metadata = metadata(&mut fields)?;
    let storage = storage(&mut fields)?;
    take_without_effect(&mut fields)?;
    fields.only("stream", |v| v == false, "false")?;
    fields.only("priority", |v| v.as_f64() == Some(0.0), "0")?;
    for name in ["truncate_prompt_tokens", "input_type"] {
        fields.unsupported(name)?;
    }
    fields.finish()?;
    Ok(Parsed {
        request: Request {
            model,
            input: Input::Embedding(Embedding { inputs, pooling, normalize, dimensions, format }),
            sampling: Sampling::default(),
            max_tokens: Some(0),
            min_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            include_stop: false,
            stop_token_ids: Vec::new(),
            logprobs: None,
            constraint: None,
            echo: false,
            prompt_logprobs: None,
        },
        stream: false,
        include_usage: false,
        metadata,
        storage,
    })
}

/// One of `words`, the first of which is meant where there is none.
fn word<T: Copy + Default>(fields: &mut Fields<'_>, name: &'static str, words: &[(&str, T)]) -> Result<T, ParseError> {
    let Some(given) = fields.string(name, MAX_WORD_BYTES)? else { return Ok(T::default()) };
    let known = words.iter().find(|(word, _)| *word == given);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        wrong_value(fields.path(name), format_args!("is `{given}`; it must be {}", all.join(" or ")))
    })
}

/// A string, token ids, or an array of strings or of arrays of token ids.
fn inputs(fields: &mut Fields<'_>) -> Result<Vec<Prompt>, ParseError> {
    let param = fields.path("input");
    let value = fields.required("input")?;
    let Value::Array(items) = value else { return Ok(vec![input(value, &param)?]) };
    if items.first().is_none_or(Value::is_number) {
        return Ok(vec![input(value, &param)?]);
    }
    if items.len() > MAX_EMBEDDED {
        return Err(wrong_value(param, format_args!("has {} items; {MAX_EMBEDDED} are the most", items.len())));
    }
    items.iter().enumerate().map(|(nth, item)| input(item, &format!("{param}[{nth}]"))).collect()
}

/// One text.
fn input(value: &Value, param: &str) -> Result<Prompt, ParseError> {
    match value {
        Value::String(_) => match text(value, param, MAX_STRING_BYTES)? {
            "" => Err(wrong_value(param, "is empty: a vector needs a text")),
            text => Ok(Prompt::Text(text.to_owned())),
        },
        Value::Array(ids) if ids.is_empty() => Err(wrong_value(param, "is an empty array: a vector needs a text")),
        Value::Array(ids) => {
            let ids = ids.iter().enumerate().map(|(nth, id)| token_id(id, &format!("{param}[{nth}]")));
            ids.collect::<Result<_, _>>().map(Prompt::Tokens)
        }
        other => Err(wrong_type(param, "a string, token ids, or an array of either", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::ParseCode;
    use crate::retention::Storage;
    use serde_json::json;

    fn read(fields: Value) -> Result<Parsed, ParseError> {
        let mut body = json!({"model": "m", "input": "x"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse_embedding(&body)
    }

    #[test]
    fn inputs_come_in_four_forms() {
        let (a, b) = (|| Prompt::Text("a".into()), || Prompt::Tokens(vec![1, 2]));
        for (wire, expected) in [
            (json!("a"), vec![a()]),
            (json!(["a", "a"]), vec![a(), a()]),
            (json!([1, 2.0]), vec![b()]),
            (json!([[1, 2], [1, 2]]), vec![b(), b()]),
            (json!(["a", [1, 2]]), vec![a(), b()]),
        ] {
            let request = read(json!({"input": wire})).unwrap().request;
            let Input::Embedding(embedding) = request.input else { panic!("{wire}") };
            assert_eq!((embedding.inputs, request.max_tokens), (expected, Some(0)), "{wire}");
        }
    }

    #[test]
    fn defaults_and_all_fields_arrive() {
        let Input::Embedding(plain) = read(json!({})).unwrap().request.input else { panic!() };
        assert_eq!((plain.pooling, plain.normalize, plain.dimensions), (Pooling::Last, true, None));
        assert_eq!(plain.format, VectorFormat::Float);
        let parsed = read(json!({"encoding_format": "base64", "pooling": "mean", "dimensions": 8, "normalize": false,
            "user": "u", "metadata": {"a": "b"}, "store": false, "stream": false}))
        .unwrap();
        let Input::Embedding(all) = parsed.request.input else { panic!() };
        assert_eq!((all.pooling, all.normalize, all.dimensions), (Pooling::Mean, false, Some(8)));
        assert_eq!((all.format, parsed.storage), (VectorFormat::Base64, Storage::RunOnly));
        assert_eq!(parsed.metadata.get("a").map(String::as_str), Some("b"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        use ParseCode::{InvalidType, InvalidValue, MissingRequiredParameter, UnknownParameter, UnsupportedParameter};
        for (fields, param, code) in [
            (json!({"model": null}), "model", MissingRequiredParameter),
            (json!({"input": null}), "input", MissingRequiredParameter),
            (json!({"input": 7}), "input", InvalidType),
            (json!({"input": ""}), "input", InvalidValue),
            (json!({"input": []}), "input", InvalidValue),
            (json!({"input": ["a", ""]}), "input[1]", InvalidValue),
            (json!({"input": [[1], []]}), "input[1]", InvalidValue),
            (json!({"input": ["a", 7]}), "input[1]", InvalidType),
            (json!({"input": [1, "a"]}), "input[1]", InvalidType),
            (json!({"input": [1, -1]}), "input[1]", InvalidValue),
            (json!({"input": [[1, 2.5]]}), "input[0][1]", InvalidValue),
            (json!({"input": vec!["a"; 2_049]}), "input", InvalidValue),
            (json!({"input": "x".repeat(1_048_577)}), "input", InvalidValue),
            (json!({"encoding_format": "int8"}), "encoding_format", InvalidValue),
            (json!({"encoding_format": 1}), "encoding_format", InvalidType),
            (json!({"pooling": "cls"}), "pooling", InvalidValue),
            (json!({"dimensions": 0}), "dimensions", InvalidValue),
            (json!({"dimensions": "8"}), "dimensions", InvalidType),
            (json!({"normalize": 1}), "normalize", InvalidType),
            (json!({"user": 1}), "user", InvalidType),
            (json!({"store": true}), "store", UnsupportedParameter),
            (json!({"stream": true}), "stream", UnsupportedParameter),
            (json!({"truncate_prompt_tokens": 5}), "truncate_prompt_tokens", UnsupportedParameter),
            (json!({"prompt": "x"}), "prompt", UnknownParameter),
            (json!({"messages": []}), "messages", UnknownParameter),
            (json!({"temperature": 0}), "temperature", UnknownParameter),
        ] {
            let error = read(fields.clone()).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{fields}");
            assert!(error.message.contains(param), "`{error}` does not name `{param}`");
        }
        assert!(read(json!({"input": vec!["a"; 2_048]})).is_ok());
    }
}
