//! `penstock schedules list` and `runs`

use std::num::NonZeroUsize;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::text;
use crate::batch::view::{BatchView, moment};
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Schedules or batches asked for at once; more are fetched page by page.
const PAGE: usize = 100;

/// List schedules, newest first.
///
/// For example:
///
///     penstock schedules list
///     penstock schedules list --json | jq -r '.data[] | select(.last_error) | .id'
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ListArgs {
    /// Most schedules to list
    #[arg(long, value_name = "N", default_value = "100")]
    limit: NonZeroUsize,
    /// Begin after this schedule: the last one of an earlier list
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Print {"object": "list", "data": […], "has_more": …, "last_id": …} instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// List the batches of a schedule, newest first.
///
/// For example:
///
///     penstock schedules runs schedule_0193f0c0d0e070008000000000000001
///     penstock schedules runs schedule_0193f0c0d0e070008000000000000001 --limit 1 --json | jq -r .data[].id
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct RunsArgs {
    /// Id of the schedule (`schedule_…`), as `penstock schedules list` shows it
    id: String,
    /// Most batches to list
    #[arg(long, value_name = "N", default_value = "20")]
    limit: NonZeroUsize,
    /// Begin after this batch: the last one of an earlier list
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Print {"object": "list", "data": […], "has_more": …, "last_id": …} instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &ListArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let found = find(server, &["v1", "schedules"], args.limit, args.after.clone()).await?;
    if args.json {
        return found.print_json();
    }
    if found.data.is_empty() {
        terminal::say("no such schedules: `penstock schedules create` makes one");
        return Ok(ExitCode::SUCCESS);
    }
    let row = |schedule: &Value| {
        let [id, name, cron, zone, next, last] =
            ["id", "name", "cron", "timezone", "next_at", "last_at"].map(|field| text(schedule, field).to_owned());
        let state = match (schedule["enabled"].as_bool(), schedule["last_error"].is_string()) {
            (Some(true), false) => "enabled",
            (Some(true), true) => "failing",
            _ => "disabled",
        };
        let (runs, skipped) = (schedule["runs"].to_string(), schedule["skipped"].to_string());
        [id, name, cron, zone, state.to_owned(), next, last, runs, skipped]
    };
    let header = ["ID", "NAME", "CRON", "TIMEZONE", "STATE", "NEXT", "LAST", "RUNS", "SKIPPED"];
    terminal::print(&terminal::table(&header, found.data.iter().map(row)))?;
    found.say_more();
    Ok(ExitCode::SUCCESS)
}

pub async fn runs(args: &RunsArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let found = find(server, &["v1", "schedules", &args.id, "runs"], args.limit, args.after.clone()).await?;
    if args.json {
        return found.print_json();
    }
    if found.data.is_empty() {
        terminal::say("it has not run yet: `penstock schedules run` makes a batch of it now");
        return Ok(ExitCode::SUCCESS);
    }
    let batches: Vec<BatchView> = found.data.iter().cloned().map(BatchView::of).collect::<Result<_, _>>()?;
    let row = |batch: &BatchView| {
        let about = &batch.about;
        let failed = about.request_counts.failed.to_string();
        [about.id.clone(), about.status.as_str().to_owned(), batch.counts(), failed, moment(about.created_at)]
    };
    let header = ["ID", "STATUS", "LINES", "FAILED", "CREATED"];
    terminal::print(&terminal::table(&header, batches.iter().map(row)))?;
    found.say_more();
    Ok(ExitCode::SUCCESS)
}

/// What was found in the pages of a route.
struct Found {
    data: Vec<Value>,
    has_more: bool,
}

impl Found {
    fn last(&self) -> Option<&str> {
        self.data.last()?["id"].as_str()
    }

    fn print_json(&self) -> anyhow::Result<ExitCode> {
        let (data, has_more, last) = (&self.data, self.has_more, self.last());
        terminal::print_json(&json!({"object": "list", "data": data, "has_more": has_more, "last_id": last}))?;
        Ok(ExitCode::SUCCESS)
    }

    fn say_more(&self) {
        if let Some(last) = self.last().filter(|_| self.has_more) {
            terminal::say(&format!("there are more: --after {last} goes on, --limit shows more at once"));
        }
    }
}

async fn find(server: &Server, path: &[&str], limit: NonZeroUsize, mut after: Option<String>) -> anyhow::Result<Found> {
    let mut found = Found { data: Vec::new(), has_more: false };
    while found.data.len() < limit.get() {
        let mut query = vec![("limit", (limit.get() - found.data.len()).min(PAGE).to_string())];
        query.extend(after.take().map(|after| ("after", after)));
        let page = server.get(path, &query).await?;
        found.has_more = page["has_more"] == Value::Bool(true);
        let came = page["data"].as_array().cloned().unwrap_or_default();
        let is_empty = came.is_empty();
        found.data.extend(came);
        after = found.last().map(str::to_owned);
        // A page without anything that promises more would be asked for again and again.
        if !found.has_more || is_empty || after.is_none() {
            break;
        }
    }
    Ok(found)
}
