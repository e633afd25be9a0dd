//! Reading: on connections of their own, so that a long list never makes a writer wait.

use std::time::Duration;

use contract::{
    Class, Filter, Fingerprint, Job, JobId, Kind, Page, QueueId, RecordLocation, ServedModel, TenantId, Timestamp,
    Unarchived,
};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::fault::Fault;
use super::row::{column, json, number, of_job, to_json, usage, word};

/// One job with its record's location.
pub(super) async fn get(pool: &SqlitePool, now: i64, tenant: &TenantId, id: &JobId) -> Result<Option<Job>, Fault> {
    let row = sqlx::query(include_str!("sql/get.sql")).bind(tenant.as_str()).bind(id.0).fetch_optional(pool).await?;
    row.as_ref().map(|row| job(row, now)).transpose()
}

/// A page of a tenant's jobs.
pub(super) async fn list(pool: &SqlitePool, now: i64, tenant: &TenantId, filter: &Filter) -> Result<Page, Fault> {
    let limit = filter.limit.max(1) as usize;
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let states = if states.is_empty() { None } else { Some(to_json("the states", &states)?) };
    let pairs = if filter.metadata.is_empty() { None } else { Some(to_json("the metadata", &filter.metadata)?) };
    let rows = sqlx::query(include_str!("sql/list.sql"))
        .bind(tenant.as_str())
        .bind(filter.after.map_or(Uuid::max(), |id| id.0))
        .bind(states)
        .bind(filter.class.map(Class::as_str))
        .bind(filter.batch)
        .bind(pairs)
        // One more than asked for tells whether there is more.
        .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1))
        .fetch_all(pool)
        .await?;
    let jobs = rows.iter().take(limit).map(|row| job(row, now)).collect::<Result<_, _>>()?;
    Ok(Page { jobs, has_more: rows.len() > limit })
}

/// Rows of a queue that wait and are not held.
pub(super) async fn queued(pool: &SqlitePool, queue: &QueueId) -> Result<u64, Fault> {
    let row = sqlx::query(include_str!("sql/queued.sql"))
        .bind(queue.release.as_str())
        .bind(queue.class.as_str())
        .fetch_one(pool)
        .await?;
    Ok(column::<i64>(&row, "n")?.unsigned_abs())
}

/// The queues that have unfinished jobs.
pub(super) async fn queues(pool: &SqlitePool) -> Result<Vec<QueueId>, Fault> {
    let rows = sqlx::query(include_str!("sql/queues.sql")).fetch_all(pool).await?;
    rows.iter()
        .map(|row| Ok(QueueId { release: Fingerprint(column(row, "release")?), class: word(row, "class")? }))
        .collect()
}

pub(super) fn job(row: &SqliteRow, now: i64) -> Result<Job, Fault> {
    let id = JobId(column::<Uuid>(row, "id")?);
    read_job(row, id, now).map_err(|fault| of_job(id, fault))
}

fn read_job(row: &SqliteRow, id: JobId, now: i64) -> Result<Job, Fault> {
    let emptied_at: Option<i64> = column(row, "emptied_at")?;
    // An empty record is none.
    let record = if emptied_at.is_some() { None } else { location(row)? };
    let segment: Option<String> = column(row, "segment")?;
    let batch: Option<Uuid> = column(row, "batch")?;
    let batch_line = batch.map(|batch| Ok::<_, Fault>((batch, number(row, "line")?))).transpose()?;
    let error: Option<String> = column(row, "error")?;
    Ok(Job {
        id,
        tenant: TenantId(column(row, "tenant")?),
        release: Fingerprint(column(row, "release")?),
        route: column(row, "route")?,
        class: word(row, "class")?,
        kind: kind(&column::<String>(row, "kind")?)?,
        state: word(row, "state")?,
        attempt: number(row, "attempt")?,
        errors: number(row, "errors")?,
        losses: number(row, "losses")?,
        seed: column::<i64>(row, "seed")?.cast_unsigned(),
        metadata: json("metadata", &column::<String>(row, "metadata")?)?,
        batch_line,
        sequence_key: column(row, "sequence_key")?,
        on_failure: word(row, "on_failure")?,
        error: error.map(|text| json("error", &text)).transpose()?,
        history: json("history", &column::<String>(row, "history")?)?,
        usage: usage(row)?,
        accepted_at: Timestamp(column(row, "accepted_at")?),
        started_at: column::<Option<i64>>(row, "started_at")?.map(Timestamp),
        first_token_at: column::<Option<i64>>(row, "first_token_at")?.map(Timestamp),
        finished_at: column::<Option<i64>>(row, "finished_at")?.map(Timestamp),
        deadline: Timestamp(column(row, "deadline")?),
        record,
        trajectory: word(row, "trajectory")?,
        segment: segment
            .map(|text| text.parse())
            .transpose()
            .map_err(|err| Fault::Corrupt(format!("column segment: {err}")))?,
        keep: column::<Option<i64>>(row, "keep_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        result_expires_at: column::<Option<i64>>(row, "expires_at")?.map(Timestamp),
        emptied_at: emptied_at.map(Timestamp),
        now: Timestamp(now),
    })
}

/// Where the record of a row is, if it has one.
fn location(row: &SqliteRow) -> Result<Option<RecordLocation>, Fault> {
    Ok(match (column(row, "record")?, column(row, "record_ref")?) {
        (Some(bytes), _) => Some(RecordLocation::Inline(bytes)),
        (None, Some(reference)) => Some(
            RecordLocation::from_reference(reference)
                .map_err(|err| Fault::Corrupt(format!("column record_ref: {err}")))?,
        ),
        (None, None) => None,
    })
}

/// Jobs whose records wait to be archived.
pub(super) async fn unarchived(pool: &SqlitePool, now: i64, limit: u32) -> Result<Vec<Unarchived>, Fault> {
    let rows = sqlx::query(include_str!("sql/unarchived.sql")).bind(i64::from(limit)).bind(now).fetch_all(pool).await?;
    rows.iter()
        .map(|row| {
            let id = JobId(column::<Uuid>(row, "id")?);
            let read = || {
                let record =
                    location(row)?.ok_or_else(|| Fault::Corrupt("it succeeded without a record".to_owned()))?;
                let ended_for = now.saturating_sub(column(row, "finished_at")?);
                Ok(Unarchived {
                    job: id,
                    tenant: TenantId(column(row, "tenant")?),
                    release: Fingerprint(column(row, "release")?),
                    trajectory: word(row, "trajectory")?,
                    record,
                    ended_for: Duration::from_millis(ended_for.max(0).unsigned_abs()),
                })
            };
            read().map_err(|fault| of_job(id, fault))
        })
        .collect()
}

/// The models that were offered.
pub(super) async fn offered(pool: &SqlitePool) -> Result<Vec<ServedModel>, Fault> {
    let rows = sqlx::query(include_str!("sql/offered.sql")).fetch_all(pool).await?;
    rows.iter().map(|row| json("served", &column::<String>(row, "served")?)).collect()
}

pub(super) fn kind(text: &str) -> Result<Kind, Fault> {
    Kind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == text)
        .ok_or_else(|| Fault::Corrupt(format!("column kind: `{text}` is not a kind of job")))
}
