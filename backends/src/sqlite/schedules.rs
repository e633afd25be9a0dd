//! Schedules. What is decided of them is decided in [`contract::schedule`]; here it is kept.

mod runs;

use std::time::Duration;

use async_trait::async_trait;
use contract::schedule::MAX_SCHEDULES;
use contract::{
    Batch, BatchId, BatchTemplate, FileId, Fired, Hook, IdempotencyKey, KeyReused, Made, NewSchedule, Schedule,
    ScheduleChange, ScheduleId, ScheduleRefused, ScheduleStore, StoreError, TenantId, Timestamp,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteExecutor, SqlitePool};
use uuid::Uuid;

use super::fault::Fault;
use super::files::{keep_made, made_before};
use super::read::kind;
use super::row::{column, json, to_json, word};
use super::writer::{Tx, Write};
use super::{SqliteStore, millis};
use runs::{Fire, Run};

#[async_trait]
impl ScheduleStore for SqliteStore {
    async fn add_schedule(
        &self,
        schedule: &NewSchedule,
    ) -> Result<Result<Made<Schedule>, ScheduleRefused>, StoreError> {
        self.writer.submit(Add { schedule: schedule.clone() }).await
    }

    async fn schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Result<Option<Schedule>, StoreError> {
        get(&self.readers, self.now(), Some(tenant), id).await.map_err(Fault::nothing_written)
    }

    async fn schedules(
        &self,
        tenant: &TenantId,
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<(Vec<Schedule>, bool), StoreError> {
        list(&self.readers, self.now(), tenant, after, limit).await.map_err(Fault::nothing_written)
    }

    async fn change_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        change: &ScheduleChange,
    ) -> Result<Result<Schedule, ScheduleRefused>, StoreError> {
        self.writer.submit(Change { tenant: tenant.clone(), id: *id, change: change.clone() }).await
    }

    async fn delete_schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Result<bool, StoreError> {
        self.writer.submit(Delete { tenant: tenant.clone(), id: *id }).await
    }

    async fn run_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        batch: BatchId,
        key: Option<&IdempotencyKey>,
    ) -> Result<Result<Made<Batch>, ScheduleRefused>, StoreError> {
        self.writer.submit(Run { tenant: tenant.clone(), id: *id, batch, key: key.cloned() }).await
    }

    async fn schedule_runs(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        after: Option<BatchId>,
        limit: u32,
    ) -> Result<Option<(Vec<Batch>, bool)>, StoreError> {
        runs::list(&self.readers, self.now(), tenant, id, after, limit).await.map_err(Fault::nothing_written)
    }

    async fn due_schedules(&self, limit: u32) -> Result<Vec<(ScheduleId, Timestamp)>, StoreError> {
        runs::due(&self.readers, self.now(), limit).await.map_err(Fault::nothing_written)
    }

    async fn fire_schedule(
        &self,
        id: &ScheduleId,
        due: Timestamp,
        batch: BatchId,
    ) -> Result<Option<Fired>, StoreError> {
        self.writer.submit(Fire { id: *id, due, batch }).await
    }
}

/// Makes a schedule.
struct Add {
    schedule: NewSchedule,
}

#[async_trait]
impl Write for Add {
    type Answer = Result<Made<Schedule>, ScheduleRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let NewSchedule { tenant, idempotency, .. } = &self.schedule;
        match made_before(tx, tenant, idempotency.as_ref()).await? {
            Err(KeyReused) => return Ok(Err(ScheduleRefused::KeyReused)),
            Ok(Some(earlier)) => {
                let earlier = get(&mut *tx.conn, tx.now, Some(tenant), &ScheduleId(earlier)).await?;
                return Ok(earlier.map(Made::Replayed).ok_or(ScheduleRefused::KeyReused));
            }
            Ok(None) => {}
        }
        let query = sqlx::query("SELECT count(*) AS n FROM schedules WHERE tenant = ?1").bind(tenant.as_str());
        if column::<i64>(&query.fetch_one(&mut *tx.conn).await?, "n")? >= i64::from(MAX_SCHEDULES) {
            return Ok(Err(ScheduleRefused::TooMany));
        }
        let schedule = self.schedule.made(Timestamp(tx.now));
        if !file_lives(tx, &schedule).await? {
            return Ok(Err(ScheduleRefused::NoFile));
        }
        sqlx::query(include_str!("sql/add_schedule.sql"))
            .bind(schedule.id.0)
            .bind(tenant.as_str())
            .bind(&schedule.name)
            .bind(schedule.cron.as_str())
            .bind(schedule.zone.as_str())
            .bind(schedule.overlap.as_str())
            .bind(schedule.catch_up.as_str())
            .bind(schedule.batch.input.0)
            .bind(schedule.batch.endpoint.as_str())
            .bind(millis(schedule.batch.window))
            .bind(&schedule.batch.window_text)
            .bind(to_json("the metadata", &schedule.batch.metadata)?)
            .bind(schedule.batch.output_life.map(millis))
            .bind(hook_json(&schedule.batch)?)
            .bind(schedule.created_at.0)
            .bind(schedule.next_at.map(|at| at.0))
            .bind(schedule.batch.keep.map(millis))
            .execute(&mut *tx.conn)
            .await?;
        keep_made(tx, tenant, idempotency.as_ref(), schedule.id.0).await?;
        Ok(Ok(Made::New(schedule)))
    }
}

fn hook_json(batch: &BatchTemplate) -> Result<Option<String>, Fault> {
    batch.webhook.as_ref().map(|hook| to_json("the webhook", hook)).transpose()
}

