//! One connection to the broker: opening it, and how it goes.

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind, Event};
use tokio::time::timeout;

use super::topology::DeclareError;

/// A link that is silent for this long is dead: found within twice the time.
pub(super) const HEARTBEAT_S: u16 = 5;
/// How long opening a connection may take, and what is opened on it.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Why a connection is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the broker cannot be reached")]
    Connect(#[source] lapin::Error),
    #[error("the broker did not answer within {} s", CONNECT_WITHIN.as_secs())]
    Slow,
    #[error(transparent)]
    Declare(#[from] DeclareError),
    #[error("the connection to the broker was lost")]
    Lost,
}

impl LinkError {
    /// The broker is there and says no to the name, the password or the virtual host: waiting mends nothing.
    pub(super) fn is_refusal(&self) -> bool {
        let Self::Connect(err) = self else { return false };
        let ErrorKind::ProtocolError(err) = err.kind() else { return false };
        matches!(
            err.kind(),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)
        )
    }
}

/// How a link goes, for whoever waits for it.
#[derive(Debug, Clone)]
pub(super) enum Health {
    /// Nothing is known yet.
    Starting,
    Up,
    Down(std::sync::Arc<LinkError>),
}

/// A new connection and what it tells about itself.
///
/// lapin's own recovery stays off: it hides when a channel was replaced, so tags of two channels could be mixed, lets
/// calls hang until the broker is back, and gives up on a broker that is not there at the start.
pub(super) async fn open(uri: &AMQPUri, name: &str) -> Result<(Connection, BoxStream<'static, Event>), LinkError> {
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let connecting = Connection::connect_uri(uri.clone(), properties);
    let connection = timeout(CONNECT_WITHIN, connecting).await.map_err(|_| LinkError::Slow)?;
    let connection = connection.map_err(LinkError::Connect)?;
    let events = connection.events_listener().boxed();
    Ok((connection, events))
}

/// Sets what the URL leaves open.
pub(super) fn with_defaults(mut uri: AMQPUri) -> AMQPUri {
    uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
    uri.query.connection_timeout.get_or_insert(u64::try_from(CONNECT_WITHIN.as_millis()).unwrap_or(u64::MAX));
    uri
}

/// What an event means for a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Blocked(String),
    Unblocked,
    /// Perhaps the end: look at the channel.
    Trouble,
}

/// The next event that matters; ends with the connection.
pub(super) async fn news(events: &mut (impl Stream<Item = Event> + Unpin)) -> News {
    loop {
        match events.next().await {
            Some(Event::ConnectionBlocked(reason)) => return News::Blocked(reason),
            Some(Event::ConnectionUnblocked) => return News::Unblocked,
            Some(Event::Error(_)) => return News::Trouble,
            Some(_) => {}
            // The sender lives as long as the connection, which the caller holds.
            None => std::future::pending().await,
        }
    }
}

pub(super) fn is_up(connection: &Connection, channel: &Channel) -> bool {
    connection.status().connected() && channel.status().connected()
}

/// The pause before the next try: doubles up to 2 s, less a random part of half, so that not all come at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let full = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures += 1;
        // The low bits of a new id are random.
        let random = u32::try_from(uuid::Uuid::now_v7().as_u128() & 0xffff).unwrap_or(0);
        full - full.mul_f64(f64::from(random) / f64::from(0x1_0000_u32) / 2.0)
    }

    /// Whether the last failure is worth a line: the first ones are, and then one of about every half minute.
    pub(super) fn is_news(&self) -> bool {
        self.failures <= 6 || self.failures.is_multiple_of(16)
    }

    /// It works; true if it did not before.
    pub(super) fn reset(&mut self) -> bool {
        std::mem::take(&mut self.failures) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_two_seconds_and_start_over() {
        let mut backoff = Backoff::default();
        for full_ms in [50, 100, 200, 400, 800, 1_600, 2_000, 2_000] {
            let pause = backoff.next().as_millis();
            assert!((full_ms / 2..=full_ms).contains(&pause), "{pause} of {full_ms}");
        }
        for _ in 0..100 {
            assert!(backoff.next() <= LONGEST_PAUSE);
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST_PAUSE);
    }
}
