//! The batches of schedules: at their times, and on demand.

use async_trait::async_trait;
use contract::schedule::{Look, Turn};
use contract::{
    Batch, BatchId, Fired, IdempotencyKey, KeyReused, Made, Schedule, ScheduleId, ScheduleRefused, TenantId, Timestamp,
};
use sqlx::SqlitePool;

use super::{file_lives, get, put};
use crate::sqlite::batches;
use crate::sqlite::fault::Fault;
use crate::sqlite::files::made_before;
use crate::sqlite::row::column;
use crate::sqlite::writer::{Tx, Write};

/// What the turn of a schedule is decided by.
async fn look(tx: &mut Tx<'_>, schedule: &Schedule, due: Option<Timestamp>) -> Result<Look, Fault> {
    let row = sqlx::query(include_str!("../sql/look_at_schedule.sql"))
        .bind(schedule.id.0)
        .bind(due.map(|at| at.0))
        .bind(schedule.batch.input.0)
        .bind(schedule.tenant.as_str())
        .fetch_one(&mut *tx.conn)
        .await?;
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
    let made = match (batches::Add { batch }).apply(tx).await? {
        Ok(Made::New(batch)) => Batch { schedule: Some(schedule.id), ..batch },
        other => return Ok(other),
    };
    sqlx::query("UPDATE batches SET schedule = ?2, due_at = ?3 WHERE id = ?1")
        .bind(id.0)
        .bind(schedule.id.0)
        .bind(due.map(|at| at.0))
        .execute(&mut *tx.conn)
        .await?;
    Ok(Ok(Made::New(made)))
}

/// Makes a batch of a schedule on demand.
pub(super) struct Run {
    pub(super) tenant: TenantId,
    pub(super) id: ScheduleId,
    pub(super) batch: BatchId,
    pub(super) key: Option<IdempotencyKey>,
}

#[async_trait]
impl Write for Run {
    type Answer = Result<Made<Batch>, ScheduleRefused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let Some(mut schedule) = get(&mut *tx.conn, tx.now, Some(&self.tenant), &self.id).await? else {
            return Ok(Err(ScheduleRefused::NotFound));
        };
        // The file of a schedule that is not enabled goes at its time.
        let has_file = match schedule.next_at {
            Some(_) => look(tx, &schedule, None).await?.has_file,
            None => file_lives(tx, &schedule).await?,
        };
        // A repeat finds its batch whatever became of the file since.
        if !has_file && made_before(tx, &self.tenant, self.key.as_ref()).await? == Ok(None) {
            return Ok(Err(ScheduleRefused::NoFile));
        }
        let made = make(tx, &schedule, None, self.batch, self.key.as_ref()).await?;
        if let Ok(Made::New(batch)) = &made {
            schedule.ran(batch.id);
            put(tx, &schedule).await?;
        }
        Ok(made.map_err(|KeyReused| ScheduleRefused::KeyReused))
    }
}

/// A page of the batches of a schedule.
pub(super) async fn list(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    id: &ScheduleId,
    after: Option<BatchId>,
    limit: u32,
) -> Result<Option<(Vec<Batch>, bool)>, Fault> {
    let mut conn = pool.acquire().await?;
    if get(&mut *conn, now, Some(tenant), id).await?.is_none() {
        return Ok(None);
    }
    let rows = sqlx::query(include_str!("../sql/schedule_runs.sql"))
        .bind(id.0)
        .bind(after.map(|id| id.0))
        // One more than asked for tells whether there is more.
        .bind(i64::from(limit.max(1)).saturating_add(1))
        .fetch_all(&mut *conn)
        .await?;
    let limit = limit.max(1) as usize;
    let mut runs = rows.iter().take(limit).map(|row| batches::read(row, now)).collect::<Result<Vec<_>, _>>()?;
    for batch in &mut runs {
        batches::count_lines(&mut conn, batch).await?;
    }
    Ok(Some((runs, rows.len() > limit)))
}

/// Schedules whose time has come.
pub(super) async fn due(pool: &SqlitePool, now: i64, limit: u32) -> Result<Vec<(ScheduleId, Timestamp)>, Fault> {
    let query = sqlx::query(include_str!("../sql/due_schedules.sql")).bind(now).bind(i64::from(limit));
    let rows = query.fetch_all(pool).await?;
    rows.iter().map(|row| Ok((ScheduleId(column(row, "id")?), Timestamp(column(row, "next_at")?)))).collect()
}

/// Does what is to be done at a schedule's time.
pub(super) struct Fire {
    pub(super) id: ScheduleId,
    pub(super) due: Timestamp,
    pub(super) batch: BatchId,
}

#[async_trait]
impl Write for Fire {
    type Answer = Option<Fired>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Fired>, Fault> {
        let Some(mut schedule) = get(&mut *tx.conn, tx.now, None, &self.id).await? else { return Ok(None) };
        if schedule.next_at != Some(self.due) || schedule.now < self.due {
            return Ok(None);
        }
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
