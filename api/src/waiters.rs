//! Who waits for the end of which job: one listener on the bus for the whole process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use contract::{Bus, JobId, Signal};
use futures::StreamExt;
use tokio::sync::watch;

/// The waiting. Signals may get lost: whoever waits also reads the store.
#[derive(Default)]
pub(crate) struct Waiters {
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

/// One waiter; forgets itself when dropped.
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    job: JobId,
    signal: watch::Receiver<()>,
}

impl Waiters {
    /// Listens on the bus until the last `Arc` of it is gone.
    pub fn listening(bus: Arc<dyn Bus>) -> Arc<Self> {
        let waiters = Arc::new(Self::default());
        tokio::spawn(listen(bus, Arc::downgrade(&waiters)));
        waiters
    }

    /// From now on, hears of the end of `job`.
    pub fn wait_for(self: &Arc<Self>, job: JobId) -> Waiter {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let signal = jobs.entry(job).or_insert_with(|| watch::Sender::new(())).subscribe();
        Waiter { waiters: self.clone(), job, signal }
    }

    fn wake(&self, job: &JobId) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = jobs.get(job) {
            sender.send_replace(());
        }
    }
}

impl Waiter {
    /// Returns when a signal said that the job ended, at once if one came since the last call. Cancel safe.
    pub async fn signalled(&mut self) {
        if self.signal.changed().await.is_err() {
            // The sender lives in the map as long as this receiver does, so this is not reached; the poll goes on.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut jobs = self.waiters.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // This receiver is still counted.
        if jobs.get(&self.job).is_some_and(|sender| sender.receiver_count() <= 1) {
            jobs.remove(&self.job);
        }
    }
}

async fn listen(bus: Arc<dyn Bus>, waiters: Weak<Waiters>) {
    loop {
        let mut signals = bus.signals().await;
        loop {
            match tokio::time::timeout(Duration::from_secs(5), signals.next()).await {
                Ok(Some(Signal::Ended { job, .. })) => match waiters.upgrade() {
                    Some(waiters) => waiters.wake(&job),
                    None => return,
                },
                Ok(Some(Signal::Cancelled { .. } | Signal::Due { .. } | Signal::Ready { .. })) => {}
                Ok(None) => break,
                // Quiet: a good time to see whether anybody is left.
                Err(_) if waiters.strong_count() == 0 => return,
                Err(_) => {}
            }
        }
        // The bus went away; waiters poll meanwhile.
        tokio::time::sleep(Duration::from_secs(1)).await;
        if waiters.strong_count() == 0 {
            return;
        }
    }
}
