//! The reaper: within a second a job past its deadline is `expired`, and a dead worker's jobs are queued again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use contract::{QueueId, Reaped, Signal, StoreError};
use tokio::time::{Instant, MissedTickBehavior};

use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::Patience;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(500);
/// Most jobs of one transaction, so that others can write in between.
const LIMIT: u32 = 256;

/// The loop's state.
pub(crate) struct Reaper {
    deps: Deps,
    lead: Lead,
    patience: Patience,
}

impl Reaper {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::REAPER, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("reaper") }
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
            let reaped = self.deps.store.reap(LIMIT).await?;
            let n = reaped.ended.len() + reaped.requeued.len();
            self.tell(reaped).await;
            // Less than a full load: nothing more is due.
            if n < LIMIT as usize {
                break;
            }
        }
        Ok(())
    }

    async fn tell(&self, reaped: Reaped) {
        if !reaped.requeued.is_empty() || !reaped.ended.is_empty() {
            tracing::info!(requeued = reaped.requeued.len(), ended = reaped.ended.len(), "reaped jobs");
        }
        for (job, state) in reaped.ended {
            // A worker may still be at it.
            self.deps.bus.tell(Signal::Cancelled { job }).await;
            self.deps.bus.tell(Signal::Ended { job, state }).await;
        }
        let queues: BTreeSet<QueueId> = reaped.requeued.into_iter().map(|(_, queue)| queue).collect();
        for queue in queues {
            self.deps.bus.tell(Signal::Due { queue }).await;
        }
    }
}
