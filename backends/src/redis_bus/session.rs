//! The two connections to Redis: one for commands, shared by all, and one that is subscribed. Both live and die together;
//! while they are gone every call fails at once, and they are made anew in the background.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::{BusError, Signal};
use futures::future::{Fuse, FusedFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::hub::Hub;

/// The longest that a connection or an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The longest that a sign of life may take: more, so that one moment without a processor costs no connection.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// How often Redis is asked for a sign of life: a connection that was cut without a word is noticed by it.
const PROBE: Duration = Duration::from_secs(2);
/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Commands that wait for the shared connection before their callers do.
const PIPELINE: usize = 1024;
/// Channels of one SUBSCRIBE.
const CHANNELS: usize = 512;

/// How long after it came back an empty registry proves nothing: workers tell of themselves every 2 s.
const FORGETFUL: Duration = Duration::from_secs(4);

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Away {
    #[error("no connection has been made yet")]
    NotYet,
    #[error("{0}")]
    Failed(Arc<RedisError>),
    #[error("redis did not answer in time")]
    Silent,
    #[error("redis closed the connection")]
    Closed,
    #[error("redis came back a moment ago, and has not heard of the workers yet")]
    Forgetful,
}

impl From<RedisError> for Away {
    fn from(error: RedisError) -> Self {
        if error.is_timeout() { Away::Silent } else { Away::Failed(Arc::new(error)) }
    }
}

impl From<tokio::time::error::Elapsed> for Away {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Away::Silent
    }
}

/// A command that was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There is no connection, or it broke: nobody knows whether it was done.
    #[error("redis is away: {0}")]
    Away(Away),
    /// Redis said no.
    #[error("redis refused: {0}")]
    Refused(#[source] RedisError),
}

impl From<Failure> for BusError {
    fn from(failure: Failure) -> Self {
        BusError::Unreachable(Box::new(failure))
    }
}

enum Request {
    Subscribe(String, oneshot::Sender<()>),
    Release(String),
}

/// What a connected session offers.
#[derive(Clone)]
pub(super) struct Up {
    commands: MultiplexedConnection,
    requests: mpsc::UnboundedSender<Request>,
}

#[derive(Clone)]
pub(super) enum State {
    Up(Up),
    Down(Away),
}

/// What the session's task and the callers share.
pub(super) struct Shared {
    state: watch::Sender<State>,
    /// A command failed: is Redis still there?
    suspect: Notify,
    pub hub: Hub,
    pub signals: broadcast::Sender<Signal>,
    pub signal_channel: String,
    /// Keeps a broken link from being logged at each attempt.
    told_down: Mutex<bool>,
    /// When it came back after it was away.
    back_at: Mutex<Option<Instant>>,
}

impl Shared {
    pub(super) fn new(signal_channel: String, signals: usize) -> Self {
        Self {
            state: watch::Sender::new(State::Down(Away::NotYet)),
            suspect: Notify::new(),
            hub: Hub::default(),
            signals: broadcast::Sender::new(signals),
            signal_channel,
            told_down: Mutex::new(false),
            back_at: Mutex::new(None),
        }
    }

    fn up(&self) -> Result<Up, Failure> {
        match &*self.state.borrow() {
            State::Up(up) => Ok(up.clone()),
            State::Down(why) => Err(Failure::Away(why.clone())),
        }
    }

    /// Runs a command on the shared connection; fails at once while there is none, and within [`PATIENCE`] otherwise.
    pub(super) async fn run<T>(
        &self,
        command: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, Failure> {
        let mut up = self.up()?;
        let failure = match timeout(PATIENCE, command(&mut up.commands)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() => {
                error.into()
            }
            Ok(Err(error)) => return Err(Failure::Refused(error)),
            Err(elapsed) => elapsed.into(),
        };
        self.suspect.notify_one();
        Err(Failure::Away(failure))
    }

    /// Whether it came back so lately that what it does not know may be there all the same: it may have lost its memory.
    pub(super) fn is_forgetful(&self) -> bool {
        let back_at = *self.back_at.lock().unwrap_or_else(PoisonError::into_inner);
        back_at.is_some_and(|at| at.elapsed() < FORGETFUL)
    }

    /// Returns when the channel is subscribed.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), Failure> {
        let (done, subscribed) = oneshot::channel();
        let up = self.up()?;
        let gone = |_| Failure::Away(Away::Closed);
        up.requests.send(Request::Subscribe(channel.to_owned(), done)).map_err(|_| Failure::Away(Away::Closed))?;
        match timeout(PATIENCE, subscribed).await {
            Ok(answer) => answer.map_err(gone),
            Err(elapsed) => {
                self.suspect.notify_one();
                Err(Failure::Away(elapsed.into()))
            }
        }
    }

