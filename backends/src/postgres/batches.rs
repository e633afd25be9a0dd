//! Batches.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use contract::batch::{BatchTokens, RECENT};
use contract::{
    Batch, BatchCancel, BatchEnd, BatchError, BatchId, BatchProgress, BatchState, Cursor, FileId, JobId, JobState,
    KeyReused, Kind, Line, LineCounts, LineId, LineSet, Made, NewBatch, RefusedLine, ScheduleId, TenantId, Timestamp,
};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::files::{self, keep_made, made_before};
use super::millis;
use super::read::{job, kind};
use super::row::{at, column, count, escaped, json, millis_of, time, to_json, unescaped, word};

/// Accepts a batch.
pub(super) struct Add<'a> {
    pub(super) batch: &'a NewBatch,
}

#[async_trait]
impl Write for Add<'_> {
    type Answer = Result<Made<Batch>, KeyReused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let NewBatch { tenant, idempotency, .. } = self.batch;
        match made_before(tx, tenant, idempotency.as_ref()).await? {
            Err(reused) => return Ok(Err(reused)),
            Ok(Some(earlier)) => {
                let earlier = get(tx, tenant, &BatchId(earlier)).await?;
                return Ok(earlier.map(Made::Replayed).ok_or(KeyReused));
            }
            Ok(None) => {}
        }
        let pairs: BTreeMap<_, _> =
            self.batch.metadata.iter().map(|(key, value)| (escaped(key), escaped(value))).collect();
        let query = sqlx::query(include_str!("sql/add_batch.sql"))
            .bind(tx.fixed)
            .bind(self.batch.id.0)
            .bind(tenant.as_str())
            .bind(self.batch.endpoint.as_str())
            .bind(self.batch.input.0)
            .bind(&self.batch.window_text)
            .bind(to_json("the metadata", &pairs)?)
            .bind(self.batch.output_life.map(millis))
            .bind(millis(self.batch.window))
            .bind(self.batch.run_after.map(|when| at(when.0)))
            .bind(self.batch.only.as_ref().map(LineSet::as_bytes))
            .bind(self.batch.webhook.as_ref().map(|hook| to_json("the webhook", hook)).transpose()?)
            .bind(self.batch.keep.map(millis));
        let batch = read(&answer(query.fetch_one(&mut *tx.conn)).await?)?;
        keep_made(tx, tenant, idempotency.as_ref(), self.batch.id.0).await?;
        Ok(Ok(Made::New(batch)))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        !matches!(answer, Ok(Made::New(_)))
    }
}

async fn get(tx: &mut Tx<'_>, tenant: &TenantId, id: &BatchId) -> Result<Option<Batch>, Fault> {
    let query = sqlx::query(include_str!("sql/get_batch.sql")).bind(tx.fixed).bind(id.0).bind(tenant.as_str());
    let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(None) };
    let mut batch = [read(&row)?];
    count_lines(tx, &mut batch).await?;
    Ok(Some({
        let [batch] = batch;
        batch
    }))
}

/// Fills in what became of the lines of some batches.
pub(super) async fn count_lines(tx: &mut Tx<'_>, batches: &mut [Batch]) -> Result<(), Fault> {
    let ids: Vec<Uuid> = batches.iter().map(|batch| batch.id.0).collect();
    let rows = answer(sqlx::query(include_str!("sql/count_lines.sql")).bind(ids).fetch_all(&mut *tx.conn)).await?;
    let mut by_id: HashMap<BatchId, &mut Batch> = batches.iter_mut().map(|batch| (batch.id, batch)).collect();
    for row in &rows {
        let Some(batch) = by_id.get_mut(&BatchId(column(row, "batch")?)) else { continue };
        let number = |name| Ok::<_, Fault>(column::<i64>(row, name)?.unsigned_abs());
        let n = number("n")?;
        let counts = &mut batch.counts;
        match column::<&str>(row, "state")? {
            // Of no job: the line was no good request.
            "refused" => counts.failed += n,
            _ => match word::<JobState>(row, "state")? {
                JobState::Succeeded => counts.succeeded += n,
                JobState::Failed => counts.failed += n,
                JobState::Cancelled => counts.cancelled += n,
                JobState::Expired => counts.expired += n,
                JobState::Queued | JobState::Running => counts.unfinished += n,
            },
        }
        batch.usage.prompt_tokens += number("prompt_tokens")?;
        batch.usage.cached_tokens += number("cached_tokens")?;
        batch.usage.output_tokens += number("output_tokens")?;
    }
    Ok(())
}

/// One batch with its counts.
pub(super) struct Get<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a BatchId,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<Batch>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Batch>, Fault> {
        get(tx, self.tenant, self.id).await
    }
}

