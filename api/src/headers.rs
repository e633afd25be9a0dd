//! Headers this room reads and writes.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use contract::Job;
use contract::openai::native::JobTimings;

use crate::error::ApiError;

/// Names the job of a synchronous call.
pub(crate) const JOB: HeaderName = HeaderName::from_static("penstock-job");
/// Fingerprint of the release that answers.
pub(crate) const RELEASE: HeaderName = HeaderName::from_static("penstock-release");
/// In and out: names a request in logs.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The answer is that of an earlier call with the same key.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Which preferences were honoured (RFC 7240).
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// Durations of the job: `queued` is accepted to leased, `first-token` accepted to first token, `finished` accepted to
/// ended, each in milliseconds.
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Longest wait a client can ask for.
pub(crate) const MAX_WAIT_SECONDS: u64 = 60;
const MAX_KEY_CHARS: usize = 255;
const MAX_REQUEST_ID_CHARS: usize = 128;

/// What `Prefer` asks for. As RFC 7240 says, what is not understood is passed over.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefer {
    /// Wait this long for the end, 1 to 60 s; more is cut to 60.
    pub wait: Option<Duration>,
    /// Answer with the job at once (or after `wait`).
    pub respond_async: bool,
}

impl Prefer {
    pub fn of(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
        for preference in values.flat_map(|value| value.split(',')) {
            let word = preference.split(';').next().unwrap_or_default().trim();
            if word.eq_ignore_ascii_case("respond-async") {
                prefer.respond_async = true;
            } else if let Some((name, value)) = word.split_once('=')
                && name.trim().eq_ignore_ascii_case("wait")
                && let Ok(seconds @ 1..) = value.trim().trim_matches('"').parse::<u64>()
                && prefer.wait.is_none()
            {
                // RFC 7240: the first of several counts.
                prefer.wait = Some(Duration::from_secs(seconds.min(MAX_WAIT_SECONDS)));
            }
        }
        prefer
    }

    /// The value of `Preference-Applied`.
    pub fn applied(self) -> Option<HeaderValue> {
        let wait = self.wait.map(|wait| format!("wait={}", wait.as_secs()));
        let words: Vec<String> =
            self.respond_async.then(|| "respond-async".to_owned()).into_iter().chain(wait).collect();
        (!words.is_empty()).then(|| HeaderValue::from_str(&words.join(", ")).ok()).flatten()
    }
}

/// The client's idempotency key, quoted or not.
///
/// # Errors
/// 400 when it is empty, longer than 255 characters, not visible ASCII, or given twice.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let bad = |problem| ApiError::Header { name: "Idempotency-Key", problem };
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad("is given twice"));
    }
    let text = value.to_str().map_err(|_| bad("must be visible ASCII"))?.trim();
    let key = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    if key.is_empty() || key.len() > MAX_KEY_CHARS {
        return Err(bad("must have 1 to 255 characters"));
    }
    Ok(Some(key.to_owned()))
}

/// The client's request id if it is 1 to 128 characters of visible ASCII, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fits = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=MAX_REQUEST_ID_CHARS).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(fits).cloned().unwrap_or_else(|| {
        let id = format!("req_{}", uuid::Uuid::now_v7().simple());
        HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("req_unknown"))
    })
}

/// The W3C trace context, if it is one.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let fits = parts.len() == 4
        && parts.iter().zip([2, 32, 16, 2]).all(|(part, length)| {
            part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        });
    fits.then(|| text.to_owned())
}

/// Adds the job's id, release and durations, as far as they are known.
pub(crate) fn describe(headers: &mut HeaderMap, job: &Job) {
    let mut put = |name: HeaderName, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    };
    put(JOB, &job.id.to_string());
    put(RELEASE, job.release.as_str());
    let timings = JobTimings::of(job);
    let entries = [("queued", timings.queue_wait_ms), ("first-token", timings.ttft_ms), ("finished", timings.total_ms)];
    let known: Vec<String> = entries.iter().filter_map(|(name, ms)| ms.map(|ms| format!("{name};dur={ms}"))).collect();
    if !known.is_empty() {
        put(SERVER_TIMING, &known.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap()))
            .collect()
    }

    #[test]
    fn preferences_are_read_leniently() {
        let seconds = |value: &str| Prefer::of(&headers(&[("prefer", value)])).wait.map(|wait| wait.as_secs());
        assert_eq!(seconds("wait=5"), Some(5));
        assert_eq!(seconds("Wait = \"7\"; x=y, respond-async"), Some(7));
        assert_eq!(seconds("wait=600"), Some(60));
        for nothing in ["wait=0", "wait=-1", "wait=abc", "wait", "return=minimal", ""] {
            assert_eq!(seconds(nothing), None, "{nothing}");
        }
        let both = Prefer::of(&headers(&[("prefer", "respond-async, wait=2")]));
        assert_eq!(both.applied().unwrap(), "respond-async, wait=2");
        assert_eq!(Prefer::default().applied(), None);
    }

    #[test]
    fn keys_may_be_quoted_and_must_be_sane() {
        let key = |value: &str| idempotency_key(&headers(&[("idempotency-key", value)]));
        assert_eq!(key("\"abc\"").unwrap().as_deref(), Some("abc"));
        assert_eq!(key("abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
        for bad in ["", "\"\"", "é", &"x".repeat(256)] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_hostile_request_id_is_replaced() {
        let id = |value: &str| request_id(&headers(&[("x-request-id", value)]));
        assert_eq!(id("abc-1"), "abc-1");
        for bad in ["", "a b", "é", &"x".repeat(129)] {
            assert!(id(bad).to_str().unwrap().starts_with("req_"), "{bad}");
        }
    }

    #[test]
    fn only_a_real_trace_context_is_kept() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(traceparent(&headers(&[("traceparent", good)])).as_deref(), Some(good));
        for bad in ["00-zz", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "x"] {
            assert_eq!(traceparent(&headers(&[("traceparent", bad)])), None);
        }
    }
}
