//! What the broker holds for us: one quorum queue per release and class, and one dead-letter exchange with its queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contract::QueueId;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How often a message may come back before the broker takes it for poison. RabbitMQ 3.10 counts every return, also
/// those of a worker that only has no room, and 4.x would dead-letter after 20. This number is out of reach: ten thousand
/// workers that return the same message twice a second for the longest default deadline (24 h) make 1,728,000,000.
/// It fits the 32 bits that a strict reader may expect.
const DELIVERY_LIMIT: i64 = 2_000_000_000;
/// Unreadable messages kept for people to look at; the oldest make room.
const DEAD_KEPT: i64 = 10_000;
/// A declaration takes under a millisecond; a broker that has no leader for the queue does not answer at all.
const DECLARE_WITHIN: Duration = Duration::from_secs(2);

/// The broker itself tries for five seconds to do it in good order.
const DELETE_WITHIN: Duration = Duration::from_secs(15);

/// A queue or exchange could not be declared.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// It exists with other arguments.
    #[error(
        "`{name}` exists with other arguments than this process declares ({broker}); give all processes the same queue \
         limit, or delete the one on the broker: it refills from the store"
    )]
    Mismatch {
        /// Of the queue or exchange.
        name: String,
        /// The broker's words, which name the argument and both values.
        broker: String,
    },
    /// The broker refused or went away.
    #[error("`{name}` could not be declared")]
    Failed {
        /// Of the queue or exchange.
        name: String,
        /// Why.
        #[source]
        source: lapin::Error,
    },
    /// The broker did not answer.
    #[error("the broker did not answer within {} s when `{name}` was declared", DECLARE_WITHIN.as_secs())]
    Unanswered {
        /// Of the queue or exchange.
        name: String,
    },
}

impl DeclareError {
    fn new(name: &str, source: lapin::Error) -> Self {
        let name = name.to_owned();
        match source.kind() {
            ErrorKind::ProtocolError(err)
                if matches!(err.kind(), AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)) =>
            {
                Self::Mismatch { name, broker: err.get_message().to_string() }
            }
            _ => Self::Failed { name, source },
        }
    }
}

/// Names and arguments.
#[derive(Debug)]
pub(super) struct Topology {
    /// What all names begin with.
    pub(super) prefix: String,
    /// Most ready messages per queue.
    limit: u64,
    /// How long a queue may leave declarations unanswered.
    leaderless: Duration,
    /// Queues that left the last one unanswered, and since when they do.
    unanswered: StdMutex<HashMap<String, Instant>>,
}

impl Topology {
    pub(super) fn new(prefix: String, limit: u64, leaderless: Duration) -> Self {
        Self { prefix, limit, leaderless, unanswered: StdMutex::default() }
    }

    /// Most ready messages per queue.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    fn unanswered(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a declaration was not answered; true when none was for so long that the queue is beyond help.
    fn is_leaderless(&self, name: &str) -> bool {
        let mut unanswered = self.unanswered();
        let since = *unanswered.entry(name.to_owned()).or_insert_with(Instant::now);
        let is_leaderless = since.elapsed() >= self.leaderless;
        if is_leaderless {
            unanswered.remove(name);
        }
        is_leaderless
    }

    /// `penstock.<fingerprint12>.<class>`.
    pub(super) fn queue(&self, id: &QueueId) -> String {
        format!("{}.{}.{}", self.prefix, id.release.short(), id.class)
    }

    /// Of the exchange and the queue of unreadable messages.
    fn dead(&self) -> String {
        format!("{}.dead", self.prefix)
    }

    fn arguments(&self) -> FieldTable {
        let mut arguments = quorum();
        arguments.insert("x-max-length".into(), long(i64::try_from(self.limit).unwrap_or(i64::MAX)));
        // Refused, not dropped: the default would delete the oldest message.
        arguments.insert("x-overflow".into(), text("reject-publish"));
        arguments.insert("x-delivery-limit".into(), long(DELIVERY_LIMIT));
        // With the default strategy: a dead letter is for people to look at and may be lost. `at-least-once` costs a
        // process for each queue, and where one is deleted while that starts, RabbitMQ 3.10 loses all of them, and with
        // them every quorum queue of the node (`rabbit_fifo_dlx_sup`, seen with 3.10.8).
        arguments.insert("x-dead-letter-exchange".into(), text(&self.dead()));
        arguments
    }

