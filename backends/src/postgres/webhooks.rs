//! Webhooks and their deliveries.

use std::time::Duration;

use async_trait::async_trait;
use contract::webhook::{KeptSecret, MAX_WEBHOOKS, WebhookRefused};
use contract::{
    AttemptEnd, BatchId, DeliveryAttempt, DeliveryFilter, DeliveryId, DeliveryState, DueDelivery, JobId, KeyReused,
    Made, NewWebhook, Subject, TenantId, Then, Timestamp, Webhook, WebhookChange, WebhookDelivery, WebhookEvent,
    WebhookId,
};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::files::{keep_made, made_before};
use super::millis;
use super::row::{column, escaped, json, millis_of, time, to_json, unescaped, word};

/// Why a webhook is disabled whose server took nothing from a delivery's event to its last attempt.
const DEAD: &str = "its server took nothing for three days";
/// Attempts that are shown of a delivery.
const ATTEMPTS: i64 = 100;

/// Makes a webhook.
pub(super) struct Add<'a> {
    pub(super) webhook: &'a NewWebhook,
}

#[async_trait]
impl Write for Add<'_> {
    type Answer = Result<Made<Webhook>, WebhookRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let new = self.webhook;
        match made_before(tx, &new.tenant, new.idempotency.as_ref()).await? {
            Err(KeyReused) => return Ok(Err(WebhookRefused::KeyReused)),
            Ok(Some(earlier)) => {
                let earlier = Get { tenant: &new.tenant, id: &WebhookId(earlier) }.apply(tx).await?;
                return Ok(earlier.map(Made::Replayed).ok_or(WebhookRefused::KeyReused));
            }
            Ok(None) => {}
        }
        if new.url.is_some() {
            let query = sqlx::query("SELECT count(*) AS n FROM webhooks WHERE tenant = $1 AND url IS NOT NULL");
            let row = answer(query.bind(new.tenant.as_str()).fetch_one(&mut *tx.conn)).await?;
            if column::<i64>(&row, "n")? >= i64::from(MAX_WEBHOOKS) {
                return Ok(Err(WebhookRefused::TooMany));
            }
        }
        let secrets = [KeptSecret { secret: new.secret.clone(), until: None }];
        let query = sqlx::query(include_str!("sql/add_webhook.sql"))
            .bind(tx.fixed)
            .bind(new.id.0)
            .bind(new.tenant.as_str())
            .bind(new.url.as_deref())
            .bind(words(&new.events))
            .bind(escaped(&new.description))
            .bind(to_json("the secrets", &secrets)?);
        let webhook = webhook(&answer(query.fetch_one(&mut *tx.conn)).await?)?;
        keep_made(tx, &new.tenant, new.idempotency.as_ref(), webhook.id.0).await?;
        Ok(Ok(if webhook.id == new.id { Made::New(webhook) } else { Made::Replayed(webhook) }))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        !matches!(answer, Ok(Made::New(_)))
    }
}

fn words(events: &[WebhookEvent]) -> Vec<&'static str> {
    events.iter().map(|event| event.as_str()).collect()
}

/// One webhook.
pub(super) struct Get<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a WebhookId,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<Webhook>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Webhook>, Fault> {
        let query = sqlx::query(include_str!("sql/get_webhook.sql"));
        let query = query.bind(tx.fixed).bind(self.id.0).bind(self.tenant.as_str());
        answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(webhook).transpose()
    }
}

/// Those of a tenant that have an address.
pub(super) struct List<'a> {
    pub(super) tenant: &'a TenantId,
}

#[async_trait]
impl Write for List<'_> {
    type Answer = Vec<Webhook>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Webhook>, Fault> {
        let query = sqlx::query(include_str!("sql/list_webhooks.sql")).bind(tx.fixed).bind(self.tenant.as_str());
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(webhook).collect()
    }
}

/// Changes a webhook.
pub(super) struct Change<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a WebhookId,
    pub(super) change: &'a WebhookChange,
}

#[async_trait]
impl Write for Change<'_> {
    type Answer = Option<Webhook>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Webhook>, Fault> {
        let secrets = match &self.change.secret {
            None => None,
            Some((secret, overlap)) => {
                // Nobody else rotates meanwhile.
                answer(
                    sqlx::query("SELECT FROM webhooks WHERE id = $1 FOR UPDATE").bind(self.id.0).execute(&mut *tx.conn),
                )
                .await?;
                let Some(kept) = (Get { tenant: self.tenant, id: self.id }).apply(tx).await? else { return Ok(None) };
                Some(to_json("the secrets", &kept.rotated(secret.clone(), *overlap))?)
            }
        };
        let query = sqlx::query(include_str!("sql/change_webhook.sql"))
            .bind(tx.fixed)
            .bind(self.id.0)
            .bind(self.tenant.as_str())
            .bind(self.change.url.as_deref())
            .bind(self.change.events.as_deref().map(words))
            .bind(self.change.description.as_deref().map(escaped))
            .bind(self.change.enabled)
            .bind(secrets);
        let changed = answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(webhook).transpose()?;
        if changed.is_some() && self.change.enabled == Some(false) {
            give_up(tx, &self.id.0.to_string(), None).await?;
        }
        Ok(changed)
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        answer.is_none()
    }
}

