//! Webhooks: telling a client's server of what happened to its jobs and batches, as Standard Webhooks 1.0.0 says.
//!
//! The events were written with the state they tell of. Here they are sent, at least once each: what is taken from the
//! store is due again after a while unless its end was kept. Servers are apart: each has a few attempts under way, and
//! one that hangs keeps no other waiting, as long as fewer than 64 do.

mod retry;
mod send;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use contract::openai::batches::BatchObject;
use contract::openai::native::job_object;
use contract::openai::webhooks::{EventBody, gone_data, started_data};
use contract::webhook::SECRET_BYTES;
use contract::{
    AttemptEnd, DueDelivery, Job, NewWebhook, Secret, StoreError, Subject, TenantId, Then, WebhookDelivery,
    WebhookEvent, WebhookId,
};
use futures::StreamExt;
use serde_json::Value;
use tokio::task::JoinSet;

use self::send::{Answer, Message, Sender};
use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::{Chain, Patience};
use crate::records::{self, RecordFault};

/// How often the store is asked for what is due.
const LOOK: Duration = Duration::from_millis(250);
/// Deliveries to one webhook or server that are taken together.
const EACH: u32 = 8;
/// Those of them that are sent at the same time.
const AT_ONCE: usize = 4;
/// Addresses that are sent to at the same time: each may hold a thread of the system's resolver for a while.
const BUSY: usize = 64;
/// For how long they are ours: longer than all attempts of one address take, which have 15 s each.
const HOLD: Duration = Duration::from_secs(90);
/// Largest `data` that carries a result; above it the receiver gets the job for it. Standard Webhooks asks for less
/// than 20 kB.
const MAX_DATA_BYTES: usize = 19_000;

/// The loop's state.
pub(crate) struct Webhooks {
    deps: Deps,
    lead: Lead,
    patience: Patience,
    /// Made when something is to be sent: a system without certificates runs jobs all the same.
    sender: Option<Arc<Sender>>,
}

/// Why nothing is sent now.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("the store")]
    Store(#[from] StoreError),
    #[error("the system's certificates cannot be read")]
    Certificates(#[from] reqwest::Error),
}

impl Webhooks {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::WEBHOOKS, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("webhooks"), sender: None }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        // Dropped with their work when the lead is lost. By the address they send to.
        let mut working: JoinSet<String> = JoinSet::new();
        let mut busy: HashSet<String> = HashSet::new();
        loop {
            match self.turn(&mut working, &mut busy).await {
                Ok(true) => self.patience.succeeded(),
                // Whoever only looks on knows nothing of the backends.
                Ok(false) => {
                    working = JoinSet::new();
                    busy.clear();
                }
                Err(err) => tokio::time::sleep(self.patience.failed(&err)).await,
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                Some(ended) = working.join_next() => match ended {
                    Ok(destination) => drop(busy.remove(&destination)),
                    // A bug's panic: what it held is due again in a while, and the others go on.
                    Err(err) => {
                        tracing::error!(error = %err, "a delivery panicked");
                        working = JoinSet::new();
                        busy.clear();
                    }
                }
            }
        }
    }

    /// False when another scheduler leads.
    async fn turn(&mut self, working: &mut JoinSet<String>, busy: &mut HashSet<String>) -> Result<bool, TurnError> {
        if !self.lead.is_ours().await? {
            return Ok(false);
        }
        let room = u32::try_from(BUSY.saturating_sub(busy.len())).unwrap_or(0);
        if room == 0 {
            return Ok(true);
        }
        let known: Vec<String> = busy.iter().cloned().collect();
        let mut by_destination: HashMap<String, Vec<DueDelivery>> = HashMap::new();
        for due in self.deps.admin.due_deliveries(&known, EACH, room, HOLD).await? {
            by_destination.entry(due.delivery.destination()).or_default().push(due);
        }
        if by_destination.is_empty() {
            return Ok(true);
        }
        // Where that fails, what was taken is due again in a while.
        let sender = match &mut self.sender {
            Some(sender) => sender,
            none => none.insert(Arc::new(Sender::new(self.deps.guard.clone())?)),
        };
        for (destination, group) in by_destination {
            busy.insert(destination.clone());
            let courier = Courier { deps: self.deps.clone(), sender: sender.clone() };
            working.spawn(async move {
                let courier = &courier;
                futures::stream::iter(group).for_each_concurrent(AT_ONCE, |due| courier.deliver(due)).await;
                destination
            });
        }
        Ok(true)
    }
}

/// Makes attempts.
struct Courier {
    deps: Deps,
    sender: Arc<Sender>,
}

/// Why an attempt could not be made, or its end not be kept.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the store")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] RecordFault),
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
    #[error("an event has no JSON form")]
    Json(#[from] serde_json::Error),
}

impl Courier {
    /// Makes one attempt and keeps its end. What goes wrong on this side leaves the delivery as it is: it is due again.
    async fn deliver(&self, due: DueDelivery) {
        let id = due.delivery.id;
        if let Err(err) = self.attempt(due).await {
            tracing::warn!(delivery.id = %id, error = %Chain(&err), "a webhook waits");
        }
    }

