//! `penstock schedules show`

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::Value;

use super::text;
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Show a schedule: its times, when it runs next, and what became of its last time.
///
/// For example:
///
///     penstock schedules show schedule_0193f0c0d0e070008000000000000001
///     penstock schedules show schedule_0193f0c0d0e070008000000000000001 --json | jq -r .next_at
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ShowArgs {
    /// Id of the schedule (`schedule_…`), as `penstock schedules list` shows it
    id: String,
    /// Print the schedule object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &ShowArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let schedule = server.get(&["v1", "schedules", &args.id], &[]).await?;
    if args.json {
        terminal::print_json(&schedule)?;
    } else {
        terminal::print(&readable(&schedule))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn readable(schedule: &Value) -> String {
    let mut out = String::new();
    let batch = &schedule["batch"];
    let enabled = if schedule["enabled"] == Value::Bool(true) { "yes" } else { "no" };
    for (name, value) in [
        ("id", text(schedule, "id")),
        ("name", text(schedule, "name")),
        ("cron", text(schedule, "cron")),
        ("timezone", text(schedule, "timezone")),
        ("enabled", enabled),
        ("overlap", text(schedule, "overlap")),
        ("catch up", text(schedule, "catch_up")),
        ("file", text(batch, "input_file_id")),
        ("endpoint", text(batch, "endpoint")),
        ("window", text(batch, "completion_window")),
        ("created", text(schedule, "created_at")),
        ("next", text(schedule, "next_at")),
        ("last", text(schedule, "last_at")),
        ("last batch", text(schedule, "last_batch_id")),
        ("last error", text(schedule, "last_error")),
    ] {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<10}  {value}");
    }
    let _ = writeln!(out, "{:<10}  {}, {} passed over", "runs", schedule["runs"], schedule["skipped"]);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schedule_shows_why_it_did_not_run() {
        let shown = readable(&json!({
            "id": "schedule_1", "enabled": false, "next_at": null, "last_error": "the file is gone", "runs": 3,
            "skipped": 1, "batch": {"input_file_id": "file-1"},
        }));
        for line in
            ["last error  the file is gone", "next        -", "file        file-1", "runs        3, 1 passed over"]
        {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
    }
}
