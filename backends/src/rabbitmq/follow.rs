//! A queue that somebody else owns, read without an end. What comes is acknowledged one by one, by whoever made sure of
//! its result; what is not acknowledged when the connection goes comes again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, Consumer, ErrorKind, Event};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::link::{self, Backoff, LinkError};

/// How often the queue is asked how much waits in it.
const LOOK: Duration = Duration::from_secs(2);
/// How long the broker may take for one thing.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A consumer with room that gets nothing for this long while messages are ready is opened anew.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest that this grows to while reopening brings nothing: a queue with a single active consumer gives others
/// nothing.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// Which queue, and how.
#[derive(Clone)]
pub struct FollowOptions {
    /// As [`super::RabbitOptions::url`].
    pub url: String,
    /// Its name. It must be there.
    pub queue: String,
    /// Most messages without an acknowledgement, 1 to 2,000.
    pub prefetch: u16,
}

impl std::fmt::Debug for FollowOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL holds a password.
        f.debug_struct("FollowOptions").field("queue", &self.queue).field("prefetch", &self.prefetch).finish()
    }
}

/// The broker, a queue or an exchange cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The URL is none.
    #[error("the broker's URL must be like `amqp://user:password@host:5672/vhost`: {0}")]
    Url(String),
    /// The broker is there and lets us not in.
    #[error("the broker refuses the name, the password or the virtual host of its URL")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It cannot be reached, or went away.
    #[error("the broker cannot be used")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is none of this name.
    #[error("the broker has no {what} `{name}`: declare it first, or correct the name or the virtual host")]
    Missing {
        /// `queue` or `exchange`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The user of the URL may not use it, or somebody has it alone.
    #[error("the {what} `{name}` cannot be used: {broker}")]
    Denied {
        /// `queue` or `exchange`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The broker's words.
        broker: String,
    },
}

impl From<LinkError> for FollowError {
    fn from(err: LinkError) -> Self {
        if err.is_refusal() { Self::Refused(err.into()) } else { Self::Unreachable(err.into()) }
    }
}

impl FollowError {
    /// What an answer about one queue or exchange means.
    pub(super) fn about(what: &'static str, name: &str, source: lapin::Error) -> Self {
        let name = name.to_owned();
        if let ErrorKind::ProtocolError(err) = source.kind() {
            match err.kind() {
                AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => return Self::Missing { what, name },
                AMQPErrorKind::Soft(_) => return Self::Denied { what, name, broker: err.get_message().to_string() },
                AMQPErrorKind::Hard(_) => {}
            }
        }
        Self::Unreachable(source.into())
    }
}

/// Reads a URL.
///
/// # Errors
/// It is none.
pub(super) fn parse(url: &str) -> Result<AMQPUri, FollowError> {
    url.parse().map(link::with_defaults).map_err(FollowError::Url)
}

/// Names a delivery; no other one of this process has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageTag {
    /// Counts connections: the broker's own tags begin anew with each.
    life: u64,
    delivery: u64,
}

/// What came from the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// For its acknowledgement.
    pub tag: MessageTag,
    /// Its bytes.
    pub body: Vec<u8>,
    /// The property `message_id`.
    pub message_id: Option<String>,
    /// The property `correlation_id`.
    pub correlation_id: Option<String>,
}

enum Command {
    Begin,
    Ack(MessageTag),
    PutBack(MessageTag),
    Stop,
    Close,
}

/// How things are with the queue.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// The connection of the moment.
    life: Option<u64>,
    /// Messages that wait in the queue, when last heard.
    ready: Option<u64>,
}

/// A queue that is followed. Dropping it closes its connection, and the broker takes back what was not acknowledged.
pub struct FollowedQueue {
    messages: mpsc::UnboundedReceiver<Message>,
    commands: mpsc::UnboundedSender<Command>,
    standing: watch::Receiver<Standing>,
    task: JoinHandle<()>,
}

impl FollowedQueue {
    /// Connects and makes sure that the queue is there; nothing is taken before [`FollowedQueue::begin`]. A connection
    /// that is lost later is made anew for as long as it takes.
    ///
    /// # Errors
    /// [`FollowError`]
    pub async fn open(options: FollowOptions) -> Result<Self, FollowError> {
        let uri = parse(&options.url)?;
        let life = Life::open(&uri, &options, 1).await?;
        let (messages, receiver) = mpsc::unbounded_channel();
        let (commands, asked) = mpsc::unbounded_channel();
        let (standing, seen) = watch::channel(Standing { life: Some(1), ready: Some(life.ready) });
        let follower =
            Follower { uri, options, messages, commands: asked, standing, phase: Phase::Waiting, silence: SILENCE };
        let task = tokio::spawn(follower.run(life));
        Ok(Self { messages: receiver, commands, standing: seen, task })
    }

