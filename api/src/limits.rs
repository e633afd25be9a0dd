//! Bounds, sizes and times of the HTTP side.

use std::time::Duration;

use contract::Class;

/// Most unfinished jobs of one release, by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of [`Class::Interactive`].
    pub interactive: u64,
    /// Of [`Class::Standard`].
    pub standard: u64,
    /// Of [`Class::Bulk`].
    pub bulk: u64,
}

impl Bounds {
    /// The bound of one class.
    pub fn of(&self, class: Class) -> u64 {
        match class {
            Class::Interactive => self.interactive,
            Class::Standard => self.standard,
            Class::Bulk => self.bulk,
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            interactive: Class::Interactive.default_bound(),
            standard: Class::Standard.default_bound(),
            bulk: Class::Bulk.default_bound(),
        }
    }
}

/// How much and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most unfinished jobs; one more is a 429.
    pub bounds: Bounds,
    /// Largest request body in bytes; a larger one is a 413.
    pub body_bytes: usize,
    /// Most connections at once; further ones wait in the system's backlog.
    pub connections: usize,
    /// Longest wait for a request's head, and for the next request of an idle connection.
    pub head_timeout: Duration,
    /// Longest pause in a body; then the answer is 408.
    pub body_pause: Duration,
    /// Longest time a peer may take nothing of an answer that is there; then the connection is cut. A job's events can
    /// be resumed.
    pub write_stall: Duration,
    /// Pause between comments on a quiet stream.
    pub ping: Duration,
    /// How long a streamed call waits for its first event before it sends its head: an error that comes within it has
    /// a real status.
    pub first_event: Duration,
    /// How often a waiter reads the store, whatever the bus says.
    pub poll: Duration,
    /// How long calls and streams may go on after the shutdown began.
    pub grace: Duration,
}

impl Default for Limits {
    /// 4 MiB bodies, 1,024 connections, 30 s for heads, pauses and stalls, pings every 15 s, 2 s for the first event,
    /// a poll every second, 30 s of grace.
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            body_bytes: 4 * 1024 * 1024,
            connections: 1_024,
            head_timeout: Duration::from_secs(30),
            body_pause: Duration::from_secs(30),
            write_stall: Duration::from_secs(30),
            ping: Duration::from_secs(15),
            first_event: Duration::from_secs(2),
            poll: Duration::from_secs(1),
            grace: Duration::from_secs(30),
        }
    }
}
