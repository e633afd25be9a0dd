//! Webhooks and their deliveries.

use std::time::Duration;

use async_trait::async_trait;
use contract::webhook::{KeptSecret, MAX_WEBHOOKS, WebhookRefused};
use contract::{
    AttemptEnd, BatchId, DeliveryAttempt, DeliveryFilter, DeliveryId, DeliveryState, DueDelivery, JobId, KeyReused,
    Made, NewWebhook, Subject, TenantId, Then, Timestamp, Webhook, WebhookChange, WebhookDelivery, WebhookId,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteExecutor, SqlitePool};
use uuid::Uuid;

use super::fault::Fault;
use super::files::{keep_made, made_before};
use super::millis;
use super::row::{column, json, number, to_json, word};
use super::writer::{Tx, Write};

/// Why a webhook is disabled whose server took nothing from a delivery's event to its last attempt.
const DEAD: &str = "its server took nothing for three days";
/// Attempts that are shown of a delivery.
const ATTEMPTS: i64 = 100;

/// Makes a webhook.
pub(super) struct Add {
    pub(super) webhook: NewWebhook,
}

#[async_trait]
impl Write for Add {
    type Answer = Result<Made<Webhook>, WebhookRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let new = &self.webhook;
        match made_before(tx, &new.tenant, new.idempotency.as_ref()).await? {
            Err(KeyReused) => return Ok(Err(WebhookRefused::KeyReused)),
            Ok(Some(earlier)) => {
                let earlier = find(&mut *tx.conn, tx.now, &new.tenant, &WebhookId(earlier)).await?;
                return Ok(earlier.map(Made::Replayed).ok_or(WebhookRefused::KeyReused));
            }
            Ok(None) => {}
        }
        if new.url.is_some() {
            let query = sqlx::query("SELECT count(*) AS n FROM webhooks WHERE tenant = ?1 AND url IS NOT NULL");
            let row = query.bind(new.tenant.as_str()).fetch_one(&mut *tx.conn).await?;
            if column::<i64>(&row, "n")? >= i64::from(MAX_WEBHOOKS) {
                return Ok(Err(WebhookRefused::TooMany));
            }
        }
        let secrets = [KeptSecret { secret: new.secret.clone(), until: None }];
        let row = sqlx::query(include_str!("sql/add_webhook.sql"))
            .bind(new.id.0)
            .bind(new.tenant.as_str())
            .bind(new.url.as_deref())
            .bind(to_json("the events", &new.events)?)
            .bind(&new.description)
            .bind(to_json("the secrets", &secrets)?)
            .bind(tx.now)
            .fetch_one(&mut *tx.conn)
            .await?;
        let webhook = webhook(&row, tx.now)?;
        keep_made(tx, &new.tenant, new.idempotency.as_ref(), webhook.id.0).await?;
        Ok(Ok(if webhook.id == new.id { Made::New(webhook) } else { Made::Replayed(webhook) }))
    }
}

/// One webhook.
pub(super) async fn find(
    executor: impl SqliteExecutor<'_>,
    now: i64,
    tenant: &TenantId,
    id: &WebhookId,
) -> Result<Option<Webhook>, Fault> {
    let query = sqlx::query(include_str!("sql/get_webhook.sql")).bind(id.0).bind(tenant.as_str());
    query.fetch_optional(executor).await?.map(|row| webhook(&row, now)).transpose()
}

/// Those of a tenant that have an address.
pub(super) async fn list(pool: &SqlitePool, now: i64, tenant: &TenantId) -> Result<Vec<Webhook>, Fault> {
    let query = sqlx::query(include_str!("sql/list_webhooks.sql")).bind(tenant.as_str());
    query.fetch_all(pool).await?.iter().map(|row| webhook(row, now)).collect()
}

/// Changes a webhook.
pub(super) struct Change {
    pub(super) tenant: TenantId,
    pub(super) id: WebhookId,
    pub(super) change: WebhookChange,
}

#[async_trait]
impl Write for Change {
    type Answer = Option<Webhook>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Webhook>, Fault> {
        let secrets = match &self.change.secret {
            None => None,
            Some((secret, overlap)) => {
                let Some(kept) = find(&mut *tx.conn, tx.now, &self.tenant, &self.id).await? else { return Ok(None) };
                Some(to_json("the secrets", &kept.rotated(secret.clone(), *overlap))?)
            }
        };
        let events = self.change.events.as_ref().map(|events| to_json("the events", events)).transpose()?;
        let query = sqlx::query(include_str!("sql/change_webhook.sql"))
            .bind(self.id.0)
            .bind(self.tenant.as_str())
            .bind(self.change.url.as_deref())
            .bind(events)
            .bind(self.change.description.as_deref())
            .bind(self.change.enabled)
            .bind(secrets)
            .bind(tx.now);
        let changed = query.fetch_optional(&mut *tx.conn).await?.map(|row| webhook(&row, tx.now)).transpose()?;
        if changed.is_some() && self.change.enabled == Some(false) {
            give_up(tx, &self.id.0.to_string(), None).await?;
        }
        Ok(changed)
    }
}