/// A page of batches with their counts.
pub(super) struct List<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) after: Option<BatchId>,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for List<'_> {
    type Answer = (Vec<Batch>, bool);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let limit = self.limit.max(1) as usize;
        let query = sqlx::query(include_str!("sql/list_batches.sql"))
            .bind(tx.fixed)
            .bind(self.tenant.as_str())
            .bind(self.after.map(|id| id.0))
            // One more than asked for tells whether there is more.
            .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let mut batches: Vec<Batch> = rows.iter().take(limit).map(read).collect::<Result<_, _>>()?;
        count_lines(tx, &mut batches).await?;
        Ok((batches, rows.len() > limit))
    }
}

/// Batches that have not ended.
pub(super) struct Open {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Open {
    type Answer = Vec<Batch>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Batch>, Fault> {
        let query = sqlx::query(include_str!("sql/open_batches.sql")).bind(tx.fixed).bind(i64::from(self.limit));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(read).collect()
    }
}

/// Asks a batch to end.
pub(super) struct Cancel<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a BatchId,
}

#[async_trait]
impl Write for Cancel<'_> {
    type Answer = BatchCancel;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<BatchCancel, Fault> {
        let query =
            sqlx::query(include_str!("sql/cancel_batch.sql")).bind(tx.fixed).bind(self.id.0).bind(self.tenant.as_str());
        answer(query.execute(&mut *tx.conn)).await?;
        let Some(batch) = get(tx, self.tenant, self.id).await? else { return Ok(BatchCancel::NotFound) };
        Ok(match batch.state {
            BatchState::Cancelling | BatchState::Cancelled => BatchCancel::Cancelling(Box::new(batch)),
            _ => BatchCancel::TooLate(Box::new(batch)),
        })
    }
}

/// The file is good.
pub(super) struct Begin<'a> {
    pub(super) id: &'a BatchId,
    pub(super) model: &'a str,
    pub(super) total: u32,
}

#[async_trait]
impl Write for Begin<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/begin_batch.sql"))
            .bind(tx.fixed)
            .bind(self.id.0)
            .bind(escaped(self.model))
            .bind(i64::from(self.total));
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 1)
    }
}

/// The file is wrong.
pub(super) struct Fail<'a> {
    pub(super) id: &'a BatchId,
    pub(super) errors: &'a [BatchError],
}

#[async_trait]
impl Write for Fail<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/fail_batch.sql"))
            .bind(tx.fixed)
            .bind(self.id.0)
            .bind(to_json("the errors", &self.errors)?);
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 1)
    }
}

/// Lines were expanded.
pub(super) struct Expanded<'a> {
    pub(super) id: &'a BatchId,
    pub(super) refused: &'a [RefusedLine],
    pub(super) from: Cursor,
    pub(super) to: Cursor,
}

#[async_trait]
impl Write for Expanded<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let offset = |cursor: Cursor| i64::try_from(cursor.offset).unwrap_or(i64::MAX);
        let query = sqlx::query(include_str!("sql/move_cursor.sql"))
            .bind(self.id.0)
            .bind(i64::from(self.from.line))
            .bind(offset(self.from))
            .bind(i64::from(self.to.line))
            .bind(offset(self.to));
        if answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 0 {
            return Ok(false);
        }
        if !self.refused.is_empty() {
            let bodies = self.refused.iter().map(|line| to_json("the refusal", &line.body));
            let query = sqlx::query(include_str!("sql/refuse_lines.sql"))
                .bind(self.id.0)
                .bind(self.refused.iter().map(|line| i64::from(line.line)).collect::<Vec<_>>())
                .bind(self.refused.iter().map(|line| escaped(&line.custom_id)).collect::<Vec<_>>())
                .bind(self.refused.iter().map(|line| i32::from(line.status)).collect::<Vec<_>>())
                .bind(bodies.collect::<Result<Vec<_>, _>>()?);
            answer(query.execute(&mut *tx.conn)).await?;
        }
        Ok(true)
    }

    fn wrote_nothing(answer: &bool) -> bool {
        !answer
    }
}

/// All lines have ended.
pub(super) struct Finalize<'a> {
    pub(super) id: &'a BatchId,
}

#[async_trait]
impl Write for Finalize<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/finalize_batch.sql")).bind(tx.fixed).bind(self.id.0);
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 1)
    }
}

/// Jobs of a batch that have not ended.
pub(super) struct UnfinishedLines<'a> {
    pub(super) id: &'a BatchId,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for UnfinishedLines<'_> {
    type Answer = Vec<JobId>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, Fault> {
        let query = sqlx::query(include_str!("sql/unfinished_lines.sql")).bind(self.id.0).bind(i64::from(self.limit));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok(JobId(column(row, "id")?))).collect()
    }
}

