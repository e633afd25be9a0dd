//! API keys.

use async_trait::async_trait;
use contract::{FoundKey, Key, KeyId, NewKey, Scope, TenantId, Timestamp};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::fault::Fault;
use super::millis;
use super::row::column;
use super::writer::{Tx, Write};

/// Keeps a new key.
pub(super) struct Add {
    pub(super) key: NewKey,
}

#[async_trait]
impl Write for Add {
    type Answer = Key;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Key, Fault> {
        let scopes: Vec<&str> = self.key.scopes.iter().map(|scope| scope.as_str()).collect();
        let row = sqlx::query(include_str!("sql/add_key.sql"))
            .bind(self.key.id.0)
            .bind(self.key.tenant.as_str())
            .bind(&self.key.name)
            .bind(&self.key.prefix)
            .bind(self.key.hash.as_slice())
            .bind(scopes.join(","))
            .bind(tx.now)
            .bind(self.key.expires_in.map(|span| tx.now.saturating_add(millis(span))))
            .fetch_one(&mut *tx.conn)
            .await?;
        key(&row)
    }
}

/// Revokes a key.
pub(super) struct Revoke {
    pub(super) id: KeyId,
}

#[async_trait]
impl Write for Revoke {
    type Answer = Option<Key>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Key>, Fault> {
        let query = sqlx::query(include_str!("sql/revoke_key.sql")).bind(self.id.0).bind(tx.now);
        query.fetch_optional(&mut *tx.conn).await?.as_ref().map(key).transpose()
    }
}

/// The key of a prefix.
pub(super) async fn find(pool: &SqlitePool, now: i64, prefix: &str) -> Result<Option<FoundKey>, Fault> {
    let row = sqlx::query(include_str!("sql/find_key_of_prefix.sql")).bind(prefix).fetch_optional(pool).await?;
    let found = |row: &SqliteRow| {
        let hash: [u8; 32] = column::<Vec<u8>>(row, "hash")?
            .try_into()
            .map_err(|_| Fault::Corrupt("column hash: not 32 bytes".to_owned()))?;
        Ok(FoundKey { key: key(row)?, hash, now: Timestamp(now) })
    };
    row.as_ref().map(found).transpose()
}

/// All keys, of one tenant or of all.
pub(super) async fn list(pool: &SqlitePool, tenant: Option<&TenantId>) -> Result<Vec<Key>, Fault> {
    let query = sqlx::query(include_str!("sql/list_keys.sql")).bind(tenant.map(TenantId::as_str));
    query.fetch_all(pool).await?.iter().map(key).collect()
}

/// Whether there is any.
pub(super) async fn has_any(pool: &SqlitePool) -> Result<bool, Fault> {
    column(&sqlx::query("SELECT EXISTS (SELECT 1 FROM keys) AS has_keys").fetch_one(pool).await?, "has_keys")
}

fn key(row: &SqliteRow) -> Result<Key, Fault> {
    let scope = |word: &str| word.parse::<Scope>().map_err(|err| Fault::Corrupt(format!("column scopes: {err}")));
    Ok(Key {
        id: KeyId(column::<Uuid>(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        name: column(row, "name")?,
        prefix: column(row, "prefix")?,
        scopes: column::<String>(row, "scopes")?.split(',').map(scope).collect::<Result<_, _>>()?,
        created_at: Timestamp(column(row, "created_at")?),
        expires_at: column::<Option<i64>>(row, "expires_at")?.map(Timestamp),
        revoked_at: column::<Option<i64>>(row, "revoked_at")?.map(Timestamp),
    })
}
