//! Accepting jobs: room in the counters, idempotency key, row and event in one transaction.

use async_trait::async_trait;
use contract::{Accepted, JobId, JobState, NewJob, QueueId, Refused, Timestamp};
use sqlx::Row as _;
use uuid::Uuid;

use super::fault::Fault;
use super::row::{Counters, column, to_json};
use super::writer::{Tx, Write};
use super::{KEY_LIFE_MS, MESSAGE_LIFE_MS, millis};

/// The jobs of one call.
pub(super) struct Accept {
    pub(super) jobs: Vec<NewJob>,
}

#[async_trait]
impl Write for Accept {
    type Answer = Vec<Result<Accepted, Refused>>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let mut answers = Vec::with_capacity(self.jobs.len());
        for job in &self.jobs {
            answers.push(accept(tx, job).await?);
        }
        Ok(answers)
    }
}

/// All of these or none.
pub(super) struct AcceptAll {
    pub(super) jobs: Vec<NewJob>,
}

#[async_trait]
impl Write for AcceptAll {
    type Answer = Result<Vec<Accepted>, (usize, Refused)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        // Others share the transaction.
        sqlx::raw_sql("SAVEPOINT all_or_none").execute(&mut *tx.conn).await?;
        let mut accepted = Vec::with_capacity(self.jobs.len());
        for (nth, job) in self.jobs.iter().enumerate() {
            match accept(tx, job).await? {
                Ok(answer) => accepted.push(answer),
                Err(refused) => {
                    sqlx::raw_sql("ROLLBACK TO all_or_none; RELEASE all_or_none").execute(&mut *tx.conn).await?;
                    return Ok(Err((nth, refused)));
                }
            }
        }
        sqlx::raw_sql("RELEASE all_or_none").execute(&mut *tx.conn).await?;
        Ok(Ok(accepted))
    }
}

async fn accept(tx: &mut Tx<'_>, job: &NewJob) -> Result<Result<Accepted, Refused>, Fault> {
    // Whatever can end without a new row comes before the first write.
    if let Some(answer) = earlier(tx, job).await? {
        return Ok(answer);
    }
    let queue = QueueId { release: job.release.clone(), class: job.class };
    if let Some(refused) = take_room(tx, &queue, job).await? {
        return Ok(Err(refused));
    }
    let held = is_behind(tx, job).await?;
    insert(tx, job, held).await?;
    sqlx::query(include_str!("sql/event.sql"))
        .bind(job.id.0)
        .bind("accepted")
        .bind(JobState::Queued.as_str())
        .bind(0_i64)
        .bind(None::<&str>)
        .bind(tx.now)
        .execute(&mut *tx.conn)
        .await?;
    if let Some(idempotency) = &job.idempotency {
        sqlx::query(include_str!("sql/keep_key.sql"))
            .bind(job.tenant.as_str())
            .bind(&idempotency.key)
            .bind(idempotency.body_hash.as_slice())
            .bind(job.id.0)
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
    }
    Ok(Ok(Accepted { job: job.id, replayed: false, held, at: Some(Timestamp(tx.now)) }))
}

/// The answer for a job that was accepted before: by its key, its id (a caller that never got its answer asks again),
/// or its batch line.
async fn earlier(tx: &mut Tx<'_>, job: &NewJob) -> Result<Option<Result<Accepted, Refused>>, Fault> {
    let replay = |job| Ok(Accepted { job, replayed: true, held: false, at: None });
    if let Some(idempotency) = &job.idempotency {
        let known = sqlx::query(include_str!("sql/find_key.sql"))
            .bind(job.tenant.as_str())
            .bind(&idempotency.key)
            .bind(tx.now - KEY_LIFE_MS)
            .fetch_optional(&mut *tx.conn)
            .await?;
        if let Some(known) = known {
            let same = column::<Vec<u8>>(&known, "body_hash")? == idempotency.body_hash;
            let answer = if same { replay(JobId(column(&known, "job")?)) } else { Err(Refused::KeyReused) };
            return Ok(Some(answer));
        }
    }
    let existing = sqlx::query(include_str!("sql/find_existing.sql"))
        .bind(job.id.0)
        .bind(job.batch_line.map(|(batch, _)| batch))
        .bind(job.batch_line.map(|(_, line)| i64::from(line)))
        .fetch_optional(&mut *tx.conn)
        .await?;
    existing.map(|row| Ok(replay(JobId(column::<Uuid>(&row, "id")?)))).transpose()
}

