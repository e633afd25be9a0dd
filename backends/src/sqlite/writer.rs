//! The one task that writes: it takes what waits, up to 64 operations or 2 ms of work, as one transaction, so that
//! one sync of the disk serves them all. Nobody is answered before that sync.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use contract::StoreError;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::Clock;
use super::fault::Fault;

/// Most operations of one transaction.
const GROUP: usize = 64;
/// No operation joins a transaction that has worked this long.
const GROUP_TIME: Duration = Duration::from_millis(2);
/// Operations that may wait before callers do.
const INBOX: usize = 1024;

/// An open transaction.
pub(super) struct Tx<'c> {
    /// Where its statements run.
    pub(super) conn: &'c mut SqliteConnection,
    /// The store's clock, read once when it began.
    pub(super) now: i64,
}

/// One operation: some statements that succeed or fail together. After a fault its transaction is rolled back, and it
/// may be applied once more in another one.
#[async_trait]
pub(super) trait Write: Send + Sync + 'static {
    /// What its caller gets once it is durable.
    type Answer: Send + 'static;

    /// Does it, within the transaction.
    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault>;
}

/// An operation on its way, with its caller waiting.
#[async_trait]
trait Waiting: Send {
    async fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Fault>;
    /// Committed: tells the caller.
    fn done(self: Box<Self>);
    /// Not committed: tells the caller.
    fn failed(self: Box<Self>, err: StoreError);
}

struct Submitted<W: Write> {
    write: W,
    answer: Option<W::Answer>,
    caller: oneshot::Sender<Result<W::Answer, StoreError>>,
}

#[async_trait]
impl<W: Write> Waiting for Submitted<W> {
    async fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        self.answer = Some(self.write.apply(tx).await?);
        Ok(())
    }

    fn done(self: Box<Self>) {
        if let Some(answer) = self.answer {
            // A caller that went away does not need its answer.
            let _ = self.caller.send(Ok(answer));
        }
    }

    fn failed(self: Box<Self>, err: StoreError) {
        let _ = self.caller.send(Err(err));
    }
}

/// The way to the writer's task, which ends when this is dropped and what was submitted is done.
pub(super) struct Writer {
    inbox: mpsc::Sender<Box<dyn Waiting>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the writer's task has ended")]
struct WriterEnded;

impl Writer {
    /// Starts the task on the current runtime, with a connection that is open already.
    pub(super) fn start(conn: SqliteConnection, options: SqliteConnectOptions, clock: Clock) -> Self {
        let (inbox, waiting) = mpsc::channel(INBOX);
        tokio::spawn(Task { conn: Some(conn), options, clock, waiting }.run());
        Self { inbox }
    }

    /// Has an operation done; answers when it is durable. Once this was polled the operation may happen even if the
    /// returned future is dropped.
    pub(super) async fn submit<W: Write>(&self, write: W) -> Result<W::Answer, StoreError> {
        let (caller, answer) = oneshot::channel();
        let submitted = Box::new(Submitted { write, answer: None, caller });
        if self.inbox.send(submitted).await.is_err() {
            return Err(StoreError::Unreachable(Box::new(WriterEnded)));
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Unanswered(Box::new(WriterEnded))))
    }
}

struct Task {
    /// Absent after an error of the connection: the next group opens a new one.
    conn: Option<SqliteConnection>,
    options: SqliteConnectOptions,
    clock: Clock,
    waiting: mpsc::Receiver<Box<dyn Waiting>>,
}

impl Task {
    async fn run(mut self) {
        while let Some(first) = self.waiting.recv().await {
            let mut again = self.group(first, true).await;
            // One of the group is at fault, nobody knows which: each on its own, and the others are not harmed.
            while let Some(alone) = again.pop() {
                self.group(alone, false).await;
            }
        }
        if let Some(conn) = self.conn {
            // Closing checkpoints the log. If it cannot, the next start reads the log.
            let _ = conn.close().await;
        }
    }

    /// Runs one transaction and answers its operations, except those it returns (last first): they were rolled back
    /// because of one among them.
    async fn group(&mut self, first: Box<dyn Waiting>, others: bool) -> Vec<Box<dyn Waiting>> {
        let began = Instant::now();
        let mut tx = match begin(&mut self.conn, &self.options, &self.clock).await {
            Ok(tx) => tx,
            Err(fault) => {
                first.failed(fault.nothing_written());
                self.conn = None;
                return Vec::new();
            }
        };
        let mut group = Vec::new();
        let mut next = Some(first);
        let mut result = Ok(());
        while let Some(mut operation) = next.take() {
            result = operation.apply(&mut tx).await;
            group.push(operation);
            let room = others && group.len() < GROUP && began.elapsed() < GROUP_TIME;
            if result.is_ok() && room {
                next = self.waiting.try_recv().ok();
            }
        }
        if let Err(fault) = result {
            return self.roll_back(group, fault).await;
        }
        match sqlx::query("COMMIT").execute(&mut *tx.conn).await {
            Ok(_) => group.into_iter().for_each(|operation| operation.done()),
            Err(err) => {
                let fault = Fault::from(err);
                tracing::error!(error = %fault, operations = group.len(), "the job store could not commit");
                self.end_transaction().await;
                group.into_iter().for_each(|operation| operation.failed(fault.clone().of_commit()));
            }
        }
        Vec::new()
    }

    async fn roll_back(&mut self, mut group: Vec<Box<dyn Waiting>>, fault: Fault) -> Vec<Box<dyn Waiting>> {
        self.end_transaction().await;
        if fault.is_about_one_operation() && group.len() > 1 {
            group.reverse();
            return group;
        }
        tracing::error!(error = %fault, operations = group.len(), "the job store rolled back");
        group.into_iter().for_each(|operation| operation.failed(fault.clone().nothing_written()));
        Vec::new()
    }

    /// Leaves no transaction open, whatever state the connection is in.
    async fn end_transaction(&mut self) {
        if let Some(mut conn) = self.conn.take() {
            if sqlx::query("ROLLBACK").execute(&mut conn).await.is_ok() {
                self.conn = Some(conn);
            } else {
                // SQLite has rolled back by itself (disk full), or the connection is of no use: a new one in any case.
                let _ = conn.close().await;
            }
        }
    }
}

async fn begin<'c>(
    conn: &'c mut Option<SqliteConnection>,
    options: &SqliteConnectOptions,
    clock: &Clock,
) -> Result<Tx<'c>, Fault> {
    let conn = match conn.take() {
        Some(open) => conn.insert(open),
        None => conn.insert(options.connect().await?),
    };
    // The write lock is taken here or not at all, so no statement later finds the file busy.
    sqlx::query("BEGIN IMMEDIATE").execute(&mut *conn).await?;
    Ok(Tx { conn, now: clock() })
}
