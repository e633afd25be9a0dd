//! Files.

use async_trait::async_trait;
use contract::{
    FileDeletion, FileFilter, FileId, IdempotencyKey, KeyReused, Made, NewFile, StoredFile, TenantId, Timestamp,
};
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::row::{column, escaped, millis_of, time, unescaped, word};
use super::{KEY_LIFE_MS, millis};

/// What an idempotency key made before, if it was used; an error if that was with another body.
pub(super) async fn made_before(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    key: Option<&IdempotencyKey>,
) -> Result<Result<Option<Uuid>, KeyReused>, Fault> {
    let Some(key) = key else { return Ok(Ok(None)) };
    let query = sqlx::query(include_str!("sql/find_made.sql"))
        .bind(tx.fixed)
        .bind(tenant.as_str())
        .bind(escaped(&key.key))
        .bind(KEY_LIFE_MS);
    let Some(row) = answer(query.fetch_optional(&mut *tx.conn)).await? else { return Ok(Ok(None)) };
    let is_same = column::<&[u8]>(&row, "body_hash")? == key.body_hash;
    Ok(if is_same { Ok(Some(column(&row, "job")?)) } else { Err(KeyReused) })
}

/// What a key made.
pub(super) struct MadeBefore<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) key: &'a IdempotencyKey,
}

#[async_trait]
impl Write for MadeBefore<'_> {
    type Answer = Result<Option<Uuid>, KeyReused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        made_before(tx, self.tenant, Some(self.key)).await
    }
}

/// Whether one of some keys was used with another body.
pub(super) struct AnyReused<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) keys: &'a [String],
    pub(super) body_hash: &'a [u8; 32],
}

#[async_trait]
impl Write for AnyReused<'_> {
    type Answer = bool;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<bool, Fault> {
        let query = sqlx::query(include_str!("sql/any_reused.sql"))
            .bind(tx.fixed)
            .bind(self.tenant.as_str())
            .bind(self.keys.iter().map(|key| escaped(key)).collect::<Vec<_>>())
            .bind(KEY_LIFE_MS)
            .bind(self.body_hash.as_slice());
        column(&answer(query.fetch_one(&mut *tx.conn)).await?, "is_reused")
    }
}

/// Keeps what an idempotency key made.
pub(super) async fn keep_made(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    key: Option<&IdempotencyKey>,
    made: Uuid,
) -> Result<(), Fault> {
    let Some(key) = key else { return Ok(()) };
    let query = sqlx::query(include_str!("sql/keep_keys.sql"))
        .bind(tx.fixed)
        .bind(vec![tenant.as_str()])
        .bind(vec![escaped(&key.key)])
        .bind(vec![key.body_hash.as_slice()])
        .bind(vec![made])
        .bind(KEY_LIFE_MS);
    let kept = answer(query.execute(&mut *tx.conn)).await?.rows_affected();
    if kept == 1 { Ok(()) } else { Err(Fault::Overtaken) }
}

/// Keeps a file.
pub(super) struct Add<'a> {
    pub(super) file: &'a NewFile,
}

#[async_trait]
impl Write for Add<'_> {
    type Answer = Result<Made<StoredFile>, KeyReused>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let NewFile { tenant, idempotency, .. } = self.file;
        match made_before(tx, tenant, idempotency.as_ref()).await? {
            Err(reused) => return Ok(Err(reused)),
            Ok(Some(earlier)) => {
                let earlier = get(tx, tenant, &FileId(earlier)).await?;
                // Deleted since: the key made something, which is gone.
                return Ok(earlier.map(Made::Replayed).ok_or(KeyReused));
            }
            Ok(None) => {}
        }
        let file = insert(tx, self.file).await?;
        keep_made(tx, tenant, idempotency.as_ref(), self.file.id.0).await?;
        Ok(Ok(Made::New(file)))
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        !matches!(answer, Ok(Made::New(_)))
    }
}

/// Writes a file's row.
pub(super) async fn insert(tx: &mut Tx<'_>, file: &NewFile) -> Result<StoredFile, Fault> {
    let query = sqlx::query(include_str!("sql/add_file.sql"))
        .bind(tx.fixed)
        .bind(file.id.0)
        .bind(file.tenant.as_str())
        .bind(escaped(&file.filename))
        .bind(file.purpose.as_str())
        .bind(i64::try_from(file.bytes).unwrap_or(i64::MAX))
        .bind(file.expires_in.map(millis));
    read(&answer(query.fetch_one(&mut *tx.conn)).await?)
}

