//! Schedules. What is decided of them is decided in [`contract::schedule`]; here it is kept, under the lock of the row.

mod runs;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use contract::schedule::MAX_SCHEDULES;
use contract::{
    Batch, BatchId, BatchTemplate, FileId, Fired, Hook, IdempotencyKey, KeyReused, Made, NewSchedule, Schedule,
    ScheduleChange, ScheduleId, ScheduleRefused, ScheduleStore, StoreError, TenantId, Timestamp,
};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::files::{keep_made, made_before};
use super::read::kind;
use super::row::{at, column, escaped, json, millis_of, time, to_json, unescaped, word};
use super::{PostgresStore, millis};
use runs::{Due, Fire, Run, Runs};

#[async_trait]
impl ScheduleStore for PostgresStore {
    async fn add_schedule(
        &self,
        schedule: &NewSchedule,
    ) -> Result<Result<Made<Schedule>, ScheduleRefused>, StoreError> {
        self.db.transact(&Add { schedule }).await
    }

    async fn schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Result<Option<Schedule>, StoreError> {
        self.db.read(&Get { tenant, id }).await
    }

    async fn schedules(
        &self,
        tenant: &TenantId,
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<(Vec<Schedule>, bool), StoreError> {
        self.db.read(&List { tenant, after, limit }).await
    }

    async fn change_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        change: &ScheduleChange,
    ) -> Result<Result<Schedule, ScheduleRefused>, StoreError> {
        self.db.transact(&Change { tenant, id, change }).await
    }

    async fn delete_schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Result<bool, StoreError> {
        self.db.once(&Delete { tenant, id }).await
    }

    async fn run_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        batch: BatchId,
        key: Option<&IdempotencyKey>,
    ) -> Result<Result<Made<Batch>, ScheduleRefused>, StoreError> {
        self.db.transact(&Run { tenant, id, batch, key }).await
    }

    async fn schedule_runs(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        after: Option<BatchId>,
        limit: u32,
    ) -> Result<Option<(Vec<Batch>, bool)>, StoreError> {
        self.db.read(&Runs { tenant, id, after, limit }).await
    }

    async fn due_schedules(&self, limit: u32) -> Result<Vec<(ScheduleId, Timestamp)>, StoreError> {
        self.db.read(&Due { limit }).await
    }

    async fn fire_schedule(
        &self,
        id: &ScheduleId,
        due: Timestamp,
        batch: BatchId,
    ) -> Result<Option<Fired>, StoreError> {
        self.db.transact(&Fire { id, due, batch }).await
    }
}

/// Makes a schedule.
struct Add<'a> {
    schedule: &'a NewSchedule,
}

#[async_trait]
impl Write for Add<'_> {
    type Answer = Result<Made<Schedule>, ScheduleRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let NewSchedule { tenant, idempotency, .. } = self.schedule;
        match made_before(tx, tenant, idempotency.as_ref()).await? {
            Err(KeyReused) => return Ok(Err(ScheduleRefused::KeyReused)),
            Ok(Some(earlier)) => {
                let earlier = Get { tenant, id: &ScheduleId(earlier) }.apply(tx).await?;
                return Ok(earlier.map(Made::Replayed).ok_or(ScheduleRefused::KeyReused));
            }
            Ok(None) => {}
        }
        let query = sqlx::query("SELECT count(*) AS n, store_now($1) AS now FROM schedules WHERE tenant = $2");
        let row = answer(query.bind(tx.fixed).bind(tenant.as_str()).fetch_one(&mut *tx.conn)).await?;
        if column::<i64>(&row, "n")? >= i64::from(MAX_SCHEDULES) {
            return Ok(Err(ScheduleRefused::TooMany));
        }
        let schedule = self.schedule.made(Timestamp(time(&row, "now")?));
        if !file_lives(tx, &schedule).await? {
            return Ok(Err(ScheduleRefused::NoFile));
        }
        let query = sqlx::query(include_str!("sql/add_schedule.sql"))
            .bind(schedule.id.0)
            .bind(tenant.as_str())
            .bind(escaped(&schedule.name))
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
            .bind(at(schedule.created_at.0))
            .bind(moment(schedule.next_at))
            .bind(schedule.batch.keep.map(millis));
        answer(query.execute(&mut *tx.conn)).await?;
        keep_made(tx, tenant, idempotency.as_ref(), schedule.id.0).await?;
        Ok(Ok(Made::New(schedule)))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        !matches!(answer, Ok(Made::New(_)))
    }
}

fn moment(at_millis: Option<Timestamp>) -> Option<OffsetDateTime> {
    at_millis.map(|when| at(when.0))
}

fn hook_json(batch: &BatchTemplate) -> Result<Option<String>, Fault> {
    batch.webhook.as_ref().map(|hook| to_json("the webhook", hook)).transpose()
}

/// Whether the file of a schedule is one for batches, with all its bytes, and its time is not over.
async fn file_lives(tx: &mut Tx<'_>, schedule: &Schedule) -> Result<bool, Fault> {
    let query = sqlx::query(include_str!("sql/file_lives.sql"));
    let query = query.bind(tx.fixed).bind(schedule.batch.input.0).bind(schedule.tenant.as_str());
    column(&answer(query.fetch_one(&mut *tx.conn)).await?, "lives")
}

