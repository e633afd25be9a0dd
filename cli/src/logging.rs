//! Log lines on stderr, for people or for machines.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Starts logging as configured.
///
/// # Errors
/// The level is no filter.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.level).with_context(|| {
        format!("log.level `{}` is no level or filter (try info, or info,scheduler=debug)", log.level)
    })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => lines.with_ansi(crate::terminal::is_watched()).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

/// Starts logging of warnings only: for commands whose progress is on the terminal.
pub fn start_quiet() {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::new("warn")).with_writer(std::io::stderr).init();
}