async fn get(tx: &mut Tx<'_>, tenant: &TenantId, id: &FileId) -> Result<Option<StoredFile>, Fault> {
    let query = sqlx::query(include_str!("sql/get_file.sql")).bind(tx.fixed).bind(id.0).bind(tenant.as_str());
    answer(query.fetch_optional(&mut *tx.conn)).await?.as_ref().map(read).transpose()
}

/// One file.
pub(super) struct Get<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a FileId,
}

#[async_trait]
impl Write for Get<'_> {
    type Answer = Option<StoredFile>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Option<StoredFile>, Fault> {
        get(tx, self.tenant, self.id).await
    }
}

/// A page of files.
pub(super) struct List<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) filter: &'a FileFilter,
}

#[async_trait]
impl Write for List<'_> {
    type Answer = (Vec<StoredFile>, bool);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let limit = self.filter.limit.max(1) as usize;
        let sql = match self.filter.ascending {
            true => include_str!("sql/list_files_ascending.sql"),
            false => include_str!("sql/list_files.sql"),
        };
        let query = sqlx::query(sql)
            .bind(tx.fixed)
            .bind(self.tenant.as_str())
            .bind(self.filter.purpose.map(contract::Purpose::as_str))
            .bind(self.filter.after.map(|id| id.0))
            // One more than asked for tells whether there is more.
            .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        let files = rows.iter().take(limit).map(read).collect::<Result<_, _>>()?;
        Ok((files, rows.len() > limit))
    }
}

/// Forgets a file.
pub(super) struct Delete<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) id: &'a FileId,
}

#[async_trait]
impl Write for Delete<'_> {
    type Answer = FileDeletion;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<FileDeletion, Fault> {
        // Whoever makes a schedule of it meanwhile has it locked: the next statement sees that schedule.
        let lock = sqlx::query("SELECT FROM files WHERE id = $1 AND tenant = $2 FOR UPDATE");
        answer(lock.bind(self.id.0).bind(self.tenant.as_str()).execute(&mut *tx.conn)).await?;
        let query = sqlx::query(include_str!("sql/delete_file.sql")).bind(self.id.0).bind(self.tenant.as_str());
        if answer(query.execute(&mut *tx.conn)).await?.rows_affected() == 1 {
            return Ok(FileDeletion::Deleted);
        }
        let is_there = get(tx, self.tenant, self.id).await?.is_some();
        Ok(if is_there { FileDeletion::InUse } else { FileDeletion::NotFound })
    }
}

/// Files that have expired.
pub(super) struct Expired {
    pub(super) limit: u32,
}

#[async_trait]
impl Write for Expired {
    type Answer = Vec<FileId>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Vec<FileId>, Fault> {
        let query = sqlx::query(include_str!("sql/expired_files.sql")).bind(tx.fixed).bind(i64::from(self.limit));
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok(FileId(column(row, "id")?))).collect()
    }
}

/// Their bytes are gone.
pub(super) struct Emptied<'a> {
    pub(super) ids: &'a [FileId],
}

#[async_trait]
impl Write for Emptied<'_> {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let mut ids: Vec<Uuid> = self.ids.iter().map(|id| id.0).collect();
        ids.sort_unstable();
        let query = sqlx::query(include_str!("sql/files_emptied.sql")).bind(tx.fixed).bind(ids);
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}

fn read(row: &PgRow) -> Result<StoredFile, Fault> {
    let expires_at: Option<OffsetDateTime> = column(row, "expires_at")?;
    Ok(StoredFile {
        id: FileId(column(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        filename: unescaped(column(row, "filename")?),
        purpose: word(row, "purpose")?,
        bytes: column::<i64>(row, "bytes")?.unsigned_abs(),
        created_at: Timestamp(time(row, "created_at")?),
        expires_at: expires_at.map(|at| Timestamp(millis_of(at))),
        now: Timestamp(time(row, "now")?),
    })
}
