//! `penstock batch status`

use std::fmt::Write as _;
use std::process::ExitCode;

use contract::openai::batches::BatchProgress;

use super::patience::Patience;
use super::view::{self, BatchView, moment, span};
use super::{follow, results};
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Show where a batch stands: its lines, their speed, the time left and its place in the queue.
///
/// For example:
///
///     penstock batch status batch_0193f0c0d0e070008000000000000001
///     penstock batch status --watch batch_0193f0c0d0e070008000000000000001
///     penstock batch status --json batch_0193f0c0d0e070008000000000000001 | jq .request_counts
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct StatusArgs {
    /// The batch's id, as `penstock batch submit` printed it
    id: String,
    /// Follow it to its end; exit status 0 only if every line succeeded
    #[arg(long)]
    watch: bool,
    /// Print the batch object as JSON, with what is known of its progress as `progress`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &StatusArgs, server: &Server) -> anyhow::Result<ExitCode> {
    if args.watch {
        let ended = follow::until_ended(server, &args.id, None, &mut Patience::default()).await?;
        return results::report(&ended, args.json);
    }
    let mut progress = view::progress(server, &args.id).await?;
    let batch = BatchView::fetch(server, &args.id).await?;
    if progress.status != batch.about.status {
        progress = view::progress(server, &args.id).await?;
    }
    if args.json {
        let mut raw = batch.raw;
        raw["progress"] = serde_json::to_value(&progress)?;
        terminal::print_json(&raw)?;
    } else {
        terminal::print(&readable(&batch, &progress))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn readable(batch: &BatchView, progress: &BatchProgress) -> String {
    let about = &batch.about;
    let mut lines = vec![
        ("id", about.id.clone()),
        ("status", about.status.as_str().to_owned()),
        ("endpoint", about.endpoint.clone()),
        ("model", about.model.clone().unwrap_or_else(|| "-".to_owned())),
        ("lines", counts(progress)),
    ];
    let speed = progress.lines_per_second.map(|speed| format!("{speed:.1} lines/s"));
    lines.extend(speed.map(|speed| ("speed", speed)));
    lines.extend(progress.seconds_left.map(|seconds| ("left", span(seconds))));
    let place = |ahead| match ahead {
        0 => "its next line is the next of yours".to_owned(),
        ahead => format!("{ahead} of your jobs before its next line"),
    };
    lines.extend(progress.jobs_ahead.map(|ahead| ("queue", place(ahead))));
    let usage = &about.usage;
    lines.push(("tokens", format!("{} + {}", usage.input_tokens, usage.output_tokens)));
    let ended =
        [about.completed_at, about.failed_at, about.expired_at, about.cancelled_at].into_iter().flatten().next();
    let moments = [
        ("created", Some(about.created_at)),
        ("runs after", progress.run_after),
        ("started", about.in_progress_at),
        ("expires", about.expires_at.filter(|_| ended.is_none())),
        ("ended", ended),
    ];
    lines.extend(moments.into_iter().filter_map(|(name, at)| Some((name, moment(at?)))));
    lines.push(("input", about.input_file_id.clone()));
    lines.extend(about.output_file_id.clone().map(|file| ("results", file)));
    lines.extend(about.error_file_id.clone().map(|file| ("errors", file)));
    for (key, value) in about.metadata.iter().flatten() {
        lines.push(("metadata", format!("{key}={value}")));
    }
    lines.extend(batch.errors().into_iter().map(|error| ("wrong", error)));
    let mut out = String::new();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<10} {value}");
    }
    out
}

/// `400: 120 succeeded, 3 failed, 8 running, 269 waiting`.
fn counts(progress: &BatchProgress) -> String {
    let begun = view::ended(progress) + progress.running;
    let all = [
        (progress.succeeded, "succeeded"),
        (progress.failed, "failed"),
        (progress.cancelled, "cancelled"),
        (progress.expired, "expired"),
        (progress.running, "running"),
        // Those that are no jobs yet wait as well.
        (if progress.status.is_terminal() { 0 } else { progress.total.saturating_sub(begun) }, "waiting"),
    ];
    let some: Vec<_> = all.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if some.is_empty() { progress.total.to_string() } else { format!("{}: {}", progress.total, some.join(", ")) }
}
