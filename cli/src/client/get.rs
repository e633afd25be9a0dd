//! `penstock get`

use std::fmt::Write as _;
use std::process::ExitCode;

use super::ServerArgs;
use super::job::JobView;
use super::server::{Refusal, Server, ServerError};
use crate::terminal;

/// Show a job, and its result once there is one.
///
/// Of one whose result is not kept any more, what is left is shown.
///
/// For example:
///
///     penstock get job_0193f0c0d0e070008000000000000001
///     penstock get --json job_0193f0c0d0e070008000000000000001 | jq .result
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct GetArgs {
    /// The job's id, as `penstock submit` printed it.
    id: String,
    /// Print the whole job object as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &GetArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let job = match JobView::fetch(server, &args.id, None).await {
        Err(ServerError::Refused(Refusal { status: 410, job: Some(left), message, .. })) => {
            terminal::say(&message);
            JobView(left)
        }
        job => job?,
    };
    if args.json {
        terminal::print_json(&job.0)?
    } else {
        terminal::print(&readable(&job))?
    }
    Ok(ExitCode::SUCCESS)
}

fn readable(job: &JobView) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<9} {value}");
    };
    for (name, field) in
        [("id", "id"), ("status", "status"), ("class", "class"), ("model", "model"), ("release", "release")]
    {
        line(name, job.text(field));
    }
    for (name, field) in [
        ("created", "created_at"),
        ("started", "started_at"),
        ("finished", "finished_at"),
        ("expires", "expires_at"),
        ("kept to", "result_expires_at"),
    ] {
        line(name, job.text(field));
    }
    line("tokens", &job.tokens());
    if let Some(error) = job.error() {
        line("error", &error);
    }
    if job.has_succeeded() && !job.0["result"].is_null() {
        out.push('\n');
        out.push_str(&job.result_text());
    }
    out
}
