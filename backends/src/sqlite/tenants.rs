//! Tenants: limits and weights.

use async_trait::async_trait;
use contract::{LimitChange, Tenant, TenantChange, TenantId, TenantLimits, TenantPolicy, Timestamp};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteRow;

use super::fault::Fault;
use super::row::column;
use super::writer::{Tx, Write};

/// Changes one.
pub(super) struct Set {
    pub(super) tenant: TenantId,
    pub(super) change: TenantChange,
}

#[async_trait]
impl Write for Set {
    type Answer = Tenant;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Tenant, Fault> {
        let change = self.change;
        let mut query = sqlx::query(include_str!("sql/set_tenant.sql")).bind(tx.now).bind(self.tenant.as_str());
        for change in
            [change.requests_per_minute, change.tokens_per_minute, change.concurrent_requests, change.queued_jobs]
        {
            query = query.bind(change != LimitChange::Keep).bind(match change {
                LimitChange::Set(limit) => Some(i64::try_from(limit).unwrap_or(i64::MAX)),
                LimitChange::Keep | LimitChange::Clear => None,
            });
        }
        tenant(&query.bind(change.weight.map(i64::from)).fetch_one(&mut *tx.conn).await?)
    }
}

/// Forgets what was said of one.
pub(super) struct Delete {
    pub(super) tenant: TenantId,
}

#[async_trait]
impl Write for Delete {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("DELETE FROM tenants WHERE tenant = ?1").bind(self.tenant.as_str());
        Ok(query.execute(&mut *tx.conn).await?.rows_affected() > 0)
    }
}

/// What was said of one.
pub(super) async fn get(pool: &SqlitePool, id: &TenantId) -> Result<Option<Tenant>, Fault> {
    let query = sqlx::query(include_str!("sql/get_tenant.sql")).bind(id.as_str());
    query.fetch_optional(pool).await?.as_ref().map(tenant).transpose()
}

/// All of which something was said.
pub(super) async fn list(pool: &SqlitePool) -> Result<Vec<Tenant>, Fault> {
    sqlx::query(include_str!("sql/list_tenants.sql")).fetch_all(pool).await?.iter().map(tenant).collect()
}

/// Unfinished jobs of one that are no batch lines.
pub(super) async fn unfinished(pool: &SqlitePool, id: &TenantId) -> Result<u64, Fault> {
    let query = sqlx::query("SELECT value FROM counters WHERE name = ?1").bind(format!("tenant:{id}"));
    let row = query.fetch_optional(pool).await?;
    Ok(row.map(|row| column::<i64>(&row, "value")).transpose()?.unwrap_or(0).unsigned_abs())
}

fn tenant(row: &SqliteRow) -> Result<Tenant, Fault> {
    let limit = |name| Ok::<_, Fault>(column::<Option<i64>>(row, name)?.map(i64::unsigned_abs));
    let weight: i64 = column(row, "weight")?;
    Ok(Tenant {
        id: TenantId(column(row, "tenant")?),
        policy: TenantPolicy {
            limits: TenantLimits {
                requests_per_minute: limit("requests_per_minute")?,
                tokens_per_minute: limit("tokens_per_minute")?,
                concurrent_requests: limit("concurrent_requests")?,
                queued_jobs: limit("queued_jobs")?,
            },
            weight: u32::try_from(weight).map_err(|_| Fault::Corrupt(format!("column weight: {weight}")))?,
        },
        created_at: Timestamp(column(row, "created_at")?),
        changed_at: Timestamp(column(row, "changed_at")?),
    })
}
