//! The progress of batches, for who is told of it.

use std::time::Duration;

use async_trait::async_trait;
use contract::{Batch, BatchId};
use serde_json::Value;
use sqlx::SqlitePool;
use uuid::Uuid;

use super::batches::{count_lines, read};
use super::fault::Fault;
use super::millis;
use super::row::{column, to_json};
use super::writer::{Tx, Write};

/// Batches whose progress is to be told.
pub(super) async fn to_tell(pool: &SqlitePool, now: i64, every: Duration, limit: u32) -> Result<Vec<Batch>, Fault> {
    let mut conn = pool.acquire().await?;
    let query = sqlx::query(include_str!("sql/batches_to_tell.sql"));
    let query = query.bind(now.saturating_sub(millis(every))).bind(i64::from(limit));
    let rows = query.fetch_all(&mut *conn).await?;
    let mut batches = rows.iter().map(|row| read(row, now)).collect::<Result<Vec<_>, _>>()?;
    for batch in &mut batches {
        count_lines(&mut conn, batch).await?;
    }
    Ok(batches)
}

/// Tells how far a batch is.
pub(super) struct Tell {
    pub(super) id: BatchId,
    pub(super) done: u64,
    pub(super) data: Value,
}

#[async_trait]
impl Write for Tell {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let done = i64::try_from(self.done).unwrap_or(i64::MAX);
        let query = "SELECT progress_done FROM batches WHERE id = ?1 AND state IN ('in_progress', 'finalizing')";
        let row = sqlx::query(query).bind(self.id.0).fetch_optional(&mut *tx.conn).await?;
        let Some(row) = row else { return Ok(false) };
        let is_news = column::<i64>(&row, "progress_done")? != done;
        let query = "UPDATE batches SET progress_at = ?2, progress_done = ?3, told = told + ?4 WHERE id = ?1";
        let query = sqlx::query(query).bind(self.id.0).bind(tx.now).bind(done).bind(i64::from(is_news));
        query.execute(&mut *tx.conn).await?;
        if !is_news {
            return Ok(false);
        }
        let forgotten = sqlx::query(include_str!("sql/forget_progress.sql")).bind(self.id.0);
        for row in &forgotten.fetch_all(&mut *tx.conn).await? {
            let id: Uuid = column(row, "id")?;
            let query = sqlx::query("DELETE FROM delivery_attempts WHERE delivery = ?1").bind(id);
            query.execute(&mut *tx.conn).await?;
        }
        sqlx::query(include_str!("sql/tell_progress.sql")).bind(self.id.0).execute(&mut *tx.conn).await?;
        let query = sqlx::query(include_str!("sql/keep_progress.sql"));
        query.bind(self.id.0).bind(to_json("the progress", &self.data)?).execute(&mut *tx.conn).await?;
        Ok(true)
    }
}
