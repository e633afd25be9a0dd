//! One attempt to deliver one webhook: signed, guarded, bounded in time and size. Standard Webhooks 1.0.0,
//! <https://www.standardwebhooks.com>.
//!
//! The client names the address, so the guard is asked three times: about the URL, about each address of its name, and,
//! where the port is none of HTTPS, whether each of these was allowed by name. It is asked where the connection is made,
//! about the addresses that are then connected to: a name that leads elsewhere at the next look gains nothing.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use contract::guard::{BadTarget, Guard, is_localhost};
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook, WebhookError};
use tokio::time::{Instant, timeout_at};

#[cfg(test)]
mod tests;

/// How much of an answer is read, so that its connection serves again; a longer one costs its connection.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The longest that a server may put off the next attempt.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Deliveries to one server are few and far between.
const IDLE_CONNECTIONS: usize = 2;
const IDLE_TIME: Duration = Duration::from_secs(30);

const LEADS_INSIDE: &str = "the name leads to an address that is not of the public internet; to allow it, list its \
                            network in the setting `webhooks.allowed_networks`";

/// What one attempt delivers.
pub(crate) struct Message<'a> {
    /// The `webhook-id`: the same in every attempt, without a dot.
    pub(crate) id: &'a str,
    /// Where to.
    pub(crate) url: &'a str,
    /// The JSON, byte for byte as it is signed.
    pub(crate) body: &'a str,
    /// Secrets `whsec_…`, the newest first: each signs, so that a client may change from one to the next.
    pub(crate) secrets: &'a [String],
}

/// How an attempt ended. A `why` is for the client: one short phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A status of 2xx.
    Delivered {
        /// The status.
        status: u16,
    },
    /// The status 410: the server wants no more of these.
    Gone,
    /// Any other status, redirects included.
    Failed {
        /// The status.
        status: u16,
        /// How long the server asks to be left alone, at most a day.
        retry_after: Option<Duration>,
    },
    /// No status: no connection, no TLS, no answer in time.
    Unreachable {
        /// What went wrong.
        why: String,
    },
    /// The guard refused the URL, or an address of its name.
    Forbidden {
        /// What is wrong with it.
        why: String,
    },
}

/// Delivers webhooks.
pub(crate) struct Sender {
    guard: Arc<Guard>,
    /// For the ports of HTTPS: names may lead wherever the guard lets them.
    usual: Client,
    /// For other ports: names may lead into the allowed networks only. A resolver is not told the port, so this is
    /// another client.
    listed: Client,
    limits: Limits,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The whole attempt.
    attempt: Duration,
    /// Until there is a connection, with the look-up of the name and the TLS handshake.
    connect: Duration,
}

const LIMITS: Limits = Limits { attempt: Duration::from_secs(15), connect: Duration::from_secs(5) };

impl Sender {
    /// # Errors
    /// When the system's certificates cannot be read.
    pub(crate) fn new(guard: Guard) -> Result<Self, reqwest::Error> {
        Self::with(guard, Arc::new(SystemResolver), LIMITS)
    }

    fn with(guard: Guard, lookup: Arc<dyn Lookup>, limits: Limits) -> Result<Self, reqwest::Error> {
        // An error says that a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let guard = Arc::new(guard);
        let client = |listed_only| {
            let resolver = GuardedResolver { guard: guard.clone(), lookup: lookup.clone(), listed_only };
            Client::builder()
                .dns_resolver(resolver)
                // A proxy would resolve the name itself, past the guard; for an address that a redirect leads to, no
                // resolver would be asked.
                .no_proxy()
                .redirect(Policy::none())
                .http1_only()
                .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(limits.connect)
                .pool_max_idle_per_host(IDLE_CONNECTIONS)
                .pool_idle_timeout(IDLE_TIME)
                .build()
        };
        let (usual, listed) = (client(false)?, client(true)?);
        Ok(Self { guard, usual, listed, limits })
    }

