//! Batches.

use std::time::Duration;

use async_trait::async_trait;
use contract::batch::{BatchTokens, RECENT};
use contract::{
    Batch, BatchCancel, BatchEnd, BatchError, BatchId, BatchProgress, BatchState, Cursor, FileId, JobId, JobState,
    KeyReused, Line, LineCounts, LineId, LineSet, Made, NewBatch, RefusedLine, ScheduleId, TenantId, Timestamp,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::fault::Fault;
use super::files::{self, keep_made, made_before};
use super::millis;
use super::read::{job, kind};
use super::row::{column, json, number, to_json, word};
use super::writer::{Tx, Write};

/// Accepts a batch.
pub(super) struct Add {
    pub(super) batch: NewBatch,
}

#[async_trait]
impl Write for Add {
    type Answer = Result<Made<Batch>, KeyReused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let NewBatch { id, tenant, idempotency, .. } = &self.batch;
        match made_before(tx, tenant, idempotency.as_ref()).await? {
            Err(reused) => return Ok(Err(reused)),
            Ok(Some(earlier)) => {
                let earlier = get(tx.conn, tx.now, Some(tenant), &BatchId(earlier)).await?;
                return Ok(earlier.map(Made::Replayed).ok_or(KeyReused));
            }
            Ok(None) => {}
        }
        sqlx::query(include_str!("sql/add_batch.sql"))
            .bind(id.0)
            .bind(tenant.as_str())
            .bind(self.batch.endpoint.as_str())
            .bind(self.batch.input.0)
            .bind(&self.batch.window_text)
            .bind(to_json("the metadata", &self.batch.metadata)?)
            .bind(self.batch.output_life.map(millis))
            .bind(tx.now)
            .bind(self.batch.run_after.map_or(tx.now, |at| at.0.max(tx.now)).saturating_add(millis(self.batch.window)))
            .bind(self.batch.run_after.map(|at| at.0))
            .bind(self.batch.only.as_ref().map(LineSet::as_bytes))
            .bind(self.batch.webhook.as_ref().map(|hook| to_json("the webhook", hook)).transpose()?)
            .bind(self.batch.keep.map(millis))
            .execute(&mut *tx.conn)
            .await?;
        keep_made(tx, tenant, idempotency.as_ref(), id.0).await?;
        let batch = get(tx.conn, tx.now, Some(tenant), id).await?;
        batch.map(|batch| Ok(Made::New(batch))).ok_or_else(|| Fault::Corrupt(format!("{id} is not there")))
    }
}

/// One batch with its counts; of any tenant without one.
async fn get(
    conn: &mut SqliteConnection,
    now: i64,
    tenant: Option<&TenantId>,
    id: &BatchId,
) -> Result<Option<Batch>, Fault> {
    let query = sqlx::query(include_str!("sql/get_batch.sql")).bind(id.0).bind(tenant.map(TenantId::as_str));
    let Some(row) = query.fetch_optional(&mut *conn).await? else { return Ok(None) };
    let mut batch = read(&row, now)?;
    count_lines(conn, &mut batch).await?;
    Ok(Some(batch))
}