    /// From here on messages are taken, until [`FollowedQueue::stop`].
    pub fn begin(&self) {
        self.tell(Command::Begin);
    }

    /// The next message. Cancel-safe. Ends only with the process or [`FollowedQueue::close`].
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            let message = self.messages.recv().await?;
            // One of a connection that is gone is the broker's again, and comes again.
            if self.is_live(message.tag) {
                return Some(message);
            }
        }
    }

    /// The message is done with: the broker may forget it.
    pub fn ack(&self, tag: MessageTag) {
        self.tell(Command::Ack(tag));
    }

    /// Whether the message can still be acknowledged; one that cannot comes again.
    pub fn is_live(&self, tag: MessageTag) -> bool {
        self.standing.borrow().life == Some(tag.life)
    }

    /// Ends when the message cannot be acknowledged any more.
    pub fn lost(&self, tag: MessageTag) -> impl Future<Output = ()> + Send + use<> {
        let mut standing = self.standing.clone();
        async move {
            // A task that is gone has no connection.
            let _lost_or_gone = standing.wait_for(|standing| standing.life != Some(tag.life)).await.is_ok();
        }
    }

    /// How many messages wait in the queue beyond those that were taken; `None` while nobody can tell.
    pub fn ready(&self) -> Option<u64> {
        let standing = *self.standing.borrow();
        standing.life.and(standing.ready)
    }

    /// Takes no more, and gives back what nobody asked for with [`FollowedQueue::next`]. The rest may be acknowledged still.
    pub fn stop(&mut self) {
        self.tell(Command::Stop);
        while let Ok(message) = self.messages.try_recv() {
            self.tell(Command::PutBack(message.tag));
        }
    }

    /// Closes the connection once the acknowledgements are on their way.
    pub async fn close(self) {
        self.tell(Command::Close);
        // It waits for the broker a moment and no longer.
        let _closed = self.task.await;
    }

    fn tell(&self, command: Command) {
        // The task ends only with `close`, or in a panic that `close` would show.
        let _told = self.commands.send(command);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Taking,
    Stopped,
}

/// How a connection's life ended.
enum End {
    Lost,
    Closed,
}

struct Follower {
    uri: AMQPUri,
    options: FollowOptions,
    messages: mpsc::UnboundedSender<Message>,
    commands: mpsc::UnboundedReceiver<Command>,
    standing: watch::Sender<Standing>,
    phase: Phase,
    /// How much silence is believed: twice as much after each reopening, until something comes.
    silence: Duration,
}

/// One connection.
struct Life {
    number: u64,
    connection: Arc<Connection>,
    events: BoxStream<'static, Event>,
    channel: Channel,
    /// What passive declarations go over: an answer that the queue is gone closes it.
    asking: Option<Channel>,
    consumer: Option<Consumer>,
    ready: u64,
    /// Deliveries without an answer.
    unanswered: u64,
    /// Since when messages wait although there is room for them.
    forgotten_since: Option<Instant>,
}

impl Life {
    async fn open(uri: &AMQPUri, options: &FollowOptions, number: u64) -> Result<Self, FollowError> {
        let opening = async {
            let (connection, events) = link::open(uri, "penstock score --follow").await?;
            let asking = connection.create_channel().await.map_err(LinkError::Connect)?;
            let name = options.queue.as_str();
            let ready = ready(&asking, name).await.map_err(|err| FollowError::about("queue", name, err))?;
            let channel = connection.create_channel().await.map_err(LinkError::Connect)?;
            let per_consumer = BasicQosOptions { global: false };
            channel.basic_qos(options.prefetch, per_consumer).await.map_err(LinkError::Connect)?;
            Ok(Self {
                number,
                connection: Arc::new(connection),
                events,
                channel,
                asking: Some(asking),
                consumer: None,
                ready,
                unanswered: 0,
                forgotten_since: None,
            })
        };
        timeout(link::CONNECT_WITHIN, opening).await.unwrap_or_else(|_| Err(LinkError::Slow.into()))
    }

    fn is_up(&self) -> bool {
        link::is_up(&self.connection, &self.channel)
    }

