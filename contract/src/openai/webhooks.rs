//! Bodies of the webhook routes, and of what webhooks are sent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::fields::{Fields, text, wrong_value};
use super::{MAX_STRING_BYTES, ParseError};
use crate::ids::JobId;
use crate::time::Timestamp;
use crate::webhook::{DeliveryAttempt, DeliveryState, Hook, Webhook, WebhookChange, WebhookDelivery, WebhookEvent};

/// Most characters of a webhook's description.
const MAX_DESCRIPTION_CHARS: usize = 200;
/// Longest time that an old secret signs beside a new one: seven days.
const MAX_OVERLAP_SECONDS: i64 = 7 * 24 * 3_600;
/// Default of that: a day.
const OVERLAP_SECONDS: i64 = 24 * 3_600;

/// What `POST /v1/webhooks` takes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WebhookRequest {
    /// Where to: `https://…`.
    #[schema(example = "https://example.com/penstock", max_length = 2_048)]
    pub url: String,
    /// Of what it is told. Default: of everything but `batch.progress`.
    pub events: Option<Vec<WebhookEvent>>,
    /// What people call it, up to 200 characters.
    #[schema(max_length = 200)]
    pub description: Option<String>,
}

/// What `POST /v1/webhooks/{id}` changes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WebhookChangeRequest {
    /// Where to.
    #[schema(max_length = 2_048)]
    pub url: Option<String>,
    /// Of what it is told; an empty list is everything but `batch.progress`.
    pub events: Option<Vec<WebhookEvent>>,
    /// What people call it.
    #[schema(max_length = 200)]
    pub description: Option<String>,
    /// Whether anything is sent to it. One that was disabled is enabled with this.
    pub enabled: Option<bool>,
}

/// What `POST /v1/webhooks/{id}/rotate` takes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RotateRequest {
    /// For how long the earlier secrets sign beside the new one. Default: a day.
    #[schema(minimum = 0, maximum = 604_800)]
    pub overlap_seconds: Option<u32>,
}

/// `webhook` of a job or batch: where it alone is told of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HookRequest {
    /// Where to: `https://…`. Signed with the secret of `GET /v1/webhooks/secret`.
    #[schema(example = "https://example.com/penstock", max_length = 2_048)]
    pub url: String,
    /// Of what. Default: of everything but `batch.progress`.
    pub events: Option<Vec<WebhookEvent>>,
}

/// A webhook that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedWebhook {
    /// Where to; its rules are the server's to check.
    pub url: String,
    /// Of what; of everything, when empty.
    pub events: Vec<WebhookEvent>,
    /// What people call it.
    pub description: String,
}

fn url(fields: &mut Fields<'_>) -> Result<Option<String>, ParseError> {
    Ok(fields.string("url", MAX_STRING_BYTES)?.map(str::to_owned))
}

fn events(fields: &mut Fields<'_>) -> Result<Option<Vec<WebhookEvent>>, ParseError> {
    let at = fields.path("events");
    let Some(words) = fields.list("events", WebhookEvent::ALL.len())? else { return Ok(None) };
    let event = |(nth, word): (usize, &Value)| {
        let param = format!("{at}[{nth}]");
        let word = text(word, &param, MAX_STRING_BYTES)?;
        word.parse::<WebhookEvent>().map_err(|err| wrong_value(param, format_args!("is wrong: {err}")))
    };
    words.iter().enumerate().map(event).collect::<Result<_, _>>().map(Some)
}

fn description(fields: &mut Fields<'_>) -> Result<Option<String>, ParseError> {
    let description = fields.string("description", MAX_STRING_BYTES)?;
    if description.is_some_and(|text| text.chars().count() > MAX_DESCRIPTION_CHARS) {
        return Err(wrong_value("description", format_args!("has more than {MAX_DESCRIPTION_CHARS} characters")));
    }
    Ok(description.map(str::to_owned))
}

/// Reads the body of `POST /v1/webhooks`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_webhook(body: &Value) -> Result<ParsedWebhook, ParseError> {
    let mut fields = Fields::of(body, "")?;
    fields.required("url")?;
    let url = url(&mut fields)?.unwrap_or_default();
    let events = events(&mut fields)?.unwrap_or_default();
    let description = description(&mut fields)?.unwrap_or_default();
    fields.finish()?;
    Ok(ParsedWebhook { url, events, description })
}

