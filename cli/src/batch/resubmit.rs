//! `penstock batch resubmit`

use std::process::ExitCode;

use serde_json::{Map, Value};

use super::submit::{pairs, show};
use super::view::BatchView;
use crate::client::server::Server;
use crate::client::{ServerArgs, pair};

/// Make a new batch of the lines of an ended one that have no result; prints its id.
///
/// Those are lines that failed, expired or were cancelled. The first batch and its results stay.
/// For example:
///
///     penstock batch resubmit batch_0193f0c0d0e070008000000000000001
///     penstock batch resubmit batch_0193f0c0d0e070008000000000000001 --window 7d --metadata try=2
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ResubmitArgs {
    /// The id of the batch that has ended
    id: String,
    /// The time the new one has, from 1m to 30d [default: as the first one]
    #[arg(long, value_name = "TIME")]
    window: Option<String>,
    /// A pair of your own in place of those of the first one; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Print the batch object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &ResubmitArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let mut body = Map::new();
    if let Some(window) = &args.window {
        body.insert("completion_window".to_owned(), window.clone().into());
    }
    if !args.metadata.is_empty() {
        body.insert("metadata".to_owned(), pairs(&args.metadata));
    }
    let made = server.post(&["v1", "batches", &args.id, "resubmit"], Some(&Value::Object(body))).await?;
    show(&BatchView::of(made)?, args.json)
}
