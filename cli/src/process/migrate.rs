//! `penstock migrate`: brings the tables of the store up to date.

use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, logging, terminal};

/// Bring the tables of the job store (store.url) up to date.
///
/// Run it once before the other processes of a new version start. Two at once do no harm: one waits for the other. The
/// embedded store needs none, since `penstock serve` does it at start.
#[derive(Debug, clap::Args)]
pub struct MigrateArgs {}

/// Runs `penstock migrate`.
///
/// # Errors
/// The store cannot be reached, or was written by a newer version.
pub async fn run(_args: &MigrateArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default())?.config;
    logging::start_quiet();
    let urls = embedded::urls(&settings.serve.data_dir, &settings)?;
    let applied = backends::migrate(&urls).await?;
    match applied {
        0 => terminal::say("the tables are up to date"),
        1 => terminal::say("applied 1 migration"),
        n => terminal::say(&format!("applied {n} migrations")),
    }
    Ok(true)
}
