//! How a download looks while it runs: a bar on a terminal, a line every ten seconds elsewhere.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal;

const LINE_EVERY: Duration = Duration::from_secs(10);

/// Tells a person how far a long read or download is. Cheap to call for every piece.
#[derive(Debug)]
pub struct Progress(Option<Shown>);

#[derive(Debug)]
enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

#[derive(Debug)]
struct Lines {
    what: String,
    total: u64,
    first: u64,
    begun: Instant,
    told: Instant,
}

impl Progress {
    /// For the person at this process's stderr.
    pub fn on_stderr() -> Self {
        if terminal::is_watched() {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
            let style = ProgressStyle::with_template(
                "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left",
            );
            bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
            return Self(Some(Shown::Bar(bar)));
        }
        let now = Instant::now();
        Self(Some(Shown::Lines(Mutex::new(Lines { what: String::new(), total: 0, first: 0, begun: now, told: now }))))
    }

    /// For nobody: tests, and what another display shows already.
    pub fn silent() -> Self {
        Self(None)
    }

    /// Something of `total` bytes begins, of which `at` are there already.
    pub fn begin(&self, what: &str, total: u64, at: u64) {
        match &self.0 {
            Some(Shown::Bar(bar)) => {
                // Nothing is drawn until all of it is right.
                bar.set_draw_target(ProgressDrawTarget::hidden());
                bar.reset();
                bar.set_length(total);
                bar.set_message(what.to_owned());
                bar.set_position(at);
                // The time left is guessed from what comes now, not from what was there.
                bar.reset_eta();
                bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
            }
            Some(Shown::Lines(lines)) => {
                let now = Instant::now();
                *lock(lines) = Lines { what: what.to_owned(), total, first: at, begun: now, told: now };
            }
            None => {}
        }
    }

    /// So many bytes are there now.
    pub fn at(&self, bytes: u64) {
        match &self.0 {
            Some(Shown::Bar(bar)) => bar.set_position(bytes),
            Some(Shown::Lines(lines)) => {
                let mut lines = lock(lines);
                if lines.told.elapsed() >= LINE_EVERY {
                    lines.told = Instant::now();
                    terminal::say(&lines.line(bytes));
                }
            }
            None => {}
        }
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        match &self.0 {
            Some(Shown::Bar(bar)) => bar.suspend(|| terminal::say(line)),
            Some(Shown::Lines(_)) => terminal::say(line),
            None => {}
        }
    }

    /// What was begun is over, well or not: the bar goes away.
    pub fn end(&self) {
        if let Some(Shown::Bar(bar)) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Lines {
    fn line(&self, bytes: u64) -> String {
        let rate = bytes.saturating_sub(self.first) as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        let left = match rate {
            0.0 => "?".to_owned(),
            rate => format!("{:.0} s", self.total.saturating_sub(bytes) as f64 / rate),
        };
        let (done, total, rate) = (terminal::bytes(bytes), terminal::bytes(self.total), terminal::bytes(rate as u64));
        format!("{}: {done} of {total}, {rate}/s, {left} left", self.what)
    }
}

fn lock(lines: &Mutex<Lines>) -> std::sync::MutexGuard<'_, Lines> {
    // Whoever panicked while telling left nothing half done.
    lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
