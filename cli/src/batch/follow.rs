//! Following a batch to its end: how far it is on a bar or in lines, and its results into a sink.

use std::time::{Duration, Instant};

use contract::openai::batches::BatchProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::patience::Patience;
use super::sink::Sink;
use super::view::{self, BatchView, Page, ended, span};
use crate::client::server::Server;
use crate::terminal;

/// Milliseconds between two looks: soon while something happens, seldom while nothing does.
const LOOK_MS: [u64; 4] = [250, 500, 1_000, 2_000];
/// Time between two lines of progress where nobody watches a bar.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Follows a batch to its end, results into the sink if there is one; the batch as it is then.
///
/// # Errors
/// The server refuses or stays away for a minute; the sink cannot be written.
pub async fn until_ended(
    server: &Server,
    id: &str,
    mut sink: Option<&mut Sink>,
    patience: &mut Patience,
) -> anyhow::Result<BatchView> {
    let mut shown = Shown::new();
    let (mut idle, mut before) = (0, None);
    loop {
        let now = patience.ask(async || view::progress(server, id).await).await?;
        shown.at(&now);
        let mut is_over = now.status.is_terminal();
        if let Some(sink) = &mut sink {
            is_over = drain(server, id, sink, patience).await?.is_last() || sink.is_closed;
        }
        if is_over {
            break;
        }
        idle = if before.as_ref() == Some(&now) { (idle + 1).min(LOOK_MS.len() - 1) } else { 0 };
        before = Some(now);
        tokio::time::sleep(Duration::from_millis(LOOK_MS[idle])).await;
    }
    shown.end();
    patience.ask(async || BatchView::fetch(server, id).await).await
}

/// Writes all results that are there now.
///
/// # Errors
/// As [`until_ended`].
pub async fn drain(server: &Server, id: &str, sink: &mut Sink, patience: &mut Patience) -> anyhow::Result<Page> {
    loop {
        let page = patience
            .ask(async || {
                // A page that broke off goes on after its last whole line.
                let after = sink.after.clone();
                view::page(server, id, after.as_deref(), |line| sink.write(line)).await
            })
            .await?;
        sink.flush()?;
        if !page.has_more || sink.is_closed {
            return Ok(page);
        }
    }
}

/// How far a batch is, as one line.
pub fn readable(progress: &BatchProgress) -> String {
    let mut text = format!("{}: {} of {} lines", progress.status.as_str(), ended(progress), progress.total);
    for (n, what) in [(progress.failed, "failed"), (progress.cancelled, "cancelled"), (progress.expired, "expired")] {
        if n > 0 {
            text += &format!(", {n} {what}");
        }
    }
    if let Some(rate) = progress.lines_per_second {
        text += &format!(", {rate:.1} lines/s");
    }
    if let Some(seconds) = progress.seconds_left {
        text += &format!(", {} left", span(seconds));
    }
    if let Some(ahead) = progress.jobs_ahead.filter(|ahead| *ahead > 0 && progress.running == 0) {
        text += &format!(", {ahead} jobs ahead");
    }
    text
}

/// A bar where somebody watches, a line now and then elsewhere.
struct Shown {
    bar: Option<ProgressBar>,
    said: Option<(Instant, String)>,
}

impl Shown {
    fn new() -> Self {
        let bar = terminal::is_watched().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
            let style = ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, said: None }
    }

    fn at(&mut self, progress: &BatchProgress) {
        let text = readable(progress);
        if let Some(bar) = &self.bar {
            bar.set_length(progress.total);
            bar.set_position(ended(progress));
            bar.set_message(text);
            return;
        }
        let is_due = self.said.as_ref().is_none_or(|(at, said)| at.elapsed() >= REPORT_EVERY && *said != text);
        if is_due {
            terminal::say(&text);
            self.said = Some((Instant::now(), text));
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::BatchState;

    #[test]
    fn progress_says_what_is_known_and_nothing_else() {
        let waiting = BatchProgress {
            object: "batch.progress".to_owned(),
            id: "batch_1".to_owned(),
            status: BatchState::InProgress,
            run_after: None,
            total: 400,
            expanded: 400,
            queued: 400,
            running: 0,
            succeeded: 0,
            failed: 0,
            cancelled: 0,
            expired: 0,
            lines_per_second: None,
            seconds_left: None,
            jobs_ahead: Some(7),
            keep_seconds: None,
        };
        assert_eq!(readable(&waiting), "in_progress: 0 of 400 lines, 7 jobs ahead");
        let running = BatchProgress {
            queued: 272,
            running: 8,
            succeeded: 117,
            failed: 3,
            lines_per_second: Some(2.04),
            seconds_left: Some(138),
            ..waiting
        };
        assert_eq!(readable(&running), "in_progress: 120 of 400 lines, 3 failed, 2.0 lines/s, 3 min left");
    }
}