    /// Declares the dead-letter exchange and its queue. Leaves the channel closed when that fails.
    pub(super) async fn declare_dead(&self, channel: &Channel) -> Result<(), DeclareError> {
        let name = self.dead();
        let declare = async {
            let exchange = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            // Fanout: a dead letter keeps the name of its queue as routing key.
            channel
                .exchange_declare(name.as_str().into(), ExchangeKind::Fanout, exchange, FieldTable::default())
                .await?;
            let mut arguments = quorum();
            arguments.insert("x-max-length".into(), long(DEAD_KEPT));
            channel.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments).await?;
            let binding = QueueBindOptions::default();
            channel
                .queue_bind(name.as_str().into(), name.as_str().into(), "".into(), binding, FieldTable::default())
                .await
        };
        match timeout(DECLARE_WITHIN, declare).await {
            Ok(answer) => answer.map_err(|source| DeclareError::new(&name, source)),
            Err(_) => Err(DeclareError::Unanswered { name }),
        }
    }
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn long(value: i64) -> AMQPValue {
    AMQPValue::LongLongInt(value)
}

/// Declares queues on a channel of its own, so that a refusal, which closes the channel, disturbs nothing else.
pub(super) struct Declarer {
    connection: Arc<Connection>,
    topology: Arc<Topology>,
    channel: Mutex<Option<Channel>>,
}

impl Declarer {
    pub(super) fn new(connection: Arc<Connection>, topology: Arc<Topology>) -> Self {
        Self { connection, topology, channel: Mutex::default() }
    }

    /// Makes the queue unless it is there, and answers how many messages are ready in it. Declaring costs the broker
    /// what asking would, and unlike asking it mends.
    pub(super) async fn declare(&self, name: &str) -> Result<u64, DeclareError> {
        if let Ok(answer) = timeout(DECLARE_WITHIN, self.declare_now(name)).await {
            self.topology.unanswered().remove(name);
            return answer.map_err(|source| DeclareError::new(name, source));
        }
        if self.topology.is_leaderless(name) {
            match timeout(DELETE_WITHIN, self.delete(name)).await {
                Ok(Ok(())) => {
                    tracing::error!(queue = name, "a queue without a leader is deleted; it refills from the store");
                }
                Ok(Err(err)) => {
                    let error = &err as &dyn std::error::Error;
                    tracing::error!(queue = name, error, "a queue without a leader could not be deleted");
                }
                Err(_) => tracing::error!(queue = name, "the broker does not delete a queue without a leader"),
            }
        }
        Err(DeclareError::Unanswered { name: name.to_owned() })
    }

    async fn delete(&self, name: &str) -> Result<(), lapin::Error> {
        let channel = self.connection.create_channel().await?;
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.map(|_| ())
    }

    async fn declare_now(&self, name: &str) -> Result<u64, lapin::Error> {
        let mut slot = self.channel.lock().await;
        // Taken out while in use: an answer that does not come, or is not awaited, takes the channel with it.
        let channel = match slot.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => self.connection.create_channel().await?,
        };
        let options = QueueDeclareOptions::durable();
        let queue = channel.queue_declare(name.into(), options, self.topology.arguments()).await?;
        *slot = Some(channel);
        Ok(u64::from(queue.message_count()))
    }
}

#[cfg(test)]
mod tests {
    use contract::{Class, Fingerprint};

    use super::*;

    #[test]
    fn the_default_prefix_gives_the_names_that_queue_ids_show() {
        let topology = Topology::new("penstock".into(), 256, Duration::from_secs(30));
        let id = QueueId { release: Fingerprint("abcdef0123456789".repeat(4)), class: Class::Interactive };
        assert_eq!(topology.queue(&id), "penstock.abcdef012345.interactive");
        assert_eq!(topology.queue(&id), id.to_string());
        assert_eq!(topology.dead(), "penstock.dead");
    }
}