/// Lines in order.
pub(super) struct Lines<'a> {
    pub(super) id: &'a BatchId,
    pub(super) from: u32,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Lines<'_> {
    type Answer = Vec<Line>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Line>, Fault> {
        let (from, limit) = (i64::from(self.from), i64::from(self.limit));
        let jobs = sqlx::query(include_str!("sql/lines.sql")).bind(tx.fixed).bind(self.id.0).bind(from).bind(limit);
        let jobs = answer(jobs.fetch_all(&mut *tx.conn)).await?;
        let refused = sqlx::query(include_str!("sql/refused_lines.sql")).bind(self.id.0).bind(from).bind(limit);
        let refused = answer(refused.fetch_all(&mut *tx.conn)).await?;
        let mut lines =
            jobs.iter().map(job_line).chain(refused.iter().map(refused_line)).collect::<Result<Vec<_>, _>>()?;
        lines.sort_by_key(Line::number);
        lines.truncate(self.limit as usize);
        Ok(lines)
    }
}

fn job_line(row: &PgRow) -> Result<Line, Fault> {
    Ok(Line::Job {
        line: count(row, "line")?,
        custom_id: unescaped(column::<Option<String>>(row, "custom_id")?.unwrap_or_default()),
        job: Box::new(job(row)?),
    })
}

fn refused_line(row: &PgRow) -> Result<Line, Fault> {
    let status: i32 = column(row, "status")?;
    Ok(Line::Refused(RefusedLine {
        line: count(row, "line")?,
        custom_id: unescaped(column(row, "custom_id")?),
        status: u16::try_from(status).map_err(|_| Fault::Corrupt(format!("column status: {status} is no status")))?,
        body: json("body", column::<&str>(row, "body")?)?,
    }))
}

/// Lines in the order in which they ended.
pub(super) struct EndedLines<'a> {
    pub(super) id: &'a BatchId,
    pub(super) after: Option<LineId>,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for EndedLines<'_> {
    type Answer = Option<(Vec<Line>, bool)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let (job, line) = match self.after {
            None => (None, None),
            Some(LineId::Job(job)) => (Some(job.0), None),
            Some(LineId::Refused(line)) => (None, Some(i64::from(line))),
        };
        let query = sqlx::query(include_str!("sql/line_order.sql")).bind(self.id.0).bind(job).bind(line);
        let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(None) };
        // Of this moment, for both statements: what ends between them must not come before what was missed.
        let horizon: i64 = column(&row, "horizon")?;
        let (order, line) = match self.after {
            None => (0, 0),
            Some(_) => match column::<Option<i64>>(&row, "ended_order")? {
                Some(order) => (order, column::<i64>(&row, "line")?),
                None => return Ok(None),
            },
        };
        let limit = self.limit.max(1) as usize;
        // One more than asked for tells whether there is more.
        let most = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let jobs = sqlx::query(include_str!("sql/ended_lines.sql")).bind(tx.fixed).bind(self.id.0);
        let jobs = answer(jobs.bind(order).bind(line).bind(horizon).bind(most).fetch_all(&mut *tx.conn)).await?;
        let refused = sqlx::query(include_str!("sql/ended_refused_lines.sql")).bind(self.id.0);
        let refused = answer(refused.bind(order).bind(line).bind(horizon).bind(most).fetch_all(&mut *tx.conn)).await?;
        let place = |row: &PgRow| Ok::<_, Fault>((column::<i64>(row, "ended_order")?, column::<i64>(row, "line")?));
        let mut lines = Vec::with_capacity(jobs.len() + refused.len());
        for row in &jobs {
            lines.push((place(row)?, job_line(row)?));
        }
        for row in &refused {
            lines.push((place(row)?, refused_line(row)?));
        }
        lines.sort_by_key(|(place, _)| *place);
        let has_more = lines.len() > limit;
        Ok(Some((lines.into_iter().take(limit).map(|(_, line)| line).collect(), has_more)))
    }
}

/// Lines that have a result.
pub(super) struct LinesWithResult<'a> {
    pub(super) id: &'a BatchId,
}

#[async_trait]
impl Write for LinesWithResult<'_> {
    type Answer = Vec<u32>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<u32>, Fault> {
        let query = sqlx::query(include_str!("sql/lines_with_result.sql")).bind(self.id.0);
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(|row| count(row, "line")).collect()
    }
}

/// The lines that a batch is of.
pub(super) struct OnlyLines<'a> {
    pub(super) id: &'a BatchId,
}

