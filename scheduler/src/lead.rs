//! Holding the lead of singleton work without asking the store at every turn.

use std::sync::Arc;
use std::time::Duration;

use contract::{JobStore, StoreError, WorkerId};
use tokio::time::Instant;

/// How long a lead is good without being renewed: a dead leader's work rests for so long.
const TTL: Duration = Duration::from_secs(4);
/// How often it is renewed, or asked for.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest that a scheduler which stops waits for the store to take its leads back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// Name of the work of keeping the queues filled.
pub(crate) const FEEDER: &str = "feeder";
/// Name of the work of ending and requeueing jobs whose time is up.
pub(crate) const REAPER: &str = "reaper";
/// Name of the work of rolling records into segments.
pub(crate) const ARCHIVER: &str = "archiver";
/// Name of the work of taking batches from their files to their results.
pub(crate) const BATCHES: &str = "batches";
/// Name of the work of removing what is past its time.
pub(crate) const RETENTION: &str = "retention";
/// Name of the work of summing up the usage ledger.
pub(crate) const LEDGER: &str = "ledger";
/// Name of the work of making the batches of schedules.
pub(crate) const SCHEDULES: &str = "schedules";
/// Name of the work of telling webhooks.
pub(crate) const WEBHOOKS: &str = "webhooks";
/// Name of the work of telling how far batches are.
pub(crate) const PROGRESS: &str = "progress";

/// Lets another scheduler lead at once: ours end now. Where that fails they end by themselves.
pub(crate) async fn give_back(store: &dyn JobStore, holder: &WorkerId) {
    let giving_back = async {
        for work in [FEEDER, REAPER, ARCHIVER, BATCHES, RETENTION, LEDGER, SCHEDULES, WEBHOOKS, PROGRESS] {
            if let Err(err) = store.lead(work, holder, Duration::ZERO).await {
                tracing::debug!(work, error = &err as &dyn std::error::Error, "a lead was not given back");
            }
        }
    };
    let _took_too_long = tokio::time::timeout(GIVE_BACK, giving_back).await.is_err();
}

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

    /// Does long work of a leader while renewing the lead; `None` when it was lost, and then the work was dropped in the
    /// middle.
    ///
    /// # Errors
    /// [`StoreError`] when the lead could not be renewed; then the work was dropped too.
    pub(crate) async fn while_ours<T>(&mut self, work: impl Future<Output = T>) -> Result<Option<T>, StoreError> {
        let mut work = std::pin::pin!(work);
        while self.is_ours().await? {
            tokio::select! {
                biased;
                done = &mut work => return Ok(Some(done)),
                () = tokio::time::sleep_until(self.ask_at) => {}
            }
        }
        Ok(None)
    }
}