/// Keeps what a schedule has become. The caller holds its row.
async fn put(tx: &mut Tx<'_>, schedule: &Schedule) -> Result<(), Fault> {
    let n = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let query = sqlx::query(include_str!("sql/put_schedule.sql"))
        .bind(schedule.id.0)
        .bind(escaped(&schedule.name))
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
        .bind(moment(schedule.next_at))
        .bind(moment(schedule.last_at))
        .bind(schedule.last_batch.map(|id| id.0))
        .bind(schedule.last_error.as_deref())
        .bind(n(schedule.runs))
        .bind(n(schedule.skipped))
        .bind(schedule.batch.keep.map(millis));
    answer(query.execute(&mut *tx.conn)).await.map(drop)
}

/// One schedule.
struct Get<'a> {
    tenant: &'a TenantId,
    id: &'a ScheduleId,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<Schedule>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Schedule>, Fault> {
        let query = sqlx::query(include_str!("sql/get_schedule.sql"));
        let query = query.bind(tx.fixed).bind(self.id.0).bind(self.tenant.as_str());
        answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(read).transpose()
    }
}

/// A page of schedules.
struct List<'a> {
    tenant: &'a TenantId,
    after: Option<ScheduleId>,
    limit: u32,
}

#[async_trait]
impl Write for List<'_> {
    type Answer = (Vec<Schedule>, bool);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let limit = self.limit.max(1) as usize;
        let query = sqlx::query(include_str!("sql/list_schedules.sql"))
            .bind(tx.fixed)
            .bind(self.tenant.as_str())
            .bind(self.after.map(|id| id.0))
            // One more than asked for tells whether there is more.
            .bind(i64::from(self.limit.max(1)).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        Ok((rows.iter().take(limit).map(read).collect::<Result<_, _>>()?, rows.len() > limit))
    }
}

/// One schedule, which nobody else changes until the transaction's end.
async fn lock(tx: &mut Tx<'_>, tenant: &TenantId, id: &ScheduleId) -> Result<Option<Schedule>, Fault> {
    let query = sqlx::query(include_str!("sql/lock_schedule.sql")).bind(tx.fixed).bind(id.0).bind(tenant.as_str());
    answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(read).transpose()
}

/// Changes a schedule.
struct Change<'a> {
    tenant: &'a TenantId,
    id: &'a ScheduleId,
    change: &'a ScheduleChange,
}

#[async_trait]
impl Write for Change<'_> {
    type Answer = Result<Schedule, ScheduleRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let Some(before) = lock(tx, self.tenant, self.id).await? else { return Ok(Err(ScheduleRefused::NotFound)) };
        let changed = before.changed(self.change);
        let needs_file = before.batch.input != changed.batch.input || (changed.is_enabled() && !before.is_enabled());
        if needs_file && !file_lives(tx, &changed).await? {
            return Ok(Err(ScheduleRefused::NoFile));
        }
        put(tx, &changed).await?;
        Ok(Ok(changed))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        answer.is_err()
    }
}

/// Deletes a schedule.
struct Delete<'a> {
    tenant: &'a TenantId,
    id: &'a ScheduleId,
}

#[async_trait]
impl Write for Delete<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("DELETE FROM schedules WHERE id = $1 AND tenant = $2");
        let query = query.bind(self.id.0).bind(self.tenant.as_str());
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 1)
    }
}

fn read(row: &PgRow) -> Result<Schedule, Fault> {
    let moment = |name| Ok::<_, Fault>(column::<Option<OffsetDateTime>>(row, name)?.map(|at| Timestamp(millis_of(at))));
    let life: Option<i64> = column(row, "output_life_ms")?;
    let metadata: BTreeMap<String, String> = json("metadata", column::<&str>(row, "metadata")?)?;
    let webhook: Option<&str> = column(row, "webhook")?;
    Ok(Schedule {
        id: ScheduleId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        name: unescaped(column(row, "name")?),
        cron: word(row, "cron")?,
        zone: word(row, "timezone")?,
        overlap: word(row, "overlap")?,
        catch_up: word(row, "catch_up")?,
        batch: BatchTemplate {
            input: FileId(column(row, "input")?),
            endpoint: kind(column(row, "endpoint")?)?,
            window: Duration::from_millis(column::<i64>(row, "window_ms")?.unsigned_abs()),
            window_text: column(row, "window_text")?,
            metadata,
            output_life: life.map(|ms| Duration::from_millis(ms.unsigned_abs())),
            keep: column::<Option<i64>>(row, "keep_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
            webhook: webhook.map(|text| json::<Hook>("webhook", text)).transpose()?,
        },
        created_at: Timestamp(time(row, "created_at")?),
        next_at: moment("next_at")?,
        last_at: moment("last_at")?,
        last_batch: column::<Option<Uuid>>(row, "last_batch")?.map(BatchId),
        last_error: column(row, "last_error")?,
        runs: column::<i64>(row, "runs")?.unsigned_abs(),
        skipped: column::<i64>(row, "skipped")?.unsigned_abs(),
        now: Timestamp(time(row, "now")?),
    })
}
