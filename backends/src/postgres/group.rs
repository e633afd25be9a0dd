//! Groups: a task per kind of write takes whatever waits together and does it as one operation, so that one round of
//! statements, one lock of each counter and one sync of the log serve them all. Nobody waits for company: a group is
//! what came while the one before it was under way.

use std::sync::Arc;

use async_trait::async_trait;
use contract::StoreError;
use tokio::sync::{mpsc, oneshot};

/// Most callers of one group.
const CALLERS: usize = 64;
/// No caller joins a group that has this many items already.
const ITEMS: usize = 1024;
/// Callers that may wait before the next ones wait to be let in.
const INBOX: usize = 1024;

/// A kind of write.
#[async_trait]
pub(super) trait Grouped: Send + Sync + 'static {
    /// What one caller asks for.
    type Call: Send + Sync + 'static;
    /// What one caller gets.
    type Answer: Send + 'static;

    /// Items of a call: what a group is measured by.
    fn items(call: &Self::Call) -> usize;

    /// Does all of it in one transaction and answers each call, in order. A call with an error has written nothing.
    async fn write(&self, calls: &[Self::Call]) -> Result<Vec<Result<Self::Answer, StoreError>>, StoreError>;
}

struct Waiting<G: Grouped> {
    call: G::Call,
    caller: oneshot::Sender<Result<G::Answer, StoreError>>,
}

/// The way to a kind's task, which ends when this is dropped and what was asked for is done.
pub(super) struct Group<G: Grouped> {
    inbox: mpsc::Sender<Waiting<G>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the task of this kind of write has ended")]
struct TaskEnded;

/// One group's error, as each of its callers gets it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
struct Shared(#[source] Arc<StoreError>);

impl<G: Grouped> Group<G> {
    /// Starts the task on the current runtime.
    pub(super) fn start(kind: G) -> Self {
        let (inbox, waiting) = mpsc::channel(INBOX);
        tokio::spawn(run(kind, waiting));
        Self { inbox }
    }

    /// Has it done. Once this was polled it may happen even if the returned future is dropped.
    pub(super) async fn ask(&self, call: G::Call) -> Result<G::Answer, StoreError> {
        let (caller, answer) = oneshot::channel();
        if self.inbox.send(Waiting { call, caller }).await.is_err() {
            return Err(StoreError::Unreachable(Box::new(TaskEnded)));
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Unanswered(Box::new(TaskEnded))))
    }
}

async fn run<G: Grouped>(kind: G, mut waiting: mpsc::Receiver<Waiting<G>>) {
    while let Some(first) = waiting.recv().await {
        let mut items = G::items(&first.call);
        let (mut calls, mut callers) = (vec![first.call], vec![first.caller]);
        while calls.len() < CALLERS
            && items < ITEMS
            && let Ok(next) = waiting.try_recv()
        {
            items += G::items(&next.call);
            calls.push(next.call);
            callers.push(next.caller);
        }
        if let Some(unreachable) = answer_all(&kind, calls, callers).await {
            // Who waits already would find the same, each group after its own wait.
            while let Ok(next) = waiting.try_recv() {
                let _ = next.caller.send(Err(StoreError::Unreachable(Box::new(unreachable.clone()))));
            }
        }
    }
}

/// Writes a group and answers its callers; gives back the error if the server could not be reached at all.
async fn answer_all<G: Grouped>(
    kind: &G,
    calls: Vec<G::Call>,
    callers: Vec<oneshot::Sender<Result<G::Answer, StoreError>>>,
) -> Option<Shared> {
    match kind.write(&calls).await {
        Ok(answers) => {
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that went away does not need its answer.
                let _ = caller.send(answer);
            }
            None
        }
        // One of the group is at fault, nobody knows which: each on its own, and the others are not harmed.
        Err(StoreError::Corrupt(_)) if calls.len() > 1 => {
            for (call, caller) in calls.into_iter().zip(callers) {
                let alone = kind.write(&[call]).await;
                let _ = caller.send(alone.and_then(|mut answers| answers.remove(0)));
            }
            None
        }
        Err(err) => {
            tracing::error!(error = %source_of(&err), callers = callers.len(), "the job store could not write");
            let shared = Shared(Arc::new(err));
            for caller in callers {
                let _ = caller.send(Err(match &*shared.0 {
                    StoreError::Corrupt(what) => StoreError::Corrupt(what.clone()),
                    StoreError::Unreachable(_) => StoreError::Unreachable(Box::new(shared.clone())),
                    StoreError::Unanswered(_) => StoreError::Unanswered(Box::new(shared.clone())),
                }));
            }
            matches!(*shared.0, StoreError::Unreachable(_)).then_some(shared)
        }
    }
}

fn source_of(err: &StoreError) -> String {
    std::error::Error::source(err).map_or_else(|| err.to_string(), ToString::to_string)
}
