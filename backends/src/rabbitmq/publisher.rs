//! Publishes on a connection of its own, which the broker may block without stopping acknowledgements. One task owns
//! the channel: whatever callers want published at the same time shares its pipeline.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use contract::{Published, Wake};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::uri::AMQPUri;
use lapin::{Channel, Confirmation, Connection, Event};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::book::{Book, Place, Request};
use super::counts::Counters;
use super::link::{self, Backoff, Health, LinkError, News};
use super::message;
use super::topology::{DeclareError, Declarer, Topology};

/// Most messages without a confirm; more are not sent. A broker that stalls costs this much memory and no more.
const MOST_UNCONFIRMED: usize = 16_384;
/// A broker that owes confirms and gives none for this long is not waited for: a new connection is.
const STALLED: Duration = Duration::from_secs(10);
/// Behind every event stands a look.
const LOOK: Duration = Duration::from_secs(1);

/// What the task needs.
pub(super) struct Publisher {
    pub(super) uri: AMQPUri,
    pub(super) topology: Arc<Topology>,
    pub(super) counters: Arc<Counters>,
    pub(super) health: watch::Sender<Health>,
    pub(super) requests: mpsc::Receiver<Request>,
}

impl Publisher {
    /// Connects, publishes, connects again, until nobody can ask any more.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let opening = Session::open(self.uri.clone(), self.topology.clone(), self.counters.clone());
            let opening = timeout(link::CONNECT_WITHIN, opening);
            let Some(opened) = refusing(&mut self.requests, opening).await else { return };
            let why = match opened.unwrap_or(Err(LinkError::Slow)) {
                Ok(session) => {
                    self.health.send_replace(Health::Up);
                    if backoff.reset() {
                        tracing::info!("the link for publishing is back");
                    }
                    if !session.run(&mut self.requests).await {
                        return;
                    }
                    LinkError::Lost
                }
                Err(err) => err,
            };
            let pause = backoff.next();
            if backoff.is_news() {
                tracing::warn!(
                    error = &why as &dyn std::error::Error,
                    pause_ms = pause.as_millis(),
                    "no link for publishing"
                );
            }
            self.health.send_replace(Health::Down(Arc::new(why)));
            if refusing(&mut self.requests, tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }
}

/// Waits for something while there is no broker to ask: requests are answered at once. `None` when no more can come.
async fn refusing<T>(requests: &mut mpsc::Receiver<Request>, until: impl Future<Output = T>) -> Option<T> {
    let mut until = std::pin::pin!(until);
    loop {
        tokio::select! {
            done = &mut until => return Some(done),
            request = requests.recv() => request?.refuse(),
        }
    }
}

/// The end of one publish.
struct Sent {
    place: Place,
    answer: Result<Confirmation, lapin::Error>,
}

type Sending = Pin<Box<dyn Future<Output = Sent> + Send>>;

/// One connection and what is under way on it.
struct Session {
    /// Ends the connection when it is dropped.
    connection: Arc<Connection>,
    events: BoxStream<'static, Event>,
    channel: Channel,
    declarer: Arc<Declarer>,
    counters: Arc<Counters>,
    blocked: bool,
    book: Book,
    /// Queues that were there when last heard of.
    known: HashSet<String>,
    /// What waits for the declaration of its queue.
    waiting: HashMap<String, Vec<(Place, Wake)>>,
    declaring: FuturesUnordered<BoxFuture<'static, (String, Result<u64, DeclareError>)>>,
    /// Lapin numbers publishes when they are polled first; one task polls them in the order of this list.
    sending: FuturesUnordered<Sending>,
    /// When a confirm came last, or was owed first.
    progress_at: Instant,
}

impl Session {
    async fn open(uri: AMQPUri, topology: Arc<Topology>, counters: Arc<Counters>) -> Result<Self, LinkError> {
        let (connection, events) = link::open(&uri, "penstock publisher").await?;
        let channel = connection.create_channel().await.map_err(LinkError::Connect)?;
        topology.declare_dead(&channel).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(LinkError::Connect)?;
        let connection = Arc::new(connection);
        Ok(Self {
            declarer: Arc::new(Declarer::new(connection.clone(), topology)),
            connection,
            events,
            channel,
            counters,
            blocked: false,
            book: Book::default(),
            known: HashSet::new(),
            waiting: HashMap::new(),
            declaring: FuturesUnordered::new(),
            sending: FuturesUnordered::new(),
            progress_at: Instant::now(),
        })
    }

