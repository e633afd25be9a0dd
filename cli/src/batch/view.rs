//! A batch as the server shows it, its progress, and pages of its results.

use anyhow::Context;
use contract::BatchState;
use contract::openai::batches::{BatchObject, BatchProgress};
use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::client::server::{Server, ServerError};

/// Results asked for at once.
const PAGE: u32 = 1_000;
/// Says where the batch stands, beside a page of results.
const STATUS: &str = "penstock-batch-status";
/// Says whether there are more results now.
const HAS_MORE: &str = "penstock-has-more";

/// A batch object: as it came, so that `--json` prints what the server said, and as it is understood.
#[derive(Debug, Clone)]
pub struct BatchView {
    /// As it came.
    pub raw: Value,
    /// What it says.
    pub about: BatchObject,
}

impl BatchView {
    /// Reads an answer.
    ///
    /// # Errors
    /// It is no batch.
    pub fn of(raw: Value) -> anyhow::Result<Self> {
        let about = serde_json::from_value(raw.clone())
            .context("the server answered with something else than a batch: is it a newer one?")?;
        Ok(Self { raw, about })
    }

    /// The batch now.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or answers something else ([`ServerError`] in the chain).
    pub async fn fetch(server: &Server, id: &str) -> anyhow::Result<Self> {
        Self::of(server.get(&["v1", "batches", id], &[]).await?)
    }

    /// Lines that have ended, and all of them, as `120 of 400`.
    pub fn counts(&self) -> String {
        let counts = &self.about.request_counts;
        format!("{} of {}", counts.completed + counts.failed, counts.total)
    }

    /// Whether every line has a result.
    pub fn has_succeeded(&self) -> bool {
        self.about.status == BatchState::Completed && self.about.request_counts.failed == 0
    }

    /// What is wrong with its file, each as `line 3: url_mismatch: …`.
    pub fn errors(&self) -> Vec<String> {
        let errors = self.about.errors.iter().flat_map(|errors| &errors.data);
        let readable = errors.map(|error| {
            let line = error.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{line}{}: {}", error.code, error.message)
        });
        readable.collect()
    }
}

/// How far a batch is.
///
/// # Errors
/// As [`BatchView::fetch`].
pub async fn progress(server: &Server, id: &str) -> anyhow::Result<BatchProgress> {
    let answer = server.get(&["v1", "batches", id, "progress"], &[]).await?;
    serde_json::from_value(answer).context("the server answered with something else than a batch's progress")
}

/// Lines that have ended.
pub fn ended(progress: &BatchProgress) -> u64 {
    progress.succeeded + progress.failed + progress.cancelled + progress.expired
}

/// What a page of results says beside its lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Where the batch stood before the page was read.
    pub status: BatchState,
    /// Whether there were more.
    pub has_more: bool,
}

impl Page {
    /// Whether nothing follows any more.
    pub fn is_last(self) -> bool {
        self.status.is_terminal() && !self.has_more
    }
}

/// Asks for the results after the line with this id; gives each to `take`. After an error, some may have been given.
///
/// # Errors
/// As [`BatchView::fetch`], or `take` fails.
pub async fn page(
    server: &Server,
    id: &str,
    after: Option<&str>,
    take: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<Page> {
    let mut query = vec![("limit", PAGE.to_string())];
    query.extend(after.map(|after| ("after", after.to_owned())));
    let answer = server.open(&["v1", "batches", id, "results"], &query).await?;
    let foreign = || ServerError::Foreign { address: server.address(), status: 200 };
    let status = answer.header(STATUS).and_then(|word| word.parse().ok()).ok_or_else(foreign)?;
    let has_more = answer.header(HAS_MORE) == Some("true");
    answer.lines(take).await?;
    Ok(Page { status, has_more })
}

/// The lines of a file of the server.
///
/// # Errors
/// As [`page`].
pub async fn content(server: &Server, file: &str, take: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    server.open(&["v1", "files", file, "content"], &[]).await?.lines(take).await
}

/// The id of a result: what the next page comes after.
pub fn line_id(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Id {
        id: String,
    }
    serde_json::from_slice(line).ok().map(|line: Id| line.id)
}

/// Unix seconds as people read them.
pub fn moment(seconds: i64) -> String {
    let text = OffsetDateTime::from_unix_timestamp(seconds).ok().and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_else(|| seconds.to_string())
}

/// A span of time as people say it: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
pub fn span(seconds: u64) -> String {
    let two = |big: u64, unit: &str, small: u64, smaller: &str| match small {
        0 => format!("{big} {unit}"),
        small => format!("{big} {unit} {small} {smaller}"),
    };
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        7_200..172_800 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_fitting_unit() {
        let said = [0, 119, 120, 3_599, 7_200, 12_000, 172_800, 180_000].map(span);
        assert_eq!(said, ["0 s", "119 s", "2 min", "60 min", "2 h", "3 h 20 min", "2 d", "2 d 2 h"]);
    }

    #[test]
    fn a_lines_id_is_found_whatever_else_it_says() {
        assert_eq!(line_id(br#"{"custom_id":"a","id":"job_1","response":{"id":"x"}}"#).as_deref(), Some("job_1"));
        assert_eq!(line_id(b"{\"id\":\"job_1\""), None);
        assert_eq!(line_id(b"[]"), None);
    }
}
