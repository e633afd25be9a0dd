//! The [`contract::Queue`] on RabbitMQ (3.10 or newer) quorum queues.
//!
//! Two connections: one publishes, and the broker may block it; the other takes, asks and acknowledges. Both are made
//! anew for as long as it takes whenever they are lost. Nothing here is the truth: a message that is lost, repeated or
//! out of order is mended by the store, so every doubt is answered with "unknown" and never with a guess.
//!
//! - `x-max-length` counts ready messages only, and the broker refuses a little late: of 10,000 publishes pipelined at a
//!   limit of 256 it kept 400 to 432, of slices of 16 one after the other 272 (3.10.8, example `queue_rate`).
//! - After a crash of the broker, [`Queue::ready`] answers 0 until the queue has a leader again, whatever it holds
//!   (3.10.8). The feeder then publishes up to a whole limit of due rows, and the broker refuses what it has no room
//!   for. That is harmless: of two messages for one job, the lease makes the second void.
//! - A returned wake-up comes before those that nobody fetched. On 3.10 every return counts towards the delivery
//!   limit, which is therefore out of reach.

mod answers;
mod book;
mod counts;
mod fetch;
mod follow;
mod link;
mod message;
mod publisher;
mod session;
mod topology;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use contract::{Delivery, Published, Queue, QueueError, QueueId, Wake};
use lapin::uri::AMQPUri;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout, timeout_at};

pub use self::answers::{Answer, Answers, AnswersOptions};
use self::book::Request;
use self::counts::Counters;
pub use self::counts::RabbitCounts;
use self::fetch::{Fetch, Fetched};
pub use self::follow::{FollowError, FollowOptions, FollowedQueue, Message, MessageTag};
use self::link::{Health, LinkError};
use self::publisher::Publisher;
use self::session::{Current, Keeper, Session};
pub use self::topology::DeclareError;
use self::topology::Topology;

/// Wake-ups a queue holds unless said otherwise.
const DEFAULT_LIMIT: u64 = 256;
/// Deliveries fetched ahead per release and class. The broker sends the next one when it has written an acknowledgement
/// to its log, so a worker takes about this many per write (some milliseconds); and what a worker without room gives
/// back, or a worker that dies takes with it for a moment, is no more than this.
const DEFAULT_PREFETCH: u16 = 16;
/// See [`RabbitOptions::silence`].
const DEFAULT_SILENCE: Duration = Duration::from_secs(10);
/// See [`RabbitOptions::leaderless`].
const DEFAULT_LEADERLESS: Duration = Duration::from_secs(30);
/// The deadline of a publish.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);
/// What of it is kept for the answer's own way.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);
/// How long `connect` waits for a broker before it goes on without one.
const FIRST_LINK_WITHIN: Duration = Duration::from_secs(2);
/// How long `rest` waits for what it put back.
const REST_WITHIN: Duration = Duration::from_secs(3);
/// Slices that wait to be published; whoever comes then waits too, within its deadline.
const MOST_REQUESTS: usize = 1_024;

/// How to use the broker.
#[derive(Clone)]
pub struct RabbitOptions {
    /// `amqp://user:password@host:port/vhost`, or `amqps://`. Its query may set `heartbeat` (seconds; default 5).
    pub url: String,
    /// Most ready messages per queue, at least 1; default 256. All processes must agree.
    pub limit: u64,
    /// What the names of queues and of the dead-letter exchange begin with; default `penstock`.
    pub prefix: String,
    /// Deliveries that one consumer (one per release and class) holds unacknowledged, 1 to 2,000; default 16.
    pub prefetch: u16,
    /// A consumer that gets nothing for this long while messages are ready is opened anew; default 10 s.
    pub silence: Duration,
    /// A queue whose declarations stay unanswered for this long on a live connection has lost its leader for good, as one
    /// may whose broker crashed while it was made: it is deleted, made anew, and refills from the store; default 30 s.
    pub leaderless: Duration,
}

impl RabbitOptions {
    /// The defaults for a broker.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            limit: DEFAULT_LIMIT,
            prefix: "penstock".into(),
            prefetch: DEFAULT_PREFETCH,
            silence: DEFAULT_SILENCE,
            leaderless: DEFAULT_LEADERLESS,
        }
    }
}

impl std::fmt::Debug for RabbitOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL holds a password.
        f.debug_struct("RabbitOptions")
            .field("url", &"***")
            .field("limit", &self.limit)
            .field("prefix", &self.prefix)
            .field("prefetch", &self.prefetch)
            .field("silence", &self.silence)
            .field("leaderless", &self.leaderless)
            .finish()
    }
}