    /// Publishes until the connection is lost; false when nobody can ask any more.
    async fn run(mut self, requests: &mut mpsc::Receiver<Request>) -> bool {
        let mut look = tokio::time::interval(LOOK);
        loop {
            let deadline = self.book.next_deadline();
            let late = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.begin(request),
                    None => return false,
                },
                Some(sent) = self.sending.next(), if !self.sending.is_empty() => self.settle(sent),
                Some((queue, answer)) = self.declaring.next(), if !self.declaring.is_empty() => self.declared(queue, answer),
                news = link::news(&mut self.events) => self.hear(news),
                () = late => self.give_up(Instant::now()),
                _ = look.tick() => {}
            }
            // A confirm of one slice may carry the returned message of another. Lapin completes it first, so after
            // a turn over all that are complete every return that belongs to these answers has been seen.
            while let Some(Some(sent)) = self.sending.next().now_or_never() {
                self.settle(sent);
            }
            self.book.answer_complete();
            if !link::is_up(&self.connection, &self.channel) || self.is_stalled() {
                self.book.answer_all();
                return true;
            }
        }
    }

    fn begin(&mut self, request: Request) {
        // Nothing leaves a blocked connection, so nothing would come back in time.
        if self.blocked || self.sending.len() + request.wakes.len() > MOST_UNCONFIRMED {
            return request.refuse();
        }
        for (place, queue, wake) in self.book.enter(request) {
            if self.known.contains(&queue) {
                self.send(place, queue, wake);
            } else {
                if !self.waiting.contains_key(&queue) {
                    self.declare(queue.clone());
                }
                self.waiting.entry(queue).or_default().push((place, wake));
            }
        }
    }

    fn declare(&mut self, queue: String) {
        let declarer = self.declarer.clone();
        self.declaring.push(
            async move {
                let answer = declarer.declare(&queue).await;
                (queue, answer)
            }
            .boxed(),
        );
    }

    fn declared(&mut self, queue: String, answer: Result<u64, DeclareError>) {
        let waiting = self.waiting.remove(&queue).unwrap_or_default();
        match answer {
            Ok(_) => {
                self.known.insert(queue.clone());
                for (place, wake) in waiting {
                    self.send(place, queue.clone(), wake);
                }
            }
            Err(err) => {
                tracing::error!(error = &err as &dyn std::error::Error, queue, "a queue could not be declared");
                for (place, _) in waiting {
                    self.book.settle(place, Published::Unknown);
                }
            }
        }
    }

    fn send(&mut self, place: Place, queue: String, wake: Wake) {
        if self.sending.is_empty() {
            self.progress_at = Instant::now();
        }
        let channel = self.channel.clone();
        self.sending.push(Box::pin(async move {
            let (bytes, properties) = message::encode(&wake);
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let answer = match channel.basic_publish("".into(), queue.into(), options, &bytes, properties).await {
                Ok(confirm) => confirm.await,
                Err(err) => Err(err),
            };
            Sent { place, answer }
        }));
    }

    fn settle(&mut self, sent: Sent) {
        self.progress_at = Instant::now();
        let published = match sent.answer {
            Ok(Confirmation::Ack(None)) => Published::Confirmed,
            Ok(Confirmation::Nack(None)) => Published::Full,
            // Lapin hands the oldest returned message to whichever confirm is completed next. What came back is known
            // by its own id; and while somebody else's stands here, the return of this publish may still be waiting
            // its turn, so nobody knows about this one either.
            Ok(Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) => {
                self.came_back(&message);
                Published::Unknown
            }
            Ok(Confirmation::NotRequested) | Err(_) => Published::Unknown,
        };
        self.book.settle(sent.place, published);
    }

    /// The queue is gone: deleted, or with all that a wiped broker had.
    fn came_back(&mut self, message: &BasicReturnMessage) {
        self.counters.returned.add_one();
        let queue = message.routing_key.to_string();
        tracing::error!(queue, reply = %message.reply_text, "a wake-up came back: its queue is gone and is declared anew");
        if let Some(wake) = message::named_by(&message.properties) {
            self.book.returned(wake);
        }
        if self.known.remove(&queue) {
            self.waiting.entry(queue.clone()).or_default();
            self.declare(queue);
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Blocked(reason) => {
                tracing::warn!(reason, "the broker takes no messages now");
                self.blocked = true;
                self.book.answer_all();
            }
            News::Unblocked => {
                tracing::info!("the broker takes messages again");
                self.blocked = false;
                self.progress_at = Instant::now();
            }
            News::Trouble => {}
        }
    }

    fn give_up(&mut self, now: Instant) {
        for queue in self.book.answer_late(now) {
            self.counters.late_slices.add_one();
            tracing::warn!(queue, "the broker did not confirm wake-ups in time");
            // It may be gone: the next publish asks. What waits for a declaration has one under way.
            if !self.waiting.contains_key(&queue) {
                self.known.remove(&queue);
            }
        }
    }

    fn is_stalled(&self) -> bool {
        !self.blocked && !self.sending.is_empty() && self.progress_at.elapsed() > STALLED
    }
}
