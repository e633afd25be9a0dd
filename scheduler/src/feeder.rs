//! The feeder: keeps the bounded queues filled from the store, as deep as they are emptied quickly. The same loop is
//! relay, retry timer, refill at start and rebuild of a queue that lost everything.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::time::Duration;

use contract::{JobId, Published, QueueError, QueueId, Signal, StoreError, Wake};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::Deps;
use crate::lead::{self, Lead};
use crate::pace::Pace;
use crate::patience::Patience;

/// Behind every signal there is a look at all queues this often.
const POLL: Duration = Duration::from_millis(250);
/// Until the next look at a queue that is being emptied while more rows wait for it.
const SOON: Duration = Duration::from_millis(15);
/// How long the count of a queue's rows serves.
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
    /// What is known of the queues.
    fed: HashMap<QueueId, Fed>,
    /// Queues that are being emptied while more rows wait for them.
    soon: BTreeSet<QueueId>,
    /// When to look at those again.
    soon_at: Option<Instant>,
}

/// Which queues to look at.
enum Look {
    All,
    Soon,
    At(BTreeSet<QueueId>),
}

/// What is known of a queue.
#[derive(Default)]
struct Fed {
    pace: Pace,
    counted: Option<Counted>,
    /// Whether it was given fewer rows than were due, as far as the last question for them tells.
    more: bool,
}

/// Queued rows at some time, and the messages taken since then: so many of them may be gone.
struct Counted {
    rows: u64,
    at: Instant,
    taken: u64,
}

impl Fed {
    /// Rows that are surely still there, but for those that were cancelled meanwhile. What is missing costs a message
    /// too many, which the lease makes void.
    fn rows(&self) -> Option<u64> {
        let counted = self.counted.as_ref().filter(|counted| counted.at.elapsed() < COUNT_LIFE)?;
        Some(counted.rows.saturating_sub(counted.taken))
    }
}

impl Feeder {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::FEEDER, deps.holder.clone());
        let patience = Patience::new("feeder");
        Self { deps, lead, patience, fed: HashMap::new(), soon: BTreeSet::new(), soon_at: None }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        let mut signals = self.deps.bus.signals().await;
        let mut poll_at = Instant::now();
        loop {
            let look = next_look(&mut signals, poll_at, self.soon_at).await;
            if matches!(look, Look::All) {
                poll_at = Instant::now() + POLL;
            }
            if !matches!(look, Look::At(_)) {
                self.soon_at = None;
            }
            match self.turn(look).await {
                Ok(true) => {
                    self.patience.succeeded();
                    let soon_at = self.soon_at.unwrap_or_else(|| Instant::now() + SOON);
                    self.soon_at = (!self.soon.is_empty()).then_some(soon_at);
                }
                // Whoever only looks on knows nothing of the backends, nor of what the leader does to the queues.
                Ok(false) => self.forget(),
                Err(err) => {
                    self.forget();
                    tokio::time::sleep(self.patience.failed(&err)).await;
                    // What was signalled meanwhile is found by looking everywhere.
                    poll_at = Instant::now();
                }
            }
        }
    }

    fn forget(&mut self) {
        self.fed.clear();
        self.soon.clear();
        self.soon_at = None;
    }

    /// False when another scheduler leads.
    async fn turn(&mut self, look: Look) -> Result<bool, FeedError> {
        if !self.lead.is_ours().await? {
            return Ok(false);
        }
        let queues = match look {
            Look::At(queues) => queues,
            Look::Soon => std::mem::take(&mut self.soon),
            Look::All => {
                let queues: BTreeSet<QueueId> = self.deps.store.queues().await?.into_iter().collect();
                self.fed.retain(|queue, _| queues.contains(queue));
                self.soon.clear();
                queues
            }
        };
        for queue in queues {
            if self.refill(&queue).await? {
                self.soon.insert(queue);
            } else {
                self.soon.remove(&queue);
            }
        }
        Ok(true)
    }

    /// How many rows to ask for: what is missing to the depth of the queue's pace, and no more than there are rows
    /// without a message.
    async fn want(&mut self, queue: &QueueId) -> Result<u32, FeedError> {
        let ready = self.deps.queue.ready(queue).await?;
        let fed = self.fed.entry(queue.clone()).or_default();
        let taken = fed.pace.saw(ready, Instant::now());
        if let Some(counted) = &mut fed.counted {
            counted.taken += taken;
        }
        let depth = fed.pace.depth(self.deps.queue.limit());
        if ready >= depth {
            return Ok(0);
        }
        let most = match (ready, fed.rows()) {
            // Without messages the number of rows cannot matter: there are no more due rows than rows.
            (0, _) => depth,
            // Counting takes a while where there are many, and these are enough.
            (_, Some(rows)) if rows >= depth => depth,
            _ => {
                let rows = self.deps.store.queued(queue).await?;
                fed.counted = Some(Counted { rows, at: Instant::now(), taken: 0 });
                depth.min(rows)
            }
        };
        fed.more = most == depth;
        Ok(u32::try_from(most.saturating_sub(ready)).unwrap_or(u32::MAX))
    }

    /// Publishes due rows; answers whether to look again soon.
    async fn refill(&mut self, queue: &QueueId) -> Result<bool, FeedError> {
        let want = self.want(queue).await?;
        let fed = self.fed.entry(queue.clone()).or_default();
        if want > 0 {
            let (due, confirmed) = feed(&self.deps, queue, want).await?;
            fed.more &= due == want as usize;
            fed.pace.gave(confirmed as u64, Instant::now());
        }
        Ok(fed.more && fed.pace.is_moving(Instant::now()))
    }
}

/// Publishes at most `want` due rows; answers how many were due, and how many the queue has surely taken.
async fn feed(deps: &Deps, queue: &QueueId, want: u32) -> Result<(usize, usize), FeedError> {
    let Deps { store, queue: port, bus, .. } = deps;
    let due = store.due(queue, want).await?;
    if due.is_empty() {
        return Ok((0, 0));
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
    Ok((wakes.len(), wakes.len() - refused.len()))
}

/// Waits for a signal, for the poll's time, or for `soon_at`. Signals that came together are one look.
async fn next_look(signals: &mut BoxStream<'static, Signal>, poll_at: Instant, soon_at: Option<Instant>) -> Look {
    let (at, timed) = match soon_at {
        Some(soon_at) if soon_at < poll_at => (soon_at, Look::Soon),
        _ => (poll_at, Look::All),
    };
    let first = loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(at) => return timed,
            signal = signals.next() => match signal {
                Some(Signal::Due { queue }) => break queue,
                Some(_) => {}
                None => {
                    // The bus is gone; time does it alone.
                    tokio::time::sleep_until(at).await;
                    return timed;
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
