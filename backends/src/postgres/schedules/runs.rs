//! The batches of schedules: at their times, and on demand.

use async_trait::async_trait;
use contract::schedule::{Look, Turn};
use contract::{
    Batch, BatchId, Fired, IdempotencyKey, KeyReused, Made, Schedule, ScheduleId, ScheduleRefused, TenantId, Timestamp,
};

use super::{Get, file_lives, lock, moment, put, read};
use crate::postgres::batches;
use crate::postgres::db::{Tx, Write, answer};
use crate::postgres::fault::Fault;
use crate::postgres::files::made_before;
use crate::postgres::row::{at, column, time};

/// What the turn of a schedule is decided by.
async fn look(tx: &mut Tx<'_>, schedule: &Schedule, due: Option<Timestamp>) -> Result<Look, Fault> {
    let query = sqlx::query(include_str!("../sql/look_at_schedule.sql"))
        .bind(schedule.id.0)
        .bind(moment(due))
        .bind(schedule.batch.input.0)
        .bind(schedule.tenant.as_str());
    let row = answer(query.fetch_one(&mut *tx.conn)).await?;
    Ok(Look {
        has_open_run: column(&row, "has_open_run")?,
        was_run: column(&row, "was_run")?,
        has_file: column(&row, "has_file")?,
    })
}

/// Makes a batch of a schedule, at one of its times or at none.
async fn make(
    tx: &mut Tx<'_>,
    schedule: &Schedule,
    due: Option<Timestamp>,
    id: BatchId,
    key: Option<&IdempotencyKey>,
) -> Result<Result<Made<Batch>, KeyReused>, Fault> {
    let batch = schedule.batch.batch(id, &schedule.tenant, key.cloned());
    let made = match (batches::Add { batch: &batch }).apply(tx).await? {
        Ok(Made::New(batch)) => Batch { schedule: Some(schedule.id), ..batch },
        other => return Ok(other),
    };
    let query = sqlx::query("UPDATE batches SET schedule = $2, due_at = $3 WHERE id = $1");
    answer(query.bind(id.0).bind(schedule.id.0).bind(moment(due)).execute(&mut *tx.conn)).await?;
    Ok(Ok(Made::New(made)))
}

/// Makes a batch of a schedule on demand.
pub(super) struct Run<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a ScheduleId,
    pub(super) batch: BatchId,
    pub(super) key: Option<&'a IdempotencyKey>,
}

#[async_trait]
impl Write for Run<'_> {
    type Answer = Result<Made<Batch>, ScheduleRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let Some(mut schedule) = lock(tx, self.tenant, self.id).await? else {
            return Ok(Err(ScheduleRefused::NotFound));
        };
        // The file of a schedule that is not enabled goes at its time.
        let has_file = match schedule.next_at {
            Some(_) => look(tx, &schedule, None).await?.has_file,
            None => file_lives(tx, &schedule).await?,
        };
        // A repeat finds its batch whatever became of the file since.
        if !has_file && made_before(tx, self.tenant, self.key).await? == Ok(None) {
            return Ok(Err(ScheduleRefused::NoFile));
        }
        let made = make(tx, &schedule, None, self.batch, self.key).await?;
        if let Ok(Made::New(batch)) = &made {
            schedule.ran(batch.id);
            put(tx, &schedule).await?;
        }
        Ok(made.map_err(|KeyReused| ScheduleRefused::KeyReused))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        !matches!(answer, Ok(Made::New(_)))
    }
}

/// A page of the batches of a schedule.
pub(super) struct Runs<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a ScheduleId,
    pub(super) after: Option<BatchId>,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Runs<'_> {
    type Answer = Option<(Vec<Batch>, bool)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        if (Get { tenant: self.tenant, id: self.id }).apply(tx).await?.is_none() {
            return Ok(None);
        }
        let limit = self.limit.max(1) as usize;
        let query = sqlx::query(include_str!("../sql/schedule_runs.sql"))
            .bind(tx.fixed)
            .bind(self.id.0)
            .bind(self.after.map(|id| id.0))
            .bind(i64::from(self.limit.max(1)).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let mut runs: Vec<Batch> = rows.iter().take(limit).map(batches::read).collect::<Result<_, _>>()?;
        batches::count_lines(tx, &mut runs).await?;
        Ok(Some((runs, rows.len() > limit)))
    }
}

/// Schedules whose time has come.
pub(super) struct Due {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Due {
    type Answer = Vec<(ScheduleId, Timestamp)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let query = sqlx::query(include_str!("../sql/due_schedules.sql")).bind(tx.fixed).bind(i64::from(self.limit));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok((ScheduleId(column(row, "id")?), Timestamp(time(row, "next_at")?)))).collect()
    }
}

/// Does what is to be done at a schedule's time.
pub(super) struct Fire<'a> {
    pub(super) id: &'a ScheduleId,
    pub(super) due: Timestamp,
    pub(super) batch: BatchId,
}

#[async_trait]
impl Write for Fire<'_> {
    type Answer = Option<Fired>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Fired>, Fault> {
        let query = sqlx::query(include_str!("../sql/lock_due_schedule.sql"));
        let query = query.bind(tx.fixed).bind(self.id.0).bind(at(self.due.0));
        let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(None) };
        let mut schedule = read(&row)?;
        let look = look(tx, &schedule, Some(self.due)).await?;
        let turn = schedule.take_turn(self.due, look, self.batch);
        put(tx, &schedule).await?;
        Ok(match turn {
            Turn::Run => match make(tx, &schedule, Some(self.due), self.batch, None).await? {
                Ok(batch) => Some(Fired::Run(Box::new(batch.into_inner()))),
                Err(KeyReused) => return Err(Fault::Corrupt("a batch without a key has none to be used".to_owned())),
            },
            Turn::Skip => Some(Fired::Skipped),
            Turn::Fail(why) => Some(Fired::Failed(why)),
            Turn::Pass => None,
        })
    }
}
