//! Webhooks: addresses that are told of what happens, and the deliveries to them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::batch::BatchId;
use crate::ids::{BadId, JobId, TenantId, tagged};
use crate::job::IdempotencyKey;
use crate::time::Timestamp;

/// Random bytes of a signing secret.
pub const SECRET_BYTES: usize = 32;
/// Most webhooks of a tenant: each of its events is looked up among them.
pub const MAX_WEBHOOKS: u32 = 50;
/// How long after its event a delivery is tried: three days.
pub const RETRIED_FOR: Duration = Duration::from_secs(72 * 3_600);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id, later in order than all that this process made before.
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.simple())
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                tagged(text, $prefix).map(Self).ok_or_else(|| BadId::new(text, $expected))
            }
        }
    };
}

id!(
    /// Identifies a webhook. Shown as `wh_` and 32 hexadecimal digits.
    WebhookId,
    "wh_",
    "a webhook id (`wh_` and 32 hexadecimal digits)"
);
id!(
    /// Identifies a delivery, through all its attempts: the `webhook-id` of Standard Webhooks. Shown as `msg_` and 32
    /// hexadecimal digits.
    DeliveryId,
    "msg_",
    "a delivery id (`msg_` and 32 hexadecimal digits)"
);

/// What is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub enum WebhookEvent {
    /// A job's first attempt was leased to a worker.
    #[serde(rename = "job.started")]
    JobStarted,
    /// A job succeeded.
    #[serde(rename = "job.succeeded")]
    JobSucceeded,
    /// A job failed.
    #[serde(rename = "job.failed")]
    JobFailed,
    /// A job was cancelled.
    #[serde(rename = "job.cancelled")]
    JobCancelled,
    /// A job's deadline came first.
    #[serde(rename = "job.expired")]
    JobExpired,
    /// A batch ended with all its lines in its files.
    #[serde(rename = "batch.completed")]
    BatchCompleted,
    /// A batch's file was wrong.
    #[serde(rename = "batch.failed")]
    BatchFailed,
    /// A batch's time was over first.
    #[serde(rename = "batch.expired")]
    BatchExpired,
    /// A batch was cancelled.
    #[serde(rename = "batch.cancelled")]
    BatchCancelled,
    /// More lines of a batch have ended. Told to who names it only, and now and then.
    #[serde(rename = "batch.progress")]
    BatchProgress,
}

impl WebhookEvent {
    /// Every event.
    pub const ALL: [WebhookEvent; 10] = [
        WebhookEvent::JobStarted,
        WebhookEvent::JobSucceeded,
        WebhookEvent::JobFailed,
        WebhookEvent::JobCancelled,
        WebhookEvent::JobExpired,
        WebhookEvent::BatchCompleted,
        WebhookEvent::BatchFailed,
        WebhookEvent::BatchExpired,
        WebhookEvent::BatchCancelled,
        WebhookEvent::BatchProgress,
    ];

    /// The word used in JSON and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            WebhookEvent::JobStarted => "job.started",
            WebhookEvent::JobSucceeded => "job.succeeded",
            WebhookEvent::JobFailed => "job.failed",
            WebhookEvent::JobCancelled => "job.cancelled",
            WebhookEvent::JobExpired => "job.expired",
            WebhookEvent::BatchCompleted => "batch.completed",
            WebhookEvent::BatchFailed => "batch.failed",
            WebhookEvent::BatchExpired => "batch.expired",
            WebhookEvent::BatchCancelled => "batch.cancelled",
            WebhookEvent::BatchProgress => "batch.progress",
        }
    }
}

impl fmt::Display for WebhookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no event; there are job.started, job.succeeded, job.failed, job.cancelled, job.expired, batch.completed, batch.failed, batch.expired, batch.cancelled and batch.progress"
)]
pub struct BadWebhookEvent(String);

impl FromStr for WebhookEvent {
    type Err = BadWebhookEvent;

    fn from_str(word: &str) -> Result<Self, BadWebhookEvent> {
        let found = WebhookEvent::ALL.into_iter().find(|event| event.as_str() == word);
        found.ok_or_else(|| BadWebhookEvent(word.chars().take(40).collect()))
    }
}

/// Where a job or batch of its own is told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Where to.
    pub url: String,
    /// Of what; when empty, of everything but progress.
    pub events: Vec<WebhookEvent>,
}

/// What signs deliveries: `whsec_` and base64. Whoever has it can make them, so it is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A secret of random bytes.
    pub fn new(random: [u8; SECRET_BYTES]) -> Self {
        Self(format!("whsec_{}", STANDARD.encode(random)))
    }

    /// The text itself, for its owner and for signing.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whsec_***")
    }
}

