//! Commands against a running server: submit, get, wait, cancel, list.
//!
//! They speak the native job routes and know of jobs only what those say, so that a newer server's states and fields
//! pass through.

mod cancel;
mod get;
pub mod job;
mod list;
pub mod server;
mod submit;
mod wait;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use server::Server;
pub use submit::pair;

use crate::config::{Client, Flags};

/// Which server, and as whom; every client command takes these.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServerArgs {
    /// Address of the server [setting client.server, variable PENSTOCK_SERVER; default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Key sent as bearer token [setting client.api_key, variable PENSTOCK_API_KEY, which other users cannot see]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
}

impl ServerArgs {
    /// These flags as settings, for [`crate::config::load`].
    pub fn flags(&self) -> Flags {
        let flags = Flags::default().set("client.server", "--server", self.server.as_deref());
        flags.set("client.api_key", "--api-key", self.api_key.as_deref())
    }
}

/// The commands of this module; each is described at its arguments, which is what `--help` shows.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum ClientCommand {
    Submit(Box<submit::SubmitArgs>),
    Get(get::GetArgs),
    Wait(wait::WaitArgs),
    Cancel(cancel::CancelArgs),
    List(list::ListArgs),
}

impl ClientCommand {
    /// The server flags given with the command.
    pub fn server_args(&self) -> &ServerArgs {
        match self {
            Self::Submit(args) => &args.server,
            Self::Get(args) => &args.server,
            Self::Wait(args) => &args.server,
            Self::Cancel(args) => &args.server,
            Self::List(args) => &args.server,
        }
    }
}

/// Runs a client command against the server of the settings (already overridden by [`ServerArgs::flags`]).
///
/// # Errors
/// The server cannot be reached, refuses, or answers something else than Penstock does; input that cannot be read.
pub async fn run(command: &ClientCommand, settings: &Client) -> anyhow::Result<ExitCode> {
    let server = Server::new(settings)?;
    match command {
        ClientCommand::Submit(args) => submit::run(args, &server).await,
        ClientCommand::Get(args) => get::run(args, &server).await,
        ClientCommand::Wait(args) => wait::run(args, &server).await,
        ClientCommand::Cancel(args) => cancel::run(args, &server).await,
        ClientCommand::List(args) => list::run(args, &server).await,
    }
}
