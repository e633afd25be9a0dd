//! `penstock batch cancel`

use std::process::ExitCode;

use super::view::BatchView;
use crate::client::ServerArgs;
use crate::client::server::{Server, ServerError};
use crate::terminal;

/// Cancel batches: lines that have not ended get no result; what has ended is kept.
///
/// A batch is `cancelling` until its last running line has ended, and then `cancelled`. The exit
/// status is 0 only if every batch is one of these now; one that had ended before keeps its end.
/// For example:
///
///     penstock batch cancel batch_0193f0c0d0e070008000000000000001
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct CancelArgs {
    /// Ids of the batches
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Print a JSON array of the batch objects instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &CancelArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let (mut batches, mut all) = (Vec::new(), true);
    for id in &args.ids {
        match server.post(&["v1", "batches", id, "cancel"], None).await {
            Ok(raw) => batches.push(BatchView::of(raw)?),
            // One wrong id does not keep the others running.
            Err(error @ ServerError::Refused(_)) => {
                all = false;
                terminal::say(&format!("{id}: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        terminal::print_json(&batches.iter().map(|batch| &batch.raw).collect::<Vec<_>>())?;
    } else if !batches.is_empty() {
        let row = |batch: &BatchView| [batch.about.id.clone(), batch.about.status.as_str().to_owned(), batch.counts()];
        terminal::print(&terminal::table(&["ID", "STATUS", "LINES"], batches.iter().map(row)))?;
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
