//! The model hub: one GET per file, continued by range where it broke off.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures::StreamExt;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_RANGE, RANGE};

use super::catalogue::Entry;
use super::fetch::{Trouble, cannot_write};
use super::part::Part;
use super::progress::Progress;

const PUBLIC: &str = "https://huggingface.co";

/// A connection on which nothing came for this long is given up.
const QUIET: Duration = Duration::from_secs(30);

/// How often a download that got somewhere is continued before another source is tried.
const CONTINUATIONS: u32 = 5;

/// The hub at one address.
#[derive(Debug)]
pub struct Hub {
    http: reqwest::Client,
    endpoint: String,
    token: Option<String>,
}

impl Hub {
    /// The hub of `HF_ENDPOINT`, or the public one; with `HF_TOKEN` where set.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn of_user() -> anyhow::Result<Self> {
        let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        Self::at(&set("HF_ENDPOINT").unwrap_or_else(|| PUBLIC.to_owned()), set("HF_TOKEN"))
    }

    /// The hub at `endpoint`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn at(endpoint: &str, token: Option<String>) -> anyhow::Result<Self> {
        let http = crate::http::client(QUIET)
            .context("could not set up HTTPS (the system's certificates could not be read)")?;
        Ok(Self { http, endpoint: endpoint.trim_end_matches('/').to_owned(), token })
    }

    /// Its address.
    #[cfg(test)]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Completes `part`. On an error what came is on disk.
    pub async fn fetch(&self, entry: &Entry, mut part: Part, progress: &Arc<Progress>) -> Result<Part, Trouble> {
        let mut continuations = 0;
        loop {
            let before = part.len();
            match self.fetch_once(entry, &mut part, progress).await {
                Ok(()) => return Ok(part),
                Err(Trouble::Source(error)) if part.len() > before && continuations < CONTINUATIONS => {
                    continuations += 1;
                    progress.say(&format!(
                        "the hub broke off at {} ({error:#}); continuing",
                        crate::terminal::bytes(part.len())
                    ));
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn fetch_once(&self, entry: &Entry, part: &mut Part, progress: &Progress) -> Result<(), Trouble> {
        let url = format!("{}/{}/resolve/main/{}", self.endpoint, entry.hub.repo, entry.hub.file);
        let mut request = self.http.get(&url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if part.len() > 0 {
            request = request.header(RANGE, format!("bytes={}-", part.len()));
        }
        let response = request.send().await.map_err(|error| unreachable(&error, &url))?;
        let place = part.path().to_owned();
        let disk = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::InvalidData => Trouble::Source(error.into()),
            _ => cannot_write(&error, entry, &place),
        };
        match begins_at(&response, &url)? {
            start if start == part.len() => {}
            0 => part.reset().map_err(disk)?,
            start => return Err(Trouble::Source(anyhow!("{url} answered from byte {start}, not from {}", part.len()))),
        }
        if let Some(announced) = response.content_length().filter(|more| part.len() + more != entry.bytes) {
            let expected = entry.bytes - part.len();
            return Err(Trouble::Source(anyhow!(
                "{url} has {announced} bytes where {expected} were expected: it is another file"
            )));
        }
        progress.begin(entry.name, entry.bytes, part.len());
        let mut body = response.bytes_stream();
        while let Some(piece) = body.next().await {
            let piece = piece
                .map_err(|error| Trouble::Source(anyhow!("the connection broke: {}", crate::http::cause(&error))))?;
            part.append(&piece).map_err(disk)?;
            progress.at(part.len());
        }
        if !part.is_complete() {
            return Err(Trouble::Source(anyhow!("{url} ended at {} of {} bytes", part.len(), entry.bytes)));
        }
        Ok(())
    }
}

/// Where in the file the answer begins: the server may ignore the range that was asked for.
fn begins_at(response: &reqwest::Response, url: &str) -> Result<u64, Trouble> {
    match response.status() {
        StatusCode::OK => Ok(0),
        StatusCode::PARTIAL_CONTENT => {
            let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
            start.ok_or_else(|| Trouble::Source(anyhow!("{url} answered a range without saying which")))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Trouble::Source(anyhow!(
            "{url} answered {}: set HF_TOKEN to a token that may read it",
            response.status()
        ))),
        status => Err(Trouble::Source(anyhow!("{url} answered {status}"))),
    }
}

fn unreachable(error: &reqwest::Error, url: &str) -> Trouble {
    let what = if error.is_connect() || error.is_timeout() { "could not connect to" } else { "could not ask for" };
    Trouble::Source(anyhow!("{what} {url}: {}", crate::http::cause(error)))
}
