//! `penstock wait`, and the waiting of `penstock submit --wait`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};

use super::ServerArgs;
use super::job::JobView;
use super::server::{LONG_POLL_SECONDS, Server, ServerError};
use crate::terminal;

/// Exit status when the time was over before the job, as `timeout(1)` has it.
const TIMED_OUT: u8 = 124;

/// A server that answered before may be restarting: its jobs survive that.
const PATIENCE: Duration = Duration::from_secs(60);

/// Wait for a job's end and print the text of its result.
///
/// The exit status is 0 only if the job succeeded; 1 if it failed, was cancelled or expired; 124 if
/// it had not ended in time. The job itself is not touched by any of it. For example:
///
///     penstock wait job_0193f0c0d0e070008000000000000001
///     penstock wait --timeout 10 --json job_0193f0c0d0e070008000000000000001
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct WaitArgs {
    /// The job's id, as `penstock submit` printed it.
    id: String,
    /// Wait no longer than this; without it, until the job's end, which its deadline bounds.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Print the whole job object as JSON instead of the text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

pub async fn run(args: &WaitArgs, server: &Server) -> anyhow::Result<ExitCode> {
    let job = until_ended(server, &args.id, args.timeout.map(Duration::from_secs)).await?;
    report(&job, args.json)
}

/// Prints what became of a job that was waited for; the exit status tells it too.
pub fn report(job: &JobView, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        terminal::print_json(&job.0)?;
    } else if job.has_succeeded() {
        terminal::print(&job.result_text())?;
    }
    if job.has_succeeded() {
        return Ok(ExitCode::SUCCESS);
    }
    let why = job.error().map(|error| format!(": {error}")).unwrap_or_default();
    terminal::say(&format!("job {} is {}{why}", job.id(), job.status()));
    if job.has_ended() {
        return Ok(ExitCode::FAILURE);
    }
    terminal::say(&format!("it goes on; `penstock wait {}` waits again", job.id()));
    Ok(ExitCode::from(TIMED_OUT))
}

/// Polls until the job has ended or the time is over; the job as it was then.
///
/// # Errors
/// The first request fails, the server refuses, or it stays away for a minute.
pub async fn until_ended(server: &Server, id: &str, timeout: Option<Duration>) -> Result<JobView, ServerError> {
    let begun = Instant::now();
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if terminal::is_watched() {
        spinner.enable_steady_tick(Duration::from_millis(200));
    }
    let (mut seen, mut lost_at) = (None::<JobView>, None::<Instant>);
    let ended = loop {
        let asked = Instant::now();
        let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()).as_secs_f64().ceil() as u64);
        // The first answer is wanted at once: whether there is such a job, and where it stands.
        let wait = if seen.is_none() { 0 } else { left.map_or(LONG_POLL_SECONDS, |left| left.min(LONG_POLL_SECONDS)) };
        match JobView::fetch(server, id, Some(wait).filter(|wait| *wait > 0)).await {
            Ok(job) if job.has_ended() => break Ok(job),
            Ok(job) => {
                lost_at = None;
                spinner.set_message(format!("{id} is {} ({} s)", job.status(), begun.elapsed().as_secs()));
                if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                    break Ok(job);
                }
                seen = Some(job);
            }
            Err(error @ ServerError::Unreachable { .. }) => {
                let away = lost_at.get_or_insert(asked).elapsed();
                let over = timeout.is_some_and(|timeout| begun.elapsed() >= timeout);
                if seen.is_none() || away >= PATIENCE || over {
                    break Err(error);
                }
                spinner.set_message(format!("{id}: the server is away ({} s)", away.as_secs()));
            }
            Err(error) => break Err(error),
        }
        // A server that answers long polls at once is not asked in a hot loop.
        if wait > 0 {
            tokio::time::sleep(Duration::from_millis(250).saturating_sub(asked.elapsed())).await;
        }
    };
    spinner.finish_and_clear();
    ended
}
