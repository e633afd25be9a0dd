//! The usage ledger. Triggers keep it: one writer writes all, so its days are up to date at once.

use contract::{Class, Day, Fingerprint, TenantId, TokenSums, UsageFilter, UsageLine};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteRow;

use super::fault::Fault;
use super::row::{column, word};

/// Lines of the ledger.
pub(super) async fn lines(pool: &SqlitePool, filter: &UsageFilter) -> Result<Vec<UsageLine>, Fault> {
    let query = sqlx::query(include_str!("sql/usage_lines.sql"))
        .bind(filter.from.0)
        .bind(filter.to.0)
        .bind(i64::from(filter.limit))
        .bind(filter.tenant.as_ref().map(TenantId::as_str));
    query.fetch_all(pool).await?.iter().map(line).collect()
}

fn line(row: &SqliteRow) -> Result<UsageLine, Fault> {
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
pub(super) fn sum(row: &SqliteRow, name: &'static str) -> Result<u64, Fault> {
    let value: i64 = column(row, name)?;
    u64::try_from(value).map_err(|_| Fault::Corrupt(format!("column {name}: {value} is not a sum of counts")))
}
