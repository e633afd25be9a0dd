//! The usage ledger. Whoever changes jobs writes what it changed beside them (`usage_changes`), without a look at what
//! is there; here that is summed up.

use async_trait::async_trait;
use contract::{Class, Day, Fingerprint, TenantId, TokenSums, UsageFilter, UsageLine};
use sqlx::postgres::PgRow;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::row::{column, word};

/// Lines of the ledger.
pub(super) struct Lines<'a> {
    pub(super) filter: &'a UsageFilter,
}

#[async_trait]
impl Write for Lines<'_> {
    type Answer = Vec<UsageLine>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let UsageFilter { tenant, from, to, limit } = self.filter;
        let sql = match tenant {
            Some(_) => include_str!("sql/usage_of_tenant.sql"),
            None => include_str!("sql/usage_of_all.sql"),
        };
        let query = sqlx::query(sql).bind(from.0).bind(to.0).bind(i64::from(*limit));
        let query = match tenant {
            Some(tenant) => query.bind(tenant.as_str()),
            None => query,
        };
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(line).collect()
    }
}

/// Moves changes into the days.
pub(super) struct Fold {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Fold {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let query = sqlx::query(include_str!("sql/fold_usage.sql")).bind(i64::from(self.limit));
        sum(&answer(query.fetch_one(&mut *tx.conn)).await?, "n")
    }
}

fn line(row: &PgRow) -> Result<UsageLine, Fault> {
    Ok(UsageLine {
        tenant: TenantId(column(row, "tenant")?),
        day: Day(column(row, "day")?),
        release: Fingerprint(column(row, "release")?),
        model: column(row, "model")?,
        class: word::<Class>(row, "class")?,
        accepted: sum(row, "accepted")?,
        succeeded: sum(row, "succeeded")?,
        failed: sum(row, "failed")?,
        cancelled: sum(row, "cancelled")?,
        expired: sum(row, "expired")?,
        tokens: TokenSums {
            prompt: sum(row, "prompt_tokens")?,
            cached: sum(row, "cached_tokens")?,
            output: sum(row, "output_tokens")?,
        },
        wasted: TokenSums {
            prompt: sum(row, "wasted_prompt_tokens")?,
            cached: sum(row, "wasted_cached_tokens")?,
            output: sum(row, "wasted_output_tokens")?,
        },
    })
}

/// A column that holds a sum of counts.
pub(super) fn sum(row: &PgRow, name: &'static str) -> Result<u64, Fault> {
    let value: i64 = column(row, name)?;
    u64::try_from(value).map_err(|_| Fault::Corrupt(format!("column {name}: {value} is not a sum of counts")))
}