/// Deletes a webhook that has an address.
pub(super) struct Delete {
    pub(super) tenant: TenantId,
    pub(super) id: WebhookId,
}

#[async_trait]
impl Write for Delete {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("DELETE FROM webhooks WHERE id = ?1 AND tenant = ?2 AND url IS NOT NULL");
        let deleted = query.bind(self.id.0).bind(self.tenant.as_str()).execute(&mut *tx.conn).await?;
        if deleted.rows_affected() == 0 {
            return Ok(false);
        }
        give_up(tx, &self.id.0.to_string(), None).await?;
        Ok(true)
    }
}

/// Ends what waits for a webhook, or for one address of a server.
async fn give_up(tx: &mut Tx<'_>, destination: &str, url: Option<&str>) -> Result<(), Fault> {
    let query = sqlx::query(include_str!("sql/give_up_deliveries.sql")).bind(destination).bind(tx.now).bind(url);
    query.execute(&mut *tx.conn).await?;
    Ok(())
}

/// A page of deliveries.
pub(super) async fn deliveries(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    filter: &DeliveryFilter,
) -> Result<(Vec<WebhookDelivery>, bool), Fault> {
    let limit = filter.limit.max(1) as usize;
    let rows = sqlx::query(include_str!("sql/list_deliveries.sql"))
        .bind(tenant.as_str())
        .bind(filter.webhook.map(|id| id.0))
        .bind(filter.state.map(DeliveryState::as_str))
        .bind(filter.after.map(|id| id.0))
        // One more than asked for tells whether there is more.
        .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1))
        .fetch_all(pool)
        .await?;
    let page = rows.iter().take(limit).map(|row| delivery(row, now)).collect::<Result<_, _>>()?;
    Ok((page, rows.len() > limit))
}

/// One delivery with its attempts.
pub(super) async fn find_delivery(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    id: &DeliveryId,
) -> Result<Option<(WebhookDelivery, Vec<DeliveryAttempt>)>, Fault> {
    let mut tx = pool.begin().await?;
    let query = sqlx::query(include_str!("sql/get_delivery.sql")).bind(id.0).bind(tenant.as_str());
    let Some(row) = query.fetch_optional(&mut *tx).await? else { return Ok(None) };
    let query = "SELECT at, status, error, took_ms FROM delivery_attempts WHERE delivery = ?1 ORDER BY n DESC LIMIT ?2";
    let rows = sqlx::query(query).bind(id.0).bind(ATTEMPTS).fetch_all(&mut *tx).await?;
    let attempt = |row: &SqliteRow| {
        let status: Option<i64> = column(row, "status")?;
        Ok::<_, Fault>(DeliveryAttempt {
            at: Timestamp(column(row, "at")?),
            status: status.and_then(|status| u16::try_from(status).ok()),
            error: column(row, "error")?,
            took: Duration::from_millis(column::<i64>(row, "took_ms")?.unsigned_abs()),
        })
    };
    Ok(Some((delivery(&row, now)?, rows.iter().map(attempt).collect::<Result<_, _>>()?)))
}

/// Tries a delivery again.
pub(super) struct Redeliver {
    pub(super) tenant: TenantId,
    pub(super) id: DeliveryId,
}

#[async_trait]
impl Write for Redeliver {
    type Answer = Option<WebhookDelivery>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<WebhookDelivery>, Fault> {
        let query = sqlx::query(include_str!("sql/redeliver.sql"));
        let query = query.bind(self.id.0).bind(self.tenant.as_str()).bind(tx.now);
        query.fetch_optional(&mut *tx.conn).await?.map(|row| delivery(&row, tx.now)).transpose()
    }
}

/// Takes due deliveries.
pub(super) struct Due {
    pub(super) busy: Vec<String>,
    pub(super) each: u32,
    pub(super) limit: u32,
    pub(super) hold: Duration,
}

#[async_trait]
impl Write for Due {
    type Answer = Vec<DueDelivery>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<DueDelivery>, Fault> {
        let mut due: Vec<DueDelivery> = Vec::new();
        let mut destination = String::new();
        let next = include_str!("sql/waiting_destinations.sql");
        // One index seek for each address that something waits for.
        while let Some(row) = sqlx::query(next).bind(&destination).fetch_optional(&mut *tx.conn).await? {
            destination = column(&row, "destination")?;
            if self.busy.contains(&destination) {
                continue;
            }
            let room = (self.limit as usize).saturating_sub(due.len()).min(self.each as usize);
            if room == 0 {
                break;
            }
            let rows = sqlx::query(include_str!("sql/due_deliveries.sql"))
                .bind(&destination)
                .bind(tx.now)
                .bind(i64::try_from(room).unwrap_or(i64::MAX))
                .fetch_all(&mut *tx.conn)
                .await?;
            for row in &rows {
                let delivery = delivery(row, tx.now)?;
                let secrets = match column::<Option<String>>(row, "secrets")? {
                    Some(text) => json::<Vec<KeptSecret>>("secrets", &text)?,
                    None => Vec::new(),
                };
                sqlx::query("UPDATE deliveries SET next_at = ?2 WHERE id = ?1")
                    .bind(delivery.id.0)
                    .bind(tx.now.saturating_add(millis(self.hold)))
                    .execute(&mut *tx.conn)
                    .await?;
                let secrets = KeptSecret::signing(&secrets, delivery.now).cloned().collect();
                let data = column::<Option<String>>(row, "data")?.map(|text| json("data", &text)).transpose()?;
                due.push(DueDelivery { delivery, secrets, data });
            }
        }
        Ok(due)
    }
}

