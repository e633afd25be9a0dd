//! Tells how far batches are, now and then, to who asks for it by name.

use std::convert::Infallible;
use std::time::Duration;

use contract::openai::batches::BatchObject;
use contract::{Batch, StoreError};

use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::{Chain, Patience};

/// How often the store is asked for batches that run.
const LOOK: Duration = Duration::from_secs(1);
/// Batches of one look: their lines are counted.
const BATCHES: u32 = 20;

/// The loop's state.
pub(crate) struct Progress {
    deps: Deps,
    lead: Lead,
    patience: Patience,
}

impl Progress {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::PROGRESS, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("progress") }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            match self.turn().await {
                Ok(true) => self.patience.succeeded(),
                // Whoever only looks on knows nothing of the backends.
                Ok(false) => {}
                Err(err) => tokio::time::sleep(self.patience.failed(&err)).await,
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// False when another scheduler leads.
    async fn turn(&mut self) -> Result<bool, StoreError> {
        if !self.lead.is_ours().await? {
            return Ok(false);
        }
        for batch in self.deps.admin.batches_to_tell(self.deps.progress_every, BATCHES).await? {
            self.tell(&batch).await?;
        }
        Ok(true)
    }

    async fn tell(&self, batch: &Batch) -> Result<(), StoreError> {
        let data = match serde_json::to_value(BatchObject::of(batch)) {
            Ok(data) => data,
            Err(err) => {
                tracing::error!(batch.id = %batch.id, error = %Chain(&err), "a batch has no JSON form");
                return Ok(());
            }
        };
        let counts = &batch.counts;
        let done = counts.succeeded + counts.failed + counts.cancelled + counts.expired;
        self.deps.admin.tell_progress(&batch.id, done, &data).await?;
        Ok(())
    }
}
