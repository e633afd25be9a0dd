//! `penstock schedules create`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use contract::FileId;
use contract::openai::batches::endpoint;
use contract::request::Kind;
use serde_json::{Map, Value, json};

use super::text;
use crate::batch::form;
use crate::batch::submit::{check, pairs, route_of};
use crate::client::server::Server;
use crate::client::{ServerArgs, pair};
use crate::model::Progress;
use crate::terminal;

/// Upload a file of requests and have a batch made of it at each of the times; prints the schedule's id.
///
/// The file is as for `penstock batch submit`, or the id of one that was uploaded. The server keeps
/// it while the schedule is enabled. The times are five fields: minute, hour, day of month, month,
/// day of week; or @hourly, @daily, @weekly, @monthly, @yearly. For example:
///
///     penstock schedules create --cron "0 3 * * *" --file requests.jsonl
///     penstock schedules create --cron "30 18 * * MON-FRI" --timezone Europe/Berlin --file requests.jsonl
///     penstock schedules create --cron @hourly --file file-0193f0c0d0e070008000000000000001 \
///       --endpoint /v1/completions --window 1h --overlap allow --json
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct CreateArgs {
    /// Its times: five fields, in quotes
    #[arg(long, value_name = "EXPRESSION")]
    cron: String,
    /// The requests: a file with a JSON object a line, or the id of an uploaded one (file-…)
    #[arg(long, value_name = "FILE|ID")]
    file: PathBuf,
    /// Where the clock hangs that the times are read from, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    timezone: String,
    /// What people call it [default: the name of the file]
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Which route the lines call [default: the `url` of the first line; needed with an id]
    #[arg(long, value_name = "ROUTE")]
    endpoint: Option<String>,
    /// The time that each batch has, from 1m to 30d
    #[arg(long, value_name = "TIME", default_value = "24h")]
    window: String,
    /// A pair of your own, shown with each batch; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// What happens at a time at which an earlier run has not ended
    #[arg(long, value_name = "WHAT", value_enum, default_value = "skip")]
    overlap: Overlap,
    /// What happens when times were missed, since no scheduler was there: one run for all of them, or none
    #[arg(long, value_name = "WHAT", value_enum, default_value = "one")]
    catch_up: CatchUp,
    /// Make it without letting it run: `penstock schedules enable` does that later
    #[arg(long)]
    disabled: bool,
    /// Print the schedule object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Overlap {
    /// The time is passed over, and counted
    Skip,
    /// Another run beside it
    Allow,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CatchUp {
    /// One run for all of them
    One,
    /// None: they are passed over
    None,
}

pub async fn run(args: &CreateArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let uploaded = args.uploaded();
    if uploaded.is_none() {
        check(&args.file)?;
    }
    let route = match (&args.endpoint, &uploaded) {
        (Some(route), _) => route.clone(),
        (None, None) => route_of(&args.file)?,
        (None, Some(id)) => anyhow::bail!("say with --endpoint which route the lines of {id} call"),
    };
    let known = Kind::ALL.map(endpoint);
    ensure!(known.contains(&route.as_str()), "{route} cannot be called by a batch: {} can", known.join(", "));
    let file = match uploaded {
        Some(id) => id,
        None => {
            let progress = Arc::new(Progress::on_stderr());
            form::upload(server, &args.file, &args.filename(), None, &progress).await?.id
        }
    };
    let made = server.post(&["v1", "schedules"], Some(&args.body(&route, &file))).await;
    let made = made.with_context(|| format!("the file is there as {file}, but no schedule is made"))?;
    if args.json {
        terminal::print_json(&made)?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&format!("{}\n", text(&made, "id")))?;
    match made["next_at"].as_str() {
        Some(next) => terminal::say(&format!("it runs next at {next}")),
        None => {
            terminal::say(&format!("it is disabled: `penstock schedules enable {}` lets it run", text(&made, "id")))
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl CreateArgs {
    /// The id of a file that was uploaded before. A file of that name in this folder is not meant.
    fn uploaded(&self) -> Option<String> {
        let id = self.file.to_str()?;
        id.parse::<FileId>().is_ok().then(|| id.to_owned())
    }

    fn filename(&self) -> String {
        self.file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    fn body(&self, route: &str, file: &str) -> Value {
        let mut batch = Map::new();
        batch.insert("input_file_id".to_owned(), file.into());
        batch.insert("endpoint".to_owned(), route.into());
        batch.insert("completion_window".to_owned(), self.window.clone().into());
        if !self.metadata.is_empty() {
            batch.insert("metadata".to_owned(), pairs(&self.metadata));
        }
        let name = self.name.clone().unwrap_or_else(|| {
            let stem = Path::new(&self.filename()).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            stem.unwrap_or_default().chars().take(200).collect()
        });
        let overlap = match self.overlap {
            Overlap::Skip => "skip",
            Overlap::Allow => "allow",
        };
        let catch_up = match self.catch_up {
            CatchUp::One => "one",
            CatchUp::None => "none",
        };
        json!({"name": name, "cron": self.cron, "timezone": self.timezone, "enabled": !self.disabled,
            "overlap": overlap, "catch_up": catch_up, "batch": batch})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        args: CreateArgs,
    }

    fn typed(arguments: &[&str]) -> CreateArgs {
        Typed::try_parse_from([&["penstock", "--cron", "0 3 * * *"], arguments].concat()).unwrap().args
    }

    #[test]
    fn flags_become_the_body() {
        let args = typed(&["--file", "dir/nightly.jsonl", "--metadata", "a=b", "--overlap", "allow"]);
        assert_eq!(args.uploaded(), None);
        assert_eq!(
            args.body("/v1/completions", "file-1"),
            json!({"name": "nightly", "cron": "0 3 * * *", "timezone": "UTC", "enabled": true, "overlap": "allow",
                "catch_up": "one", "batch": {"input_file_id": "file-1", "endpoint": "/v1/completions",
                "completion_window": "24h", "metadata": {"a": "b"}}})
        );
        let args = typed(&["--file", "file-0193f0c0d0e070008000000000000001", "--disabled", "--name", "n"]);
        assert_eq!(args.uploaded().as_deref(), Some("file-0193f0c0d0e070008000000000000001"));
        let body = args.body("/r", "f");
        assert_eq!((&body["name"], &body["enabled"]), (&json!("n"), &json!(false)));
    }
}
