//! `penstock list`

use std::num::NonZeroUsize;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::ServerArgs;
use super::job::JobView;
use super::server::{Server, ServerError};
use crate::terminal;

/// Jobs asked for at once; more are fetched page by page.
const PAGE: usize = 100;

/// List jobs, newest first.
///
/// For example:
///
///     penstock list
///     penstock list --state failed --class bulk --limit 100
///     penstock list --json | jq -r .data[].id
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ListArgs {
    /// Only jobs in this state: queued, running, succeeded, failed, cancelled or expired.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only jobs of this class: interactive, standard or bulk.
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Most jobs to list.
    #[arg(long, value_name = "N", default_value = "20")]
    limit: NonZeroUsize,
    /// Begin after this job: the last one of an earlier list.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Print {"object": "list", "data": […], "has_more": …, "last_id": …} instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &ListArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let found = find(args, server).await?;
    let last = found.jobs.last().map(|job| job.id().to_owned());
    if args.json {
        let data: Vec<_> = found.jobs.iter().map(|job| &job.0).collect();
        terminal::print_json(&json!({"object": "list", "data": data, "has_more": found.has_more, "last_id": last}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if found.jobs.is_empty() {
        terminal::say("no such jobs: `penstock submit` makes one");
        return Ok(ExitCode::SUCCESS);
    }
    let row = |job: &JobView| {
        let plain = ["id", "status", "class", "model", "created_at"].map(|field| job.text(field).to_owned());
        plain.into_iter().chain([job.tokens(), job.error().unwrap_or_else(|| "-".to_owned())])
    };
    let header = ["ID", "STATUS", "CLASS", "MODEL", "CREATED", "TOKENS", "ERROR"];
    terminal::print(&terminal::table(&header, found.jobs.iter().map(row)))?;
    if let Some(last) = last.filter(|_| found.has_more) {
        terminal::say(&format!("there are more: --after {last} goes on, --limit shows more at once"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Jobs of one or more pages.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) jobs: Vec<JobView>,
    pub(super) has_more: bool,
}

pub(super) async fn find(args: &ListArgs, server: &Server) -> Result<Found, ServerError> {
    let mut found = Found::default();
    let mut after = args.after.clone();
    while found.jobs.len() < args.limit.get() {
        let limit = (args.limit.get() - found.jobs.len()).min(PAGE);
        let mut query = vec![("limit", limit.to_string())];
        for (name, value) in [("status", &args.state), ("class", &args.class), ("after", &after)] {
            query.extend(value.clone().map(|value| (name, value)));
        }
        let page = server.get(&["v1", "jobs"], &query).await?;
        let jobs = page["data"].as_array().cloned().unwrap_or_default();
        found.has_more = page["has_more"] == Value::Bool(true);
        let came = jobs.len();
        found.jobs.extend(jobs.into_iter().map(JobView));
        after = page["last_id"].as_str().map(str::to_owned);
        // A page without jobs that promises more would be asked for again and again.
        if !found.has_more || came == 0 || after.is_none() {
            break;
        }
    }
    Ok(found)
}
