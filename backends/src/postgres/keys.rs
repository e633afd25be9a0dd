//! API keys.

use async_trait::async_trait;
use contract::{FoundKey, Key, KeyId, NewKey, Scope, TenantId, Timestamp};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::millis;
use super::row::{column, escaped, millis_of, time, unescaped};

/// Keeps a new key.
pub(super) struct Add<'a> {
    pub(super) key: &'a NewKey,
}

#[async_trait]
impl Write for Add<'_> {
    type Answer = Key;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Key, Fault> {
        let query = sqlx::query(include_str!("sql/add_key.sql"))
            .bind(tx.fixed)
            .bind(self.key.id.0)
            .bind(self.key.tenant.as_str())
            .bind(escaped(&self.key.name))
            .bind(&self.key.prefix)
            .bind(self.key.hash.as_slice())
            .bind(self.key.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<&str>>())
            .bind(self.key.expires_in.map(millis));
        key(&answer(query.fetch_one(&mut *tx.conn)).await?)
    }
}

/// Looks a key up.
pub(super) struct Find<'a> {
    pub(super) prefix: &'a str,
}

#[async_trait]
impl Write for Find<'_> {
    type Answer = Option<FoundKey>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<FoundKey>, Fault> {
        let query = sqlx::query(include_str!("sql/find_key.sql")).bind(tx.fixed).bind(self.prefix);
        let row = answer(query.fetch_optional(&mut *tx.conn)).await?;
        let found = |row: &PgRow| {
            let hash: [u8; 32] = column::<&[u8]>(row, "hash")?
                .try_into()
                .map_err(|_| Fault::Corrupt("column hash: not 32 bytes".to_owned()))?;
            Ok(FoundKey { key: key(row)?, hash, now: Timestamp(time(row, "now")?) })
        };
        row.as_ref().map(found).transpose()
    }
}

/// All keys, of one tenant or of all.
pub(super) struct List<'a> {
    pub(super) tenant: Option<&'a TenantId>,
}

#[async_trait]
impl Write for List<'_> {
    type Answer = Vec<Key>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<Key>, Fault> {
        let query = sqlx::query(include_str!("sql/list_keys.sql")).bind(self.tenant.map(TenantId::as_str));
        answer(query.fetch_all(&mut *tx.conn)).await?.iter().map(key).collect()
    }
}

/// Revokes a key.
pub(super) struct Revoke<'a> {
    pub(super) id: &'a KeyId,
}

#[async_trait]
impl Write for Revoke<'_> {
    type Answer = Option<Key>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<Key>, Fault> {
        let query = sqlx::query(include_str!("sql/revoke_key.sql")).bind(tx.fixed).bind(self.id.0);
        answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(key).transpose()
    }
}

/// Whether there is any.
pub(super) struct HasAny;

#[async_trait]
impl Write for HasAny {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query("SELECT EXISTS (SELECT FROM keys) AS has_keys");
        column(&answer(query.fetch_one(&mut *tx.conn)).await?, "has_keys")
    }
}

fn key(row: &PgRow) -> Result<Key, Fault> {
    let moment = |name| Ok::<_, Fault>(column::<Option<OffsetDateTime>>(row, name)?.map(|at| Timestamp(millis_of(at))));
    let scopes: Vec<String> = column(row, "scopes")?;
    let scope = |word: &String| word.parse::<Scope>().map_err(|err| Fault::Corrupt(format!("column scopes: {err}")));
    Ok(Key {
        id: KeyId(column::<Uuid>(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        name: unescaped(column(row, "name")?),
        prefix: column(row, "prefix")?,
        scopes: scopes.iter().map(scope).collect::<Result<_, _>>()?,
        created_at: Timestamp(time(row, "created_at")?),
        expires_at: moment("expires_at")?,
        revoked_at: moment("revoked_at")?,
    })
}
