//! `penstock webhooks list` and `delete`

use std::process::ExitCode;

use serde_json::Value;

use super::{events, text};
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// List webhooks, newest first; never their secrets.
///
/// For example:
///
///     penstock webhooks list
///     penstock webhooks list --json | jq -r '.data[] | select(.enabled | not) | .id'
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ListArgs {
    /// Print {"object": "list", "data": […]} instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Delete webhooks. What waits for them is given up.
///
/// For example:
///
///     penstock webhooks delete wh_0193f0c0d0e070008000000000000001
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct DeleteArgs {
    /// Ids of the webhooks (`wh_…`), as `penstock webhooks list` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &ListArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let list = server.get(&["v1", "webhooks"], &[]).await?;
    if args.json {
        terminal::print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let webhooks = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    if webhooks.is_empty() {
        terminal::say("no webhooks: `penstock webhooks create` makes one");
        return Ok(ExitCode::SUCCESS);
    }
    let row = |webhook: &Value| {
        let state = match webhook["enabled"].as_bool() {
            Some(true) => "enabled".to_owned(),
            _ => format!("disabled: {}", text(webhook, "disabled_reason")),
        };
        let [id, url, created, description] =
            ["id", "url", "created_at", "description"].map(|field| text(webhook, field).to_owned());
        [id, url, events(webhook), created, description, state]
    };
    let header = ["ID", "URL", "EVENTS", "CREATED", "DESCRIPTION", "STATE"];
    terminal::print(&terminal::table(&header, webhooks.iter().map(row)))?;
    Ok(ExitCode::SUCCESS)
}

pub async fn delete(args: &DeleteArgs, server: &Server) -> anyhow::Result<ExitCode> {
    for id in &args.ids {
        let deleted = server.delete(&["v1", "webhooks", id]).await?;
        terminal::say(&format!("{} is deleted", text(&deleted, "id")));
    }
    Ok(ExitCode::SUCCESS)
}
