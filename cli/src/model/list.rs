//! `penstock model list`

use serde_json::json;

use super::cache::Cache;
use super::catalogue::{ENTRIES, Entry};
use crate::terminal;

/// List the catalogue, and what of it is in the cache folder.
#[derive(Debug, Clone, clap::Args)]
pub struct ListArgs {
    /// Print a JSON array instead of a table, with sizes in bytes, sources and checksums.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ListArgs) -> anyhow::Result<()> {
    let cache = Cache::of_user();
    let state = |entry: &Entry| match (cache.file(entry).is_file(), std::fs::metadata(cache.part(entry))) {
        (true, _) => "cached".to_owned(),
        (false, Ok(part)) if part.len() > 0 => format!("partial, {} %", part.len() * 100 / entry.bytes),
        (false, _) => "not fetched".to_owned(),
    };
    if args.json {
        let describe = |entry: &Entry| {
            let path = cache.file(entry);
            let cached = path.is_file().then_some(path);
            let wheels: Vec<_> =
                entry.wheels.iter().map(|wheel| format!("{}=={}", wheel.package, wheel.version)).collect();
            json!({
                "name": entry.name, "about": entry.about, "licence": entry.licence, "bytes": entry.bytes, "sha256": entry.sha256,
                "hub": {"repo": entry.hub.repo, "file": entry.hub.file}, "wheels": wheels, "path": cached,
            })
        };
        return terminal::print_json(&ENTRIES.iter().map(describe).collect::<Vec<_>>());
    }
    let row = |entry: &Entry| {
        [
            entry.name.to_owned(),
            terminal::bytes(entry.bytes),
            state(entry),
            entry.licence.to_owned(),
            entry.about.to_owned(),
        ]
    };
    terminal::print(&terminal::table(&["NAME", "SIZE", "STATE", "LICENCE", "ABOUT"], ENTRIES.iter().map(row)))
}
