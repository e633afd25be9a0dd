//! `penstock schedules`: batches that a server makes again and again, at the times of a cron expression.

mod change;
mod create;
mod list;
mod show;

use std::process::ExitCode;

use serde_json::Value;

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::Client;

/// Run a file of requests again and again, at the times of a cron expression.
///
/// The server keeps the schedule and makes a batch at each of its times. For example, every night
/// at three, by the clock in Berlin:
///
///     penstock schedules create --cron "0 3 * * *" --timezone Europe/Berlin --file requests.jsonl
///     penstock schedules list
///     penstock schedules runs schedule_0193f0c0d0e070008000000000000001
#[derive(Debug, Clone, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum SchedulesCommand {
    Create(Box<create::CreateArgs>),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Runs(list::RunsArgs),
    Run(change::RunArgs),
    Enable(change::EnableArgs),
    Disable(change::DisableArgs),
    Delete(change::DeleteArgs),
}

impl SchedulesCommand {
    /// The server flags given with the command.
    pub fn server_args(&self) -> &ServerArgs {
        match self {
            Self::Create(args) => &args.server,
            Self::List(args) => &args.server,
            Self::Show(args) => &args.server,
            Self::Runs(args) => &args.server,
            Self::Run(args) => &args.server,
            Self::Enable(args) => &args.server,
            Self::Disable(args) => &args.server,
            Self::Delete(args) => &args.server,
        }
    }
}

/// Runs `penstock schedules` against the server of the settings (already overridden by [`ServerArgs::flags`]).
///
/// # Errors
/// The server cannot be reached, refuses, or answers something else than Penstock does; a file that cannot be used.
pub async fn run(command: &SchedulesCommand, settings: &Client) -> anyhow::Result<ExitCode> {
    let server = Server::new(settings)?;
    match command {
        SchedulesCommand::Create(args) => create::run(args, &server).await,
        SchedulesCommand::List(args) => list::run(args, &server).await,
        SchedulesCommand::Show(args) => show::run(args, &server).await,
        SchedulesCommand::Runs(args) => list::runs(args, &server).await,
        SchedulesCommand::Run(args) => change::run(args, &server).await,
        SchedulesCommand::Enable(args) => change::enable(args, &server).await,
        SchedulesCommand::Disable(args) => change::disable(args, &server).await,
        SchedulesCommand::Delete(args) => change::delete(args, &server).await,
    }
}

/// A text field as people see it; `-` where there is none.
fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-")
}
