//! `penstock batch`: files of requests to a running server, and their results back.
//!
//! The parts below the commands serve `penstock score --server` too: uploads as a stream ([`form`]), keys that make a
//! repeat the same thing ([`key`]), pages of results ([`view`]), and bearing with a server that restarts ([`patience`]).

mod cancel;
mod follow;
pub mod form;
pub mod key;
mod list;
pub mod patience;
mod resubmit;
mod results;
mod sink;
mod status;
pub mod submit;
pub mod view;

use std::process::ExitCode;

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::Client;

/// Run files of requests as batches on a server.
///
/// A batch is a file with one request a line, {"custom_id", "method": "POST", "url", "body"}; its lines wait behind all
/// other work.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum BatchCommand {
    Submit(Box<submit::SubmitArgs>),
    Status(status::StatusArgs),
    List(list::ListArgs),
    Results(results::ResultsArgs),
    Cancel(cancel::CancelArgs),
    Resubmit(resubmit::ResubmitArgs),
}

impl BatchCommand {
    /// The server flags given with the command.
    pub fn server_args(&self) -> &ServerArgs {
        match self {
            Self::Submit(args) => &args.server,
            Self::Status(args) => &args.server,
            Self::List(args) => &args.server,
            Self::Results(args) => &args.server,
            Self::Cancel(args) => &args.server,
            Self::Resubmit(args) => &args.server,
        }
    }
}

/// Runs `penstock batch` against the server of the settings (already overridden by [`ServerArgs::flags`]).
///
/// # Errors
/// The server cannot be reached, refuses, or answers something else than Penstock does; a file that cannot be used.
pub async fn run(command: &BatchCommand, settings: &Client) -> anyhow::Result<ExitCode> {
    let server = Server::new(settings)?;
    match command {
        BatchCommand::Submit(args) => submit::run(args, &server).await,
        BatchCommand::Status(args) => status::run(args, &server).await,
        BatchCommand::List(args) => list::run(args, &server).await,
        BatchCommand::Results(args) => results::run(args, &server).await,
        BatchCommand::Cancel(args) => cancel::run(args, &server).await,
        BatchCommand::Resubmit(args) => resubmit::run(args, &server).await,
    }
}
