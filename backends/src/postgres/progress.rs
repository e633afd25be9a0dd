//! The progress of batches, for who is told of it.

use std::time::Duration;

use async_trait::async_trait;
use contract::{Batch, BatchId};
use serde_json::Value;

use super::batches::{count_lines, read};
use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::millis;
use super::row::{column, to_json};

/// Batches whose progress is to be told.
pub(super) struct ToTell {
    pub(super) every: Duration,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for ToTell {
    type Answer = Vec<Batch>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Batch>, Fault> {
        let query = sqlx::query(include_str!("sql/batches_to_tell.sql"));
        let query = query.bind(tx.fixed).bind(millis(self.every)).bind(i64::from(self.limit));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let mut batches = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if !batches.is_empty() {
            count_lines(tx, &mut batches).await?;
        }
        Ok(batches)
    }
}

/// Tells how far a batch is.
pub(super) struct Tell<'a> {
    pub(super) id: &'a BatchId,
    pub(super) done: u64,
    pub(super) data: &'a Value,
}

#[async_trait]
impl Write for Tell<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/look_at_progress.sql"));
        let query = query.bind(tx.fixed).bind(self.id.0).bind(i64::try_from(self.done).unwrap_or(i64::MAX));
        let row = answer(query.fetch_optional(&mut *tx.conn)).await?;
        let is_news = row.as_ref().map(|row| column::<bool>(row, "is_news")).transpose()?.unwrap_or(false);
        if !is_news {
            return Ok(false);
        }
        answer(sqlx::query("SELECT forget_progress($1)").bind(self.id.0).execute(&mut *tx.conn)).await?;
        let query = sqlx::query(include_str!("sql/tell_progress.sql")).bind(tx.fixed).bind(self.id.0);
        answer(query.execute(&mut *tx.conn)).await?;
        let query = sqlx::query(include_str!("sql/keep_progress.sql"));
        let query = query.bind(self.id.0).bind(to_json("the progress", self.data)?);
        answer(query.execute(&mut *tx.conn)).await?;
        Ok(true)
    }
}