/// Deletes a webhook that has an address.
pub(super) struct Delete<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a WebhookId,
}

#[async_trait]
impl Write for Delete<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("DELETE FROM webhooks WHERE id = $1 AND tenant = $2 AND url IS NOT NULL");
        let query = query.bind(self.id.0).bind(self.tenant.as_str());
        if answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 0 {
            return Ok(false);
        }
        give_up(tx, &self.id.0.to_string(), None).await?;
        Ok(true)
    }

    fn wrote_nothing(answer: &bool) -> bool {
        !answer
    }
}

/// Ends what waits for a webhook, or for one address of a server. Whoever does holds the webhook's row, or the lock of the
/// server, so that two that do are one after the other.
async fn give_up(tx: &mut Tx<'_>, destination: &str, url: Option<&str>) -> Result<(), Fault> {
    let query = sqlx::query(include_str!("sql/give_up_deliveries.sql")).bind(tx.fixed).bind(destination).bind(url);
    answer(query.execute(&mut *tx.conn)).await.map(drop)
}

/// A page of deliveries.
pub(super) struct Deliveries<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) filter: &'a DeliveryFilter,
}

#[async_trait]
impl Write for Deliveries<'_> {
    type Answer = (Vec<WebhookDelivery>, bool);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let limit = self.filter.limit.max(1) as usize;
        let query = sqlx::query(include_str!("sql/list_deliveries.sql"))
            .bind(tx.fixed)
            .bind(self.tenant.as_str())
            .bind(self.filter.webhook.map(|id| id.0))
            .bind(self.filter.state.map(DeliveryState::as_str))
            .bind(self.filter.after.map(|id| id.0))
            // One more than asked for tells whether there is more.
            .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        Ok((rows.iter().take(limit).map(delivery).collect::<Result<_, _>>()?, rows.len() > limit))
    }
}

/// One delivery with its attempts.
pub(super) struct Delivery<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a DeliveryId,
}

#[async_trait]
impl Write for Delivery<'_> {
    type Answer = Option<(WebhookDelivery, Vec<DeliveryAttempt>)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let query = sqlx::query(include_str!("sql/get_delivery.sql"));
        let query = query.bind(tx.fixed).bind(self.id.0).bind(self.tenant.as_str());
        let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(None) };
        let query =
            "SELECT at, status, error, took_ms FROM delivery_attempts WHERE delivery = $1 ORDER BY n DESC LIMIT $2";
        let rows = answer(sqlx::query(query).bind(self.id.0).bind(ATTEMPTS).fetch_all(&mut *tx.conn)).await?;
        let attempt = |row: &PgRow| {
            let status: Option<i32> = column(row, "status")?;
            Ok::<_, Fault>(DeliveryAttempt {
                at: Timestamp(time(row, "at")?),
                status: status.and_then(|status| u16::try_from(status).ok()),
                error: column::<Option<String>>(row, "error")?.map(unescaped),
                took: Duration::from_millis(column::<i64>(row, "took_ms")?.unsigned_abs()),
            })
        };
        Ok(Some((delivery(&row)?, rows.iter().map(attempt).collect::<Result<_, _>>()?)))
    }
}

/// Tries a delivery again.
pub(super) struct Redeliver<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a DeliveryId,
}

#[async_trait]
impl Write for Redeliver<'_> {
    type Answer = Option<WebhookDelivery>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<WebhookDelivery>, Fault> {
        let query = sqlx::query(include_str!("sql/redeliver.sql"));
        let query = query.bind(tx.fixed).bind(self.id.0).bind(self.tenant.as_str());
        answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(delivery).transpose()
    }
}

/// Takes due deliveries.
pub(super) struct Due<'a> {
    pub(super) busy: &'a [String],
    pub(super) each: u32,
    pub(super) limit: u32,
    pub(super) hold: Duration,
}

#[async_trait]
impl Write for Due<'_> {
    type Answer = Vec<DueDelivery>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<DueDelivery>, Fault> {
        let query = sqlx::query(include_str!("sql/due_deliveries.sql"))
            .bind(tx.fixed)
            .bind(self.busy)
            .bind(i64::from(self.each))
            .bind(i64::from(self.limit))
            .bind(millis(self.hold));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let due = |row: &PgRow| {
            let delivery = delivery(row)?;
            let secrets = match column::<Option<&str>>(row, "secrets")? {
                Some(text) => json::<Vec<KeptSecret>>("secrets", text)?,
                None => Vec::new(),
            };
            let secrets = KeptSecret::signing(&secrets, delivery.now).cloned().collect();
            let data = column::<Option<&str>>(row, "data")?.map(|text| json("data", text)).transpose()?;
            Ok(DueDelivery { delivery, secrets, data })
        };
        rows.iter().map(due).collect()
    }
}

