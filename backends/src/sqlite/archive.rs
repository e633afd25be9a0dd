//! What the archiver and the workers write: places in segments, and models on offer.

use async_trait::async_trait;
use contract::ports::SegmentStore;
use contract::{JobId, SegmentPlace, ServedModel, StoreError};

use super::fault::Fault;
use super::row::to_json;
use super::writer::{Tx, Write};
use super::{SqliteStore, emptying};

#[async_trait]
impl SegmentStore for SqliteStore {
    async fn announce_segment(&self, key: &str) -> Result<(), StoreError> {
        self.writer.submit(Announce { key: key.to_owned() }).await
    }

    async fn unswitched_segments(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        emptying::unswitched(&self.readers, self.now(), limit).await.map_err(Fault::nothing_written)
    }
}

/// A segment will be written.
struct Announce {
    key: String,
}

#[async_trait]
impl Write for Announce {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/announce_segment.sql")).bind(&self.key).bind(tx.now);
        query.execute(&mut *tx.conn).await?;
        Ok(())
    }
}

/// Switches rows to their segments.
pub(super) struct Archived {
    pub(super) places: Vec<(JobId, SegmentPlace)>,
}

#[async_trait]
impl Write for Archived {
    type Answer = Vec<bool>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<bool>, Fault> {
        let mut answers = Vec::with_capacity(self.places.len());
        for (job, place) in &self.places {
            let switched = sqlx::query(include_str!("sql/archived.sql"))
                .bind(job.0)
                .bind(place.to_string())
                .execute(&mut *tx.conn)
                .await?;
            let switched = switched.rows_affected() == 1;
            if switched {
                sqlx::query(include_str!("sql/count_segment.sql")).bind(&place.key).execute(&mut *tx.conn).await?;
            }
            answers.push(switched);
        }
        Ok(answers)
    }
}

/// Makes a model known.
pub(super) struct Offer {
    pub(super) model: ServedModel,
}

#[async_trait]
impl Write for Offer {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        sqlx::query(include_str!("sql/offer.sql"))
            .bind(&self.model.name)
            .bind(self.model.release.as_str())
            .bind(to_json("the model", &self.model)?)
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
        Ok(())
    }
}
