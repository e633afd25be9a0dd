//! The server at the other end: requests out, JSON or a readable refusal back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, Url};
use serde_json::Value;

use crate::config::{Client, Secret};

/// Most seconds of one long poll. Below the minute after which proxies cut a silent connection.
pub const LONG_POLL_SECONDS: u64 = 30;

/// Silence that is more than a long poll explains.
const QUIET: Duration = Duration::from_secs(LONG_POLL_SECONDS + 30);

/// The client's bound on silence counts from the beginning of an upload, whose own watch is [`Server::upload`].
const LONGEST_UPLOAD: Duration = Duration::from_secs(24 * 3_600);

/// Makes a repeat of a request the same thing.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Why the server did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nobody answers there.
    #[error(
        "no server answers at {address} ({cause}): start one with `penstock serve`, or name another with --server or PENSTOCK_SERVER"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// What the system says.
        cause: String,
    },
    /// It answered with an error.
    #[error("{}", .0.readable())]
    Refused(Refusal),
    /// It answered with something that Penstock does not say.
    #[error("{address} answered {status} with something else than JSON: is it a Penstock server?")]
    Foreign {
        /// Where.
        address: String,
        /// The HTTP status.
        status: u16,
    },
}

/// An error answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// What the server says is wrong.
    pub message: String,
    /// Its stable code.
    pub code: Option<String>,
    /// The field at fault.
    pub param: Option<String>,
    /// When to come back.
    pub retry_after: Option<String>,
    /// What is left of a job whose payload is gone.
    pub job: Option<Value>,
}

impl Refusal {
    fn of(status: u16, retry_after: Option<String>, body: &Value) -> Self {
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        let message = text("message").unwrap_or_else(|| "the answer does not say why".to_owned());
        Self { status, message, code: text("code"), param: text("param"), retry_after, job: body.get("job").cloned() }
    }

    fn readable(&self) -> String {
        let code = self.code.as_ref().map(|code| format!(", {code}")).unwrap_or_default();
        // Most messages name the field themselves.
        let field = self.param.as_ref().filter(|param| !self.message.contains(param.as_str()));
        let field = field.map(|param| format!(" (field {param})")).unwrap_or_default();
        let next = self.next_step().map(|next| format!("\n{next}")).unwrap_or_default();
        format!("the server refused ({}{code}): {}{field}{next}", self.status, self.message)
    }

    fn next_step(&self) -> Option<String> {
        let is = |code: &str| self.code.as_deref() == Some(code);
        match self.status {
            401 | 403 => Some("give a key that may do this with PENSTOCK_API_KEY or --api-key".to_owned()),
            404 if is("model_not_found") => Some("without --model the server's own model is used".to_owned()),
            404 if is("job_not_found") => Some("`penstock list` shows the jobs there are".to_owned()),
            404 if is("batch_not_found") => Some("`penstock batch list` shows the batches there are".to_owned()),
            404 if is("schedule_not_found") => {
                Some("`penstock schedules list` shows the schedules there are".to_owned())
            }
            404 if is("webhook_not_found") => Some("`penstock webhooks list` shows the webhooks there are".to_owned()),
            404 if is("delivery_not_found") => {
                Some("`penstock webhooks deliveries` shows the deliveries there are".to_owned())
            }
            404 if is("sequence_not_found") => {
                Some("`penstock sequences list` shows the blocked sequences there are".to_owned())
            }
            413 => Some("the largest body is the server's setting limits.body_mib".to_owned()),
            429 | 503 => self.retry_after.as_ref().map(|seconds| format!("try again in {seconds} s")),
            500.. => Some("the server's log says more".to_owned()),
            _ => None,
        }
    }
}

/// One server.
#[derive(Debug, Clone)]
pub struct Server {
    http: reqwest::Client,
    base: Url,
    key: Option<Secret>,
}

impl Server {
    /// The server of the settings. Connects to nothing yet.
    ///
    /// # Errors
    /// An address that is no HTTP URL; no HTTP client can be made.
    pub fn new(settings: &Client) -> anyhow::Result<Self> {
        let wrong =
            || format!("{:?} is no address of a server: write for example http://127.0.0.1:8080", settings.server);
        let mut base = Url::parse(&settings.server).with_context(wrong)?;
        anyhow::ensure!(matches!(base.scheme(), "http" | "https") && base.has_host(), wrong());
        // A server may live below a path; without the slash, joining would replace its last part.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let http = crate::http::client(QUIET)
            .context("could not set up HTTPS (the system's certificates could not be read)")?;
        Ok(Self { http, base, key: settings.api_key.clone() })
    }

    /// `GET`; `path` has no leading slash.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, ServerError> {
        let mut url = self.url(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.ask(self.http.get(url)).await
    }

    /// `POST` with a JSON body, or without one.
    pub async fn post(&self, path: &[&str], body: Option<&Value>) -> Result<Value, ServerError> {
        let request = self.http.post(self.url(path));
        let request = if let Some(body) = body { request.json(body) } else { request };
        self.ask(request).await
    }

