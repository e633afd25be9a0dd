//! `penstock model verify`

use std::sync::Arc;

use serde_json::json;

use super::cache::Cache;
use super::catalogue::ENTRIES;
use super::fetch::hash;
use super::progress::Progress;
use super::resolve::{Named, hash_folder, named};
use crate::terminal;

/// Compare model files with their SHA-256 in the catalogue.
///
/// A name's file in the cache must have the catalogue's SHA-256. Of a path the SHA-256 is printed, with the catalogue's name
/// for it; a file that the catalogue does not know cannot be verified. The exit status is 0 only if every file is well.
#[derive(Debug, Clone, clap::Args)]
pub struct VerifyArgs {
    /// Names or paths; without any, every model in the cache folder.
    #[arg(value_name = "NAME|PATH")]
    models: Vec<String>,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    json: bool,
}

/// True when every file is well.
pub async fn run(args: &VerifyArgs) -> anyhow::Result<bool> {
    let cache = Cache::of_user();
    let targets = match args.models.as_slice() {
        [] => ENTRIES.iter().filter(|entry| cache.file(entry).is_file()).map(Named::Known).collect(),
        typed => typed.iter().map(|typed| named(typed)).collect::<Result<Vec<_>, _>>()?,
    };
    if targets.is_empty() {
        terminal::say("no model is in the cache folder: `penstock model pull NAME` fetches one");
    }
    let progress = Arc::new(Progress::on_stderr());
    let mut checked = Vec::new();
    for target in &targets {
        checked.push(check(target, &cache, &progress).await?);
    }
    let well = checked.iter().all(|line| line.well);
    if args.json {
        let describe =
            |line: &Checked| json!({"name": line.name, "result": line.result, "ok": line.well, "sha256": line.sha256});
        terminal::print_json(&checked.iter().map(describe).collect::<Vec<_>>())?;
    } else if !checked.is_empty() {
        let rows =
            checked.into_iter().map(|line| [line.name, line.result, line.sha256.unwrap_or_else(|| "-".to_owned())]);
        terminal::print(&terminal::table(&["MODEL", "RESULT", "SHA256"], rows))?;
    }
    Ok(well)
}

struct Checked {
    name: String,
    result: String,
    well: bool,
    sha256: Option<String>,
}

async fn check(target: &Named, cache: &Cache, progress: &Arc<Progress>) -> anyhow::Result<Checked> {
    match target {
        Named::Known(entry) => {
            let (name, path) = (entry.name.to_owned(), cache.file(entry));
            if !path.is_file() {
                return Ok(Checked { name, result: "not fetched".to_owned(), well: false, sha256: None });
            }
            let sha256 = hash(&path, entry.name, progress).await?;
            let well = sha256 == entry.sha256;
            let result = if well {
                "ok".to_owned()
            } else {
                format!("damaged: `penstock model pull {}` fetches it again", entry.name)
            };
            Ok(Checked { name, result, well, sha256: Some(sha256) })
        }
        Named::Folder(path) => {
            let name = path.display().to_string();
            let sha256 = hash_folder(path, &name, progress).await?;
            Ok(Checked { name, result: "not of the catalogue".to_owned(), well: false, sha256: Some(sha256) })
        }
        Named::File(path) => {
            let name = path.display().to_string();
            let sha256 = hash(path, &name, progress).await?;
            let known = ENTRIES.iter().find(|entry| entry.sha256 == sha256);
            let result = known.map_or_else(|| "not of the catalogue".to_owned(), |entry| format!("ok: {}", entry.name));
            Ok(Checked { name, result, well: known.is_some(), sha256: Some(sha256) })
        }
    }
}