    async fn attempt(&self, due: DueDelivery) -> Result<(), Fault> {
        let DueDelivery { delivery, secrets, data } = due;
        let data = match data {
            Some(kept) => Ok(kept),
            None => self.data(&delivery).await,
        };
        let data = match data {
            // Its time is over while what it tells of cannot be read.
            Err(err) if delivery.retry_until <= delivery.now => {
                return self.give_up(&delivery, format!("what happened could not be read: {}", Chain(&err))).await;
            }
            data => data?,
        };
        let body = serde_json::to_string(&EventBody::of(&delivery, data))?;
        let secrets = match (secrets.is_empty(), delivery.webhook) {
            (false, _) => secrets,
            (true, None) => vec![self.first_secret(&delivery.tenant).await?],
            // Deleted since it was taken, or written while it was deleted.
            (true, Some(_)) => return self.give_up(&delivery, "the webhook was deleted".to_owned()).await,
        };
        let secrets: Vec<String> = secrets.iter().map(|secret| secret.reveal().to_owned()).collect();
        let id = delivery.id.to_string();
        let message = Message { id: &id, url: &delivery.url, body: &body, secrets: &secrets };
        let begin = Instant::now();
        let answer = self.sender.send(&message, unix_seconds()).await;
        let end = end_of(&delivery, answer, begin.elapsed());
        let outcome = match &end.then {
            Then::Delivered => "delivered",
            Then::Retry(_) => "to be tried again",
            Then::GiveUp => "given up",
            Then::Disable(_) => "given up, and its address with it",
        };
        tracing::info!(
            delivery.id = %id,
            event = %delivery.event,
            subject = %delivery.subject,
            attempt = delivery.attempts + 1,
            status = end.status,
            error = end.error,
            outcome,
            "a webhook was sent"
        );
        self.deps.admin.end_attempt(&delivery.id, &end).await?;
        Ok(())
    }

    async fn give_up(&self, delivery: &WebhookDelivery, error: String) -> Result<(), Fault> {
        let end = AttemptEnd { status: None, error: Some(error), took: Duration::ZERO, then: Then::GiveUp };
        Ok(self.deps.admin.end_attempt(&delivery.id, &end).await?)
    }

    /// The job or batch that a delivery tells of. The same in every attempt, since what has ended does not change.
    async fn data(&self, delivery: &WebhookDelivery) -> Result<Value, Fault> {
        match delivery.subject {
            Subject::Job(id) => match self.deps.store.get(&delivery.tenant, &id).await? {
                None => Ok(gone_data(delivery)),
                Some(job) if delivery.event == WebhookEvent::JobStarted => Ok(started_data(job.id, &job.metadata)),
                Some(job) => self.ended_job(&job).await,
            },
            Subject::Batch(id) => match self.deps.admin.batch(&delivery.tenant, &id).await? {
                None => Ok(gone_data(delivery)),
                Some(batch) => Ok(serde_json::to_value(BatchObject::of(&batch))?),
            },
        }
    }

    async fn ended_job(&self, job: &Job) -> Result<Value, Fault> {
        // Of one whose time is over, objects may be gone before its row says so.
        let record = if job.is_gone() { None } else { records::record(&self.deps, job).await? };
        let whole = serde_json::to_value(job_object(job, record.as_ref()))?;
        if serde_json::to_vec(&whole)?.len() <= MAX_DATA_BYTES {
            return Ok(whole);
        }
        Ok(serde_json::to_value(job_object(job, None))?)
    }

    /// The tenant's own secret, made now.
    async fn first_secret(&self, tenant: &TenantId) -> Result<Secret, Fault> {
        let mut random = [0; SECRET_BYTES];
        getrandom::fill(&mut random).map_err(Fault::Random)?;
        let new = NewWebhook {
            id: WebhookId::new(),
            tenant: tenant.clone(),
            url: None,
            events: Vec::new(),
            description: String::new(),
            secret: Secret::new(random),
            idempotency: None,
        };
        let webhook = self.deps.admin.add_webhook(&new).await?;
        // Without a key none is reused; another scheduler's may have been first, and then it is that one.
        let signing = webhook.ok().and_then(|made| made.into_inner().signing().next().cloned());
        Ok(signing.unwrap_or(new.secret))
    }
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// What follows an answer.
fn end_of(delivery: &WebhookDelivery, answer: Answer, took: Duration) -> AttemptEnd {
    let again = |status, error, asked| {
        let then = match retry::pause(delivery, status, asked, retry::random()) {
            Some(pause) => Then::Retry(pause),
            None => Then::GiveUp,
        };
        AttemptEnd { status, error: Some(error), took, then }
    };
    match answer {
        Answer::Delivered { status } => AttemptEnd { status: Some(status), error: None, took, then: Then::Delivered },
        Answer::Gone => {
            let why = "its server answered 410 (Gone)".to_owned();
            AttemptEnd { status: Some(410), error: Some(why.clone()), took, then: Then::Disable(why) }
        }
        Answer::Failed { status, retry_after } => {
            again(Some(status), format!("the server answered {status}"), retry_after)
        }
        Answer::Unreachable { why } | Answer::Forbidden { why } => again(None, why, None),
    }
}
