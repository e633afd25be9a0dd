//! `penstock batch list`

use std::num::NonZeroUsize;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::view::{BatchView, moment};
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Batches asked for at once; more are fetched page by page.
const PAGE: usize = 100;

/// List batches, newest first.
///
/// For example:
///
///     penstock batch list
///     penstock batch list --limit 100
///     penstock batch list --json | jq -r .data[].id
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ListArgs {
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
    let (batches, has_more) = find(args, server).await?;
    let last = batches.last().map(|batch| batch.about.id.clone());
    if args.json {
        let data: Vec<_> = batches.iter().map(|batch| &batch.raw).collect();
        terminal::print_json(&json!({"object": "list", "data": data, "has_more": has_more, "last_id": last}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if batches.is_empty() {
        terminal::say("no such batches: `penstock batch submit` makes one");
        return Ok(ExitCode::SUCCESS);
    }
    let row = |batch: &BatchView| {
        let about = &batch.about;
        let model = about.model.clone().unwrap_or_else(|| "-".to_owned());
        let counts = (batch.counts(), about.request_counts.failed.to_string());
        [
            about.id.clone(),
            about.status.as_str().to_owned(),
            model,
            counts.0,
            counts.1,
            about.completion_window.clone(),
            moment(about.created_at),
        ]
    };
    let header = ["ID", "STATUS", "MODEL", "LINES", "FAILED", "WINDOW", "CREATED"];
    terminal::print(&terminal::table(&header, batches.iter().map(row)))?;
    if let Some(last) = last.filter(|_| has_more) {
        terminal::say(&format!("there are more: --after {last} goes on, --limit shows more at once"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn find(args: &ListArgs, server: &Server) -> anyhow::Result<(Vec<BatchView>, bool)> {
    let (mut found, mut has_more, mut after) = (Vec::new(), false, args.after.clone());
    while found.len() < args.limit.get() {
        let limit = (args.limit.get() - found.len()).min(PAGE);
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.clone().map(|after| ("after", after)));
        let page = server.get(&["v1", "batches"], &query).await?;
        has_more = page["has_more"] == Value::Bool(true);
        let batches = page["data"].as_array().cloned().unwrap_or_default();
        let came = batches.len();
        for raw in batches {
            found.push(BatchView::of(raw)?);
        }
        after = found.last().map(|batch| batch.about.id.clone());
        // A page without batches that promises more would be asked for again and again.
        if !has_more || came == 0 {
            break;
        }
    }
    Ok((found, has_more))
}
