//! `penstock webhooks listen`: a receiver for trying webhooks out, and an example of how to verify them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use contract::Timestamp;
use serde_json::Value;
use standardwebhooks::{HEADER_WEBHOOK_ID, Webhook};
use time::OffsetDateTime;

use crate::terminal;

/// Most characters that are shown of anything a sender wrote.
const SHOWN_CHARS: usize = 80;

/// Receive webhooks on this machine and show them: for trying things out.
///
/// Each is verified (signature, and a timestamp within 300 s), shown in one line, and answered: 204
/// when it verifies, 400 when it does not. A server on this machine calls it only if its settings
/// say so:
///
///     PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS='["127.0.0.1/32"]' penstock serve
///     penstock webhooks create http://127.0.0.1:9000
///     penstock webhooks listen --secret whsec_…
///     penstock webhooks listen --secret "$(penstock webhooks secret)" --json | jq .data
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ListenArgs {
    /// Where to listen; any path is taken
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// What signs; give it twice while the secret changes. Without it nothing is verified
    #[arg(long = "secret", value_name = "SECRET", value_parser = secret)]
    secrets: Vec<Secret>,
    /// Answer each with this status, to see how it is tried again (503) or given up (410)
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..=599))]
    answer: Option<u16>,
    /// Print each body as one line of JSON; what is said of it goes to standard error
    #[arg(long)]
    json: bool,
}

/// A secret that can be used; not shown by `Debug`.
#[derive(Clone)]
struct Secret(Arc<Webhook>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("whsec_***")
    }
}

fn secret(text: &str) -> Result<Secret, String> {
    let wrong = || "a secret is whsec_ and base64, as `penstock webhooks secret` prints it".to_owned();
    // An empty key would verify what anybody signs.
    let text = text.trim().strip_prefix("whsec_").filter(|rest| !rest.is_empty()).ok_or_else(wrong)?;
    Webhook::new(text).map(|webhook| Secret(Arc::new(webhook))).map_err(|_| wrong())
}

