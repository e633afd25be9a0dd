//! Holding the lead of singleton work without asking the store at every turn.

use std::sync::Arc;
use std::time::Duration;

use contract::{JobStore, StoreError, WorkerId};
use tokio::time::Instant;

/// How long a lead is good without being renewed: a dead leader's work rests for so long.
const TTL: Duration = Duration::from_secs(4);
/// How often it is renewed, or asked for.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// One lead and whether we have it.
pub(crate) struct Lead {
    store: Arc<dyn JobStore>,
    name: &'static str,
    holder: WorkerId,
    held: bool,
    ask_at: Instant,
}

impl Lead {
    pub(crate) fn new(store: Arc<dyn JobStore>, name: &'static str, holder: WorkerId) -> Self {
        Self { store, name, holder, held: false, ask_at: Instant::now() }
    }

    /// Whether this scheduler does the work now.
    ///
    /// # Errors
    /// [`StoreError`]; then it does not.
    pub(crate) async fn is_ours(&mut self) -> Result<bool, StoreError> {
        let now = Instant::now();
        if now < self.ask_at {
            return Ok(self.held);
        }
        let before = std::mem::take(&mut self.held);
        self.held = self.store.lead(self.name, &self.holder, TTL).await?;
        // Counted from before the question: the store's clock may have started then.
        self.ask_at = now + ASK_EVERY;
        if self.held != before {
            tracing::info!(work = self.name, holder = %self.holder, held = self.held, "lead of the scheduler's work");
        }
        Ok(self.held)
    }
}
