//! How far a run is: a bar where somebody watches, a line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::Totals;
use crate::terminal;

/// Time between two lines of progress where nobody watches a bar.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The display of a run; the bar stays where it was when this is dropped.
pub struct Shown {
    bar: Option<ProgressBar>,
    input_bytes: u64,
    begin: Instant,
    first: Option<u64>,
    reported: Instant,
}

impl Shown {
    /// Nothing is done yet of an input of this size.
    pub fn new(input_bytes: u64) -> Self {
        let bar = terminal::is_watched().then(|| {
            let bar = ProgressBar::new(input_bytes);
            let style = ProgressStyle::with_template("{bar:40} {percent:>3}% of the input, {msg}, {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, input_bytes, begin: Instant::now(), first: None, reported: Instant::now() }
    }

    /// The output is written up to this byte of the input.
    pub fn at(&mut self, end: u64, totals: &Totals) {
        let done = totals.succeeded + totals.failed;
        let first = *self.first.get_or_insert(done);
        let rate = (done - first) as f64 / self.begin.elapsed().as_secs_f64().max(1e-3);
        let message = format!("{done} lines, {} failed, {rate:.1} lines/s", totals.failed);
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            bar.set_position(end);
        } else if self.reported.elapsed() >= REPORT_EVERY {
            self.reported = Instant::now();
            let percent = end * 100 / self.input_bytes.max(1);
            terminal::say(&format!("{percent} % of the input, {message}"));
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}
