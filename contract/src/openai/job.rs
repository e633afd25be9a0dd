//! Bodies of `POST /v1/jobs`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::common;
use super::fields::{Fields, wrong_value};
use super::{MAX_DEADLINE_SECONDS, ParseError, webhooks};
use crate::ids::Class;
use crate::request::{Kind, Request};
use crate::retention::{MAX_KEEP_SECONDS, MIN_KEEP_SECONDS, Storage};
use crate::sequence::OnFailure;
use crate::time::Timestamp;
use crate::webhook::Hook;

/// Most bytes of a sequence key.
const MAX_SEQUENCE_KEY_BYTES: usize = 255;

/// A native job's body, understood.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedJob {
    /// Chat, completion or embedding.
    pub kind: Kind,
    /// What to do.
    pub request: Request,
    /// How urgent it is.
    pub class: Class,
    /// From acceptance, or from `run_after` if that is later, to the deadline.
    pub deadline: Duration,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Jobs of one key run one at a time in order of acceptance.
    pub sequence_key: Option<String>,
    /// What those behind it do when it fails.
    pub on_failure: OnFailure,
    /// Where it alone is told of.
    pub webhook: Option<Hook>,
    /// It does not run before this.
    pub run_after: Option<Timestamp>,
    /// How long its payload is kept.
    pub storage: Storage,
}

/// Reads `{"type", "request", "class"?, "deadline_seconds"?, "metadata"?, "sequence_key"?, "on_failure"?, "webhook"?,
/// "run_after"?, "keep_seconds"?, "store"?}`.
///
/// Without a class a job is [`Class::Standard`]; without a deadline it has that of its class.
///
/// # Errors
/// [`ParseError`] naming the first field at fault; those of the inner body as `request.…`.
pub fn parse_job(body: &Value) -> Result<ParsedJob, ParseError> {
    let mut fields = Fields::of(body, "")?;
    fields.required("type")?;
    let kind = match fields.string("type", MAX_SEQUENCE_KEY_BYTES)?.unwrap_or_default() {
        "chat" => Kind::Chat,
        "completion" => Kind::Completion,
        "embedding" => Kind::Embedding,
        other => {
            return Err(wrong_value("type", format_args!("is `{other}`; it must be chat, completion or embedding")));
        }
    };
    let class = match fields.string("class", MAX_SEQUENCE_KEY_BYTES)? {
        None => Class::Standard,
        Some(word) => word.parse().map_err(|error| wrong_value("class", format_args!("is wrong: {error}")))?,
    };
    let longest = i64::try_from(MAX_DEADLINE_SECONDS).unwrap_or(i64::MAX);
    let seconds = fields.integer("deadline_seconds", 1, longest)?.and_then(|seconds| u64::try_from(seconds).ok());
    let deadline = Duration::from_secs(seconds.unwrap_or(class.default_deadline_seconds()));
    let sequence_key = fields.string("sequence_key", MAX_SEQUENCE_KEY_BYTES)?.map(str::to_owned);
    if sequence_key.as_ref().is_some_and(|key| key.is_empty() || key.contains('\0')) {
        return Err(wrong_value("sequence_key", "must have at least one character, and no NUL"));
    }
    // A client's URL library takes these two for places, encoded or not: their sequence could never be resumed.
    if let Some(key @ ("." | "..")) = sequence_key.as_deref() {
        return Err(wrong_value("sequence_key", format_args!("must not be `{key}`, which no path can name")));
    }
    let on_failure = on_failure(&mut fields)?;
    if on_failure.is_some() && sequence_key.is_none() {
        let what = "needs `sequence_key`: it says what the jobs behind this one do when it fails";
        return Err(wrong_value("on_failure", what));
    }
    let webhook = webhooks::hook(&mut fields)?;
    let run_after = run_after(&mut fields)?;
    if run_after.is_some() && sequence_key.is_some() {
        let what = "is not supported for a job of a sequence: its turn is when the one before it has ended";
        return Err(wrong_value("run_after", what));
    }
    let (keep, store) = (keep_seconds(&mut fields)?, fields.boolean("store")?);
    let outer_metadata = fields.take("metadata").is_some();
    let metadata = common::metadata(&mut fields)?;
    let request = fields.required("request")?;
    fields.finish()?;

    let parsed = super::parse_at(kind, request, "request")?;
    if parsed.stream {
        let what = "cannot be true in a job: submit it without, and read its tokens at `urls.events` of the answer";
        return Err(wrong_value("request.stream", what));
    }
    if outer_metadata && !parsed.metadata.is_empty() && parsed.metadata != metadata {
        let what = "differs from `metadata` of the job: give one";
        return Err(wrong_value("request.metadata", what));
    }
    let storage = storage(keep, store, parsed.storage)?;
    let metadata = if outer_metadata { metadata } else { parsed.metadata };
    Ok(ParsedJob {
        kind,
        request: parsed.request,
        class,
        deadline,
        metadata,
        sequence_key,
        on_failure: on_failure.unwrap_or_default(),
        webhook,
        run_after,
        storage,
    })
}

/// `keep_seconds`: how long a payload is kept after the end.
pub(super) fn keep_seconds(fields: &mut Fields<'_>) -> Result<Option<Duration>, ParseError> {
    let (min, max) = (MIN_KEEP_SECONDS.cast_signed(), MAX_KEEP_SECONDS.cast_signed());
    let seconds = fields.integer("keep_seconds", min, max)?;
    Ok(seconds.map(|seconds| Duration::from_secs(seconds.unsigned_abs())))
}