/// Reads the body of `POST /v1/webhooks/{id}`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_webhook_change(body: &Value) -> Result<WebhookChange, ParseError> {
    let mut fields = Fields::of(body, "")?;
    let change = WebhookChange {
        url: url(&mut fields)?,
        events: events(&mut fields)?,
        description: description(&mut fields)?,
        enabled: fields.boolean("enabled")?,
        secret: None,
    };
    fields.finish()?;
    Ok(change)
}

/// Reads the body of `POST /v1/webhooks/{id}/rotate`: for how long the earlier secrets sign on.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_rotate(body: &Value) -> Result<Duration, ParseError> {
    let mut fields = Fields::of(body, "")?;
    let seconds = fields.integer("overlap_seconds", 0, MAX_OVERLAP_SECONDS)?.unwrap_or(OVERLAP_SECONDS);
    fields.finish()?;
    Ok(Duration::from_secs(seconds.unsigned_abs()))
}

/// Takes the field `webhook` of a job or batch; the address's rules are the server's to check.
pub(super) fn hook(fields: &mut Fields<'_>) -> Result<Option<Hook>, ParseError> {
    let Some(value) = fields.take("webhook") else { return Ok(None) };
    let mut inner = Fields::of(value, "webhook")?;
    inner.required("url")?;
    let url = url(&mut inner)?.unwrap_or_default();
    let events = events(&mut inner)?.unwrap_or_default();
    inner.finish()?;
    Ok(Some(Hook { url, events }))
}

/// A webhook as it is shown: without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookObject {
    /// Its id.
    #[schema(example = "wh_0193f0c0d0e070008000000000000001")]
    pub id: String,
    /// Always `webhook`.
    pub object: String,
    /// Where to.
    pub url: String,
    /// Of what it is told; everything, when empty.
    pub events: Vec<WebhookEvent>,
    /// What people call it.
    pub description: String,
    /// Whether anything is sent to it.
    pub enabled: bool,
    /// Why not.
    #[schema(required)]
    pub disabled_reason: Option<String>,
    /// When it was made.
    pub created_at: String,
}

impl WebhookObject {
    /// What is shown of a webhook.
    pub fn of(webhook: &Webhook) -> Self {
        Self {
            id: webhook.id.to_string(),
            object: "webhook".to_owned(),
            url: webhook.url.clone().unwrap_or_default(),
            events: webhook.events.clone(),
            description: webhook.description.clone(),
            enabled: webhook.disabled_at.is_none(),
            disabled_reason: webhook.disabled_why.clone(),
            created_at: webhook.created_at.rfc3339(),
        }
    }
}

/// A webhook with the secret that signs for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewWebhookObject {
    /// What is shown of it.
    #[serde(flatten)]
    pub about: WebhookObject,
    /// What signs its deliveries (Standard Webhooks).
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub secret: String,
}

/// Secrets that sign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookSecrets {
    /// Always `webhook.secrets`.
    pub object: String,
    /// The newest one.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub secret: String,
    /// Earlier ones that still sign beside it.
    pub earlier: Vec<String>,
}

impl WebhookSecrets {
    /// Those of a webhook.
    pub fn of(webhook: &Webhook) -> Self {
        let mut signing = webhook.signing().map(|secret| secret.reveal().to_owned());
        Self {
            object: "webhook.secrets".to_owned(),
            secret: signing.next().unwrap_or_default(),
            earlier: signing.collect(),
        }
    }
}

/// All webhooks of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookList {
    /// Always `list`.
    pub object: String,
    /// The webhooks, newest first.
    pub data: Vec<WebhookObject>,
}

/// The answer to a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookDeleted {
    /// The webhook's id.
    pub id: String,
    /// Always `webhook`.
    pub object: String,
    /// Always true.
    pub deleted: bool,
}

/// A delivery as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryObject {
    /// Its id: the header `webhook-id` of every attempt.
    #[schema(example = "msg_0193f0c0d0e070008000000000000001")]
    pub id: String,
    /// Always `webhook.delivery`.
    pub object: String,
    /// The webhook; null when the job or batch named the address.
    #[schema(required)]
    pub webhook: Option<String>,
    /// Where to.
    pub url: String,
    /// What happened.
    pub event: WebhookEvent,
    /// To which job or batch.
    pub subject: String,
    /// The order of the events of its subject: a job starts with 1 and ends with 2.
    pub sequence: u32,
    /// When it happened.
    pub created_at: String,
    /// Where it stands.
    pub status: DeliveryState,
    /// Attempts that have ended.
    pub attempts: u32,
    /// When it is tried next.
    #[schema(required)]
    pub next_attempt_at: Option<String>,
    /// The attempts, the newest first, up to a hundred; only where one delivery is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Vec<AttemptObject>>,
}

