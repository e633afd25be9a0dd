//! Everything that happens to a job while nobody is holding it: the feeder moves due rows into bounded queues, the
//! reaper ends what is past its deadline and rescues what dead workers held, the archiver rolls the records of ended
//! jobs into segments of trajectories, batches go from their files to their results, webhooks are told, the usage ledger is
//! summed up, and what was kept for a time goes.
//!
//! It knows the ports only: no SQL, no HTTP, no model. Several schedulers may run; a lead in the store lets one of
//! them do each work, and every action is a compare-and-set all the same.

mod archiver;
mod batches;
mod emptying;
mod feeder;
mod lead;
mod ledger;
mod lines;
mod pace;
mod patience;
mod progress;
mod reaper;
mod records;
mod retention;
mod schedules;
mod webhooks;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use contract::guard::Guard;
use contract::{AdminStore, Bus, JobStore, Queue, Trajectories, WorkerId};
use object_store::ObjectStore;
use tokio::task::{JoinError, JoinSet};

pub use crate::archiver::ArchiveConfig;
use crate::archiver::Archiver;
use crate::batches::Batches;
use crate::feeder::Feeder;
use crate::ledger::Ledger;
use crate::progress::Progress;
use crate::reaper::Reaper;
use crate::retention::Retention;
use crate::schedules::Schedules;
use crate::webhooks::Webhooks;

/// What the scheduler works with.
#[derive(Clone)]
pub struct Deps {
    /// The truth about jobs.
    pub store: Arc<dyn JobStore>,
    /// The truth about files and batches.
    pub admin: Arc<dyn AdminStore>,
    /// Where wake-ups go.
    pub queue: Arc<dyn Queue>,
    /// Where signals come from and go to.
    pub bus: Arc<dyn Bus>,
    /// Where records are staged, and segments go.
    pub objects: Arc<dyn ObjectStore>,
    /// When records are rolled into segments.
    pub archive: ArchiveConfig,
    /// How much is kept of whose lines.
    pub trajectories: Trajectories,
    /// Which addresses webhooks may have.
    pub guard: Guard,
    /// How often who asks for it is told how far a batch is.
    pub progress_every: Duration,
    /// Who this scheduler is when it takes a lead; unique per start.
    pub holder: WorkerId,
}

/// The scheduler stopped before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A loop that never ends did: a bug, and its panic. Start the process again.
    #[error("a loop of the scheduler stopped")]
    Stopped(#[source] JoinError),
}

/// Feeds, reaps, archives, works on batches and tells webhooks until `shutdown` is ready; then answers at once, in the middle of whatever it does, which is
/// safe: a wake-up taken from the store and not published is due again within 60 s, and a segment whose rows were not
/// switched is written again. Errors of the backends are outlived.
///
/// # Errors
/// [`SchedulerError`] when a loop panicked.
pub async fn run(deps: Deps, shutdown: impl Future) -> Result<(), SchedulerError> {
    let mut loops = JoinSet::new();
    loops.spawn(Feeder::new(deps.clone()).run());
    loops.spawn(Reaper::new(deps.clone()).run());
    loops.spawn(Archiver::new(deps.clone()).run());
    loops.spawn(Batches::new(deps.clone()).run());
    loops.spawn(Progress::new(deps.clone()).run());
    loops.spawn(Retention::new(deps.clone()).run());
    loops.spawn(Ledger::new(deps.clone()).run());
    loops.spawn(Schedules::new(deps.clone()).run());
    loops.spawn(Webhooks::new(deps.clone()).run());
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        _ = &mut shutdown => {
            loops.shutdown().await;
            lead::give_back(&*deps.store, &deps.holder).await;
            Ok(())
        }
        Some(ended) = loops.join_next() => match ended {
            Ok(never) => match never {},
            Err(err) => Err(SchedulerError::Stopped(err)),
        },
    }
}