/// Fills in what became of the lines of a batch.
pub(super) async fn count_lines(conn: &mut SqliteConnection, batch: &mut Batch) -> Result<(), Fault> {
    for row in &sqlx::query(include_str!("sql/count_lines.sql")).bind(batch.id.0).fetch_all(conn).await? {
        let number = |name| Ok::<_, Fault>(column::<i64>(row, name)?.unsigned_abs());
        let n = number("n")?;
        let counts = &mut batch.counts;
        match column::<String>(row, "state")?.as_str() {
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
pub(super) async fn find(pool: &SqlitePool, now: i64, tenant: &TenantId, id: &BatchId) -> Result<Option<Batch>, Fault> {
    get(&mut *pool.acquire().await?, now, Some(tenant), id).await
}

/// A page of batches with their counts.
pub(super) async fn list(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    after: Option<BatchId>,
    limit: u32,
) -> Result<(Vec<Batch>, bool), Fault> {
    let limit = limit.max(1) as usize;
    let mut conn = pool.acquire().await?;
    let rows = sqlx::query(include_str!("sql/list_batches.sql"))
        .bind(tenant.as_str())
        .bind(after.map(|id| id.0))
        // One more than asked for tells whether there is more.
        .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1))
        .fetch_all(&mut *conn)
        .await?;
    let mut batches = rows.iter().take(limit).map(|row| read(row, now)).collect::<Result<Vec<_>, _>>()?;
    for batch in &mut batches {
        count_lines(&mut conn, batch).await?;
    }
    Ok((batches, rows.len() > limit))
}

/// Batches that have not ended.
pub(super) async fn open(pool: &SqlitePool, now: i64, limit: u32) -> Result<Vec<Batch>, Fault> {
    let rows =
        sqlx::query(include_str!("sql/open_batches.sql")).bind(i64::from(limit)).bind(now).fetch_all(pool).await?;
    rows.iter().map(|row| read(row, now)).collect()
}

/// Jobs of a batch that have not ended.
pub(super) async fn unfinished_lines(pool: &SqlitePool, id: &BatchId, limit: u32) -> Result<Vec<JobId>, Fault> {
    let query = sqlx::query(include_str!("sql/unfinished_lines.sql")).bind(id.0).bind(i64::from(limit));
    query.fetch_all(pool).await?.iter().map(|row| Ok(JobId(column(row, "id")?))).collect()
}

/// Lines in order.
pub(super) async fn lines(
    pool: &SqlitePool,
    now: i64,
    id: &BatchId,
    from: u32,
    limit: u32,
) -> Result<Vec<Line>, Fault> {
    let bounds = (i64::from(from), i64::from(limit));
    let jobs = sqlx::query(include_str!("sql/lines.sql")).bind(id.0).bind(bounds.0).bind(bounds.1);
    let jobs = jobs.fetch_all(pool).await?;
    let refused = sqlx::query(include_str!("sql/refused_lines.sql")).bind(id.0).bind(bounds.0).bind(bounds.1);
    let refused = refused.fetch_all(pool).await?;
    let jobs = jobs.iter().map(|row| job_line(row, now));
    let mut lines = jobs.chain(refused.iter().map(refused_line)).collect::<Result<Vec<_>, _>>()?;
    lines.sort_by_key(Line::number);
    lines.truncate(limit as usize);
    Ok(lines)
}

fn job_line(row: &SqliteRow, now: i64) -> Result<Line, Fault> {
    Ok(Line::Job {
        line: number(row, "line")?,
        custom_id: column::<Option<String>>(row, "custom_id")?.unwrap_or_default(),
        job: Box::new(job(row, now)?),
    })
}

fn refused_line(row: &SqliteRow) -> Result<Line, Fault> {
    let status: i64 = column(row, "status")?;
    Ok(Line::Refused(RefusedLine {
        line: number(row, "line")?,
        custom_id: column(row, "custom_id")?,
        status: u16::try_from(status).map_err(|_| Fault::Corrupt(format!("column status: {status}")))?,
        body: json("body", &column::<String>(row, "body")?)?,
    }))
}

/// Lines in the order in which they ended.
pub(super) async fn ended_lines(
    pool: &SqlitePool,
    now: i64,
    id: &BatchId,
    after: Option<LineId>,
    limit: u32,
) -> Result<Option<(Vec<Line>, bool)>, Fault> {
    let (job, line) = match after {
        None => (None, None),
        Some(LineId::Job(job)) => (Some(job.0), None),
        Some(LineId::Refused(line)) => (None, Some(i64::from(line))),
    };
    // One snapshot for all: what ends between two statements must not come before what was missed.
    let mut tx = pool.begin().await?;
    let order = match after {
        None => 0,
        Some(_) => {
            let query = sqlx::query(include_str!("sql/line_order.sql")).bind(id.0).bind(job).bind(line);
            let row = query.fetch_one(&mut *tx).await?;
            let Some(order) = column::<Option<i64>>(&row, "ended_order")? else { return Ok(None) };
            order
        }
    };
    let limit = limit.max(1) as usize;
    // One more than asked for tells whether there is more.
    let most = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let jobs = sqlx::query(include_str!("sql/ended_lines.sql")).bind(id.0).bind(order).bind(most);
    let jobs = jobs.fetch_all(&mut *tx).await?;
    let refused = sqlx::query(include_str!("sql/ended_refused_lines.sql")).bind(id.0).bind(order).bind(most);
    let refused = refused.fetch_all(&mut *tx).await?;
    let mut lines = Vec::with_capacity(jobs.len() + refused.len());
    for row in &jobs {
        lines.push((column::<i64>(row, "ended_order")?, job_line(row, now)?));
    }
    for row in &refused {
        lines.push((column::<i64>(row, "ended_order")?, refused_line(row)?));
    }
    lines.sort_by_key(|(order, line)| (*order, line.number()));
    let has_more = lines.len() > limit;
    Ok(Some((lines.into_iter().take(limit).map(|(_, line)| line).collect(), has_more)))
}

/// Lines that have a result.
pub(super) async fn lines_with_result(pool: &SqlitePool, id: &BatchId) -> Result<Vec<u32>, Fault> {
    let query = sqlx::query(include_str!("sql/lines_with_result.sql")).bind(id.0);
    query.fetch_all(pool).await?.iter().map(|row| number(row, "line")).collect()
}

/// The lines that a batch is of.
pub(super) async fn only_lines(pool: &SqlitePool, id: &BatchId) -> Result<Option<LineSet>, Fault> {
    let query = sqlx::query("SELECT only_lines FROM batches WHERE id = ?1").bind(id.0);
    let Some(row) = query.fetch_optional(pool).await? else { return Ok(None) };
    Ok(column::<Option<Vec<u8>>>(&row, "only_lines")?.map(LineSet::from_bytes))
}

/// How far a batch is.
pub(super) async fn progress(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    id: &BatchId,
) -> Result<Option<BatchProgress>, Fault> {
    let mut tx = pool.begin().await?;
    let Some(batch) = get(&mut tx, now, Some(tenant), id).await? else { return Ok(None) };
    let since = now.saturating_sub(millis(RECENT));
    let row = sqlx::query(include_str!("sql/batch_progress.sql")).bind(id.0).bind(since).fetch_one(&mut *tx).await?;
    Ok(Some(BatchProgress {
        batch,
        running: column::<i64>(&row, "running")?.unsigned_abs(),
        recent: column::<i64>(&row, "recent")?.unsigned_abs(),
        jobs_ahead: column::<Option<i64>>(&row, "jobs_ahead")?.map(i64::unsigned_abs),
    }))
}

/// Asks a batch to end.
pub(super) struct Cancel {
    pub(super) tenant: TenantId,
    pub(super) id: BatchId,
}

#[async_trait]
impl Write for Cancel {
    type Answer = BatchCancel;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<BatchCancel, Fault> {
        sqlx::query(include_str!("sql/cancel_batch.sql"))
            .bind(self.id.0)
            .bind(self.tenant.as_str())
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
        let batch = get(tx.conn, tx.now, Some(&self.tenant), &self.id).await?;
        Ok(match batch {
            None => BatchCancel::NotFound,
            Some(batch) if matches!(batch.state, BatchState::Cancelling | BatchState::Cancelled) => {
                BatchCancel::Cancelling(Box::new(batch))
            }
            Some(batch) => BatchCancel::TooLate(Box::new(batch)),
        })
    }
}

/// The file is good.
pub(super) struct Begin {
    pub(super) id: BatchId,
    pub(super) model: String,
    pub(super) total: u32,
}

#[async_trait]
impl Write for Begin {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/begin_batch.sql"))
            .bind(self.id.0)
            .bind(tx.now)
            .bind(&self.model)
            .bind(i64::from(self.total));
        Ok(query.execute(&mut *tx.conn).await?.rows_affected() == 1)
    }
}

