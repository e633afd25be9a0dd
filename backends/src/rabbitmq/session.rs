//! The connection for taking: who keeps it, and what one of its lives consists of.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicQosOptions};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, Event};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::counts::Counters;
use super::link::{self, Backoff, Health, LinkError};
use super::topology::{Declarer, Topology};

/// Behind every event stands a look.
const LOOK: Duration = Duration::from_secs(1);
/// How long an acknowledgement may take to leave.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Bits of a tag that hold the broker's delivery tag, which counts from 1 on each channel: years of deliveries. The
/// generation of the channel stands above them.
const DELIVERY_BITS: u32 = 40;

/// One life of the channel that is consumed on.
pub(super) struct Session {
    /// Counts the lives of this process.
    generation: u64,
    pub(super) channel: Channel,
    pub(super) declarer: Declarer,
    connection: Arc<Connection>,
    /// Told when somebody found that this life should end.
    failed: Notify,
}

impl Session {
    /// The tag of a delivery of this life; no other life has it.
    pub(super) fn tag(&self, delivery_tag: u64) -> u64 {
        (self.generation << DELIVERY_BITS) | delivery_tag
    }

    /// The broker's delivery tag, if the delivery came in this life.
    pub(super) fn delivery_tag(&self, tag: u64) -> Option<u64> {
        (tag >> DELIVERY_BITS == self.generation).then_some(tag & ((1 << DELIVERY_BITS) - 1))
    }

    /// Acknowledges a delivery of this life.
    pub(super) async fn ack(&self, delivery_tag: u64) -> Result<(), LinkError> {
        in_time(self.channel.basic_ack(delivery_tag, BasicAckOptions::default())).await
    }

    /// Gives a delivery of this life back to its queue.
    pub(super) async fn put_back(&self, delivery_tag: u64) -> Result<(), LinkError> {
        let options = BasicNackOptions { requeue: true, multiple: false };
        in_time(self.channel.basic_nack(delivery_tag, options)).await
    }

    /// Ends this life; the next one begins by itself.
    pub(super) fn fail(&self) {
        self.failed.notify_one();
    }

    pub(super) fn is_up(&self) -> bool {
        link::is_up(&self.connection, &self.channel)
    }
}

async fn in_time(answer: impl Future<Output = Result<(), lapin::Error>>) -> Result<(), LinkError> {
    timeout(ANSWER_WITHIN, answer).await.map_err(|_| LinkError::Slow)?.map_err(LinkError::Connect)
}

/// Where the session of the moment is found.
pub(super) type Current = watch::Receiver<Option<Arc<Session>>>;

/// Keeps a session open.
pub(super) struct Keeper {
    pub(super) uri: AMQPUri,
    pub(super) topology: Arc<Topology>,
    pub(super) counters: Arc<Counters>,
    /// Deliveries a consumer holds unacknowledged.
    pub(super) prefetch: u16,
    pub(super) health: watch::Sender<Health>,
    pub(super) current: watch::Sender<Option<Arc<Session>>>,
}

impl Keeper {
    /// Opens sessions, one after the other, for as long as the task lives.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        let mut generation = 0;
        loop {
            generation += 1;
            let opened = timeout(link::CONNECT_WITHIN, self.open(generation)).await;
            let why = match opened.unwrap_or(Err(LinkError::Slow)) {
                Ok((session, events)) => {
                    self.counters.connections.add_one();
                    let session = Arc::new(session);
                    self.current.send_replace(Some(session.clone()));
                    self.health.send_replace(Health::Up);
                    if backoff.reset() {
                        tracing::info!("the link for taking is back");
                    }
                    until_lost(&session, events).await;
                    self.current.send_replace(None);
                    LinkError::Lost
                }
                Err(err) => err,
            };
            let pause = backoff.next();
            if backoff.is_news() {
                tracing::warn!(
                    error = &why as &dyn std::error::Error,
                    pause_ms = pause.as_millis(),
                    "no link for taking"
                );
            }
            self.health.send_replace(Health::Down(Arc::new(why)));
            tokio::time::sleep(pause).await;
        }
    }

    async fn open(&self, generation: u64) -> Result<(Session, BoxStream<'static, Event>), LinkError> {
        let (connection, events) = link::open(&self.uri, "penstock consumer").await?;
        let channel = connection.create_channel().await.map_err(LinkError::Connect)?;
        self.topology.declare_dead(&channel).await?;
        // Holds for each consumer that this channel gets, apart; quorum queues know no other kind.
        let per_consumer = BasicQosOptions { global: false };
        channel.basic_qos(self.prefetch, per_consumer).await.map_err(LinkError::Connect)?;
        let connection = Arc::new(connection);
        let declarer = Declarer::new(connection.clone(), self.topology.clone());
        Ok((Session { generation, channel, declarer, connection, failed: Notify::new() }, events))
    }
}

async fn until_lost(session: &Session, mut events: BoxStream<'static, Event>) {
    let mut look = tokio::time::interval(LOOK);
    while session.is_up() {
        tokio::select! {
            _ = link::news(&mut events) => {}
            () = session.failed.notified() => return,
            _ = look.tick() => {}
        }
    }
}
