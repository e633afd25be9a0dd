//! The server at the other end: requests out, JSON or a readable refusal back.

use std::time::Duration;

use anyhow::Context;
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, Url};
use serde_json::Value;

use crate::config::{Client, Secret};

/// Most seconds of one long poll. Below the minute after which proxies cut a silent connection.
pub const LONG_POLL_SECONDS: u64 = 30;

/// Silence that is more than a long poll explains.
const QUIET: Duration = Duration::from_secs(LONG_POLL_SECONDS + 30);

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
}

impl Refusal {
    fn of(status: u16, retry_after: Option<String>, body: &Value) -> Self {
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        let message = text("message").unwrap_or_else(|| "the answer does not say why".to_owned());
        Self { status, message, code: text("code"), param: text("param"), retry_after }
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

    /// The URL of a path; each part is one segment whatever it contains.
    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http address has a path").pop_if_empty().extend(path);
        url
    }

    async fn ask(&self, mut request: RequestBuilder) -> Result<Value, ServerError> {
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }
        let unreachable = |error: reqwest::Error| ServerError::Unreachable {
            address: self.address(),
            cause: crate::http::cause(&error),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let body = response.bytes().await.map_err(unreachable)?;
        let foreign = || ServerError::Foreign { address: self.address(), status: status.as_u16() };
        let body: Value = serde_json::from_slice(&body).map_err(|_| foreign())?;
        if status.is_success() {
            return Ok(body);
        }
        Err(ServerError::Refused(Refusal::of(status.as_u16(), retry_after, &body)))
    }

    /// The address as messages show it: without a password.
    fn address(&self) -> String {
        let mut shown = self.base.clone();
        if shown.password().is_some() {
            let _ = shown.set_password(Some("***"));
        }
        shown.as_str().trim_end_matches('/').to_owned()
    }
}