/// What `keep_seconds` and `store` of a job and `store` of its request come to, if they agree.
fn storage(keep: Option<Duration>, outer: Option<bool>, inner: Storage) -> Result<Storage, ParseError> {
    if outer == Some(true) && inner == Storage::RunOnly {
        return Err(wrong_value("request.store", "differs from `store` of the job: give one"));
    }
    let is_stored = outer != Some(false) && inner != Storage::RunOnly;
    match (keep, is_stored) {
        (None, true) => Ok(Storage::AsSet),
        (Some(keep), true) => Ok(Storage::For(keep)),
        (None, false) => Ok(Storage::RunOnly),
        (Some(_), false) => {
            let what = "cannot be given with `store: false`, which keeps nothing: give one of the two";
            Err(wrong_value("keep_seconds", what))
        }
    }
}

fn on_failure(fields: &mut Fields<'_>) -> Result<Option<OnFailure>, ParseError> {
    let Some(word) = fields.string("on_failure", MAX_SEQUENCE_KEY_BYTES)? else { return Ok(None) };
    word.parse().map(Some).map_err(|error| wrong_value("on_failure", format_args!("is wrong: {error}")))
}

/// `run_after`, as every time of the native routes: RFC 3339.
fn run_after(fields: &mut Fields<'_>) -> Result<Option<Timestamp>, ParseError> {
    let Some(text) = fields.string("run_after", MAX_SEQUENCE_KEY_BYTES)? else { return Ok(None) };
    let at = Timestamp::parse_rfc3339(text);
    at.map(Some).ok_or_else(|| wrong_value("run_after", "must be a time as in 2030-01-31T08:00:00Z"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_follow_the_class() {
        let request = json!({"model": "m", "prompt": "x"});
        for (class, expected, seconds) in [
            (json!(null), Class::Standard, 3600),
            (json!("interactive"), Class::Interactive, 120),
            (json!("bulk"), Class::Bulk, 86_400),
        ] {
            let job = parse_job(&json!({"type": "completion", "request": request, "class": class})).unwrap();
            assert_eq!((job.kind, job.class, job.deadline.as_secs()), (Kind::Completion, expected, seconds));
        }
    }

    #[test]
    fn all_fields_arrive() {
        let job = parse_job(&json!({
            "type": "chat",
            "request": {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": false},
            "class": "bulk", "deadline_seconds": 604800, "metadata": {"a": "b"}, "sequence_key": "s",
            "on_failure": "block",
        }))
        .unwrap();
        assert_eq!((job.deadline.as_secs(), job.sequence_key.as_deref()), (604_800, Some("s")));
        assert_eq!(job.on_failure, OnFailure::Block);
        assert_eq!(job.metadata, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
    }

    #[test]
    fn keeping_is_said_once() {
        let read = |outer: Value, inner: Value| {
            let mut body = json!({"type": "completion", "request": {"model": "m", "prompt": "x"}});
            body.as_object_mut().unwrap().extend(outer.as_object().unwrap().clone());
            body["request"].as_object_mut().unwrap().extend(inner.as_object().unwrap().clone());
            parse_job(&body).map(|job| job.storage).map_err(|error| error.param.unwrap())
        };
        let (none, not) = (json!({}), json!({"store": false}));
        assert_eq!(read(none.clone(), none.clone()), Ok(Storage::AsSet));
        assert_eq!(read(json!({"store": true}), none.clone()), Ok(Storage::AsSet));
        assert_eq!(read(not.clone(), none.clone()), Ok(Storage::RunOnly));
        assert_eq!(read(none.clone(), not.clone()), Ok(Storage::RunOnly));
        for seconds in [60, 315_360_000] {
            let expected = Storage::For(Duration::from_secs(seconds));
            assert_eq!(read(json!({"keep_seconds": seconds}), none.clone()), Ok(expected));
        }
        for (outer, inner, param) in [
            (json!({"keep_seconds": 59}), none.clone(), "keep_seconds"),
            (json!({"keep_seconds": 315_360_001}), none.clone(), "keep_seconds"),
            (json!({"keep_seconds": "60"}), none.clone(), "keep_seconds"),
            (json!({"keep_seconds": 60, "store": false}), none.clone(), "keep_seconds"),
            (json!({"keep_seconds": 60}), not.clone(), "keep_seconds"),
            (json!({"store": "no"}), none.clone(), "store"),
            (json!({"store": true}), not, "request.store"),
        ] {
            assert_eq!(read(outer, inner), Err(param.to_owned()));
        }
    }

    #[test]
    fn a_failure_skips_unless_it_is_to_block() {
        let body = |on_failure| {
            json!({"type": "completion", "request": {"model": "m", "prompt": "x"},
            "sequence_key": "s", "on_failure": on_failure})
        };
        for (word, expected) in
            [(json!(null), OnFailure::Skip), (json!("skip"), OnFailure::Skip), (json!("block"), OnFailure::Block)]
        {
            assert_eq!(parse_job(&body(word)).unwrap().on_failure, expected);
        }
    }

    #[test]
    fn metadata_may_stand_inside() {
        let inner = json!({"model": "m", "prompt": "x", "metadata": {"a": "b"}});
        let job = parse_job(&json!({"type": "completion", "request": inner})).unwrap();
        assert_eq!(job.metadata.len(), 1);
        let error = parse_job(&json!({"type": "completion", "request": inner, "metadata": {}})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("request.metadata"));
    }
}
