//! Sequences as they are shown, and their resumption.

use async_trait::async_trait;
use contract::{JobId, QueueId, Resumed, Sequence, SequenceBlock, TenantId, Timestamp};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::lock_sequences;
use super::row::{column, escaped, millis_of, queue, unescaped, word};

/// Blocked sequences, by key.
pub(super) struct Blocked<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) after: Option<&'a str>,
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Blocked<'_> {
    type Answer = (Vec<Sequence>, bool);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let limit = self.limit.max(1) as usize;
        let query = sqlx::query(include_str!("sql/blocked_sequences.sql"))
            .bind(self.tenant.as_str())
            .bind(escaped(self.after.unwrap_or_default()))
            // One more than asked for tells whether there is more.
            .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let sequences = rows.iter().take(limit).map(sequence).collect::<Result<_, _>>()?;
        Ok((sequences, rows.len() > limit))
    }
}

/// One sequence.
pub(super) struct Get<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) key: &'a str,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<Sequence>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        Ok(find(tx, self.tenant, self.key).await?.filter(|found| found.block.is_some() || found.unfinished > 0))
    }
}

/// Unblocks a sequence.
pub(super) struct Resume<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) key: &'a str,
}

#[async_trait]
impl Write for Resume<'_> {
    type Answer = Option<Resumed>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let (tenant, key) = (self.tenant.as_str(), escaped(self.key));
        lock_sequences(tx, &[(tenant.to_owned(), key.clone().into_owned())].into()).await?;
        let query = sqlx::query(include_str!("sql/unblock_sequence.sql")).bind(tenant).bind(key.as_ref());
        if answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 0 {
            let found = Get { tenant: self.tenant, key: self.key }.apply(tx).await?;
            return Ok(found.map(|sequence| Resumed { sequence, due: None }));
        }
        let query = sqlx::query(include_str!("sql/wake_successors.sql"))
            .bind(tx.fixed)
            .bind(vec![tenant])
            .bind(vec![key.as_ref()]);
        let due: Option<QueueId> =
            answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(queue).transpose()?;
        let sequence = find(tx, self.tenant, self.key).await?;
        Ok(sequence.map(|sequence| Resumed { sequence, due }))
    }
}

/// What there is of a key, even if it is nothing.
async fn find(tx: &mut Tx<'_>, tenant: &TenantId, key: &str) -> Result<Option<Sequence>, Fault> {
    let query = sqlx::query(include_str!("sql/get_sequence.sql")).bind(tenant.as_str()).bind(escaped(key));
    answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(sequence).transpose()
}

fn sequence(row: &PgRow) -> Result<Sequence, Fault> {
    let job: Option<Uuid> = column(row, "job")?;
    let at: Option<OffsetDateTime> = column(row, "at")?;
    let next: Option<Uuid> = column(row, "next")?;
    Ok(Sequence {
        key: unescaped(column(row, "key")?),
        block: job.zip(at).map(|(job, at)| SequenceBlock { job: JobId(job), at: Timestamp(millis_of(at)) }),
        unfinished: column::<i64>(row, "unfinished")?.unsigned_abs(),
        next: next.map(|id| Ok::<_, Fault>((JobId(id), word(row, "state")?))).transpose()?,
    })
}
