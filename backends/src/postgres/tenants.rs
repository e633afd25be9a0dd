//! Tenants: limits and weights.

use async_trait::async_trait;
use contract::{LimitChange, Tenant, TenantChange, TenantId, TenantLimits, TenantPolicy, Timestamp};
use sqlx::postgres::PgRow;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::row::{column, time};

/// What was said of one.
pub(super) struct Get<'a> {
    pub(super) tenant: &'a TenantId,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<Tenant>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Tenant>, Fault> {
        let query = sqlx::query(include_str!("sql/get_tenant.sql")).bind(self.tenant.as_str());
        answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(tenant).transpose()
    }
}

/// All of which something was said.
pub(super) struct List;

#[async_trait]
impl Write for List {
    type Answer = Vec<Tenant>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Tenant>, Fault> {
        let query = sqlx::query(include_str!("sql/list_tenants.sql"));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(tenant).collect()
    }
}

/// Changes one.
pub(super) struct Set<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) change: &'a TenantChange,
}

#[async_trait]
impl Write for Set<'_> {
    type Answer = Tenant;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Tenant, Fault> {
        let change = self.change;
        let mut query = sqlx::query(include_str!("sql/set_tenant.sql")).bind(tx.fixed).bind(self.tenant.as_str());
        for change in
            [change.requests_per_minute, change.tokens_per_minute, change.concurrent_requests, change.queued_jobs]
        {
            query = query.bind(change != LimitChange::Keep).bind(match change {
                LimitChange::Set(limit) => Some(i64::try_from(limit).unwrap_or(i64::MAX)),
                LimitChange::Keep | LimitChange::Clear => None,
            });
        }
        let query = query.bind(change.weight.map(i64::from));
        tenant(&answer(query.fetch_one(&mut *tx.conn)).await?)
    }
}

/// Forgets what was said of one.
pub(super) struct Delete<'a> {
    pub(super) tenant: &'a TenantId,
}

#[async_trait]
impl Write for Delete<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("DELETE FROM tenants WHERE tenant = $1").bind(self.tenant.as_str());
        Ok(answer(query.execute(&mut *tx.conn)).await?.rows_affected() > 0)
    }
}

/// Unfinished jobs of one that are no batch lines.
pub(super) struct Unfinished<'a> {
    pub(super) tenant: &'a TenantId,
}

#[async_trait]
impl Write for Unfinished<'_> {
    type Answer = u64;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let query = sqlx::query("SELECT value FROM counters WHERE name = $1").bind(format!("tenant:{}", self.tenant));
        let row = answer(query.fetch_optional(&mut *tx.conn)).await?;
        Ok(row.map(|row| column::<i64>(&row, "value")).transpose()?.unwrap_or(0).unsigned_abs())
    }
}

fn tenant(row: &PgRow) -> Result<Tenant, Fault> {
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
        created_at: Timestamp(time(row, "created_at")?),
        changed_at: Timestamp(time(row, "changed_at")?),
    })
}