/// Takes the job's room; says why, with nothing written, when its queue or its tenant has none.
async fn take_room(tx: &mut Tx<'_>, queue: &QueueId, job: &NewJob) -> Result<Option<Refused>, Fault> {
    match Counters::of(queue, job.tenant.as_str(), job.batch_line.is_some()) {
        Counters::Job { queue: of_queue, tenant } => {
            if !count_up(tx, &of_queue, job.bound).await? {
                return Ok(Some(Refused::QueueFull { queue: queue.clone(), bound: job.bound }));
            }
            let bound = job.tenant_bound.unwrap_or(u64::MAX);
            if !count_up(tx, &tenant, bound).await? {
                let give_back = sqlx::query(include_str!("sql/count_down.sql")).bind(&of_queue).bind(&of_queue);
                give_back.execute(&mut *tx.conn).await?;
                return Ok(Some(Refused::TenantFull { bound }));
            }
        }
        Counters::Line(lines) => {
            sqlx::query(include_str!("sql/count_up.sql")).bind(lines).execute(&mut *tx.conn).await?;
        }
    }
    Ok(None)
}

/// Adds one to a counter, unless it is at its bound.
async fn count_up(tx: &mut Tx<'_>, name: &str, bound: u64) -> Result<bool, Fault> {
    let take_room = sqlx::query(include_str!("sql/take_room.sql")).bind(name);
    let taken = take_room.bind(i64::try_from(bound).unwrap_or(i64::MAX)).execute(&mut *tx.conn).await?;
    Ok(taken.rows_affected() > 0)
}

/// Whether an unfinished job of the same sequence comes before it, or the sequence is blocked.
async fn is_behind(tx: &mut Tx<'_>, job: &NewJob) -> Result<bool, Fault> {
    let Some(key) = &job.sequence_key else { return Ok(false) };
    let before = sqlx::query(include_str!("sql/find_sequence.sql"))
        .bind(job.tenant.as_str())
        .bind(key)
        .fetch_optional(&mut *tx.conn)
        .await?;
    Ok(before.is_some_and(|row| !row.is_empty()))
}

async fn insert(tx: &mut Tx<'_>, job: &NewJob, held: bool) -> Result<(), Fault> {
    let wake_at = match (held, job.published_by_caller) {
        (true, _) => None,
        (false, true) => Some(tx.now.saturating_add(MESSAGE_LIFE_MS.max(millis(job.delay)))),
        (false, false) => Some(tx.now.saturating_add(millis(job.delay))),
    };
    sqlx::query(include_str!("sql/insert_job.sql"))
        .bind(job.id.0)
        .bind(job.tenant.as_str())
        .bind(job.release.as_str())
        .bind(&job.route)
        .bind(job.class.as_str())
        .bind(job.request.kind().as_str())
        .bind(wake_at)
        .bind(tx.now.saturating_add(millis(job.delay.saturating_add(job.deadline_in))))
        .bind(job.seed.cast_signed())
        .bind(i64::from(job.request.estimated_tokens()))
        .bind(to_json("the request", &job.request)?)
        .bind(to_json("the metadata", &job.metadata)?)
        .bind(job.batch_line.map(|(batch, _)| batch))
        .bind(job.batch_line.map(|(_, line)| i64::from(line)))
        .bind(&job.sequence_key)
        .bind(&job.traceparent)
        .bind(tx.now)
        .bind(job.trajectory.as_str())
        .bind(job.custom_id.as_deref())
        .bind(job.webhook.as_ref().map(|hook| to_json("the webhook", hook)).transpose()?)
        .bind(job.keep.map(millis))
        .bind(job.on_failure.as_str())
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}