    /// Nobody may want this channel any more: it is unsubscribed if so.
    pub(super) fn release(&self, channel: String) {
        if let State::Up(up) = &*self.state.borrow() {
            // A session that ended has no subscriptions.
            let _ = up.requests.send(Request::Release(channel));
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn is_up(&self) {
        // The sender lives as long as `self`.
        let _ = self.state.subscribe().wait_for(|state| matches!(state, State::Up(_))).await;
    }

    /// Waits for the outcome of the first attempt to connect, or [`PATIENCE`].
    pub(super) async fn first_attempt(&self) -> Result<(), Away> {
        let mut states = self.state.subscribe();
        let outcome = timeout(PATIENCE, states.wait_for(|state| !matches!(state, State::Down(Away::NotYet)))).await;
        match outcome {
            Ok(Ok(state)) => match &*state {
                State::Up(_) => Ok(()),
                State::Down(why) => Err(why.clone()),
            },
            Ok(Err(_)) | Err(_) => Err(Away::Silent),
        }
    }

    fn went_up(&self, up: Up, subscribed: &[String]) {
        if std::mem::take(&mut *self.told_down.lock().unwrap_or_else(PoisonError::into_inner)) {
            tracing::info!("the bus is back");
            *self.back_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.state.send_replace(State::Up(up.clone()));
        // Who came while the connections were made found none yet.
        for channel in self.hub.channels() {
            if subscribed.binary_search(&channel).is_err() {
                // Its receiver is in the session.
                let _ = up.requests.send(Request::Subscribe(channel, oneshot::channel().0));
            }
        }
        // What was published while nobody was subscribed is in the streams, or lost.
        self.hub.all_missed();
    }

    fn went_down(&self, why: Away) {
        let mut told = self.told_down.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *told, true) {
            tracing::warn!(
                error = &why as &dyn std::error::Error,
                "the bus is away; readers get tokens from the store"
            );
        }
        self.state.send_replace(State::Down(why));
    }
}

/// Keeps a session alive; never ends.
pub(super) async fn supervise(shared: Arc<Shared>, client: Client) {
    let mut pause = PAUSES.0;
    loop {
        let why = match Session::open(&shared, &client).await {
            Ok((session, up, subscribed)) => {
                pause = PAUSES.0;
                shared.went_up(up, &subscribed);
                session.run(&shared).await
            }
            Err(why) => why,
        };
        shared.went_down(why);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

struct Session {
    commands: MultiplexedConnection,
    sink: PubSubSink,
    messages: PubSubStream,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl Session {
    /// Makes the connections and subscribes what is wanted; answers those channels too, sorted.
    async fn open(shared: &Shared, client: &Client) -> Result<(Self, Up, Vec<String>), Away> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_pipeline_buffer_size(PIPELINE);
        let mut commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        // Who gives no password where one is needed is told so by the first command only.
        redis::cmd("PING").exec_async(&mut commands).await?;
        let (mut sink, messages) = timeout(PATIENCE, client.get_async_pubsub()).await??.split();
        let mut subscribed = shared.hub.channels();
        subscribed.sort_unstable();
        for channels in subscribed.chunks(CHANNELS) {
            timeout(PATIENCE, sink.subscribe(channels)).await??;
        }
        let (sender, requests) = mpsc::unbounded_channel();
        let up = Up { commands: commands.clone(), requests: sender };
        Ok((Self { commands, sink, messages, requests }, up, subscribed))
    }

    /// Passes messages on until a connection breaks; returns why.
    async fn run(mut self, shared: &Shared) -> Away {
        let mut probes = tokio::time::interval_at(tokio::time::Instant::now() + PROBE, PROBE);
        probes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut confirmations = FuturesUnordered::new();
        let mut probe = std::pin::pin!(Fuse::terminated());
        loop {
            let mut due = false;
            tokio::select! {
                message = self.messages.next() => match message {
                    Some(message) => pass_on(shared, &message),
                    None => return Away::Closed,
                },
                request = self.requests.recv() => match request {
                    Some(Request::Subscribe(channel, done)) => {
                        let mut sink = self.sink.clone();
                        let mut confirmed = Box::pin(async move { sink.subscribe(&channel).await.map(|()| done) });
                        // Sent by the first poll: requests must go out in order.
                        match futures::poll!(&mut confirmed) {
                            std::task::Poll::Ready(confirmed) => tell_confirmed(confirmed, shared),
                            std::task::Poll::Pending => confirmations.push(confirmed),
                        }
                    }
                    Some(Request::Release(channel)) if !shared.hub.wants(&channel) => {
                        // Sent by the first poll; nobody waits for the answer.
                        let _ = self.sink.unsubscribe(&channel).now_or_never();
                    }
                    Some(Request::Release(_)) => {}
                    // `shared` holds a sender for as long as the session is up.
                    None => return Away::Closed,
                },
                Some(confirmed) = confirmations.next() => tell_confirmed(confirmed, shared),
                _ = probes.tick() => due = true,
                () = shared.suspect.notified() => due = true,
                alive = &mut probe => if let Err(why) = alive { return why },
            }
            // One at a time: a new one would give Redis its whole time again.
            if due && probe.is_terminated() {
                probe.set(is_alive(self.commands.clone(), self.sink.clone()).fuse());
            }
        }
    }
}

async fn is_alive(mut commands: MultiplexedConnection, mut sink: PubSubSink) -> Result<(), Away> {
    let ping = redis::cmd("PING");
    let both = futures::future::try_join(ping.query_async::<redis::Value>(&mut commands), sink.ping::<redis::Value>());
    timeout(PROBE_PATIENCE, both).await??;
    Ok(())
}

fn tell_confirmed(confirmed: Result<oneshot::Sender<()>, RedisError>, shared: &Shared) {
    match confirmed {
        // Who asked may have given up.
        Ok(done) => drop(done.send(())),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "a channel of the bus could not be subscribed");
            shared.suspect.notify_one();
        }
    }
}

fn pass_on(shared: &Shared, message: &redis::Msg) {
    let channel = message.get_channel_name();
    if channel != shared.signal_channel {
        shared.hub.dispatch(channel, message.get_payload_bytes());
        return;
    }
    match serde_json::from_slice(message.get_payload_bytes()) {
        // Nobody listening is fine.
        Ok(signal) => drop(shared.signals.send(signal)),
        // A newer build may say more.
        Err(error) => tracing::debug!(%error, "a signal that this build does not know"),
    }
}
