//! Log lines on stderr, for people or for machines. Once a release is served, every line names it.

use std::fmt;
use std::sync::OnceLock;

use anyhow::bail;
use contract::Fingerprint;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Log, LogFormat};

static RELEASE: OnceLock<String> = OnceLock::new();

/// From here on every line carries the release's fingerprint.
pub fn serves(release: &Fingerprint) {
    // A process serves one release: the first word stands.
    RELEASE.get_or_init(|| release.to_string());
}

/// The filter that a text stands for: a level, or directives such as `info,scheduler=debug`.
pub fn filter(level: &str) -> Option<EnvFilter> {
    let is_level = level.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    // Any word would pass for the name of a module.
    let is_filter = level.contains(['=', ',']);
    // At this level the clients of object store and broker tell of every try again, while our own lines say it once.
    let directives = if level.eq_ignore_ascii_case("info") { "info,object_store=warn,lapin=off" } else { level };
    EnvFilter::try_new(directives).ok().filter(|_| is_level || is_filter)
}

/// What to say of a text that is no filter.
pub fn not_a_filter(level: &str) -> String {
    format!("`{level}` is no level or filter: try info, or info,scheduler=debug")
}

/// Starts logging as configured.
///
/// # Errors
/// The level is neither a level nor a filter.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let Some(filter) = filter(&log.level) else { bail!("log.level {}", not_a_filter(&log.level)) };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let ansi = crate::terminal::is_watched();
    match log.format {
        LogFormat::Text => {
            lines
                .with_ansi(ansi)
                .event_format(WithRelease { inner: Format::default().with_ansi(ansi), json: false })
                .init();
        }
        LogFormat::Json => {
            lines.json().event_format(WithRelease { inner: Format::default().json(), json: true }).init()
        }
    }
    Ok(())
}

/// Starts logging of warnings only: for commands whose progress is on the terminal.
pub fn start_quiet() {
    let lines =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::new("warn,lapin=off")).with_writer(std::io::stderr);
    lines.with_ansi(crate::terminal::is_watched()).init();
}

/// A line format that puts the release at the end.
struct WithRelease<F> {
    inner: F,
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for WithRelease<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Some(release) = RELEASE.get() else { return self.inner.format_event(ctx, writer, event) };
        let mut line = String::new();
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        match line.strip_suffix('}') {
            Some(object) if self.json => writeln!(writer, "{object},\"penstock.release\":\"{release}\"}}"),
            _ => writeln!(writer, "{line} penstock.release={}", release.get(..12).unwrap_or(release)),
        }
    }
}
