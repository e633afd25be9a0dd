//! Results that go to an exchange somebody else owns: each is confirmed by the broker, or tried again for as long as it takes.
//!
//! A channel has one message under way at a time: lapin gives a returned message to whichever confirm it completes next,
//! so with two of them nobody could tell which one no queue has.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ExchangeKind};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::timeout;

use super::follow::{FollowError, parse};
use super::link::{self, Backoff, LinkError};

/// Messages under way at once.
const LANES: usize = 16;
/// How long the broker may take to confirm one.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// The broker keeps it over a restart.
const PERSISTENT: u8 = 2;

/// Which exchange.
#[derive(Clone)]
pub struct AnswersOptions {
    /// As [`super::RabbitOptions::url`].
    pub url: String,
    /// Its name. It must be there; empty: the default exchange, which leads to the queue that the routing key names.
    pub exchange: String,
    /// The routing key of every result.
    pub routing_key: String,
}

impl std::fmt::Debug for AnswersOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL holds a password.
        let Self { exchange, routing_key, .. } = self;
        f.debug_struct("AnswersOptions").field("exchange", exchange).field("routing_key", routing_key).finish()
    }
}

/// A result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its bytes: JSON.
    pub body: Vec<u8>,
    /// The property `message_id`, at most 255 bytes.
    pub message_id: String,
    /// The property `correlation_id`, at most 255 bytes.
    pub correlation_id: Option<String>,
}

/// Why a result is not confirmed yet.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("no queue is bound to exchange `{exchange}` for routing key `{routing_key}`: bind one")]
    Unroutable { exchange: String, routing_key: String },
    #[error("a queue behind exchange `{0}` takes no more")]
    Full(String),
    #[error("the broker did not confirm a result within {} s", CONFIRM_WITHIN.as_secs())]
    Slow,
    #[error("{0}")]
    Link(String),
}

impl Trouble {
    fn link(err: &dyn std::error::Error) -> Self {
        let cause = err.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Self::Link(format!("{err}{cause}"))
    }
}

/// A channel that has nothing under way. Its connection lives as long as it does.
struct Lane {
    connection: Arc<Connection>,
    channel: Channel,
}

/// The way to an exchange.
pub struct Answers {
    uri: AMQPUri,
    exchange: String,
    routing_key: String,
    /// The connection of the moment.
    connection: Mutex<Option<Arc<Connection>>>,
    idle: StdMutex<Vec<Lane>>,
    lanes: Semaphore,
    trouble: watch::Sender<Option<String>>,
}

impl Answers {
    /// Connects and makes sure that the exchange is there. A connection that is lost later is made anew for as long as
    /// it takes.
    ///
    /// # Errors
    /// [`FollowError`]
    pub async fn open(options: AnswersOptions) -> Result<Self, FollowError> {
        let AnswersOptions { url, exchange, routing_key } = options;
        let answers = Self {
            uri: parse(&url)?,
            exchange,
            routing_key,
            connection: Mutex::default(),
            idle: StdMutex::default(),
            lanes: Semaphore::new(LANES),
            trouble: watch::Sender::new(None),
        };
        let opening = async {
            let lane = answers.open_lane().await?;
            // Nobody may declare the default exchange, not even to ask for it: it is always there.
            if !answers.exchange.is_empty() {
                let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
                let name = answers.exchange.as_str();
                let kind = ExchangeKind::Direct;
                let declared = lane.channel.exchange_declare(name.into(), kind, passive, FieldTable::default()).await;
                declared.map_err(|err| FollowError::about("exchange", name, err))?;
            }
            Ok::<_, FollowError>(lane)
        };
        let lane = timeout(link::CONNECT_WITHIN, opening).await.unwrap_or_else(|_| Err(LinkError::Slow.into()))?;
        answers.idle().push(lane);
        Ok(answers)
    }

    /// Publishes a result; ends when the broker has confirmed that a queue has it. Whoever drops this cannot know.
    pub async fn publish(&self, answer: &Answer) {
        let mut backoff = Backoff::default();
        loop {
            let tried = {
                // Never closed: it lives as long as this.
                let _permit = self.lanes.acquire().await;
                self.publish_once(answer).await
            };
            match tried {
                Ok(()) => {
                    let was_troubled = self.trouble.send_if_modified(|trouble| trouble.take().is_some());
                    if was_troubled {
                        tracing::warn!(exchange = self.exchange, "results are taken again");
                    }
                    return;
                }
                Err(trouble) => self.note(&trouble),
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Why results wait, if they do.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    async fn publish_once(&self, answer: &Answer) -> Result<(), Trouble> {
        let lane = match self.idle_lane() {
            Some(lane) => lane,
            None => {
                let opening = timeout(link::CONNECT_WITHIN, self.open_lane()).await;
                opening.unwrap_or(Err(LinkError::Slow)).map_err(|err| Trouble::link(&err))?
            }
        };
        let mut properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(answer.message_id.as_str().into());
        if let Some(id) = &answer.correlation_id {
            properties = properties.with_correlation_id(id.as_str().into());
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (self.exchange.as_str().into(), self.routing_key.as_str().into());
        let publishing =
            async { lane.channel.basic_publish(exchange, key, options, &answer.body, properties).await?.await };
        // A lane whose message has no answer is not used again: the answer could be taken for the next one's.
        let confirmation = timeout(CONFIRM_WITHIN, publishing).await.map_err(|_| Trouble::Slow)?;
        let confirmation = confirmation.map_err(|err: lapin::Error| Trouble::link(&err))?;
        self.idle().push(lane);
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
                Err(Trouble::Unroutable { exchange: self.exchange.clone(), routing_key: self.routing_key.clone() })
            }
            // Lanes ask for confirms before they are used.
            Confirmation::Nack(None) | Confirmation::NotRequested => Err(Trouble::Full(self.exchange.clone())),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Lane>> {
        // Nothing in here panics half-way.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle_lane(&self) -> Option<Lane> {
        let mut idle = self.idle();
        idle.retain(|lane| link::is_up(&lane.connection, &lane.channel));
        idle.pop()
    }

    async fn open_lane(&self) -> Result<Lane, LinkError> {
        let connection = {
            let mut current = self.connection.lock().await;
            match current.as_ref().filter(|connection| connection.status().connected()) {
                Some(connection) => Arc::clone(connection),
                None => {
                    let (connection, _events) = link::open(&self.uri, "penstock score --follow, results").await?;
                    Arc::clone(current.insert(Arc::new(connection)))
                }
            }
        };
        let channel = connection.create_channel().await.map_err(LinkError::Connect)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(LinkError::Connect)?;
        Ok(Lane { connection, channel })
    }

    fn note(&self, trouble: &Trouble) {
        let said = trouble.to_string();
        let is_new = self.trouble.send_if_modified(|now| {
            let is_new = now.as_ref() != Some(&said);
            *now = Some(said.clone());
            is_new
        });
        if is_new {
            tracing::warn!(exchange = self.exchange, "results wait: {said}");
        }
    }
}
