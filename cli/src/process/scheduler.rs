//! `penstock scheduler`: what happens to a job that nobody holds.

use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, logging, terminal};

use super::shared_backends;

/// Run the scheduler alone: it feeds queues, ends what is past its deadline, rescues what dead workers held, and
/// archives trajectories.
///
/// Several may run: a lead in the store lets one of them do each work, and another takes over within seconds. Needs
/// store.url, queue.url, bus.url and objects.url.
#[derive(Debug, clap::Args)]
pub struct SchedulerArgs {}

/// Runs `penstock scheduler` until SIGINT or SIGTERM.
///
/// # Errors
/// The backends cannot be used.
pub async fn run(_args: &SchedulerArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default())?.config;
    logging::start(&settings.log)?;
    let backends = shared_backends(&settings).await?;
    let deps = embedded::scheduler_deps(&backends, &settings)?;
    tracing::info!(holder = %deps.holder, "scheduler running");
    terminal::say("Penstock's scheduler is running");
    scheduler::run(deps, embedded::asked_to_stop()).await?;
    tracing::info!("scheduler stopped");
    Ok(true)
}
