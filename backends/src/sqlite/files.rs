//! Files.

use async_trait::async_trait;
use contract::{
    FileDeletion, FileFilter, FileId, IdempotencyKey, KeyReused, Made, NewFile, StoredFile, TenantId, Timestamp,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteExecutor, SqlitePool};
use uuid::Uuid;

use super::fault::Fault;
use super::row::{column, word};
use super::writer::{Tx, Write};
use super::{KEY_LIFE_MS, millis};

/// What an idempotency key made before, if it was used; an error if that was with another body.
pub(super) async fn made_before(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    key: Option<&IdempotencyKey>,
) -> Result<Result<Option<Uuid>, KeyReused>, Fault> {
    let Some(key) = key else { return Ok(Ok(None)) };
    let row = sqlx::query(include_str!("sql/find_key.sql"))
        .bind(tenant.as_str())
        .bind(&key.key)
        .bind(tx.now - KEY_LIFE_MS)
        .fetch_optional(&mut *tx.conn)
        .await?;
    let Some(row) = row else { return Ok(Ok(None)) };
    let is_same = column::<Vec<u8>>(&row, "body_hash")? == key.body_hash;
    Ok(if is_same { Ok(Some(column(&row, "job")?)) } else { Err(KeyReused) })
}

/// What a key made.
pub(super) async fn find_made(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    key: &IdempotencyKey,
) -> Result<Result<Option<Uuid>, KeyReused>, Fault> {
    made_before(&mut Tx { conn: &mut *pool.acquire().await?, now }, tenant, Some(key)).await
}

/// Whether one of some keys was used with another body.
pub(super) async fn is_any_reused(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    keys: &[String],
    body_hash: &[u8; 32],
) -> Result<bool, Fault> {
    let mut conn = pool.acquire().await?;
    for key in keys {
        let key = IdempotencyKey { key: key.clone(), body_hash: *body_hash };
        if made_before(&mut Tx { conn: &mut conn, now }, tenant, Some(&key)).await?.is_err() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Keeps what an idempotency key made.
pub(super) async fn keep_made(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    key: Option<&IdempotencyKey>,
    made: Uuid,
) -> Result<(), Fault> {
    let Some(key) = key else { return Ok(()) };
    sqlx::query(include_str!("sql/keep_key.sql"))
        .bind(tenant.as_str())
        .bind(&key.key)
        .bind(key.body_hash.as_slice())
        .bind(made)
        .bind(tx.now)
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

/// Keeps a file.
pub(super) struct Add {
    pub(super) file: NewFile,
}

#[async_trait]
impl Write for Add {
    type Answer = Result<Made<StoredFile>, KeyReused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let NewFile { tenant, idempotency, .. } = &self.file;
        match made_before(tx, tenant, idempotency.as_ref()).await? {
            Err(reused) => return Ok(Err(reused)),
            Ok(Some(earlier)) => {
                let earlier = get(&mut *tx.conn, tx.now, tenant, &FileId(earlier)).await?;
                // Deleted since: the key made something, which is gone.
                return Ok(earlier.map(Made::Replayed).ok_or(KeyReused));
            }
            Ok(None) => {}
        }
        let file = insert(tx, &self.file).await?;
        keep_made(tx, tenant, idempotency.as_ref(), self.file.id.0).await?;
        Ok(Ok(Made::New(file)))
    }
}

/// Writes a file's row.
pub(super) async fn insert(tx: &mut Tx<'_>, file: &NewFile) -> Result<StoredFile, Fault> {
    let row = sqlx::query(include_str!("sql/add_file.sql"))
        .bind(file.id.0)
        .bind(file.tenant.as_str())
        .bind(&file.filename)
        .bind(file.purpose.as_str())
        .bind(i64::try_from(file.bytes).unwrap_or(i64::MAX))
        .bind(tx.now)
        .bind(file.expires_in.map(|span| tx.now.saturating_add(millis(span))))
        .fetch_one(&mut *tx.conn)
        .await?;
    read(&row, tx.now)
}

/// One file.
pub(super) async fn get(
    executor: impl SqliteExecutor<'_>,
    now: i64,
    tenant: &TenantId,
    id: &FileId,
) -> Result<Option<StoredFile>, Fault> {
    let query = sqlx::query(include_str!("sql/get_file.sql")).bind(id.0).bind(tenant.as_str());
    query.fetch_optional(executor).await?.map(|row| read(&row, now)).transpose()
}

/// A page of files.
pub(super) async fn list(
    pool: &SqlitePool,
    now: i64,
    tenant: &TenantId,
    filter: &FileFilter,
) -> Result<(Vec<StoredFile>, bool), Fault> {
    let limit = filter.limit.max(1) as usize;
    let sql = match filter.ascending {
        true => include_str!("sql/list_files_ascending.sql"),
        false => include_str!("sql/list_files.sql"),
    };
    let rows = sqlx::query(sql)
        .bind(tenant.as_str())
        .bind(filter.purpose.map(contract::Purpose::as_str))
        .bind(filter.after.map(|id| id.0))
        // One more than asked for tells whether there is more.
        .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1))
        .fetch_all(pool)
        .await?;
    let files = rows.iter().take(limit).map(|row| read(row, now)).collect::<Result<_, _>>()?;
    Ok((files, rows.len() > limit))
}

/// Files that have expired.
pub(super) async fn expired(pool: &SqlitePool, now: i64, limit: u32) -> Result<Vec<FileId>, Fault> {
    let query = sqlx::query(include_str!("sql/expired_files.sql")).bind(now).bind(i64::from(limit));
    query.fetch_all(pool).await?.iter().map(|row| Ok(FileId(column(row, "id")?))).collect()
}

/// Forgets a file.
pub(super) struct Delete {
    pub(super) tenant: TenantId,
    pub(super) id: FileId,
}

#[async_trait]
impl Write for Delete {
    type Answer = FileDeletion;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<FileDeletion, Fault> {
        let query = sqlx::query(include_str!("sql/delete_file.sql")).bind(self.id.0).bind(self.tenant.as_str());
        if query.execute(&mut *tx.conn).await?.rows_affected() == 1 {
            return Ok(FileDeletion::Deleted);
        }
        let is_there = get(&mut *tx.conn, tx.now, &self.tenant, &self.id).await?.is_some();
        Ok(if is_there { FileDeletion::InUse } else { FileDeletion::NotFound })
    }
}

/// Their bytes are gone.
pub(super) struct Emptied {
    pub(super) ids: Vec<FileId>,
}

#[async_trait]
impl Write for Emptied {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        for id in &self.ids {
            let query = sqlx::query("UPDATE files SET emptied_at = ?2 WHERE id = ?1 AND emptied_at IS NULL");
            query.bind(id.0).bind(tx.now).execute(&mut *tx.conn).await?;
        }
        Ok(())
    }
}

fn read(row: &SqliteRow, now: i64) -> Result<StoredFile, Fault> {
    Ok(StoredFile {
        id: FileId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        filename: column(row, "filename")?,
        purpose: word(row, "purpose")?,
        bytes: column::<i64>(row, "bytes")?.unsigned_abs(),
        created_at: Timestamp(column(row, "created_at")?),
        expires_at: column::<Option<i64>>(row, "expires_at")?.map(Timestamp),
        now: Timestamp(now),
    })
}
