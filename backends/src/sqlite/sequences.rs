//! Sequences as they are shown, and their resumption.

use async_trait::async_trait;
use contract::{Fingerprint, JobId, QueueId, Resumed, Sequence, SequenceBlock, TenantId, Timestamp};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteExecutor, SqlitePool};
use uuid::Uuid;

use super::fault::Fault;
use super::row::{column, word};
use super::writer::{Tx, Write};

/// Blocked sequences, by key.
pub(super) async fn blocked(
    pool: &SqlitePool,
    tenant: &TenantId,
    after: Option<&str>,
    limit: u32,
) -> Result<(Vec<Sequence>, bool), Fault> {
    let limit = limit.max(1) as usize;
    let rows = sqlx::query(include_str!("sql/blocked_sequences.sql"))
        .bind(tenant.as_str())
        .bind(after.unwrap_or_default())
        // One more than asked for tells whether there is more.
        .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1))
        .fetch_all(pool)
        .await?;
    let sequences = rows.iter().take(limit).map(sequence).collect::<Result<_, _>>()?;
    Ok((sequences, rows.len() > limit))
}

/// One sequence.
pub(super) async fn get(
    conn: impl SqliteExecutor<'_>,
    tenant: &TenantId,
    key: &str,
) -> Result<Option<Sequence>, Fault> {
    Ok(find(conn, tenant, key).await?.filter(|found| found.block.is_some() || found.unfinished > 0))
}

/// Unblocks a sequence.
pub(super) struct Resume {
    pub(super) tenant: TenantId,
    pub(super) key: String,
}

#[async_trait]
impl Write for Resume {
    type Answer = Option<Resumed>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let unblocked = sqlx::query(include_str!("sql/unblock_sequence.sql"))
            .bind(self.tenant.as_str())
            .bind(&self.key)
            .execute(&mut *tx.conn)
            .await?;
        if unblocked.rows_affected() == 0 {
            let found = get(&mut *tx.conn, &self.tenant, &self.key).await?;
            return Ok(found.map(|sequence| Resumed { sequence, due: None }));
        }
        let woken = sqlx::query(include_str!("sql/wake_successor.sql"))
            .bind(self.tenant.as_str())
            .bind(&self.key)
            .bind(tx.now)
            .fetch_optional(&mut *tx.conn)
            .await?;
        let due = woken.as_ref().map(queue).transpose()?;
        let sequence = find(&mut *tx.conn, &self.tenant, &self.key).await?;
        Ok(sequence.map(|sequence| Resumed { sequence, due }))
    }
}

/// What there is of a key, even if it is nothing.
async fn find(conn: impl SqliteExecutor<'_>, tenant: &TenantId, key: &str) -> Result<Option<Sequence>, Fault> {
    let query = sqlx::query(include_str!("sql/get_sequence.sql")).bind(tenant.as_str()).bind(key);
    query.fetch_optional(conn).await?.as_ref().map(sequence).transpose()
}

fn queue(row: &SqliteRow) -> Result<QueueId, Fault> {
    Ok(QueueId { release: Fingerprint(column(row, "release")?), class: word(row, "class")? })
}

fn sequence(row: &SqliteRow) -> Result<Sequence, Fault> {
    let job: Option<Uuid> = column(row, "job")?;
    let at: Option<i64> = column(row, "at")?;
    let next: Option<Uuid> = column(row, "next")?;
    Ok(Sequence {
        key: column(row, "key")?,
        block: job.zip(at).map(|(job, at)| SequenceBlock { job: JobId(job), at: Timestamp(at) }),
        unfinished: column::<i64>(row, "unfinished")?.unsigned_abs(),
        next: next.map(|id| Ok::<_, Fault>((JobId(id), word(row, "state")?))).transpose()?,
    })
}
