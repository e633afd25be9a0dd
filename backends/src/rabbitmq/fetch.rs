//! One queue's consumer: fetches a few wake-ups ahead, so that taking never waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::Wake;
use futures::StreamExt;
use lapin::Consumer;
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::counts::Counters;
use super::link::Backoff;
use super::message;
use super::session::{Current, Session};
use super::topology::DeclareError;

/// How often a consumer that has nothing asks itself whether that can be right.
const LOOK: Duration = Duration::from_secs(1);
/// How long the broker may take to begin or to end a consumer.
const CONSUME_WITHIN: Duration = Duration::from_secs(2);

/// What was fetched ahead for one queue.
pub(super) struct Fetch {
    pub(super) queue: String,
    /// A consumer that gets nothing for this long while messages are ready is opened anew.
    pub(super) silence: Duration,
    pub(super) counters: Arc<Counters>,
    pub(super) arrived: Arc<Notify>,
    pub(super) state: Mutex<Fetched>,
}

/// The part that callers and the consumer share.
#[derive(Default)]
pub(super) struct Fetched {
    /// Tags and what they say, in the broker's order.
    ready: VecDeque<(u64, Wake)>,
    /// Why nothing can be fetched, if so.
    trouble: Option<Arc<DeclareError>>,
}

/// How consuming ended.
enum End {
    /// The caller rests, and everything is back in the queue.
    Rested,
    /// The session is over, and with it every delivery.
    Lost,
    /// Only the consumer is.
    Again,
    /// The queue cannot be had now.
    Refused(DeclareError),
}

impl Fetch {
    /// Up to `max` deliveries of this session.
    pub(super) fn take(&self, session: &Session, max: usize) -> Result<Vec<(u64, Wake)>, Arc<DeclareError>> {
        let mut state = self.lock();
        // An earlier session's are the broker's again.
        state.ready.retain(|(tag, _)| session.delivery_tag(*tag).is_some());
        if let (true, Some(trouble)) = (state.ready.is_empty(), &state.trouble) {
            return Err(trouble.clone());
        }
        let n_taken = max.min(state.ready.len());
        Ok(state.ready.drain(..n_taken).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Fetched> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Consumes, over lost connections and ended consumers, until `rest` says so; then gives back what was not taken.
    pub(super) async fn run(self: Arc<Self>, mut current: Current, mut rest: watch::Receiver<bool>) {
        let mut backoff = Backoff::default();
        loop {
            let session = tokio::select! {
                // A sender that is gone means the same.
                () = asked(&mut rest) => return,
                session = current.wait_for(|session| session.as_ref().is_some_and(|session| session.is_up())) => match session {
                    Ok(session) => session.clone(),
                    Err(_) => return,
                },
            };
            let Some(session) = session else { continue };
            let pause = match self.consume(&session, &mut rest).await {
                End::Rested => return,
                End::Lost => {
                    session.fail();
                    // The next session is another one.
                    let over = current.wait_for(|now| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &session)));
                    tokio::select! {
                        () = asked(&mut rest) => return,
                        _ = over => {}
                    }
                    continue;
                }
                End::Again => {
                    self.counters.reopened.add_one();
                    backoff.reset();
                    // A broker that ends every consumer at once is not asked without pause.
                    backoff.next()
                }
                End::Refused(err) => {
                    tracing::error!(error = &err as &dyn std::error::Error, queue = self.queue, "nothing can be taken");
                    self.lock().trouble = Some(Arc::new(err));
                    backoff.next()
                }
            };
            tokio::select! {
                () = asked(&mut rest) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn consume(&self, session: &Session, rest: &mut watch::Receiver<bool>) -> End {
        if let Err(err) = session.declarer.declare(&self.queue).await {
            return if session.is_up() { End::Refused(err) } else { End::Lost };
        }
        let queue = self.queue.as_str().into();
        let starting =
            session.channel.basic_consume(queue, "".into(), BasicConsumeOptions::default(), FieldTable::default());
        let Ok(Ok(mut consumer)) = timeout(CONSUME_WITHIN, starting).await else { return End::Lost };
        self.lock().trouble = None;
        let mut look = tokio::time::interval(LOOK);
        let mut heard_at = Instant::now();
        loop {
            tokio::select! {
                delivery = consumer.next() => match delivery {
                    Some(Ok(delivery)) => {
                        heard_at = Instant::now();
                        self.receive(session, delivery).await;
                    }
                    Some(Err(_)) => return End::Lost,
                    None if session.is_up() => {
                        tracing::error!(queue = self.queue, "the broker ended a consumer, which is opened again");
                        return End::Again;
                    }
                    None => return End::Lost,
                },
                () = asked(rest) => return self.put_all_back(session, consumer).await,
                _ = look.tick() => {
                    if !self.lock().ready.is_empty() {
                        heard_at = Instant::now();
                    }
                    if heard_at.elapsed() < self.silence {
                        continue;
                    }
                    heard_at = Instant::now();
                    match session.declarer.declare(&self.queue).await {
                        Ok(0) => {}
                        Ok(ready) => {
                            tracing::error!(queue = self.queue, ready, "a consumer fell silent, and is opened again");
                            return if self.end(session, consumer).await { End::Again } else { End::Lost };
                        }
                        Err(err) => tracing::warn!(error = &err as &dyn std::error::Error, "a silent queue cannot be asked"),
                    }
                }
            }
        }
    }

    async fn receive(&self, session: &Session, delivery: Delivery) {
        match message::decode(&delivery.data) {
            Ok(wake) => {
                self.lock().ready.push_back((session.tag(delivery.delivery_tag), wake));
                // Whoever waits now, and whoever comes next: it may have looked just before.
                self.arrived.notify_waiters();
                self.arrived.notify_one();
            }
            Err(err) => {
                self.counters.unreadable.add_one();
                tracing::warn!(
                    error = &err as &dyn std::error::Error,
                    queue = self.queue,
                    bytes = delivery.data.len(),
                    "a message is no wake-up and is dead-lettered"
                );
                let dead = BasicRejectOptions { requeue: false };
                if session.channel.basic_reject(delivery.delivery_tag, dead).await.is_err() {
                    self.counters.lost_answers.add_one();
                }
            }
        }
    }

    /// Ends the consumer and fetches what was still under way; false when the session is over instead.
    async fn end(&self, session: &Session, mut consumer: Consumer) -> bool {
        let ending = async {
            session.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await.ok()?;
            // What came before the broker's answer stands before the end of the stream.
            while let Some(delivery) = consumer.next().await {
                self.receive(session, delivery.ok()?).await;
            }
            Some(())
        };
        matches!(timeout(CONSUME_WITHIN, ending).await, Ok(Some(())))
    }

    async fn put_all_back(&self, session: &Session, consumer: Consumer) -> End {
        let ended = self.end(session, consumer).await;
        let unused = std::mem::take(&mut self.lock().ready);
        if !ended {
            // The connection goes, and with it the broker takes everything back.
            return End::Lost;
        }
        for delivery_tag in unused.iter().filter_map(|(tag, _)| session.delivery_tag(*tag)) {
            if session.put_back(delivery_tag).await.is_err() {
                self.counters.lost_answers.add_one();
                return End::Lost;
            }
        }
        End::Rested
    }
}

/// Returns when the caller rests, or is gone.
async fn asked(rest: &mut watch::Receiver<bool>) {
    // The guard of what was seen must not live on.
    let _rests_or_gone = rest.wait_for(|rest| *rest).await.is_ok();
}
