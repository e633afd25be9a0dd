//! `penstock sequences`: what a failure blocked, and its resumption.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::client::ServerArgs;
use crate::client::server::{Server, ServerError};
use crate::config::{self, ConfigArgs};
use crate::terminal;

/// Sequences asked for at once; more are fetched page by page.
const PAGE: usize = 100;

/// Look at sequences of jobs, and resume those that a failure blocked.
///
/// Jobs of one --sequence-key run one at a time. When one that was submitted with --on-failure block
/// fails or expires, those behind it wait until the sequence is resumed:
///
///     penstock submit --prompt "Step 1" --sequence-key order-17 --on-failure block
///     penstock sequences list
///     penstock sequences resume order-17
#[derive(Debug, Clone, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum SequencesCommand {
    List(ListArgs),
    Show(ShowArgs),
    Resume(ResumeArgs),
}

/// List blocked sequences, by key: since when, by which job, and how many jobs wait.
///
/// For example:
///
///     penstock sequences list
///     penstock sequences list --json | jq -r .data[].blocked_by | xargs -n1 penstock get
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ListArgs {
    /// Most sequences to list
    #[arg(long, value_name = "N", default_value = "20")]
    limit: NonZeroUsize,
    /// Begin behind this key: the last one of an earlier list
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    /// Print {"object": "list", "data": […], "has_more": …, "last_key": …} instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Show how a sequence stands: idle, running or blocked, and its next job.
#[derive(Debug, Clone, clap::Args)]
pub struct ShowArgs {
    /// The key of its jobs
    #[arg(value_parser = key)]
    key: String,
    /// Print the sequence object as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Resume blocked sequences: the first waiting job of each runs next.
///
/// One that is not blocked stays as it is; one without unfinished jobs is not found. For example:
///
///     penstock sequences resume order-17 order-18
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ResumeArgs {
    /// The keys of their jobs
    #[arg(value_name = "KEY", required = true, value_parser = key)]
    keys: Vec<String>,
    /// Print a JSON array of the sequence objects instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Reads a key. What could not be a part of a path is none: the server takes no such job.
fn key(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("no sequence can have this key".to_owned()),
        key => Ok(key.to_owned()),
    }
}

/// Runs `penstock sequences`.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub async fn run(command: &SequencesCommand, config: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let (SequencesCommand::List(ListArgs { server, .. })
    | SequencesCommand::Show(ShowArgs { server, .. })
    | SequencesCommand::Resume(ResumeArgs { server, .. })) = command;
    let server = Server::new(&config::load(config, server.flags())?.config.client)?;
    match command {
        SequencesCommand::List(args) => args.run(&server).await,
        SequencesCommand::Show(args) => args.run(&server).await,
        SequencesCommand::Resume(args) => args.run(&server).await,
    }
}

impl ListArgs {
    async fn run(&self, server: &Server) -> anyhow::Result<ExitCode> {
        let (mut sequences, mut has_more, mut after) = (Vec::new(), false, self.after.clone());
        while sequences.len() < self.limit.get() {
            let limit = (self.limit.get() - sequences.len()).min(PAGE);
            let mut query = vec![("limit", limit.to_string())];
            query.extend(after.clone().map(|key| ("after", key)));
            let page = server.get(&["v1", "sequences"], &query).await?;
            let came = page["data"].as_array().cloned().unwrap_or_default();
            has_more = page["has_more"] == Value::Bool(true);
            after = page["last_key"].as_str().map(str::to_owned);
            let is_last = !has_more || came.is_empty() || after.is_none();
            sequences.extend(came);
            if is_last {
                break;
            }
        }
        let last = sequences.last().map(|sequence| sequence["key"].clone());
        if self.json {
            let list = json!({"object": "list", "data": sequences, "has_more": has_more, "last_key": last});
            terminal::print_json(&list)?;
            return Ok(ExitCode::SUCCESS);
        }
        if sequences.is_empty() {
            terminal::say("no sequence is blocked");
            return Ok(ExitCode::SUCCESS);
        }
        table(&sequences)?;
        if let Some(last) = last.as_ref().and_then(Value::as_str).filter(|_| has_more) {
            terminal::say(&format!("there are more: --after {last:?} goes on, --limit shows more at once"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ShowArgs {
    async fn run(&self, server: &Server) -> anyhow::Result<ExitCode> {
        let sequence = server.get(&["v1", "sequences", &self.key], &[]).await?;
        if self.json {
            terminal::print_json(&sequence)?;
        } else {
            table(&[sequence])?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ResumeArgs {
    async fn run(&self, server: &Server) -> anyhow::Result<ExitCode> {
        let (mut sequences, mut all) = (Vec::new(), true);
        for key in &self.keys {
            match server.post(&["v1", "sequences", key, "resume"], None).await {
                Ok(sequence) => sequences.push(sequence),
                // One wrong key does not keep the others waiting.
                Err(error @ ServerError::Refused(_)) => {
                    all = false;
                    terminal::say(&format!("{key}: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if self.json {
            terminal::print_json(&sequences)?;
        } else if !sequences.is_empty() {
            table(&sequences)?;
        }
        Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn table(sequences: &[Value]) -> anyhow::Result<()> {
    let row = |sequence: &Value| {
        ["key", "state", "blocked_at", "blocked_by", "unfinished", "next_job"].map(|field| match &sequence[field] {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        })
    };
    let header = ["KEY", "STATE", "BLOCKED", "BY", "UNFINISHED", "NEXT"];
    terminal::print(&terminal::table(&header, sequences.iter().map(row)))?;
    Ok(())
}
