//! `penstock batch results`, and the end of `penstock batch submit --wait`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::follow;
use super::patience::Patience;
use super::sink::Sink;
use super::view::BatchView;
use crate::client::ServerArgs;
use crate::client::server::{Server, ServerError};
use crate::terminal;

/// Write a batch's results as JSON lines, in the order in which they come; failed lines too.
///
/// Each is a line of OpenAI's output files: {"id", "custom_id", "response", "error"}. A file that
/// holds results of the batch already is gone on with after the last of them. For example:
///
///     penstock batch results batch_0193f0c0d0e070008000000000000001 | jq -r .custom_id
///     penstock batch results batch_0193f0c0d0e070008000000000000001 -o results.jsonl --follow
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ResultsArgs {
    /// The batch's id, as `penstock batch submit` printed it
    id: String,
    /// Write them to this file instead of the standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on until the batch has ended; exit status 0 only if every line succeeded
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &ResultsArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let mut patience = Patience::default();
    // A batch that is not there leaves no file behind.
    patience.ask(async || BatchView::fetch(server, &args.id).await).await?;
    let mut sink = match &args.output {
        Some(output) => Sink::file(output)?,
        None => Sink::stdout(),
    };
    let from = sink.after.clone();
    let read = async {
        if args.follow {
            let ended = follow::until_ended(server, &args.id, Some(&mut sink), &mut patience).await?;
            return if sink.is_closed { Ok(ExitCode::SUCCESS) } else { report(&ended, false) };
        }
        let page = follow::drain(server, &args.id, &mut sink, &mut patience).await?;
        if !page.is_last() && !sink.is_closed {
            let state = page.status.as_str();
            terminal::say(&format!(
                "{} results so far; the batch is {state}, --follow waits for its end",
                sink.written
            ));
        }
        Ok(ExitCode::SUCCESS)
    };
    let read: anyhow::Result<ExitCode> = read.await;
    match (&args.output, from) {
        (Some(output), Some(from)) => read.map_err(|error| explain(error, output, &from)),
        _ => read,
    }
}

/// A refused `after` means that the file is another batch's.
fn explain(error: anyhow::Error, output: &std::path::Path, from: &str) -> anyhow::Error {
    match error.downcast_ref::<ServerError>() {
        Some(ServerError::Refused(refusal)) if refusal.param.as_deref() == Some("after") => error.context(format!(
            "{} ends with {from}, which the server does not know as a line of this batch: name another file with -o",
            output.display()
        )),
        _ => error,
    }
}

/// Says what became of a batch that was followed; the exit status tells it too.
pub fn report(batch: &BatchView, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        terminal::print_json(&batch.raw)?;
    }
    let about = &batch.about;
    let counts = about.request_counts;
    terminal::say(&format!(
        "batch {} is {}: {} lines, {} succeeded, {} did not",
        about.id,
        about.status.as_str(),
        counts.total,
        counts.completed,
        counts.failed
    ));
    for error in batch.errors() {
        terminal::say(&error);
    }
    if let (Some(file), false) = (&about.error_file_id, batch.has_succeeded()) {
        terminal::say(&format!(
            "all lines without a result are in the file {file}; `penstock batch resubmit {}` makes a new batch of them",
            about.id
        ));
    }
    Ok(if batch.has_succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::server::Refusal;

    #[test]
    fn a_file_of_another_batch_is_explained() {
        let refused = |param: &str| -> anyhow::Error {
            ServerError::Refused(Refusal { status: 400, param: Some(param.to_owned()), ..Refusal::default() }).into()
        };
        let path = std::path::Path::new("out.jsonl");
        assert!(explain(refused("after"), path, "job_1").to_string().contains("out.jsonl ends with job_1"));
        assert!(!explain(refused("limit"), path, "job_1").to_string().contains("out.jsonl"));
    }
}