/// A secret, and when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSecret {
    /// The secret.
    pub secret: Secret,
    /// It signs until then, beside a newer one.
    pub until: Option<Timestamp>,
}

impl KeptSecret {
    /// Those that sign at this time, in the same order.
    pub fn signing(kept: &[KeptSecret], now: Timestamp) -> impl Iterator<Item = &Secret> {
        kept.iter().filter(move |kept| kept.until.is_none_or(|until| until > now)).map(|kept| &kept.secret)
    }
}

/// A webhook to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewWebhook {
    /// Its id, made by the server.
    pub id: WebhookId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Where to. Without one it only holds the secret that signs for addresses named by jobs and batches: a tenant has one
    /// such, and making another gives the first.
    pub url: Option<String>,
    /// Of what it is told; when empty, of everything but progress.
    pub events: Vec<WebhookEvent>,
    /// What people call it.
    pub description: String,
    /// What signs its deliveries.
    pub secret: Secret,
    /// A client's key that makes a repeat the same webhook.
    pub idempotency: Option<IdempotencyKey>,
}

/// Why a webhook was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookRefused {
    /// The idempotency key was used with another body.
    KeyReused,
    /// The tenant has [`MAX_WEBHOOKS`] already.
    TooMany,
}

/// A webhook as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Where to; none for the tenant's secret alone.
    pub url: Option<String>,
    /// Of what it is told; when empty, of everything but progress.
    pub events: Vec<WebhookEvent>,
    /// What people call it.
    pub description: String,
    /// What signs its deliveries, the newest first.
    pub secrets: Vec<KeptSecret>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when nothing is sent to it.
    pub disabled_at: Option<Timestamp>,
    /// Why.
    pub disabled_why: Option<String>,
    /// The store's clock when it answered.
    pub now: Timestamp,
}

impl Webhook {
    /// The secrets that sign now, the newest first.
    pub fn signing(&self) -> impl Iterator<Item = &Secret> {
        KeptSecret::signing(&self.secrets, self.now)
    }

    /// Its secrets with a new one; the earlier ones sign for so long beside it, or for as long as they would have.
    pub fn rotated(&self, secret: Secret, overlap: Duration) -> Vec<KeptSecret> {
        let end = Timestamp(self.now.0.saturating_add(i64::try_from(overlap.as_millis()).unwrap_or(i64::MAX)));
        let mut secrets = vec![KeptSecret { secret, until: None }];
        secrets.extend(
            self.secrets
                .iter()
                .filter(|kept| kept.until.is_none_or(|until| until > self.now))
                .map(|kept| KeptSecret { until: Some(kept.until.map_or(end, |until| until.min(end))), ..kept.clone() }),
        );
        secrets
    }
}

/// What is to be changed of a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookChange {
    /// Where to.
    pub url: Option<String>,
    /// Of what.
    pub events: Option<Vec<WebhookEvent>>,
    /// What people call it.
    pub description: Option<String>,
    /// Whether anything is sent to it.
    pub enabled: Option<bool>,
    /// A new secret; the earlier ones sign for so long beside it.
    pub secret: Option<(Secret, Duration)>,
}

/// What a delivery tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A job.
    Job(JobId),
    /// A batch.
    Batch(BatchId),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Job(job) => job.fmt(f),
            Subject::Batch(batch) => batch.fmt(f),
        }
    }
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// It is tried, now or again later.
    Waiting,
    /// The receiver took it.
    Delivered,
    /// It was given up.
    Failed,
}

impl DeliveryState {
    /// The word used in JSON and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Waiting => "waiting",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Failed => "failed",
        }
    }
}

/// A word that is no state of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no state of a delivery; there are waiting, delivered and failed")]
pub struct BadDeliveryState(String);

impl FromStr for DeliveryState {
    type Err = BadDeliveryState;

    fn from_str(word: &str) -> Result<Self, BadDeliveryState> {
        let all = [DeliveryState::Waiting, DeliveryState::Delivered, DeliveryState::Failed];
        let found = all.into_iter().find(|state| state.as_str() == word);
        found.ok_or_else(|| BadDeliveryState(word.chars().take(40).collect()))
    }
}