/// One attempt of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptObject {
    /// When it ended.
    pub at: String,
    /// What the receiver answered, if it did.
    #[schema(required)]
    pub status: Option<u16>,
    /// Why it failed.
    #[schema(required)]
    pub error: Option<String>,
    /// How long it took.
    pub took_ms: u64,
}

impl DeliveryObject {
    /// What is shown of a delivery, with its attempts where they are known.
    pub fn of(delivery: &WebhookDelivery, attempts: Option<&[DeliveryAttempt]>) -> Self {
        let attempt = |attempt: &DeliveryAttempt| AttemptObject {
            at: attempt.at.rfc3339(),
            status: attempt.status,
            error: attempt.error.clone(),
            took_ms: u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
        };
        Self {
            id: delivery.id.to_string(),
            object: "webhook.delivery".to_owned(),
            webhook: delivery.webhook.map(|id| id.to_string()),
            url: delivery.url.clone(),
            event: delivery.event,
            subject: delivery.subject.to_string(),
            sequence: delivery.sequence,
            created_at: delivery.at.rfc3339(),
            status: delivery.state,
            attempts: delivery.attempts,
            next_attempt_at: delivery.next_at.map(Timestamp::rfc3339),
            log: attempts.map(|attempts| attempts.iter().map(attempt).collect()),
        }
    }
}

/// A page of deliveries, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryList {
    /// Always `list`.
    pub object: String,
    /// The deliveries.
    pub data: Vec<DeliveryObject>,
    /// Id of the last of them: `after` of the next page.
    #[schema(required)]
    pub last_id: Option<String>,
    /// Whether older ones follow.
    pub has_more: bool,
}

/// What a webhook is sent. The members of Standard Webhooks (`type`, `timestamp`, `data`) and those of OpenAI's events
/// (`id`, `object`, `created_at`) beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventBody {
    /// The delivery's id, as in the header `webhook-id`.
    pub id: String,
    /// Always `event`.
    pub object: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: WebhookEvent,
    /// When, as RFC 3339.
    pub timestamp: String,
    /// When, in Unix seconds.
    pub created_at: i64,
    /// The order of the events of its subject, which may arrive in another one: a job starts with 1 and ends with 2.
    pub sequence: u32,
    /// The job or batch: `id` always, the rest as its route shows it.
    pub data: Value,
}

impl EventBody {
    /// What is sent for a delivery.
    pub fn of(delivery: &WebhookDelivery, data: Value) -> Self {
        Self {
            id: delivery.id.to_string(),
            object: "event".to_owned(),
            kind: delivery.event,
            timestamp: delivery.at.rfc3339(),
            created_at: delivery.at.unix_seconds(),
            sequence: delivery.sequence,
            data,
        }
    }
}

/// `data` of a job that has just started. Not the job as it is now: every attempt of a delivery says the same.
pub fn started_data(job: JobId, metadata: &BTreeMap<String, String>) -> Value {
    json!({"id": job.to_string(), "object": "job", "status": "running", "attempt": 1, "metadata": metadata})
}

/// `data` of what is no longer there to be shown.
pub fn gone_data(delivery: &WebhookDelivery) -> Value {
    let (kind, status) = delivery.event.as_str().split_once('.').unwrap_or(("event", delivery.event.as_str()));
    json!({"id": delivery.subject.to_string(), "object": kind, "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_read_or_refused_by_its_field() {
        let parsed = parse_webhook(&json!({"url": "https://a.example", "events": ["job.failed"]})).unwrap();
        assert_eq!((parsed.events, parsed.description.as_str()), (vec![WebhookEvent::JobFailed], ""));
        for (body, param) in [
            (json!({}), "url"),
            (json!({"url": 7}), "url"),
            (json!({"url": "https://a.example", "events": ["job.done"]}), "events[0]"),
            (json!({"url": "https://a.example", "description": "x".repeat(201)}), "description"),
            (json!({"url": "https://a.example", "secret": "mine"}), "secret"),
        ] {
            assert_eq!(parse_webhook(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        assert_eq!(parse_rotate(&json!({})).unwrap(), Duration::from_secs(86_400));
        assert!(parse_rotate(&json!({"overlap_seconds": 604_801})).is_err());
    }
}
