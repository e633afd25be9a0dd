//! What is kept for a time only goes when that is over. First the bytes, then the note of it: a kill in between costs
//! another look.

use std::convert::Infallible;
use std::time::Duration;

use contract::{FileId, StoreError};
use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::time::Instant;

use crate::Deps;
use crate::emptying;
use crate::lead::{self, Lead};
use crate::patience::Patience;

/// How often it looks.
const LOOK: Duration = Duration::from_secs(5);
/// Files of one look.
const FILES: u32 = 500;
/// How long the log of webhooks goes back: 30 days.
const DELIVERIES_KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How often tenants are forgotten that are not ahead in their queues: seldom, since who has more to do is known again at once.
const SHARES_EVERY: Duration = Duration::from_secs(600);
/// Of them at once.
const SHARES: u32 = 1_000;
/// Objects deleted at the same time.
const DELETES: usize = 16;

/// What a turn left to do.
#[derive(Clone, Copy)]
enum Left {
    /// There may be more that is due.
    More,
    /// Nothing that is due.
    Nothing,
}

/// The loop's state.
pub(crate) struct Retention {
    deps: Deps,
    lead: Lead,
    patience: Patience,
    /// When shares are forgotten next.
    shares_at: Instant,
}

impl Retention {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::RETENTION, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("retention"), shares_at: Instant::now() }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            match self.turn().await {
                Ok(Some(Left::More)) => self.patience.succeeded(),
                Ok(Some(Left::Nothing)) => {
                    self.patience.succeeded();
                    tokio::time::sleep(LOOK).await;
                }
                // Whoever only looks on knows nothing of the backends.
                Ok(None) => tokio::time::sleep(LOOK).await,
                Err(err) => tokio::time::sleep(self.patience.failed(&err)).await,
            }
        }
    }

    /// What is left; `None` when another scheduler leads.
    async fn turn(&mut self) -> Result<Option<Left>, RetentionError> {
        if !self.lead.is_ours().await? {
            return Ok(None);
        }
        // What goes wrong with one kind must not keep the other.
        let more_jobs = emptying::empty(&self.deps).await;
        let more_files = self.files().await?;
        if self.shares_at <= Instant::now() {
            while self.deps.admin.forget_shares(SHARES).await? == u64::from(SHARES) && self.lead.is_ours().await? {}
            self.shares_at = Instant::now() + SHARES_EVERY;
        }
        Ok(Some(if more_jobs? || more_files { Left::More } else { Left::Nothing }))
    }

    /// Empties files and forgets deliveries; answers whether there may be more.
    async fn files(&mut self) -> Result<bool, RetentionError> {
        let expired = self.deps.admin.expired_files(FILES).await?;
        let objects = &self.deps.objects;
        let deletes = stream::iter(expired).map(|id| async move {
            match objects.delete(&Path::from(id.object_key())).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(id),
                Err(err) => Err(err),
            }
        });
        let outcomes: Vec<Result<FileId, object_store::Error>> = deletes.buffer_unordered(DELETES).collect().await;
        let (mut emptied, mut fault) = (Vec::with_capacity(outcomes.len()), None);
        for outcome in outcomes {
            match outcome {
                Ok(id) => emptied.push(id),
                Err(err) => fault = Some(err),
            }
        }
        if !emptied.is_empty() {
            self.deps.admin.files_emptied(&emptied).await?;
            tracing::info!(files = emptied.len(), "files whose time was over are emptied");
        }
        while self.deps.admin.forget_deliveries(DELIVERIES_KEPT, FILES).await? == u64::from(FILES)
            && self.lead.is_ours().await?
        {}
        match fault {
            // A full page: there is more.
            None => Ok(emptied.len() == FILES as usize),
            Some(err) => Err(err.into()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RetentionError {
    #[error("the store")]
    Store(#[from] StoreError),
    #[error("the object store")]
    Objects(#[from] object_store::Error),
}
