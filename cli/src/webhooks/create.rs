//! `penstock webhooks create`

use std::process::ExitCode;

use contract::WebhookEvent;
use serde_json::json;

use super::{events, text};
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Make a webhook: from now on this address is told of your jobs and batches.
///
/// Prints its id, and the secret that signs what is sent to it. Nothing is told of jobs that were
/// accepted before. For example:
///
///     penstock webhooks create https://example.com/penstock
///     penstock webhooks create https://example.com/failed --event job.failed --event batch.failed
///     penstock webhooks create https://example.com/penstock --json | jq -r .secret
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct CreateArgs {
    /// Where to: https:// on the public internet, or what the server's setting webhooks.allowed_networks lets in
    url: String,
    /// What it is told of, such as job.succeeded; give it several times for several [default: everything but batch.progress]
    #[arg(long = "event", value_name = "EVENT")]
    events: Vec<WebhookEvent>,
    /// What people call it
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// Print the webhook object, with its secret, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &CreateArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let body = json!({"url": args.url, "events": args.events, "description": args.description});
    let made = server.post(&["v1", "webhooks"], Some(&body)).await?;
    if args.json {
        terminal::print_json(&made)?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&format!("id      {}\nsecret  {}\n", text(&made, "id"), text(&made, "secret")))?;
    terminal::say(&format!(
        "{} is told of: {}. `penstock webhooks secret {}` shows the secret again.",
        text(&made, "url"),
        events(&made),
        text(&made, "id"),
    ));
    Ok(ExitCode::SUCCESS)
}