/// Keeps how an attempt ended.
pub(super) struct EndAttempt {
    pub(super) id: DeliveryId,
    pub(super) end: AttemptEnd,
}

#[async_trait]
impl Write for EndAttempt {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let (state, next_at) = match &self.end.then {
            Then::Delivered => (DeliveryState::Delivered, None),
            Then::Retry(pause) => (DeliveryState::Waiting, Some(tx.now.saturating_add(millis(*pause)))),
            Then::GiveUp | Then::Disable(_) => (DeliveryState::Failed, None),
        };
        let row = sqlx::query(include_str!("sql/end_attempt.sql"))
            .bind(self.id.0)
            .bind(state.as_str())
            .bind(next_at)
            .bind(next_at.is_none().then_some(tx.now))
            .fetch_optional(&mut *tx.conn)
            .await?;
        let Some(row) = row else { return Ok(()) };
        sqlx::query(include_str!("sql/keep_attempt.sql"))
            .bind(self.id.0)
            .bind(column::<i64>(&row, "attempts")?)
            .bind(tx.now)
            .bind(self.end.status.map(i64::from))
            .bind(self.end.error.as_deref())
            .bind(millis(self.end.took))
            .execute(&mut *tx.conn)
            .await?;
        let why = match &self.end.then {
            Then::Delivered | Then::Retry(_) => return Ok(()),
            Then::Disable(why) => Some(why.as_str()),
            Then::GiveUp => None,
        };
        let disabled = sqlx::query(include_str!("sql/disable_webhook.sql"))
            .bind(column::<Option<Uuid>>(&row, "webhook")?)
            .bind(tx.now)
            .bind(why)
            .bind(column::<i64>(&row, "at")?)
            .bind(DEAD)
            .execute(&mut *tx.conn)
            .await?;
        if disabled.rows_affected() > 0 || why.is_some() {
            let webhook: Option<Uuid> = column(&row, "webhook")?;
            let url = webhook.is_none().then(|| column::<String>(&row, "url")).transpose()?;
            give_up(tx, &column::<String>(&row, "destination")?, url.as_deref()).await?;
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
        let query = sqlx::query("SELECT id FROM deliveries WHERE ended_at <= ?1 ORDER BY ended_at LIMIT ?2");
        let query = query.bind(tx.now.saturating_sub(millis(self.older))).bind(i64::from(self.limit));
        let old = query.fetch_all(&mut *tx.conn).await?;
        for row in &old {
            let id: Uuid = column(row, "id")?;
            for sql in ["DELETE FROM delivery_attempts WHERE delivery = ?1", "DELETE FROM deliveries WHERE id = ?1"] {
                sqlx::query(sql).bind(id).execute(&mut *tx.conn).await?;
            }
        }
        Ok(old.len() as u64)
    }
}

fn webhook(row: &SqliteRow, now: i64) -> Result<Webhook, Fault> {
    Ok(Webhook {
        id: WebhookId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        url: column(row, "url")?,
        events: json("events", &column::<String>(row, "events")?)?,
        description: column(row, "description")?,
        secrets: json("secrets", &column::<String>(row, "secrets")?)?,
        created_at: Timestamp(column(row, "created_at")?),
        disabled_at: column::<Option<i64>>(row, "disabled_at")?.map(Timestamp),
        disabled_why: column(row, "disabled_why")?,
        now: Timestamp(now),
    })
}

fn delivery(row: &SqliteRow, now: i64) -> Result<WebhookDelivery, Fault> {
    let subject = match (column::<Option<Uuid>>(row, "job")?, column::<Option<Uuid>>(row, "batch")?) {
        (Some(job), None) => Subject::Job(JobId(job)),
        (None, Some(batch)) => Subject::Batch(BatchId(batch)),
        _ => return Err(Fault::Corrupt("a delivery is of one job or one batch".to_owned())),
    };
    Ok(WebhookDelivery {
        id: DeliveryId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        webhook: column::<Option<Uuid>>(row, "webhook")?.map(WebhookId),
        url: column(row, "url")?,
        event: word(row, "event")?,
        subject,
        sequence: number(row, "sequence")?,
        at: Timestamp(column(row, "at")?),
        state: word(row, "state")?,
        attempts: number(row, "attempts")?,
        tries: number(row, "tries")?,
        next_at: column::<Option<i64>>(row, "next_at")?.map(Timestamp),
        retry_until: Timestamp(column(row, "retry_until")?),
        now: Timestamp(now),
    })
}
