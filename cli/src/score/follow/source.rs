//! Where lines come from: the standard input, read on a thread of its own, or a queue.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::Context;
use backends::rabbitmq::{FollowedQueue, Message, MessageTag};
use contract::openai::json;
use serde_json::Value;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::super::lines::{Dataset, Item, MAX_LINE_BYTES};
use crate::batch::key;

/// One line that came.
#[derive(Debug)]
pub struct Received {
    /// Its line in the input; of a message: how manieth it is in this run.
    pub line: u64,
    /// What it says, or what is wrong with it.
    pub content: Result<Value, String>,
    /// Its name where it has none of its own.
    pub name: Option<String>,
    /// What its answer is to carry, where that is a message.
    pub correlation_id: Option<String>,
    /// The same for the same message, however often it comes; names its answer.
    pub key: String,
    /// The seed where it has none of its own.
    pub seed: Option<i64>,
    /// For its acknowledgement.
    pub tag: Option<MessageTag>,
}

/// See the module.
pub enum Source {
    /// Lines, and an id of this run.
    Input(mpsc::Receiver<anyhow::Result<Item>>, Uuid),
    /// Messages, and how many came.
    Queue(FollowedQueue, u64),
}

impl Source {
    /// Begins to read the standard input: a line or two ahead of what is asked for, and no more.
    ///
    /// # Errors
    /// It is closed.
    pub fn standard_input() -> anyhow::Result<Self> {
        let input = std::io::stdin().as_fd().try_clone_to_owned().context("the standard input cannot be read")?;
        let (to, lines) = mpsc::channel(1);
        // Not one of the runtime's: a read that never returns must not keep the process.
        std::thread::spawn(move || {
            let mut dataset = Dataset::of_lines(File::from(input));
            while let Some(item) = dataset.next().context("the standard input cannot be read").transpose() {
                let is_last = item.is_err();
                if to.blocking_send(item).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Self::Input(lines, Uuid::now_v7()))
    }

    /// Messages of a queue, from [`Source::begin`] on.
    pub fn queue(queue: FollowedQueue) -> Self {
        Self::Queue(queue, 0)
    }

    /// From here on lines are wanted.
    pub fn begin(&self) {
        if let Self::Queue(queue, _) = self {
            queue.begin();
        }
    }

    /// The next line; `None` at the end of the input. Cancel-safe.
    ///
    /// # Errors
    /// The input cannot be read any more.
    pub async fn next(&mut self) -> anyhow::Result<Option<Received>> {
        match self {
            Self::Input(lines, run) => {
                let Some(item) = lines.recv().await.transpose()? else { return Ok(None) };
                Ok(Some(of_item(item, *run)))
            }
            Self::Queue(queue, n_received) => {
                let Some(message) = queue.next().await else { return Ok(None) };
                *n_received += 1;
                Ok(Some(of_message(message, *n_received)))
            }
        }
    }

    /// Wants no more lines; those that were handed out may be acknowledged still.
    pub fn stop(&mut self) {
        match self {
            Self::Input(lines, _) => lines.close(),
            Self::Queue(queue, _) => queue.stop(),
        }
    }

    /// The answer to a line is durable.
    pub fn ack(&self, tag: Option<MessageTag>) {
        if let (Self::Queue(queue, _), Some(tag)) = (self, tag) {
            queue.ack(tag);
        }
    }

    /// Whether somebody still waits for the answer to a line; if not, it comes again.
    pub fn is_live(&self, tag: Option<MessageTag>) -> bool {
        match (self, tag) {
            (Self::Queue(queue, _), Some(tag)) => queue.is_live(tag),
            _ => true,
        }
    }

    /// Ends when nobody waits any more for the answer to a line.
    pub fn lost(&self, tag: Option<MessageTag>) -> impl Future<Output = ()> + use<> {
        let lost = match (self, tag) {
            (Self::Queue(queue, _), Some(tag)) => Some(queue.lost(tag)),
            _ => None,
        };
        async move {
            match lost {
                Some(lost) => lost.await,
                None => std::future::pending().await,
            }
        }
    }

    /// How many lines wait; `None` where nobody can tell.
    pub fn waiting(&self) -> Option<u64> {
        match self {
            Self::Input(..) => None,
            Self::Queue(queue, _) => queue.ready(),
        }
    }

    /// Whether what is not answered comes again.
    pub fn is_queue(&self) -> bool {
        matches!(self, Self::Queue(..))
    }

    /// Sees the last acknowledgements on their way.
    pub async fn close(self) {
        if let Self::Queue(queue, _) = self {
            queue.close().await;
        }
    }
}

fn of_item(item: Item, run: Uuid) -> Received {
    let key = key::derive(&[b"penstock score --follow", run.as_bytes(), &item.line.to_le_bytes()]);
    Received { line: item.line, content: item.content, name: None, correlation_id: None, key, seed: None, tag: None }
}

fn of_message(message: Message, line: u64) -> Received {
    let Message { tag, body, message_id, correlation_id } = message;
    let id = message_id.as_deref().or(correlation_id.as_deref()).unwrap_or_default();
    let key = key::derive(&[b"penstock score --follow", id.as_bytes(), &body]);
    let digest = key.rsplit_once('-').map_or(key.as_str(), |(_, digest)| digest);
    let name = if id.is_empty() { format!("message-{}", &digest[..16]) } else { id.to_owned() };
    // 48 bits: every reader of JSON keeps such a number as it is.
    let seed = i64::from_str_radix(&digest[..12], 16).ok();
    Received {
        line,
        content: content(&body),
        correlation_id: correlation_id.or(message_id),
        name: Some(name),
        key,
        seed,
        tag: Some(tag),
    }
}

fn content(body: &[u8]) -> Result<Value, String> {
    if body.len() > MAX_LINE_BYTES {
        return Err(format!("the message is longer than {MAX_LINE_BYTES} bytes"));
    }
    json::parse(body.trim_ascii()).map_err(|err| format!("not valid JSON: {} (column {})", err.message, err.column))
}
