//! What the archiver and the workers write: places in segments, models on offer; and the lead of singleton work.

use std::time::Duration;

use async_trait::async_trait;
use contract::ports::SegmentStore;
use contract::{JobId, JobState, SegmentPlace, ServedModel, StoreError, WorkerId};
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::emptying::Unswitched;
use super::fault::Fault;
use super::row::{column, to_json};
use super::{PostgresStore, millis};

#[async_trait]
impl SegmentStore for PostgresStore {
    async fn announce_segment(&self, key: &str) -> Result<(), StoreError> {
        self.db.once(&Announce { key }).await
    }

    async fn unswitched_segments(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        self.db.read(&Unswitched { limit }).await
    }
}

/// A segment will be written.
struct Announce<'a> {
    key: &'a str,
}

#[async_trait]
impl Write for Announce<'_> {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/announce_segment.sql")).bind(tx.fixed).bind(self.key);
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}

/// Switches rows to their segments.
pub(super) struct Archived<'a> {
    pub(super) places: &'a [(JobId, SegmentPlace)],
}

#[async_trait]
impl Write for Archived<'_> {
    type Answer = Vec<bool>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<bool>, Fault> {
        // One place a job, the first; rows are locked in the order of the jobs' ids.
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_by_key(|n| self.places[*n].0);
        order.dedup_by_key(|n| self.places[*n].0);
        let query = sqlx::query(include_str!("sql/archived.sql"))
            .bind(order.iter().map(|n| self.places[*n].0.0).collect::<Vec<Uuid>>())
            .bind(order.iter().map(|n| self.places[*n].1.to_string()).collect::<Vec<String>>())
            .bind(JobState::Succeeded.as_str());
        let mut answers = vec![false; self.places.len()];
        for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
            let n = usize::try_from(column::<i64>(row, "n")?).ok().and_then(|n| order.get(n.wrapping_sub(1)));
            if let Some(switched) = n.and_then(|n| answers.get_mut(*n)) {
                *switched = true;
            }
        }
        Ok(answers)
    }
}

/// Makes a model known.
pub(super) struct Offer<'a> {
    pub(super) model: &'a ServedModel,
}

#[async_trait]
impl Write for Offer<'_> {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/offer.sql"))
            .bind(tx.fixed)
            .bind(&self.model.name)
            .bind(self.model.release.as_str())
            .bind(to_json("the model", self.model)?);
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}

/// Takes or keeps a lead.
pub(super) struct TakeLead<'a> {
    pub(super) name: &'a str,
    pub(super) holder: &'a WorkerId,
    pub(super) ttl: Duration,
}

#[async_trait]
impl Write for TakeLead<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/lead.sql"))
            .bind(tx.fixed)
            .bind(self.name)
            .bind(self.holder.as_str())
            .bind(millis(self.ttl));
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 1)
    }
}