/// One event on its way to one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookDelivery {
    /// Its id, the same in every attempt.
    pub id: DeliveryId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The webhook; none when the job or batch named the address.
    pub webhook: Option<WebhookId>,
    /// Where to.
    pub url: String,
    /// What happened.
    pub event: WebhookEvent,
    /// To what.
    pub subject: Subject,
    /// The order of the events of its subject: a later one has a greater number. A job starts with 1 and ends with 2; a
    /// batch ends with the number after its progress.
    pub sequence: u32,
    /// When it happened.
    pub at: Timestamp,
    /// Where it stands.
    pub state: DeliveryState,
    /// Attempts that have ended.
    pub attempts: u32,
    /// Those of them since it was last asked for: how long it waits after the next one.
    pub tries: u32,
    /// When it is tried next; none once it has ended.
    pub next_at: Option<Timestamp>,
    /// Until when it is tried.
    pub retry_until: Timestamp,
    /// The store's clock when it answered.
    pub now: Timestamp,
}

impl WebhookDelivery {
    /// What shares its fate: the webhook, or the server that its tenant's jobs and batches named.
    pub fn destination(&self) -> String {
        match self.webhook {
            Some(webhook) => webhook.0.to_string(),
            None => format!("{} {}", self.tenant, origin(&self.url)),
        }
    }
}

/// Scheme, host and port of an address: what hangs or fails together.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    &url[..end]
}

/// A delivery to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueDelivery {
    /// The delivery.
    pub delivery: WebhookDelivery,
    /// What signs it, the newest first; empty when the tenant has no secret yet.
    pub secrets: Vec<Secret>,
    /// What it tells, when that was kept with it: progress, which is not read again later.
    pub data: Option<serde_json::Value>,
}

/// One attempt of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryAttempt {
    /// When it ended.
    pub at: Timestamp,
    /// What the receiver answered, if it did.
    pub status: Option<u16>,
    /// Why it failed, in a few plain words.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// How an attempt ended, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptEnd {
    /// What the receiver answered, if it did.
    pub status: Option<u16>,
    /// Why it failed.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
    /// What follows.
    pub then: Then,
}

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Nothing: the receiver took it.
    Delivered,
    /// It is tried again after so long.
    Retry(Duration),
    /// It is given up. If the webhook took nothing since the event, it is disabled.
    GiveUp,
    /// The receiver wants no more: it is given up with all that waits for the same address, and the webhook is disabled
    /// for this reason.
    Disable(String),
}

/// Which deliveries are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Only those of this webhook.
    pub webhook: Option<WebhookId>,
    /// Only those in this state.
    pub state: Option<DeliveryState>,
    /// Only older ones than this.
    pub after: Option<DeliveryId>,
    /// Most of a page.
    pub limit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for event in WebhookEvent::ALL {
            assert_eq!(event.as_str().parse(), Ok(event));
            assert_eq!(serde_json::to_value(event).unwrap(), event.as_str());
        }
        assert!("job.done".parse::<WebhookEvent>().unwrap_err().to_string().contains("job.succeeded"));
        let id = DeliveryId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        // Standard Webhooks: an id has no full stop, which separates what is signed.
        assert!(!id.to_string().contains('.') && id.to_string().parse::<WebhookId>().is_err());
    }

    #[test]
    fn a_secret_is_base64_of_its_bytes_and_hides() {
        // printf '\x00\x01…\x1f' | base64
        let secret = Secret::new(std::array::from_fn(|nth| nth as u8));
        assert_eq!(secret.reveal(), "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        assert_eq!(format!("{secret:?}"), "whsec_***");
    }

    #[test]
    fn an_address_is_of_its_server() {
        for (url, server) in [
            ("https://a.example/x/y?z=https://b.example/", "https://a.example"),
            ("http://127.0.0.1:9000/", "http://127.0.0.1:9000"),
            ("https://a.example", "https://a.example"),
        ] {
            assert_eq!(origin(url), server);
        }
    }

    #[test]
    fn an_old_secret_signs_until_its_end() {
        let kept = |nth: u8, until: Option<i64>| KeptSecret {
            secret: Secret::new([nth; SECRET_BYTES]),
            until: until.map(Timestamp),
        };
        let webhook = Webhook {
            id: WebhookId::new(),
            tenant: TenantId::local(),
            url: None,
            events: vec![],
            description: String::new(),
            secrets: vec![kept(3, None), kept(2, Some(11)), kept(1, Some(10))],
            created_at: Timestamp(0),
            disabled_at: None,
            disabled_why: None,
            now: Timestamp(10),
        };
        let signing: Vec<&Secret> = webhook.signing().collect();
        assert_eq!(signing, [&kept(3, None).secret, &kept(2, None).secret]);
    }
}
