//! `penstock model pull`

use std::sync::Arc;
use std::time::Instant;

use super::fetch::{Fetcher, SourceChoice};
use super::progress::Progress;
use super::{catalogue, resolve};
use crate::terminal;

/// Fetch a model of the catalogue into the cache folder, and verify it.
///
/// Prints the file's path on stdout when it is there and verified. A download that broke off is
/// continued; a damaged file is fetched again. For example:
///
///     penstock model pull gemma-3-270m-q4_k_m
///     HF_ENDPOINT=https://hub.example penstock model pull gemma-3-270m-q4_k_m --source hub
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct PullArgs {
    /// A name of the catalogue (`penstock model list`).
    name: String,
    /// Where from.
    #[arg(long, value_enum, default_value = "auto")]
    source: SourceChoice,
}

pub async fn run(args: &PullArgs) -> anyhow::Result<()> {
    let entry = catalogue::find(&args.name).ok_or_else(|| resolve::unknown(&args.name))?;
    let fetcher = Fetcher::of_user()?;
    let (there, begun) = (fetcher.cache.file(entry).is_file(), Instant::now());
    let path = fetcher.pull(entry, args.source, &Arc::new(Progress::on_stderr())).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let verb = if there { "was there already; verified" } else { "fetched and verified" };
    terminal::say(&format!(
        "{} {verb}: {} in {seconds:.1} s; licence: {}",
        entry.name,
        terminal::bytes(entry.bytes),
        entry.licence
    ));
    terminal::print(&format!("{}\n", path.display()))
}
