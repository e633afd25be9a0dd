//! Reading.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use contract::{
    Class, Filter, Fingerprint, Job, JobId, JobState, Kind, Page, QueueId, RecordLocation, ServedModel, TenantId,
    Timestamp, Unarchived,
};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::row::{
    column, escaped, json, millis_of, number, of_job, queue, time as point, to_json, unescaped, usage, word,
};

/// One job with its record's location.
pub(super) struct Get<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) job: &'a JobId,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<Job>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Job>, Fault> {
        let query = sqlx::query(include_str!("sql/get.sql")).bind(tx.fixed).bind(self.tenant.as_str()).bind(self.job.0);
        answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(job).transpose()
    }
}

/// A page of a tenant's jobs.
pub(super) struct List<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) filter: &'a Filter,
}

#[async_trait]
impl Write for List<'_> {
    type Answer = Page;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Page, Fault> {
        let Self { tenant, filter } = self;
        let limit = filter.limit.max(1) as usize;
        let states: Vec<&str> = filter.states.iter().map(|state: &JobState| state.as_str()).collect();
        let pairs: BTreeMap<_, _> = filter.metadata.iter().map(|(key, value)| (escaped(key), escaped(value))).collect();
        let pairs = if pairs.is_empty() { None } else { Some(to_json("the metadata", &pairs)?) };
        let query = sqlx::query(include_str!("sql/list.sql"))
            .bind(tx.fixed)
            .bind(tenant.as_str())
            .bind(filter.after.map_or(Uuid::max(), |id| id.0))
            .bind(if states.is_empty() { None } else { Some(states) })
            .bind(filter.class.map(Class::as_str))
            .bind(filter.batch)
            .bind(pairs)
            // One more than asked for tells whether there is more.
            .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let jobs = rows.iter().take(limit).map(job).collect::<Result<_, _>>()?;
        Ok(Page { jobs, has_more: rows.len() > limit })
    }
}

/// Rows of a queue that wait and are not held.
pub(super) struct Queued<'a> {
    pub(super) queue: &'a QueueId,
}

#[async_trait]
impl Write for Queued<'_> {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let query = sqlx::query(include_str!("sql/queued.sql"))
            .bind(self.queue.release.as_str())
            .bind(self.queue.class.as_str());
        let row = answer(query.fetch_one(&mut *tx.conn)).await?;
        Ok(column::<i64>(&row, "n")?.unsigned_abs())
    }
}

/// The queues that have unfinished jobs.
pub(super) struct Queues;

#[async_trait]
impl Write for Queues {
    type Answer = Vec<QueueId>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<QueueId>, Fault> {
        let query = sqlx::query(include_str!("sql/queues.sql"));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(queue).collect()
    }
}

/// Jobs whose records wait to be archived.
pub(super) struct ListUnarchived {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for ListUnarchived {
    type Answer = Vec<Unarchived>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Unarchived>, Fault> {
        let query = sqlx::query(include_str!("sql/unarchived.sql")).bind(tx.fixed).bind(i64::from(self.limit));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(unarchived).collect()
    }
}

/// The models that were offered.
pub(super) struct Offered;

#[async_trait]
impl Write for Offered {
    type Answer = Vec<ServedModel>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<ServedModel>, Fault> {
        let query = sqlx::query(include_str!("sql/offered.sql"));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| json("served", column::<&str>(row, "served")?)).collect()
    }
}

pub(super) fn job(row: &PgRow) -> Result<Job, Fault> {
    let id = JobId(column::<Uuid>(row, "id")?);
    read_job(row, id).map_err(|fault| of_job(id, fault))
}

fn read_job(row: &PgRow, id: JobId) -> Result<Job, Fault> {
    let moment = |name| Ok::<_, Fault>(column::<Option<OffsetDateTime>>(row, name)?.map(|at| Timestamp(millis_of(at))));
    let batch: Option<Uuid> = column(row, "batch")?;
    let QueueId { release, class } = queue(row)?;
    let metadata: BTreeMap<String, String> = json("metadata", column::<&str>(row, "metadata")?)?;
    Ok(Job {
        id,
        tenant: TenantId(column(row, "tenant")?),
        release,
        route: column(row, "route")?,
        class,
        kind: kind(column(row, "kind")?)?,
        state: word(row, "state")?,
        attempt: number(row, "attempt")?,
        errors: number(row, "errors")?,
        losses: number(row, "losses")?,
        seed: column::<i64>(row, "seed")?.cast_unsigned(),
        metadata: metadata.into_iter().map(|(key, value)| (unescaped(key), unescaped(value))).collect(),
        batch_line: batch.map(|batch| Ok::<_, Fault>((batch, super::row::count(row, "line")?))).transpose()?,
        sequence_key: column::<Option<String>>(row, "sequence_key")?.map(unescaped),
        on_failure: word(row, "on_failure")?,
        error: column::<Option<&str>>(row, "error")?.map(|text| json("error", text)).transpose()?,
        history: json("history", column::<&str>(row, "history")?)?,
        usage: usage(row)?,
        accepted_at: Timestamp(point(row, "accepted_at")?),
        started_at: moment("started_at")?,
        first_token_at: moment("first_token_at")?,
        finished_at: moment("finished_at")?,
        deadline: Timestamp(point(row, "deadline")?),
        // An empty record is none.
        record: if moment("emptied_at")?.is_some() { None } else { location(row)? },
        trajectory: word(row, "trajectory")?,
        segment: column::<Option<&str>>(row, "segment")?
            .map(str::parse)
            .transpose()
            .map_err(|err| Fault::Corrupt(format!("column segment: {err}")))?,
        keep: column::<Option<i64>>(row, "keep_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        result_expires_at: moment("expires_at")?,
        emptied_at: moment("emptied_at")?,
        now: Timestamp(point(row, "now")?),
    })
}

/// Where the record of a row is, if it has one.
fn location(row: &PgRow) -> Result<Option<RecordLocation>, Fault> {
    Ok(match (column(row, "record")?, column(row, "record_ref")?) {
        (Some(bytes), _) => Some(RecordLocation::Inline(bytes)),
        (None, Some(reference)) => Some(
            RecordLocation::from_reference(reference)
                .map_err(|err| Fault::Corrupt(format!("column record_ref: {err}")))?,
        ),
        (None, None) => None,
    })
}

fn unarchived(row: &PgRow) -> Result<Unarchived, Fault> {
    let id = JobId(column::<Uuid>(row, "id")?);
    let read = || {
        let record = location(row)?.ok_or_else(|| Fault::Corrupt("it succeeded without a record".to_owned()))?;
        let ended_for = point(row, "now")?.saturating_sub(point(row, "finished_at")?);
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
}

pub(super) fn kind(text: &str) -> Result<Kind, Fault> {
    Kind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == text)
        .ok_or_else(|| Fault::Corrupt(format!("column kind: `{text}` is not a kind of job")))
}
