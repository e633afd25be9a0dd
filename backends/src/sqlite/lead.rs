//! The lead of singleton work.

use std::time::Duration;

use async_trait::async_trait;
use contract::WorkerId;

use super::fault::Fault;
use super::millis;
use super::writer::{Tx, Write};

/// Takes or keeps a lead.
pub(super) struct TakeLead {
    pub(super) name: String,
    pub(super) holder: WorkerId,
    pub(super) ttl: Duration,
}

#[async_trait]
impl Write for TakeLead {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let done = sqlx::query(include_str!("sql/lead.sql"))
            .bind(&self.name)
            .bind(self.holder.as_str())
            .bind(tx.now.saturating_add(millis(self.ttl)))
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
        Ok(done.rows_affected() == 1)
    }
}