pub async fn run(args: &ListenArgs) -> anyhow::Result<ExitCode> {
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}: --listen names another address", args.listen))?;
    let address = listener.local_addr()?;
    terminal::say(&format!("listening on http://{address}; Ctrl-C ends it"));
    let network = network(address.ip());
    terminal::say(&format!(
        "a server calls it only if its settings have webhooks.allowed_networks = [\"{network}\"], for example:\n    \
         PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS='[\"{network}\"]' penstock serve"
    ));
    if args.secrets.is_empty() {
        terminal::say("nothing is verified without --secret: `penstock webhooks secret` prints one");
    }
    let receiver =
        Receiver { secrets: args.secrets.clone(), answer: args.answer, json: args.json, seen: Mutex::default() };
    let router = Router::new().route("/", post(take)).route("/{*path}", post(take)).with_state(Arc::new(receiver));
    tokio::select! {
        served = axum::serve(listener, router) => served?,
        ended = tokio::signal::ctrl_c() => ended?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The network to allow so that a server reaches this address.
fn network(address: IpAddr) -> String {
    match address {
        // From the same machine, that is; from others it is whatever they reach it by.
        address if address.is_unspecified() => "127.0.0.1/32".to_owned(),
        IpAddr::V4(address) => format!("{address}/32"),
        IpAddr::V6(address) => format!("{address}/128"),
    }
}

async fn take(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let received = receiver.receive(&headers, &body);
    let (line, body) = (format!("{} {}", now(), received.line), received.body);
    if receiver.json {
        terminal::say(&line);
    }
    let printed = match (receiver.json, body) {
        (true, Some(body)) => terminal::print(&format!("{body}\n")),
        (true, None) => Ok(()),
        (false, _) => terminal::print(&format!("{line}\n")),
    };
    match printed {
        Ok(()) => received.status,
        // What nobody saw was not received: it comes again.
        Err(error) => {
            terminal::say(&format!("error: {}", terminal::chain(error.as_ref())));
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

fn now() -> String {
    let ms = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
    Timestamp(i64::try_from(ms).unwrap_or(i64::MAX)).rfc3339()
}

/// What takes requests.
struct Receiver {
    secrets: Vec<Secret>,
    answer: Option<u16>,
    json: bool,
    /// How often each id came.
    seen: Mutex<HashMap<String, u32>>,
}

/// One request.
struct Received {
    /// Id, event, sequence, subject and verdict.
    line: String,
    /// The body, if it is JSON.
    body: Option<Value>,
    status: StatusCode,
}

impl Receiver {
    fn receive(&self, headers: &HeaderMap, body: &[u8]) -> Received {
        let verdict = self.verdict(headers, body);
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let id = headers.get(HEADER_WEBHOOK_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        let again = match &verdict {
            Ok(_) if !id.is_empty() => self.count(id),
            _ => 0,
        };
        let field = |pointer: &str| match body.as_ref().and_then(|body| body.pointer(pointer)) {
            Some(Value::String(text)) => shown(text),
            Some(Value::Number(number)) => number.to_string(),
            _ => "-".to_owned(),
        };
        let (event, sequence, subject) = (field("/type"), field("/sequence"), field("/data/id"));
        let again = if again > 0 { format!(" (seen before, {again}x)") } else { String::new() };
        let (verdict, status) = match verdict {
            Ok(said) => (said, StatusCode::NO_CONTENT),
            Err(why) => (format!("not verified: {why}"), StatusCode::BAD_REQUEST),
        };
        let status = self.answer.and_then(|answer| StatusCode::from_u16(answer).ok()).unwrap_or(status);
        Received { line: format!("{} {event} {sequence} {subject} {verdict}{again}", shown(id)), body, status }
    }

    /// What is said of one that may be taken, or why it may not.
    fn verdict(&self, headers: &HeaderMap, body: &[u8]) -> Result<String, String> {
        let mut why = None;
        for (nth, secret) in self.secrets.iter().enumerate() {
            match secret.0.verify(body, headers) {
                Ok(()) if self.secrets.len() == 1 => return Ok("verified".to_owned()),
                Ok(()) => return Ok(format!("verified by secret {}", nth + 1)),
                // The library leaves out the first half of a header's name.
                Err(error) => why = Some(error.to_string().replace("missing header ", "missing header webhook-")),
            }
        }
        why.map_or_else(|| Ok("unverified".to_owned()), Err)
    }

    /// How often this id came before. Only for ids that were verified or are taken as they are: whoever cannot sign
    /// leaves nothing here.
    fn count(&self, id: &str) -> u32 {
        // A count is whole at any moment, so a panic elsewhere has broken nothing.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seen.entry(id.to_owned()).or_default();
        *count += 1;
        *count - 1
    }
}

/// A sender's text as a terminal may show it.
fn shown(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control() && !c.is_whitespace()).take(SHOWN_CHARS).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "whsec_HxAeDx0OHA0bDBoLGQoYCRcIFgcVBhQFEwQSAxECEAE=";
    const BODY: &str = r#"{"type":"job.succeeded","sequence":2,"data":{"id":"job_1"}}"#;

    fn receiver(secrets: &[&str], answer: Option<u16>) -> Receiver {
        let secrets = secrets.iter().map(|text| secret(text).unwrap()).collect();
        Receiver { secrets, answer, json: false, seen: Mutex::default() }
    }

    /// Headers of a message signed so many seconds ago.
    fn headers(with: &str, ago: i64) -> HeaderMap {
        let at = OffsetDateTime::now_utc().unix_timestamp() - ago;
        let signature = Webhook::new(with).unwrap().sign("msg_1", at, BODY.as_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", "msg_1".parse().unwrap());
        headers.insert("webhook-timestamp", at.into());
        headers.insert("webhook-signature", signature.parse().unwrap());
        headers
    }

    #[test]
    fn what_verifies_is_taken_and_shown_and_a_repeat_is_noticed() {
        let receiver = receiver(&[OLD], None);
        let first = receiver.receive(&headers(OLD, 0), BODY.as_bytes());
        assert_eq!((first.line.as_str(), first.status.as_u16()), ("msg_1 job.succeeded 2 job_1 verified", 204));
        let second = receiver.receive(&headers(OLD, 0), BODY.as_bytes());
        assert!(second.line.ends_with("verified (seen before, 1x)"), "{}", second.line);
    }

    #[test]
    fn what_does_not_verify_is_a_400_that_says_why() {
        let receiver = receiver(&[OLD], None);
        for (headers, body, why) in [
            (headers(NEW, 0), BODY, "signature invalid"),
            (headers(OLD, 0), "{}", "signature invalid"),
            (headers(OLD, 301), BODY, "too old"),
            (headers(OLD, -310), BODY, "future"),
            (HeaderMap::new(), BODY, "missing header webhook-id"),
        ] {
            let received = receiver.receive(&headers, body.as_bytes());
            assert_eq!(received.status, 400);
            assert!(received.line.contains("not verified") && received.line.contains(why), "{}", received.line);
        }
        // A forgery does not make the true one a repeat.
        assert!(receiver.receive(&headers(OLD, 0), BODY.as_bytes()).line.ends_with(" verified"));
    }

    #[test]
    fn both_secrets_verify_while_they_change() {
        let receiver = receiver(&[OLD, NEW], None);
        for (with, said) in [(OLD, "secret 1"), (NEW, "secret 2")] {
            assert!(receiver.receive(&headers(with, 0), BODY.as_bytes()).line.contains(said));
        }
    }

    #[test]
    fn without_a_secret_it_says_that_nothing_was_verified() {
        let received = receiver(&[], None).receive(&HeaderMap::new(), b"\x1b[2J");
        assert_eq!((received.line.as_str(), received.status.as_u16()), ("- - - - unverified", 204));
        assert_eq!(receiver(&[], Some(503)).receive(&HeaderMap::new(), b"{}").status, 503);
    }

    #[test]
    fn secrets_that_cannot_sign_are_refused_and_none_is_shown() {
        assert!(["", "whsec_", "whsec_?", "abcd"].iter().all(|text| secret(text).is_err()));
        assert_eq!(format!("{:?}", secret(OLD).unwrap()), "whsec_***");
    }
}