    /// Begins to take; false when the connection should go.
    async fn consume(&mut self, queue: &str) -> bool {
        let options = BasicConsumeOptions::default();
        let starting = self.channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        self.consumer = timeout(ANSWER_WITHIN, starting).await.ok().and_then(Result::ok);
        self.forgotten_since = None;
        self.consumer.is_some()
    }

    /// Ends the consumer: what the broker sent before comes still. False when the connection should go.
    async fn cancel(&mut self) -> bool {
        let Some(consumer) = &self.consumer else { return true };
        let cancelling = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        matches!(timeout(ANSWER_WITHIN, cancelling).await, Ok(Ok(())))
    }

    /// Answers a delivery; false when the connection should go.
    async fn answer(&mut self, tag: MessageTag, is_done: bool) -> bool {
        if tag.life != self.number {
            // The broker has taken it back already.
            return true;
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        let back = BasicNackOptions { requeue: true, multiple: false };
        let answering = async {
            match is_done {
                true => self.channel.basic_ack(tag.delivery, BasicAckOptions::default()).await,
                false => self.channel.basic_nack(tag.delivery, back).await,
            }
        };
        matches!(timeout(ANSWER_WITHIN, answering).await, Ok(Ok(())))
    }

    /// Whether the broker seems to have forgotten the consumer, silent for so long; asked after each look at the queue.
    fn is_forgotten(&mut self, prefetch: u16, silence: Duration) -> bool {
        if self.consumer.is_none() || self.ready == 0 || self.unanswered >= u64::from(prefetch) {
            self.forgotten_since = None;
            return false;
        }
        // Not at once: what waits may be on its way.
        self.forgotten_since.get_or_insert_with(Instant::now).elapsed() > silence
    }
}

/// The silence to wait for next, after one that made the consumer be opened anew.
fn longer(silence: Duration) -> Duration {
    silence.saturating_mul(2).min(LONGEST_SILENCE)
}

/// How many messages wait; an error closes the channel.
async fn ready(channel: &Channel, queue: &str) -> Result<u64, lapin::Error> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
    Ok(u64::from(queue.message_count()))
}

/// What a question gives back: the channel, where it can be used again, and the answer, where there is one.
type Asked = (Option<Channel>, Option<u64>);

/// Asks how many messages wait, beside everything else: a queue without a leader does not answer.
fn ask(life: &mut Life, queue: &str) -> BoxFuture<'static, Asked> {
    let usable = life.asking.take().filter(|channel| channel.status().connected());
    let (connection, queue) = (Arc::clone(&life.connection), queue.to_owned());
    async move {
        let asking = async {
            let channel = match usable {
                Some(channel) => channel,
                None => connection.create_channel().await.ok()?,
            };
            let n_ready = ready(&channel, &queue).await.ok()?;
            Some((channel, n_ready))
        };
        match timeout(ANSWER_WITHIN, asking).await {
            Ok(Some((channel, n_ready))) => (Some(channel), Some(n_ready)),
            _ => (None, None),
        }
    }
    .boxed()
}

impl Follower {
    /// Lives on one connection after the other, until it is told to close.
    async fn run(mut self, first: Life) {
        let mut next = Some(first);
        let mut number = 1;
        let mut backoff = Backoff::default();
        loop {
            let opened = match next.take() {
                Some(life) => Ok(life),
                None => {
                    number += 1;
                    Life::open(&self.uri, &self.options, number).await
                }
            };
            match opened {
                Ok(life) => {
                    let standing = Standing { life: Some(life.number), ready: Some(life.ready) };
                    self.standing.send_replace(standing);
                    if backoff.reset() {
                        tracing::warn!(queue = self.options.queue, "the queue is back");
                    }
                    let end = self.live(life).await;
                    self.standing.send_replace(Standing::default());
                    if matches!(end, End::Closed) {
                        return;
                    }
                    tracing::warn!(
                        queue = self.options.queue,
                        "the connection to the queue was lost; what was not acknowledged comes again"
                    );
                }
                Err(err) if backoff.is_news() => {
                    tracing::warn!(
                        error = &err as &dyn std::error::Error,
                        queue = self.options.queue,
                        "the queue is away"
                    );
                }
                Err(_) => {}
            }
            let pause = tokio::time::sleep(backoff.next());
            if !self.idle(pause).await {
                return;
            }
        }
    }

