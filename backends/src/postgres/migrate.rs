//! The tables: making them, and seeing that they are there.

use std::collections::BTreeSet;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{ConnectOptions, PgConnection, Row as _};

use super::db::session_options;
use super::{CONNECT, PostgresOpenError};

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/postgres");

/// The tables could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum PostgresMigrateError {
    /// The database cannot be reached.
    #[error(transparent)]
    Open(#[from] PostgresOpenError),
    /// A migration failed, or a newer build wrote the tables.
    #[error("the tables of the job database cannot be brought up to date")]
    Migrate(#[source] MigrateError),
}

/// Brings the tables in the database of this URL up to date and says which versions were applied, none if all were
/// there. Of two that run at once, one does it and the other waits for it.
///
/// # Errors
/// [`PostgresMigrateError`]; a migration that failed has left nothing.
pub async fn migrate(url: &str) -> Result<Vec<i64>, PostgresMigrateError> {
    let options = session_options(url).map_err(PostgresOpenError::Url)?;
    // A migration may take longer than a statement of the store may.
    let options = options.options([("statement_timeout", "0"), ("idle_in_transaction_session_timeout", "0")]);
    let mut conn = tokio::time::timeout(CONNECT, options.connect())
        .await
        .map_err(|_| PostgresOpenError::Slow)?
        .map_err(PostgresOpenError::Connect)?;
    let before = applied(&mut conn).await.map_err(PostgresOpenError::Connect)?;
    MIGRATIONS.run_direct(None, &mut conn, false).await.map_err(PostgresMigrateError::Migrate)?;
    let after = applied(&mut conn).await.map_err(PostgresOpenError::Connect)?;
    Ok(after.difference(&before).copied().collect())
}

/// Versions that were applied.
async fn applied(conn: &mut PgConnection) -> Result<BTreeSet<i64>, sqlx::Error> {
    let table: Option<String> =
        sqlx::query("SELECT to_regclass('_sqlx_migrations')::text AS name").fetch_one(&mut *conn).await?.try_get(0)?;
    if table.is_none() {
        return Ok(BTreeSet::new());
    }
    let rows = sqlx::query("SELECT version FROM _sqlx_migrations WHERE success").fetch_all(&mut *conn).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Sees that the tables are those of this build.
pub(super) async fn check(conn: &mut PgConnection) -> Result<(), PostgresOpenError> {
    let applied = applied(conn).await.map_err(PostgresOpenError::Connect)?;
    let known: BTreeSet<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    if !known.is_subset(&applied) {
        return Err(PostgresOpenError::NotMigrated { missing: known.difference(&applied).count() });
    }
    match applied.difference(&known).next() {
        Some(version) => Err(PostgresOpenError::Newer { version: *version }),
        None => Ok(()),
    }
}