/// The broker cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum RabbitOpenError {
    /// The URL is none.
    #[error("queue needs a URL like `amqp://user:password@host:5672/vhost`: {0}")]
    Url(String),
    /// An option is out of range.
    #[error("{0}")]
    Option(&'static str),
    /// The broker is there and lets us not in.
    #[error("the broker refuses the name, the password or the virtual host of the queue URL")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The broker holds something of our name that is not ours.
    #[error("the broker holds what this process cannot use")]
    Declare(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A [`Queue`] on RabbitMQ. Dropping it closes its connections, and the broker takes back what was not acknowledged.
pub struct RabbitQueue {
    topology: Arc<Topology>,
    silence: Duration,
    counters: Arc<Counters>,
    requests: mpsc::Sender<Request>,
    /// Whether there is a link for publishing.
    publishing: watch::Receiver<Health>,
    current: Current,
    fetches: Mutex<HashMap<QueueId, Fetching>>,
    arrived: Arc<Notify>,
    tasks: [AbortHandle; 2],
}

/// A queue that is consumed.
struct Fetching {
    fetch: Arc<Fetch>,
    rest: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Why a queue cannot be asked.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("there is no connection to the broker at the moment")]
    NoLink,
    #[error(transparent)]
    Declare(Arc<DeclareError>),
}

fn unreachable(trouble: impl std::error::Error + Send + Sync + 'static) -> QueueError {
    QueueError::Unreachable(Box::new(trouble))
}

impl RabbitQueue {
    /// Begins to connect, and waits up to 2 s for the broker. One that is away is no error: it is looked for until it
    /// comes, and meanwhile every method says that it cannot be reached. Call it on a tokio runtime, on which the
    /// connections then live.
    ///
    /// # Errors
    /// [`RabbitOpenError`] when waiting cannot help: the URL or an option is wrong, or the broker refuses us.
    pub async fn connect(options: RabbitOptions) -> Result<Self, RabbitOpenError> {
        let uri = checked(&options)?;
        let topology = Arc::new(Topology::new(options.prefix, options.limit, options.leaderless));
        let counters = Arc::new(Counters::default());
        let (requests, receiver) = mpsc::channel(MOST_REQUESTS);
        let (publisher_health, publisher_up) = watch::channel(Health::Starting);
        let (keeper_health, keeper_up) = watch::channel(Health::Starting);
        let (session, current) = watch::channel(None);
        let publisher = Publisher {
            uri: uri.clone(),
            topology: topology.clone(),
            counters: counters.clone(),
            health: publisher_health,
            requests: receiver,
        };
        let keeper = Keeper {
            uri,
            topology: topology.clone(),
            counters: counters.clone(),
            prefetch: options.prefetch,
            health: keeper_health,
            current: session,
        };
        let tasks = [tokio::spawn(publisher.run()).abort_handle(), tokio::spawn(keeper.run()).abort_handle()];
        let queue = Self {
            topology,
            silence: options.silence,
            counters,
            requests,
            publishing: publisher_up.clone(),
            current,
            fetches: Mutex::default(),
            arrived: Arc::default(),
            tasks,
        };
        let until = Instant::now() + FIRST_LINK_WITHIN;
        for health in [publisher_up, keeper_up] {
            first_word(health, until).await?;
        }
        Ok(queue)
    }

    /// What went wrong so far, and was mended.
    pub fn counts(&self) -> RabbitCounts {
        self.counters.read()
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.current.borrow().clone().filter(|session| session.is_up())
    }

    fn fetches(&self) -> MutexGuard<'_, HashMap<QueueId, Fetching>> {
        // Nothing in here panics half-way.
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is fetched for a queue; begins with it where nothing was.
    fn fetch(&self, queue: &QueueId) -> Arc<Fetch> {
        let mut fetches = self.fetches();
        if let Some(fetching) = fetches.get(queue) {
            return fetching.fetch.clone();
        }
        let fetch = Arc::new(Fetch {
            queue: self.topology.queue(queue),
            silence: self.silence,
            counters: self.counters.clone(),
            arrived: self.arrived.clone(),
            state: Mutex::new(Fetched::default()),
        });
        let (rest, resting) = watch::channel(false);
        let task = tokio::spawn(fetch.clone().run(self.current.clone(), resting));
        fetches.insert(queue.clone(), Fetching { fetch: fetch.clone(), rest, task });
        fetch
    }

    /// The session a delivery came in, with the broker's tag of it; `None` when that one is over.
    fn session_of(&self, delivery: &Delivery) -> Option<(Arc<Session>, u64)> {
        let session = self.session()?;
        let delivery_tag = session.delivery_tag(delivery.tag)?;
        Some((session, delivery_tag))
    }

    fn was_stale(&self, delivery: &Delivery) {
        self.counters.stale_answers.add_one();
        tracing::debug!(job.id = %delivery.wake.job, "a delivery outlived its connection; the broker delivers it again");
    }

    fn was_lost(&self, delivery: &Delivery, err: &LinkError) {
        self.counters.lost_answers.add_one();
        tracing::warn!(
            error = err as &dyn std::error::Error,
            job.id = %delivery.wake.job,
            "an answer did not reach the broker, which delivers the wake-up again"
        );
    }
}

fn checked(options: &RabbitOptions) -> Result<AMQPUri, RabbitOpenError> {
    let uri = options.url.parse::<AMQPUri>().map_err(RabbitOpenError::Url)?;
    if options.limit == 0 {
        return Err(RabbitOpenError::Option("the queue limit must be at least 1"));
    }
    if !(1..=2_000).contains(&options.prefetch) {
        return Err(RabbitOpenError::Option("the prefetch must be 1 to 2,000, which is the most a quorum queue gives"));
    }
    // Names have at most 255 bytes, and ours add up to 25.
    if options.prefix.is_empty() || options.prefix.len() > 200 {
        return Err(RabbitOpenError::Option("the prefix of queue names must have 1 to 200 bytes"));
    }
    Ok(link::with_defaults(uri))
}

/// Waits for what a link says first; an error where waiting for more is in vain.
async fn first_word(mut health: watch::Receiver<Health>, until: Instant) -> Result<(), RabbitOpenError> {
    let spoken = timeout_at(until, health.wait_for(|health| !matches!(health, Health::Starting))).await;
    let Ok(Ok(spoken)) = spoken else { return Ok(()) };
    let Health::Down(why) = spoken.clone() else { return Ok(()) };
    match *why {
        LinkError::Declare(DeclareError::Mismatch { .. }) => Err(RabbitOpenError::Declare(why.into())),
        _ if why.is_refusal() => Err(RabbitOpenError::Refused(why.into())),
        _ => Ok(()),
    }
}

impl Drop for RabbitQueue {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for fetching in self.fetches().values() {
            fetching.task.abort();
        }
    }
}