/// Whether the file of a schedule is one for batches, with all its bytes, and its time is not over.
async fn file_lives(tx: &mut Tx<'_>, schedule: &Schedule) -> Result<bool, Fault> {
    let query = sqlx::query(include_str!("sql/file_lives.sql"))
        .bind(schedule.batch.input.0)
        .bind(schedule.tenant.as_str())
        .bind(tx.now);
    column(&query.fetch_one(&mut *tx.conn).await?, "lives")
}

/// Keeps what a schedule has become.
async fn put(tx: &mut Tx<'_>, schedule: &Schedule) -> Result<(), Fault> {
    let n = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    sqlx::query(include_str!("sql/put_schedule.sql"))
        .bind(schedule.id.0)
        .bind(&schedule.name)
        .bind(schedule.cron.as_str())
        .bind(schedule.zone.as_str())
        .bind(schedule.overlap.as_str())
        .bind(schedule.catch_up.as_str())
        .bind(schedule.batch.input.0)
        .bind(schedule.batch.endpoint.as_str())
        .bind(millis(schedule.batch.window))
        .bind(&schedule.batch.window_text)
        .bind(to_json("the metadata", &schedule.batch.metadata)?)
        .bind(schedule.batch.output_life.map(millis))
        .bind(hook_json(&schedule.batch)?)
        .bind(schedule.next_at.map(|at| at.0))
        .bind(schedule.last_at.map(|at| at.0))
        .bind(schedule.last_batch.map(|id| id.0))
        .bind(schedule.last_error.as_deref())
        .bind(n(schedule.runs))
        .bind(n(schedule.skipped))
        .bind(schedule.batch.keep.map(millis))
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

/// One schedule; of any tenant without one.
async fn get(
    executor: impl SqliteExecutor<'_>,
    now: i64,
    tenant: Option<&TenantId>,
    id: &ScheduleId,
) -> Result<Option<Schedule>, Fault> {
    let query = sqlx::query(include_str!("sql/get_schedule.sql")).bind(id.0).bind(tenant.map(TenantId::as_str));
    query.fetch_optional(executor).await?.map(|row| read(&row, now)).transpose()
}

/// A page of schedules.
async fn list(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    after: Option<ScheduleId>,
    limit: u32,
) -> Result<(Vec<Schedule>, bool), Fault> {
    let rows = sqlx::query(include_str!("sql/list_schedules.sql"))
        .bind(tenant.as_str())
        .bind(after.map(|id| id.0))
        // One more than asked for tells whether there is more.
        .bind(i64::from(limit.max(1)).saturating_add(1))
        .fetch_all(pool)
        .await?;
    let limit = limit.max(1) as usize;
    let schedules = rows.iter().take(limit).map(|row| read(row, now)).collect::<Result<_, _>>()?;
    Ok((schedules, rows.len() > limit))
}

/// Changes a schedule.
struct Change {
    tenant: TenantId,
    id: ScheduleId,
    change: ScheduleChange,
}

#[async_trait]
impl Write for Change {
    type Answer = Result<Schedule, ScheduleRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let Some(before) = get(&mut *tx.conn, tx.now, Some(&self.tenant), &self.id).await? else {
            return Ok(Err(ScheduleRefused::NotFound));
        };
        let changed = before.changed(&self.change);
        let needs_file = before.batch.input != changed.batch.input || (changed.is_enabled() && !before.is_enabled());
        if needs_file && !file_lives(tx, &changed).await? {
            return Ok(Err(ScheduleRefused::NoFile));
        }
        put(tx, &changed).await?;
        Ok(Ok(changed))
    }
}

/// Deletes a schedule.
struct Delete {
    tenant: TenantId,
    id: ScheduleId,
}

#[async_trait]
impl Write for Delete {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("DELETE FROM schedules WHERE id = ?1 AND tenant = ?2");
        let deleted = query.bind(self.id.0).bind(self.tenant.as_str()).execute(&mut *tx.conn).await?;
        Ok(deleted.rows_affected() == 1)
    }
}

fn read(row: &SqliteRow, now: i64) -> Result<Schedule, Fault> {
    let moment = |name| Ok::<_, Fault>(column::<Option<i64>>(row, name)?.map(Timestamp));
    let life: Option<i64> = column(row, "output_life_ms")?;
    let webhook: Option<String> = column(row, "webhook")?;
    Ok(Schedule {
        id: ScheduleId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        name: column(row, "name")?,
        cron: word(row, "cron")?,
        zone: word(row, "timezone")?,
        overlap: word(row, "overlap")?,
        catch_up: word(row, "catch_up")?,
        batch: BatchTemplate {
            input: FileId(column(row, "input")?),
            endpoint: kind(&column::<String>(row, "endpoint")?)?,
            window: Duration::from_millis(column::<i64>(row, "window_ms")?.unsigned_abs()),
            window_text: column(row, "window_text")?,
            metadata: json("metadata", &column::<String>(row, "metadata")?)?,
            output_life: life.map(|ms| Duration::from_millis(ms.unsigned_abs())),
            keep: column::<Option<i64>>(row, "keep_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
            webhook: webhook.map(|text| json::<Hook>("webhook", &text)).transpose()?,
        },
        created_at: Timestamp(column(row, "created_at")?),
        next_at: moment("next_at")?,
        last_at: moment("last_at")?,
        last_batch: column::<Option<Uuid>>(row, "last_batch")?.map(BatchId),
        last_error: column(row, "last_error")?,
        runs: column::<i64>(row, "runs")?.unsigned_abs(),
        skipped: column::<i64>(row, "skipped")?.unsigned_abs(),
        now: Timestamp(now),
    })
}
