//! Large records on their way to the object store, beside the committer: while it is slow or away, small records go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::retention::record_key;
use contract::{Lease, RecordLocation, Usage};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::sync::{Semaphore, mpsc};

use crate::commit::Finished;
use crate::live::Live;

/// Records that may wait at once; each holds its bytes. A further one is an attempt that failed.
const WAITING: usize = 256;
/// Longest time one put may take.
const PUT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A record to stage, with what its job's end needs beside it.
pub struct Staging {
    /// The attempt that gave it.
    pub lease: Lease,
    /// Its encoded form.
    pub bytes: Vec<u8>,
    /// When its job's deadline passes.
    pub deadline: Instant,
    /// Tokens used.
    pub usage: Usage,
    /// Milliseconds from the lease to the first token.
    pub first_token_ms: Option<u64>,
}

/// Puts records under keys of their own attempts: two attempts never meet.
pub struct Stager {
    objects: Arc<dyn ObjectStore>,
    live: Arc<Live>,
    /// Weak: a committer whose senders are gone must be able to end.
    finished: mpsc::WeakUnboundedSender<Finished>,
    waiting: Arc<Semaphore>,
}

impl Stager {
    /// Puts records into `objects`; those that had to wait come back through `finished`.
    pub fn new(objects: Arc<dyn ObjectStore>, live: Arc<Live>, finished: mpsc::WeakUnboundedSender<Finished>) -> Self {
        Self { objects, live, finished, waiting: Arc::new(Semaphore::new(WAITING)) }
    }

    /// Begins to put a record; it comes back through the channel once it is there, its lease is lost, or its deadline
    /// has passed.
    ///
    /// # Errors
    /// Too many wait already, because the object store is away.
    pub fn stage(&self, staging: Staging) -> Result<(), TooManyWait> {
        let permit = Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| TooManyWait)?;
        let finished = self.finished.upgrade().ok_or(TooManyWait)?;
        let (objects, live) = (Arc::clone(&self.objects), Arc::clone(&self.live));
        tokio::spawn(async move {
            let _permit = permit;
            let ended = put_in_time(&*objects, &live, staging).await;
            // The committer ends only after this sender.
            let _committer_is_gone = finished.send(ended);
        });
        Ok(())
    }
}

/// As many records as may wait for the object store do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WAITING} records wait for the object store already")]
pub struct TooManyWait;

async fn put_in_time(objects: &dyn ObjectStore, live: &Live, staging: Staging) -> Finished {
    let Staging { lease, bytes, deadline, usage, first_token_ms } = staging;
    let key = record_key(&lease.job, lease.attempt);
    let path = key.as_str().into();
    let bytes = PutPayload::from(bytes);
    let mut pause = FIRST_WAIT;
    loop {
        match tokio::time::timeout(PUT_TIMEOUT, objects.put(&path, bytes.clone())).await {
            Ok(Ok(_)) => return Finished::staged(lease, RecordLocation::Staged(key), usage, first_token_ms),
            Ok(Err(err)) => {
                let error = &err as &dyn std::error::Error;
                tracing::warn!(job.id = %lease.job, error, "a record waits for the object store");
            }
            Err(_) => tracing::warn!(job.id = %lease.job, "the object store does not answer; a record waits for it"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_WAIT);
        if live.is_lost(lease) {
            return Finished::lost(lease, usage);
        }
        if Instant::now() >= deadline {
            return Finished::expired(lease, usage);
        }
    }
}
