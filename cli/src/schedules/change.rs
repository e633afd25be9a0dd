//! `penstock schedules run`, `enable`, `disable` and `delete`

use std::process::ExitCode;

use serde_json::json;

use super::text;
use crate::batch::submit::show;
use crate::batch::view::BatchView;
use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::terminal;

/// Make a batch of a schedule now, whether it is enabled or not; prints the batch's id.
///
/// Its next time stays what it is. For example:
///
///     penstock schedules run schedule_0193f0c0d0e070008000000000000001
///     penstock batch results --follow $(penstock schedules run schedule_0193f0c0d0e070008000000000000001)
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct RunArgs {
    /// Id of the schedule (`schedule_…`), as `penstock schedules list` shows it
    id: String,
    /// Print the batch object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Let schedules run at their times. What passed while they were disabled is not made up for.
#[derive(Debug, Clone, clap::Args)]
pub struct EnableArgs {
    /// Ids of the schedules (`schedule_…`), as `penstock schedules list` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Let schedules rest. What runs of them goes on, and their files are kept no longer than others.
#[derive(Debug, Clone, clap::Args)]
pub struct DisableArgs {
    /// Ids of the schedules (`schedule_…`), as `penstock schedules list` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Delete schedules. Their batches stay, and what runs of them goes on.
#[derive(Debug, Clone, clap::Args)]
pub struct DeleteArgs {
    /// Ids of the schedules (`schedule_…`), as `penstock schedules list` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &RunArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let batch = server.post(&["v1", "schedules", &args.id, "run"], None).await?;
    show(&BatchView::of(batch)?, args.json)
}

pub async fn enable(args: &EnableArgs, server: &Server) -> anyhow::Result<ExitCode> {
    for id in &args.ids {
        let schedule = server.post(&["v1", "schedules", id], Some(&json!({"enabled": true}))).await?;
        terminal::say(&format!("{} runs next at {}", text(&schedule, "id"), text(&schedule, "next_at")));
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn disable(args: &DisableArgs, server: &Server) -> anyhow::Result<ExitCode> {
    for id in &args.ids {
        let schedule = server.post(&["v1", "schedules", id], Some(&json!({"enabled": false}))).await?;
        terminal::say(&format!("{} is disabled", text(&schedule, "id")));
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn delete(args: &DeleteArgs, server: &Server) -> anyhow::Result<ExitCode> {
    for id in &args.ids {
        let deleted = server.delete(&["v1", "schedules", id]).await?;
        terminal::say(&format!("{} is deleted", text(&deleted, "id")));
    }
    Ok(ExitCode::SUCCESS)
}