/// Keeps how an attempt ended.
pub(super) struct EndAttempt<'a> {
    pub(super) id: &'a DeliveryId,
    pub(super) end: &'a AttemptEnd,
}

#[async_trait]
impl Write for EndAttempt<'_> {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let (state, pause) = match &self.end.then {
            Then::Delivered => (DeliveryState::Delivered, Duration::ZERO),
            Then::Retry(pause) => (DeliveryState::Waiting, *pause),
            Then::GiveUp | Then::Disable(_) => (DeliveryState::Failed, Duration::ZERO),
        };
        if matches!(self.end.then, Then::GiveUp | Then::Disable(_)) {
            // Before the delivery's row: first the webhook or server, then deliveries.
            let query = sqlx::query(include_str!("sql/lock_destination.sql")).bind(self.id.0);
            answer(query.fetch_all(&mut *tx.conn)).await?;
        }
        let query = sqlx::query(include_str!("sql/end_attempt.sql"))
            .bind(tx.fixed)
            .bind(self.id.0)
            .bind(state.as_str())
            .bind(millis(pause))
            .bind(self.end.status.map(i32::from))
            .bind(self.end.error.as_deref().map(escaped))
            .bind(millis(self.end.took));
        let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(()) };
        let why = match &self.end.then {
            Then::Delivered | Then::Retry(_) => return Ok(()),
            Then::Disable(why) => Some(why.as_str()),
            Then::GiveUp => None,
        };
        let query = sqlx::query(include_str!("sql/disable_webhook.sql"))
            .bind(tx.fixed)
            .bind(column::<Option<Uuid>>(&row, "webhook")?)
            .bind(why)
            .bind(column::<OffsetDateTime>(&row, "at")?)
            .bind(DEAD);
        let is_disabled = answer(query.execute(&mut *tx.conn)).await?.rows_affected() > 0;
        if is_disabled || why.is_some() {
            let webhook: Option<Uuid> = column(&row, "webhook")?;
            let url = webhook.is_none().then(|| column::<&str>(&row, "url")).transpose()?;
            give_up(tx, column(&row, "destination")?, url).await?;
        }
        Ok(())
    }
}

/// Forgets deliveries that ended long ago.
pub(super) struct Forget {
    pub(super) older: Duration,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Forget {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let query = sqlx::query(include_str!("sql/forget_deliveries.sql"));
        let query = query.bind(tx.fixed).bind(millis(self.older)).bind(i64::from(self.limit));
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected())
    }
}

fn webhook(row: &PgRow) -> Result<Webhook, Fault> {
    let events: Vec<String> = column(row, "events")?;
    let event = |word: &String| word.parse().map_err(|err| Fault::Corrupt(format!("column events: {err}")));
    let disabled_at: Option<OffsetDateTime> = column(row, "disabled_at")?;
    Ok(Webhook {
        id: WebhookId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        url: column(row, "url")?,
        events: events.iter().map(event).collect::<Result<_, _>>()?,
        description: unescaped(column(row, "description")?),
        secrets: json("secrets", column::<&str>(row, "secrets")?)?,
        created_at: Timestamp(time(row, "created_at")?),
        disabled_at: disabled_at.map(|at| Timestamp(millis_of(at))),
        disabled_why: column(row, "disabled_why")?,
        now: Timestamp(time(row, "now")?),
    })
}

fn delivery(row: &PgRow) -> Result<WebhookDelivery, Fault> {
    let subject = match (column::<Option<Uuid>>(row, "job")?, column::<Option<Uuid>>(row, "batch")?) {
        (Some(job), None) => Subject::Job(JobId(job)),
        (None, Some(batch)) => Subject::Batch(BatchId(batch)),
        _ => return Err(Fault::Corrupt("a delivery is of one job or one batch".to_owned())),
    };
    let next_at: Option<OffsetDateTime> = column(row, "next_at")?;
    Ok(WebhookDelivery {
        id: DeliveryId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        webhook: column::<Option<Uuid>>(row, "webhook")?.map(WebhookId),
        url: column(row, "url")?,
        event: word(row, "event")?,
        subject,
        sequence: column::<i32>(row, "sequence")?.unsigned_abs(),
        at: Timestamp(time(row, "at")?),
        state: word(row, "state")?,
        attempts: column::<i32>(row, "attempts")?.unsigned_abs(),
        tries: column::<i32>(row, "tries")?.unsigned_abs(),
        next_at: next_at.map(|at| Timestamp(millis_of(at))),
        retry_until: Timestamp(time(row, "retry_until")?),
        now: Timestamp(time(row, "now")?),
    })
}
