//! Any bytes as the body of a request: refused with a reason, or understood within the documented ranges.
#![no_main]

use contract::openai::json::{self, BadJson};
use contract::openai::kinds::{ErrorEnvelope, ErrorKind};
use contract::openai::{
    MAX_DEADLINE_SECONDS, MAX_LOGIT_BIASES, MAX_MESSAGES, MAX_METADATA_KEY_CHARS, MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARS, MAX_STOP_CHARS, MAX_STOP_TOKEN_IDS, MAX_STOPS, MAX_STRING_BYTES, MAX_TOP_LOGPROBS,
    ParseError, Parsed, ParsedJob, parse, parse_job,
};
use contract::{Input, Kind, MAX_EMBEDDED, Prompt, Request};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

/// An error quotes a piece of the request, never the whole of it.
const MAX_MESSAGE_BYTES: usize = 2_048;

fuzz_target!(|bytes: &[u8]| {
    let value = match json::parse(bytes) {
        Ok(value) => value,
        Err(error) => return refused_json(bytes, &error),
    };
    assert_eq!(serde_json::from_slice::<Value>(bytes).expect("serde_json reads what we read"), value);

    for kind in Kind::ALL {
        let parsed = parse(kind, &value);
        check(&parsed, kind);
        as_job(kind.as_str(), &value, &parsed);
    }
    match parse_job(&value) {
        Ok(job) => accepted_job(&job),
        Err(error) => refused(&error),
    }
});

fn refused_json(bytes: &[u8], error: &BadJson) {
    assert!(!error.message.is_empty() && error.message.len() <= MAX_MESSAGE_BYTES, "{error}");
    let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
    assert!((1..=lines).contains(&error.line) && error.column <= bytes.len() + 1, "{error}");
    if serde_json::from_slice::<Value>(bytes).is_ok() {
        // Two things are refused here that serde_json passes.
        assert!(error.message.contains("twice in one object") || error.message.contains("nested deeper"), "{error}");
    }
}

fn refused(error: &ParseError) {
    assert!(!error.message.is_empty() && error.message.len() <= MAX_MESSAGE_BYTES, "{error}");
    if let Some(param) = &error.param {
        // Empty where the unknown key is.
        assert!(error.message.starts_with(&format!("`{param}` ")), "{error}");
    }
    let envelope = ErrorEnvelope::new(ErrorKind::Parameter(error.code), error.to_string(), error.param.clone());
    let text = serde_json::to_string(&envelope).expect("an error is plain data");
    assert_eq!(serde_json::from_str::<ErrorEnvelope>(&text).expect("reads back"), envelope);
}

fn check(parsed: &Result<Parsed, ParseError>, kind: Kind) {
    match parsed {
        Ok(parsed) => {
            assert_eq!(parsed.request.kind(), kind);
            assert!(parsed.stream || !parsed.include_usage);
            accepted(&parsed.request);
            accepted_metadata(&parsed.metadata);
        }
        Err(error) => refused(error),
    }
}

/// The ranges of the API's description, and of the fields' own comments.
fn accepted(request: &Request) {
    let sampling = &request.sampling;
    assert!((0.0..=2.0).contains(&sampling.temperature), "{sampling:?}");
    assert!(sampling.top_p > 0.0 && sampling.top_p <= 1.0, "{sampling:?}");
    assert!((0.0..1.0).contains(&sampling.min_p), "{sampling:?}");
    assert_ne!(sampling.top_k, Some(0));
    assert!(sampling.is_in_range() && sampling.logit_bias.len() <= MAX_LOGIT_BIASES, "{sampling:?}");
    assert!(!request.model.is_empty());
    let reads_only = request.max_tokens == Some(0);
    assert!(!reads_only || request.echo || request.kind() == Kind::Embedding);
    assert!(!request.echo || request.kind() == Kind::Completion);
    assert!(request.max_tokens.is_none_or(|max| request.min_tokens <= max));
    assert!(request.stop.len() <= MAX_STOPS && request.stop_token_ids.len() <= MAX_STOP_TOKEN_IDS);
    assert!(request.stop.iter().all(|stop| (1..=MAX_STOP_CHARS).contains(&stop.chars().count())));
    assert!(request.logprobs.is_none_or(|top| top <= MAX_TOP_LOGPROBS));
    assert!(request.prompt_logprobs.is_none_or(|top| top <= MAX_TOP_LOGPROBS));
    match &request.input {
        Input::Chat(messages) => {
            assert!((1..=MAX_MESSAGES).contains(&messages.len()));
            assert!(messages.iter().all(|message| message.content.len() <= MAX_STRING_BYTES));
        }
        Input::Completion(prompt) => accepted_prompt(prompt),
        Input::Embedding(embedding) => {
            assert!((1..=MAX_EMBEDDED).contains(&embedding.inputs.len()));
            assert!(reads_only && embedding.dimensions != Some(0));
            embedding.inputs.iter().for_each(accepted_prompt);
        }
    }
    // What a worker reads from the store is what was accepted.
    let stored = serde_json::to_vec(request).expect("a request is plain data");
    assert_eq!(&serde_json::from_slice::<Request>(&stored).expect("reads back"), request);
}

fn accepted_prompt(prompt: &Prompt) {
    match prompt {
        Prompt::Text(text) => assert!(text.len() <= MAX_STRING_BYTES),
        Prompt::Tokens(ids) => assert!(!ids.is_empty()),
    }
}

fn accepted_metadata(metadata: &std::collections::BTreeMap<String, String>) {
    assert!(metadata.len() <= MAX_METADATA_PAIRS);
    for (key, value) in metadata {
        assert!((1..=MAX_METADATA_KEY_CHARS).contains(&key.chars().count()));
        assert!(value.chars().count() <= MAX_METADATA_VALUE_CHARS);
        assert!(!key.contains('\0') && !value.contains('\0'));
    }
}

fn accepted_job(job: &ParsedJob) {
    assert_eq!(job.request.kind(), job.kind);
    assert!((1..=MAX_DEADLINE_SECONDS).contains(&job.deadline.as_secs()));
    assert!(job.sequence_key.as_ref().is_none_or(|key| !key.is_empty() && !key.contains('\0')));
    assert!(job.sequence_key.is_some() || job.on_failure == contract::OnFailure::Skip);
    accepted(&job.request);
    accepted_metadata(&job.metadata);
}

/// A body means the same inside a job as on its own route.
fn as_job(kind: &str, body: &Value, alone: &Result<Parsed, ParseError>) {
    if body.is_null() {
        return; // Inside a job it counts as absent.
    }
    match (alone, parse_job(&json!({"type": kind, "request": body}))) {
        (Ok(alone), Ok(job)) => {
            assert!(!alone.stream);
            assert_eq!((&alone.request, &alone.metadata), (&job.request, &job.metadata));
        }
        (Ok(alone), Err(error)) => {
            assert!(alone.stream, "{error}");
            assert_eq!(error.param.as_deref(), Some("request.stream"));
        }
        (Err(alone), Err(inside)) => {
            let path = alone.param.as_ref().map_or("request".to_owned(), |param| format!("request.{param}"));
            assert_eq!((inside.param, inside.code), (Some(path), alone.code));
        }
        (Err(error), Ok(_)) => panic!("accepted in a job, but alone: {error}"),
    }
}
