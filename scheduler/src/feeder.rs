//! The feeder: keeps the bounded queues filled from the store. The same loop is relay, retry timer, refill at start and
//! rebuild of a queue that lost everything.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::time::Duration;

use contract::{JobId, Published, QueueError, QueueId, Signal, StoreError, Wake};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::Patience;

/// Behind every signal there is a look at all queues this often.
const POLL: Duration = Duration::from_millis(250);
/// A queue of more rows than its limit times this is long: it does not run empty while its count serves.
const LONG: u64 = 16;
/// How long the count of a long queue serves.
const COUNT_LIFE: Duration = Duration::from_secs(2);

/// Why a turn did not succeed.
#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The loop's state.
pub(crate) struct Feeder {
    deps: Deps,
    lead: Lead,
    patience: Patience,
    /// Row counts of long queues, and when they were taken.
    counts: HashMap<QueueId, (u64, Instant)>,
}

/// Which queues to look at.
enum Look {
    All,
    At(BTreeSet<QueueId>),
}

impl Feeder {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::FEEDER, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("feeder"), counts: HashMap::new() }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        let mut signals = self.deps.bus.signals().await;
        let mut poll_at = Instant::now();
        loop {
            let look = next_look(&mut signals, poll_at).await;
            if matches!(look, Look::All) {
                poll_at = Instant::now() + POLL;
            }
            match self.turn(look).await {
                Ok(true) => self.patience.succeeded(),
                // Whoever only looks on knows nothing of the backends.
                Ok(false) => {}
                Err(err) => {
                    tokio::time::sleep(self.patience.failed(&err)).await;
                    // What was signalled meanwhile is found by looking everywhere.
                    poll_at = Instant::now();
                }
            }
        }
    }

    /// False when another scheduler leads.
    async fn turn(&mut self, look: Look) -> Result<bool, FeedError> {
        if !self.lead.is_ours().await? {
            return Ok(false);
        }
        let queues = match look {
            Look::At(queues) => queues,
            Look::All => self.deps.store.queues().await?.into_iter().collect(),
        };
        for queue in &queues {
            self.refill(queue).await?;
        }
        Ok(true)
    }

    /// Queued rows of a queue. Counting a million takes a while, so the count of a long queue serves for some time: it
    /// only matters whether there are fewer rows than `limit`.
    async fn rows(&mut self, queue: &QueueId, limit: u64) -> Result<u64, StoreError> {
        if let Some((rows, counted_at)) = self.counts.get(queue)
            && counted_at.elapsed() < COUNT_LIFE
        {
            return Ok(*rows);
        }
        let rows = self.deps.store.queued(queue).await?;
        if rows > limit.saturating_mul(LONG) {
            self.counts.insert(queue.clone(), (rows, Instant::now()));
        } else {
            self.counts.remove(queue);
        }
        Ok(rows)
    }

    /// Publishes at most `min(limit, queued rows) - ready messages` due rows.
    async fn refill(&mut self, queue: &QueueId) -> Result<(), FeedError> {
        let Deps { store, queue: port, bus, .. } = &self.deps.clone();
        let ready = port.ready(queue).await?;
        let limit = port.limit();
        // Without messages the number of rows cannot matter: there are no more due rows than rows.
        let most = match ready {
            0 => limit,
            _ if ready >= limit => 0,
            _ => limit.min(self.rows(queue, limit).await?),
        };
        let want = u32::try_from(most.saturating_sub(ready)).unwrap_or(u32::MAX);
        if want == 0 {
            return Ok(());
        }
        let due = store.due(queue, want).await?;
        if due.is_empty() {
            return Ok(());
        }
        let wakes: Vec<(QueueId, Wake)> = due.into_iter().map(|wake| (queue.clone(), wake)).collect();
        let answers = port.publish(&wakes).await;
        // An answer that is missing is one nobody knows.
        let answers = answers.into_iter().chain(std::iter::repeat(Published::Unknown));
        let refused: Vec<JobId> = wakes
            .iter()
            .zip(answers)
            .filter(|(_, answer)| *answer != Published::Confirmed)
            .map(|((_, wake), _)| wake.job)
            .collect();
        if refused.len() < wakes.len() {
            bus.tell(Signal::Ready { queue: queue.clone() }).await;
        }
        if !refused.is_empty() {
            tracing::debug!(queue = %queue, unconfirmed = refused.len(), "wake-ups were not confirmed");
            store.wake_now(&refused).await?;
        }
        Ok(())
    }
}

/// Waits for a signal or the poll's time. Signals that came together are one look.
async fn next_look(signals: &mut BoxStream<'static, Signal>, poll_at: Instant) -> Look {
    let first = loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(poll_at) => return Look::All,
            signal = signals.next() => match signal {
                Some(Signal::Due { queue }) => break queue,
                Some(_) => {}
                None => {
                    // The bus is gone; the poll does it alone.
                    tokio::time::sleep_until(poll_at).await;
                    return Look::All;
                }
            },
        }
    };
    let mut queues = BTreeSet::from([first]);
    while let Some(Some(signal)) = signals.next().now_or_never() {
        if let Signal::Due { queue } = signal {
            queues.insert(queue);
        }
    }
    Look::At(queues)
}
