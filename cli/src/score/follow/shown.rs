//! How far behind the work is: a moving line where somebody watches, a line every ten seconds elsewhere.

use std::collections::VecDeque;
use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::terminal;

/// Time between two lines where nobody watches.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The rate is that of this time.
const RECENT: Duration = Duration::from_secs(30);

/// What there is to say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Lines that were answered.
    pub done: u64,
    /// Of these, without success.
    pub failed: u64,
    /// Lines under way.
    pub under_way: usize,
    /// How long the one that is under way the longest is so.
    pub oldest: Option<Duration>,
    /// Messages that wait in the queue.
    pub waiting: Option<u64>,
    /// Why answers wait.
    pub trouble: Option<String>,
}

/// The display of a run.
pub struct Shown {
    spinner: Option<ProgressBar>,
    reported: Instant,
    samples: VecDeque<(Instant, u64)>,
}

impl Shown {
    /// Nothing is done yet.
    pub fn new() -> Self {
        // Where the answers go to the same terminal, a moving line would be written over them.
        let is_watched = terminal::is_watched() && !std::io::stdout().is_terminal();
        let spinner = is_watched.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        let now = Instant::now();
        Self { spinner, reported: now, samples: VecDeque::from([(now, 0)]) }
    }

    /// How it is now; called about every second.
    pub fn at(&mut self, now: Instant, status: &Status) {
        while self.samples.len() > 1 && self.samples.front().is_some_and(|(at, _)| now - *at > RECENT) {
            self.samples.pop_front();
        }
        let rate = self
            .samples
            .front()
            .map_or(0.0, |(at, done)| status.done.saturating_sub(*done) as f64 / (now - *at).as_secs_f64().max(1e-3));
        self.samples.push_back((now, status.done));
        let line = format!("{status}, {rate:.1} lines/s");
        if let Some(spinner) = &self.spinner {
            spinner.set_message(line);
            spinner.tick();
        } else if now - self.reported >= REPORT_EVERY {
            self.reported = now;
            terminal::say(&line);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} done, {} failed, {} under way", self.done, self.failed, self.under_way)?;
        if let Some(oldest) = self.oldest {
            write!(f, " (oldest {:.1} s)", oldest.as_secs_f64())?;
        }
        if let Some(waiting) = self.waiting {
            write!(f, ", {waiting} waiting in the queue")?;
        }
        if let Some(trouble) = &self.trouble {
            write!(f, ", answers wait: {trouble}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_is_known() {
        let status = Status { done: 7, failed: 2, ..Status::default() };
        assert_eq!(status.to_string(), "7 done, 2 failed, 0 under way");
        let status = Status {
            under_way: 3,
            oldest: Some(Duration::from_millis(1_250)),
            waiting: Some(40),
            trouble: Some("no queue is bound".into()),
            ..status
        };
        assert_eq!(
            status.to_string(),
            "7 done, 2 failed, 3 under way (oldest 1.2 s), 40 waiting in the queue, answers wait: no queue is bound"
        );
    }
}