#[async_trait]
impl Queue for RabbitQueue {
    fn is_reachable(&self) -> bool {
        matches!(*self.publishing.borrow(), Health::Up)
    }

    async fn publish(&self, wakes: &[(QueueId, Wake)]) -> Vec<Published> {
        if wakes.is_empty() {
            return Vec::new();
        }
        let until = Instant::now() + CONFIRM_WITHIN;
        let (reply, answers) = oneshot::channel();
        let named = wakes.iter().map(|(queue, wake)| (self.topology.queue(queue), *wake)).collect();
        let asked = async {
            let request = Request { wakes: named, deadline: until - ANSWER_MARGIN, reply };
            self.requests.send(request).await.ok()?;
            answers.await.ok()
        };
        timeout_at(until, asked).await.ok().flatten().unwrap_or_else(|| vec![Published::Unknown; wakes.len()])
    }

    async fn take(&self, queue: &QueueId, max: usize) -> Result<Vec<Delivery>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        // Also without a connection: then it begins with the next one.
        let fetch = self.fetch(queue);
        let Some(session) = self.session() else { return Err(unreachable(Trouble::NoLink)) };
        let taken = fetch.take(&session, max).map_err(|trouble| unreachable(Trouble::Declare(trouble)))?;
        Ok(taken.into_iter().map(|(tag, wake)| Delivery { wake, tag, queue: queue.clone() }).collect())
    }

    async fn ack(&self, delivery: Delivery) {
        let Some((session, delivery_tag)) = self.session_of(&delivery) else { return self.was_stale(&delivery) };
        if let Err(err) = session.ack(delivery_tag).await {
            self.was_lost(&delivery, &err);
        }
    }

    async fn put_back(&self, delivery: Delivery) {
        let Some((session, delivery_tag)) = self.session_of(&delivery) else { return self.was_stale(&delivery) };
        if let Err(err) = session.put_back(delivery_tag).await {
            self.was_lost(&delivery, &err);
        }
    }

    async fn arrived(&self) {
        self.arrived.notified().await;
    }

    async fn rest(&self) {
        let resting: Vec<Fetching> = self.fetches().drain().map(|(_, fetching)| fetching).collect();
        for fetching in &resting {
            // A task that is gone rests already.
            fetching.rest.send_replace(true);
        }
        let all_back = async {
            for fetching in resting {
                if let Err(err) = fetching.task.await {
                    tracing::error!(error = &err as &dyn std::error::Error, "a consumer's task failed");
                }
            }
        };
        if timeout(REST_WITHIN, all_back).await.is_err() {
            tracing::warn!("wake-ups were not given back in time; they go back with the connection");
        }
    }

    async fn ready(&self, queue: &QueueId) -> Result<u64, QueueError> {
        let Some(session) = self.session() else { return Err(unreachable(Trouble::NoLink)) };
        session.declarer.declare(&self.topology.queue(queue)).await.map_err(unreachable)
    }

    fn limit(&self) -> u64 {
        self.topology.limit()
    }
}