    /// Waits without a connection, and after a stop for nothing but the end; false when it is told to close.
    async fn idle(&mut self, pause: impl Future<Output = ()>) -> bool {
        let mut pause = std::pin::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause, if self.phase != Phase::Stopped => return true,
                command = self.commands.recv() => match command {
                    Some(Command::Begin) if self.phase == Phase::Waiting => self.phase = Phase::Taking,
                    Some(Command::Begin) => {}
                    Some(Command::Stop) => self.phase = Phase::Stopped,
                    // The broker has taken it back already.
                    Some(Command::Ack(_) | Command::PutBack(_)) => {}
                    Some(Command::Close) | None => return false,
                },
            }
        }
    }

    async fn live(&mut self, mut life: Life) -> End {
        if self.phase == Phase::Taking && !life.consume(&self.options.queue).await {
            return End::Lost;
        }
        let mut look = tokio::time::interval(LOOK);
        let mut question: Option<BoxFuture<'static, Asked>> = None;
        loop {
            let answered = async {
                match &mut question {
                    Some(question) => question.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                delivery = next_of(&mut life.consumer) => match delivery {
                    Some(Ok(delivery)) => {
                        if !self.receive(&mut life, delivery).await {
                            return End::Lost;
                        }
                    }
                    Some(Err(_)) => return End::Lost,
                    None if !life.is_up() => return End::Lost,
                    None if self.phase == Phase::Stopped => life.consumer = None,
                    None => {
                        tracing::warn!(queue = self.options.queue, "the broker ended the consumer, which is opened again");
                        if !life.consume(&self.options.queue).await {
                            return End::Lost;
                        }
                    }
                },
                command = self.commands.recv() => match self.obey(&mut life, command).await {
                    None => {}
                    Some(end) => return end,
                },
                (channel, n_ready) = answered => {
                    question = None;
                    life.asking = channel;
                    if let Some(n_ready) = n_ready {
                        life.ready = n_ready;
                    }
                    self.standing.send_replace(Standing { life: Some(life.number), ready: n_ready });
                    if life.is_forgotten(self.options.prefetch, self.silence) {
                        self.silence = longer(self.silence);
                        tracing::warn!(queue = self.options.queue, "a consumer fell silent, and is opened again");
                        return End::Lost;
                    }
                }
                _ = link::news(&mut life.events) => {}
                _ = look.tick() => if question.is_none() {
                    question = Some(ask(&mut life, &self.options.queue));
                },
            }
            if !life.is_up() {
                return End::Lost;
            }
        }
    }

    /// Hands a delivery on; false when the connection should go.
    async fn receive(&mut self, life: &mut Life, delivery: Delivery) -> bool {
        life.forgotten_since = None;
        self.silence = SILENCE;
        life.unanswered += 1;
        let tag = MessageTag { life: life.number, delivery: delivery.delivery_tag };
        if self.phase == Phase::Stopped {
            return life.answer(tag, false).await;
        }
        let text = |property: &Option<lapin::types::ShortString>| property.as_ref().map(ToString::to_string);
        let message = Message {
            tag,
            message_id: text(delivery.properties.message_id()),
            correlation_id: text(delivery.properties.correlation_id()),
            body: delivery.data,
        };
        // Whoever is gone has dropped the queue too, and ends this task.
        let _handed = self.messages.send(message);
        true
    }

    /// Does what was asked; answers how the connection ended, if it did.
    async fn obey(&mut self, life: &mut Life, command: Option<Command>) -> Option<End> {
        let is_well = match command {
            Some(Command::Begin) if self.phase == Phase::Waiting => {
                self.phase = Phase::Taking;
                life.consume(&self.options.queue).await
            }
            Some(Command::Begin) => true,
            Some(Command::Ack(tag)) => life.answer(tag, true).await,
            Some(Command::PutBack(tag)) => life.answer(tag, false).await,
            Some(Command::Stop) => {
                self.phase = Phase::Stopped;
                life.cancel().await
            }
            Some(Command::Close) | None => {
                // The broker answers when it has read everything before.
                let closing = life.connection.close(200, "OK".into());
                if !matches!(timeout(ANSWER_WITHIN, closing).await, Ok(Ok(()))) {
                    tracing::warn!("the broker did not confirm the end: last messages may come again");
                }
                return Some(End::Closed);
            }
        };
        (!is_well).then_some(End::Lost)
    }
}

/// The next delivery; none, for as long as nothing is taken.
async fn next_of(consumer: &mut Option<Consumer>) -> Option<Result<Delivery, lapin::Error>> {
    match consumer {
        Some(consumer) => consumer.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_believed_for_longer_each_time_up_to_ten_minutes() {
        let mut silence = SILENCE;
        for seconds in [20, 40, 80, 160, 320, 600, 600] {
            silence = longer(silence);
            assert_eq!(silence.as_secs(), seconds);
        }
    }
}
