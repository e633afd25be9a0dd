//! Schedules: within a second of its time each has its batch.
//!
//! The store decides, under the lock of the schedule's row, so that two schedulers, or one that is killed at any moment,
//! run no time twice and lose none: here is only who asks, and when.

use std::convert::Infallible;
use std::time::Duration;

use contract::{BatchId, Fired, StoreError};
use tokio::time::{Instant, MissedTickBehavior};

use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::{Chain, Patience};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(500);
/// Schedules of one look.
const PAGE: u32 = 100;

/// The loop's state.
pub(crate) struct Schedules {
    deps: Deps,
    lead: Lead,
    patience: Patience,
}

impl Schedules {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::SCHEDULES, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("schedules") }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        let mut ticks = tokio::time::interval_at(Instant::now(), EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.turn().await {
                Ok(()) => self.patience.succeeded(),
                Err(err) => tokio::time::sleep(self.patience.failed(&err)).await,
            }
        }
    }

    async fn turn(&mut self) -> Result<(), StoreError> {
        while self.lead.is_ours().await? {
            let due = self.deps.admin.due_schedules(PAGE).await?;
            let mut moved_on = false;
            for (id, at) in &due {
                let fired = match self.deps.admin.fire_schedule(id, *at, BatchId::new()).await {
                    // One row that cannot be read must not stop the others.
                    Err(err @ StoreError::Corrupt(_)) => {
                        tracing::error!(schedule.id = %id, error = %Chain(&err), "a schedule cannot be run");
                        continue;
                    }
                    fired => fired?,
                };
                moved_on = true;
                match fired {
                    Some(Fired::Run(batch)) => {
                        tracing::info!(schedule.id = %id, batch.id = %batch.id, due = at.rfc3339(), "a schedule ran");
                    }
                    Some(Fired::Skipped) => {
                        tracing::info!(schedule.id = %id, due = at.rfc3339(), "a time of a schedule was passed over");
                    }
                    Some(Fired::Failed(why)) => tracing::warn!(schedule.id = %id, why, "a schedule could not run"),
                    None => {}
                }
            }
            // Less than a full page: nothing more is due.
            if due.len() < PAGE as usize || !moved_on {
                break;
            }
        }
        Ok(())
    }
}
