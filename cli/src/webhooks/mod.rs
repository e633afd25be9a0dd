//! `penstock webhooks`: addresses that are told of what happens, what was sent to them, and a receiver to try it with.

mod create;
mod deliveries;
mod list;
mod listen;
mod secrets;

use std::process::ExitCode;

use serde_json::Value;

use crate::client::ServerArgs;
use crate::client::server::Server;
use crate::config::{self, ConfigArgs};

/// Have your server told of what happens to jobs and batches.
///
/// What is sent is signed (Standard Webhooks), sent at least once, and tried again for three days.
/// To see it happen on one machine:
///
///     PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS='["127.0.0.1/32"]' penstock serve
///     penstock webhooks create http://127.0.0.1:9000
///     penstock webhooks listen --secret whsec_…
#[derive(Debug, Clone, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum WebhooksCommand {
    Listen(listen::ListenArgs),
    Create(create::CreateArgs),
    List(list::ListArgs),
    Delete(list::DeleteArgs),
    Deliveries(deliveries::DeliveriesArgs),
    Redeliver(deliveries::RedeliverArgs),
    Secret(secrets::SecretArgs),
    Rotate(secrets::RotateArgs),
}

impl WebhooksCommand {
    /// The server flags given with the command; a receiver needs no server.
    fn server_args(&self) -> Option<&ServerArgs> {
        match self {
            Self::Listen(_) => None,
            Self::Create(args) => Some(&args.server),
            Self::List(args) => Some(&args.server),
            Self::Delete(args) => Some(&args.server),
            Self::Deliveries(args) => Some(&args.server),
            Self::Redeliver(args) => Some(&args.server),
            Self::Secret(args) => Some(&args.server),
            Self::Rotate(args) => Some(&args.server),
        }
    }
}

/// Runs `penstock webhooks`.
///
/// # Errors
/// The server cannot be reached, or refuses; the receiver cannot listen.
pub async fn run(command: &WebhooksCommand, config: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let server = || {
        let flags = command.server_args().map(ServerArgs::flags).unwrap_or_default();
        Server::new(&config::load(config, flags)?.config.client)
    };
    match command {
        WebhooksCommand::Listen(args) => listen::run(args).await,
        WebhooksCommand::Create(args) => create::run(args, &server()?).await,
        WebhooksCommand::List(args) => list::run(args, &server()?).await,
        WebhooksCommand::Delete(args) => list::delete(args, &server()?).await,
        WebhooksCommand::Deliveries(args) => deliveries::run(args, &server()?).await,
        WebhooksCommand::Redeliver(args) => deliveries::redeliver(args, &server()?).await,
        WebhooksCommand::Secret(args) => secrets::run(args, &server()?).await,
        WebhooksCommand::Rotate(args) => secrets::rotate(args, &server()?).await,
    }
}

/// A text field as people see it; `-` where there is none.
fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-")
}

/// The events a webhook is told of, by name.
fn events(webhook: &Value) -> String {
    let words: Vec<_> = webhook["events"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { "all but batch.progress".to_owned() } else { words.join(",") }
}