#[async_trait]
impl Write for OnlyLines<'_> {
    type Answer = Option<LineSet>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<LineSet>, Fault> {
        let query = sqlx::query("SELECT only_lines FROM batches WHERE id = $1").bind(self.id.0);
        let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(None) };
        Ok(column::<Option<Vec<u8>>>(&row, "only_lines")?.map(LineSet::from_bytes))
    }
}

/// How far a batch is.
pub(super) struct Progress<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a BatchId,
}

#[async_trait]
impl Write for Progress<'_> {
    type Answer = Option<BatchProgress>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<BatchProgress>, Fault> {
        let Some(batch) = get(tx, self.tenant, self.id).await? else { return Ok(None) };
        let query =
            sqlx::query(include_str!("sql/batch_progress.sql")).bind(tx.fixed).bind(self.id.0).bind(millis(RECENT));
        let row = answer(query.fetch_one(&mut *tx.conn)).await?;
        Ok(Some(BatchProgress {
            batch,
            running: column::<i64>(&row, "running")?.unsigned_abs(),
            recent: column::<i64>(&row, "recent")?.unsigned_abs(),
            jobs_ahead: column::<Option<i64>>(&row, "jobs_ahead")?.map(i64::unsigned_abs),
        }))
    }
}

/// Ends a batch.
pub(super) struct End<'a> {
    pub(super) id: &'a BatchId,
    pub(super) end: &'a BatchEnd,
}

#[async_trait]
impl Write for End<'_> {
    type Answer = Option<Batch>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Batch>, Fault> {
        let file = |file: &Option<(contract::NewFile, u32)>| file.as_ref().map(|(file, _)| file.id.0);
        let query = sqlx::query(include_str!("sql/end_batch.sql"))
            .bind(tx.fixed)
            .bind(self.id.0)
            .bind(self.end.state.as_str())
            .bind(file(&self.end.output))
            .bind(file(&self.end.errors));
        let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(None) };
        let mut ended = [read(&row)?];
        let files = || self.end.output.iter().chain(&self.end.errors);
        let n_lines: u64 = files().map(|(_, lines)| u64::from(*lines)).sum();
        if n_lines != u64::from(ended[0].total) {
            let total = ended[0].total;
            return Err(Fault::Corrupt(format!("{}: its files have {n_lines} of its {total} lines", self.id)));
        }
        for (file, _) in files() {
            files::insert(tx, file).await?;
        }
        count_lines(tx, &mut ended).await?;
        let [ended] = ended;
        Ok(Some(ended))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        answer.is_none()
    }
}

pub(super) fn read(row: &PgRow) -> Result<Batch, Fault> {
    let moment = |name| Ok::<_, Fault>(column::<Option<OffsetDateTime>>(row, name)?.map(|at| Timestamp(millis_of(at))));
    let metadata: BTreeMap<String, String> = json("metadata", column::<&str>(row, "metadata")?)?;
    let endpoint: Kind = kind(column(row, "endpoint")?)?;
    let life: Option<i64> = column(row, "output_life_ms")?;
    Ok(Batch {
        id: BatchId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        endpoint,
        model: column::<Option<String>>(row, "model")?.map(unescaped),
        input: FileId(column(row, "input")?),
        window_text: column(row, "window_text")?,
        metadata: metadata.into_iter().map(|(key, value)| (unescaped(key), unescaped(value))).collect(),
        output_life: life.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        keep: column::<Option<i64>>(row, "keep_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        state: word(row, "state")?,
        errors: json("errors", column::<&str>(row, "errors")?)?,
        output: column::<Option<Uuid>>(row, "output")?.map(FileId),
        error_file: column::<Option<Uuid>>(row, "error_file")?.map(FileId),
        total: count(row, "total")?,
        cursor: Cursor { line: count(row, "next_line")?, offset: column::<i64>(row, "next_byte")?.unsigned_abs() },
        counts: LineCounts::default(),
        usage: BatchTokens::default(),
        created_at: Timestamp(time(row, "created_at")?),
        run_after: moment("run_after")?,
        schedule: column::<Option<Uuid>>(row, "schedule")?.map(ScheduleId),
        in_progress_at: moment("in_progress_at")?,
        expires_at: Timestamp(time(row, "expires_at")?),
        finalizing_at: moment("finalizing_at")?,
        completed_at: moment("completed_at")?,
        failed_at: moment("failed_at")?,
        expired_at: moment("expired_at")?,
        cancelling_at: moment("cancelling_at")?,
        cancelled_at: moment("cancelled_at")?,
        now: Timestamp(time(row, "now")?),
    })
}