/// The file is wrong.
pub(super) struct Fail {
    pub(super) id: BatchId,
    pub(super) errors: Vec<BatchError>,
}

#[async_trait]
impl Write for Fail {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/fail_batch.sql"))
            .bind(self.id.0)
            .bind(tx.now)
            .bind(to_json("the errors", &self.errors)?);
        Ok(query.execute(&mut *tx.conn).await?.rows_affected() == 1)
    }
}

/// Lines were expanded.
pub(super) struct Expanded {
    pub(super) id: BatchId,
    pub(super) refused: Vec<RefusedLine>,
    pub(super) from: Cursor,
    pub(super) to: Cursor,
}

#[async_trait]
impl Write for Expanded {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let offset = |cursor: Cursor| i64::try_from(cursor.offset).unwrap_or(i64::MAX);
        let moved = sqlx::query(include_str!("sql/move_cursor.sql"))
            .bind(self.id.0)
            .bind(i64::from(self.from.line))
            .bind(offset(self.from))
            .bind(i64::from(self.to.line))
            .bind(offset(self.to))
            .execute(&mut *tx.conn)
            .await?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        for line in &self.refused {
            sqlx::query(include_str!("sql/refuse_line.sql"))
                .bind(self.id.0)
                .bind(i64::from(line.line))
                .bind(&line.custom_id)
                .bind(i64::from(line.status))
                .bind(to_json("the refusal", &line.body)?)
                .execute(&mut *tx.conn)
                .await?;
        }
        Ok(true)
    }
}