    /// Makes one attempt; the signatures are of this moment. Dropped halfway, it may or may not have arrived, as after
    /// any failure: receivers know a message by its id.
    pub(crate) async fn send(&self, message: &Message<'_>, now_unix_seconds: i64) -> Answer {
        // Again at every attempt, since the setting may have changed; addresses in numbers are judged here only.
        let url = match self.guard.check_url(message.url) {
            Ok(url) => url,
            Err(err) => return Answer::Forbidden { why: err.to_string() },
        };
        // Nothing leaves unsigned: its receiver could not tell it from a forgery.
        let signature = match signature(message, now_unix_seconds) {
            Ok(signature) if !signature.is_empty() => signature,
            _ => return unreachable("the webhook has no usable secret"),
        };
        let client = if Guard::has_usual_port(&url) { &self.usual } else { &self.listed };
        let request = client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(HEADER_WEBHOOK_ID, message.id)
            .header(HEADER_WEBHOOK_TIMESTAMP, now_unix_seconds)
            .header(HEADER_WEBHOOK_SIGNATURE, signature)
            .body(message.body.to_owned());
        let deadline = Instant::now() + self.limits.attempt;
        let response = match timeout_at(deadline, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(err)) => return fault(&err),
            Err(_) => return unreachable("no answer in time"),
        };
        let answer = match response.status() {
            status if status.is_success() => Answer::Delivered { status: status.as_u16() },
            StatusCode::GONE => Answer::Gone,
            status => Answer::Failed {
                status: status.as_u16(),
                retry_after: retry_after(response.headers(), now_unix_seconds),
            },
        };
        // The status is the answer; whether the rest of it arrives changes nothing.
        let _ = timeout_at(deadline, drain(response)).await;
        answer
    }
}

/// One signature per secret, in their order.
fn signature(message: &Message<'_>, timestamp: i64) -> Result<String, WebhookError> {
    let sign = |secret: &String| Webhook::new(secret)?.sign(message.id, timestamp, message.body.as_bytes());
    Ok(message.secrets.iter().map(sign).collect::<Result<Vec<_>, _>>()?.join(" "))
}

/// Reads an answer to its end, or to the most that is read, and keeps nothing of it.
async fn drain(mut response: Response) {
    let mut left = MAX_ANSWER_BYTES;
    while left > 0 {
        match response.chunk().await {
            Ok(Some(chunk)) => left = left.saturating_sub(chunk.len()),
            Ok(None) | Err(_) => return,
        }
    }
}

/// `Retry-After`, in seconds or as a date; `None` when there is none that can be read.
fn retry_after(headers: &HeaderMap, now_unix_seconds: i64) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that are no number of 64 bits are too many for it.
        text.parse().unwrap_or(u64::MAX)
    } else {
        let at = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        at.as_secs().saturating_sub(u64::try_from(now_unix_seconds).unwrap_or(0))
    };
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

fn unreachable(why: &str) -> Answer {
    Answer::Unreachable { why: why.to_owned() }
}

/// What to say of a request without a status. Never an error's own text: it holds the URL, and that may hold secrets.
fn fault(error: &reqwest::Error) -> Answer {
    if let Some(Refused(why)) = find(error) {
        return Answer::Forbidden { why: why.clone() };
    }
    let refused = |io: &io::Error| io.kind() == io::ErrorKind::ConnectionRefused;
    unreachable(match find(error) {
        Some(rustls::Error::InvalidCertificate(_)) => "the server's certificate is not valid for this address",
        Some(_) => "no TLS connection came about",
        None if error.is_dns() => "the name has no address",
        None if error.is_timeout() => "no connection in time",
        None if find(error).is_some_and(refused) => "the connection was refused",
        None if error.is_connect() => "no connection came about",
        None => "the connection ended without an answer",
    })
}

/// The outermost error of type `T` among an error and its sources.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error does not count the error it was made of among its sources, only that one's sources.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Where names lead. The system's resolver, or a test's.
trait Lookup: Send + Sync {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

struct SystemResolver;

impl Lookup for SystemResolver {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|socket| socket.ip()).collect()) }.boxed()
    }
}

/// The guard refused what a name leads to.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Resolves names to addresses that may be connected to. Never asked about addresses in numbers.
struct GuardedResolver {
    guard: Arc<Guard>,
    lookup: Arc<dyn Lookup>,
    /// Only addresses that were allowed by name.
    listed_only: bool,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        // The guard decided about 127.0.0.1 when it let this name pass; hosts files also give it other addresses.
        let looked_up = if is_localhost(&name) {
            futures::future::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()])).boxed()
        } else {
            self.lookup.lookup(name)
        };
        let (guard, listed_only) = (self.guard.clone(), self.listed_only);
        Box::pin(async move {
            let addresses = looked_up.await?;
            if addresses.is_empty() {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            // One address inside among others outside is no mistake of a public server's: the whole name is refused.
            if addresses.iter().any(|address| guard.check_address(*address).is_err()) {
                return Err(Refused(LEADS_INSIDE.to_owned()).into());
            }
            if listed_only && !addresses.iter().all(|address| guard.allows(*address)) {
                return Err(Refused(BadTarget::Port.to_string()).into());
            }
            let sockets = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(sockets) as Addrs)
        })
    }
}