    /// `DELETE`.
    pub async fn delete(&self, path: &[&str]) -> Result<Value, ServerError> {
        self.ask(self.http.delete(self.url(path))).await
    }

    /// The URL of a path; each part is one segment whatever it contains.
    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http address has a path").pop_if_empty().extend(path);
        url
    }

    /// `POST` with a JSON body, under an idempotency key if there is one.
    pub async fn post_once(&self, path: &[&str], body: &Value, key: Option<&str>) -> Result<Value, ServerError> {
        let request = self.http.post(self.url(path)).json(body);
        self.ask(if let Some(key) = key { request.header(IDEMPOTENCY_KEY, key) } else { request }).await
    }

    /// `GET` of something that is no JSON, or long: the answer as it comes.
    pub async fn open(&self, path: &[&str], query: &[(&str, String)]) -> Result<Answer, ServerError> {
        let mut url = self.url(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let response = self.send(self.http.get(url)).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(Answer { response, address: self.address() });
        }
        Err(self.refusal(response).await)
    }

    /// `POST` of a long body. It may last; a minute in which nothing of it moves is the end.
    pub async fn upload(&self, path: &[&str], upload: Upload, key: Option<&str>) -> Result<Value, ServerError> {
        let unreachable = |cause: String| ServerError::Unreachable { address: self.address(), cause };
        let http = crate::http::client(LONGEST_UPLOAD).map_err(|error| unreachable(crate::http::cause(&error)))?;
        let request = http.post(self.url(path)).body(upload.body);
        let request = request.header(CONTENT_TYPE, upload.content_type).header(CONTENT_LENGTH, upload.length);
        let request = if let Some(key) = key { request.header(IDEMPOTENCY_KEY, key) } else { request };
        tokio::select! {
            answer = self.ask(request) => answer,
            () = stalled(&upload.moved) => Err(unreachable(format!("nothing moved for {} s", QUIET.as_secs()))),
        }
    }

    async fn ask(&self, request: RequestBuilder) -> Result<Value, ServerError> {
        let response = self.send(request).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.refusal(response).await);
        }
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&body)
            .map_err(|_| ServerError::Foreign { address: self.address(), status: status.as_u16() })
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Response, ServerError> {
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }
        request.send().await.map_err(|error| self.unreachable(&error))
    }

    /// What an answer that is no success says.
    async fn refusal(&self, response: Response) -> ServerError {
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| Some(value.to_str().ok()?.to_owned()));
        match response.bytes().await.map(|body| serde_json::from_slice(&body)) {
            Ok(Ok(body)) => ServerError::Refused(Refusal::of(status, retry_after, &body)),
            Ok(Err(_)) => ServerError::Foreign { address: self.address(), status },
            Err(error) => self.unreachable(&error),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> ServerError {
        ServerError::Unreachable { address: self.address(), cause: crate::http::cause(error) }
    }

    /// The address as messages show it: without a password.
    pub fn address(&self) -> String {
        let mut shown = self.base.clone();
        if shown.password().is_some() {
            let _ = shown.set_password(Some("***"));
        }
        shown.as_str().trim_end_matches('/').to_owned()
    }
}

/// A long body on its way to the server.
pub struct Upload {
    /// What it is.
    pub content_type: String,
    /// Its bytes.
    pub length: u64,
    /// The bytes themselves.
    pub body: reqwest::Body,
    /// How many of them were taken so far; whoever makes the body counts.
    pub moved: Arc<AtomicU64>,
}

/// Ends when the count has not changed for [`QUIET`].
async fn stalled(moved: &AtomicU64) {
    let (mut seen, mut since) = (0, Instant::now());
    while since.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = moved.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
}

/// A successful answer whose body is still to come.
#[derive(Debug)]
pub struct Answer {
    response: Response,
    address: String,
}

impl Answer {
    /// A header that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Gives each line of the body to `take`, without its line end. After an error, some of them may have been given.
    ///
    /// # Errors
    /// The body breaks off ([`ServerError`] in the chain), or `take` fails.
    pub async fn lines(mut self, mut take: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut rest = Vec::new();
        while let Some(chunk) = self.response.chunk().await.map_err(|error| self.broken(crate::http::cause(&error)))? {
            let mut chunk = chunk.as_ref();
            while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
                rest.extend_from_slice(&chunk[..end]);
                take(&rest)?;
                rest.clear();
                chunk = &chunk[end + 1..];
            }
            rest.extend_from_slice(chunk);
        }
        if !rest.is_empty() {
            return Err(self.broken("the answer ended in the middle of a line".to_owned()).into());
        }
        Ok(())
    }

    fn broken(&self, cause: String) -> ServerError {
        ServerError::Unreachable { address: self.address.clone(), cause }
    }
}