/// All lines have ended.
pub(super) struct Finalize {
    pub(super) id: BatchId,
}

#[async_trait]
impl Write for Finalize {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/finalize_batch.sql")).bind(self.id.0).bind(tx.now);
        Ok(query.execute(&mut *tx.conn).await?.rows_affected() == 1)
    }
}

/// Ends a batch.
pub(super) struct End {
    pub(super) id: BatchId,
    pub(super) end: BatchEnd,
}

#[async_trait]
impl Write for End {
    type Answer = Option<Batch>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Batch>, Fault> {
        let file = |file: &Option<(contract::NewFile, u32)>| file.as_ref().map(|(file, _)| file.id.0);
        let ended = sqlx::query(include_str!("sql/end_batch.sql"))
            .bind(self.id.0)
            .bind(self.end.state.as_str())
            .bind(file(&self.end.output))
            .bind(file(&self.end.errors))
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
        if ended.rows_affected() == 0 {
            return Ok(None);
        }
        let batch = get(tx.conn, tx.now, None, &self.id).await?;
        let batch = batch.ok_or_else(|| Fault::Corrupt(format!("{} is not there", self.id)))?;
        let files = || self.end.output.iter().chain(&self.end.errors);
        let n_lines: u64 = files().map(|(_, lines)| u64::from(*lines)).sum();
        if n_lines != u64::from(batch.total) {
            let total = batch.total;
            return Err(Fault::Corrupt(format!("{}: its files have {n_lines} of its {total} lines", self.id)));
        }
        for (file, _) in files() {
            files::insert(tx, file).await?;
        }
        Ok(Some(batch))
    }
}

pub(super) fn read(row: &SqliteRow, now: i64) -> Result<Batch, Fault> {
    let moment = |name| Ok::<_, Fault>(column::<Option<i64>>(row, name)?.map(Timestamp));
    let life: Option<i64> = column(row, "output_life_ms")?;
    Ok(Batch {
        id: BatchId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        endpoint: kind(&column::<String>(row, "endpoint")?)?,
        model: column(row, "model")?,
        input: FileId(column(row, "input")?),
        window_text: column(row, "window_text")?,
        metadata: json("metadata", &column::<String>(row, "metadata")?)?,
        output_life: life.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        keep: column::<Option<i64>>(row, "keep_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        state: word(row, "state")?,
        errors: json("errors", &column::<String>(row, "errors")?)?,
        output: column::<Option<Uuid>>(row, "output")?.map(FileId),
        error_file: column::<Option<Uuid>>(row, "error_file")?.map(FileId),
        total: number(row, "total")?,
        cursor: Cursor { line: number(row, "next_line")?, offset: column::<i64>(row, "next_byte")?.unsigned_abs() },
        counts: LineCounts::default(),
        usage: BatchTokens::default(),
        created_at: Timestamp(column(row, "created_at")?),
        run_after: moment("run_after")?,
        schedule: column::<Option<Uuid>>(row, "schedule")?.map(ScheduleId),
        in_progress_at: moment("in_progress_at")?,
        expires_at: Timestamp(column(row, "expires_at")?),
        finalizing_at: moment("finalizing_at")?,
        completed_at: moment("completed_at")?,
        failed_at: moment("failed_at")?,
        expired_at: moment("expired_at")?,
        cancelling_at: moment("cancelling_at")?,
        cancelled_at: moment("cancelled_at")?,
        now: Timestamp(now),
    })
}
