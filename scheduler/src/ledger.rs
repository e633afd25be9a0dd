//! The usage ledger: what changes of jobs left to be summed up goes into its days.
//!
//! Who reads adds up what waits, so this decides only how much that is. Nothing else waits behind it, nor it behind anything
//! else: a backlog may be long, and other work may have slow objects to delete.

use std::convert::Infallible;
use std::time::Duration;

use contract::StoreError;
use tokio::time::{Instant, MissedTickBehavior};

use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::Patience;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);
/// Changes that are summed up at once.
const CHANGES: u32 = 10_000;

/// The loop's state.
pub(crate) struct Ledger {
    deps: Deps,
    lead: Lead,
    patience: Patience,
}

impl Ledger {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::LEDGER, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("ledger") }
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

    /// Sums up all that waits.
    async fn turn(&mut self) -> Result<(), StoreError> {
        // Less than a full page: nothing more waits.
        while self.lead.is_ours().await? && self.deps.admin.fold_usage(CHANGES).await? == u64::from(CHANGES) {}
        Ok(())
    }
}
