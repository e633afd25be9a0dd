//! `penstock cancel`

use std::process::ExitCode;

use super::ServerArgs;
use super::job::JobView;
use super::server::{Server, ServerError};
use crate::terminal;

/// Cancel jobs: no result follows.
///
/// Prints each job's id and state. The exit status is 0 only if every job is cancelled now; a job
/// that had ended before keeps its end. For example:
///
///     penstock cancel job_0193f0c0d0e070008000000000000001
///     penstock list --state queued --json | jq -r .data[].id | xargs penstock cancel
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct CancelArgs {
    /// Ids of the jobs.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Print a JSON array of the job objects instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &CancelArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let (mut jobs, mut all) = (Vec::new(), true);
    for id in &args.ids {
        match cancel(server, id).await {
            Ok(job) => {
                all &= job.status() == "cancelled";
                jobs.push(job);
            }
            // One wrong id does not keep the others running.
            Err(error @ ServerError::Refused(_)) => {
                all = false;
                terminal::say(&format!("{id}: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        terminal::print_json(&jobs.iter().map(|job| &job.0).collect::<Vec<_>>())?;
    } else if !jobs.is_empty() {
        let rows = jobs.iter().map(|job| [job.id().to_owned(), job.status().to_owned()]);
        terminal::print(&terminal::table(&["ID", "STATUS"], rows))?;
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) async fn cancel(server: &Server, id: &str) -> Result<JobView, ServerError> {
    server.post(&["v1", "jobs", id, "cancel"], None).await.map(JobView)
}
