//! SQLite under test: a file in a temporary folder and a clock that the test moves.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use backends::{SqliteOptions, SqliteStore};
use contract::{AdminStore, JobId, JobStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Row, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::help::StoreUnderTest;

pub struct Sqlite {
    pub store: Arc<SqliteStore>,
    clock: Arc<AtomicI64>,
    inspect: Mutex<SqliteConnection>,
    folder: TempDir,
}

impl Sqlite {
    pub async fn fresh() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicI64::new(1_764_439_454_000));
        let store = Arc::new(open(folder.path().join("jobs.db"), clock.clone(), None).await);
        let inspect = Mutex::new(connect(folder.path().join("jobs.db")).await);
        Self { store, clock, inspect, folder }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("jobs.db")
    }

    /// Runs a statement beside the store's back.
    pub async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(&mut *self.inspect.lock().await).await.unwrap();
    }

    /// Opens it anew with a limit to the size of the file.
    pub async fn reopen_with(&mut self, max_bytes: Option<u64>) {
        self.store = Arc::new(open(self.path(), self.clock.clone(), max_bytes).await);
    }
}

async fn connect(path: PathBuf) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_secs(5)).connect().await.unwrap()
}

async fn open(path: PathBuf, clock: Arc<AtomicI64>, max_bytes: Option<u64>) -> SqliteStore {
    let options =
        SqliteOptions { clock: Arc::new(move || clock.load(Ordering::SeqCst)), max_bytes, ..SqliteOptions::new(path) };
    SqliteStore::open_with(options).await.unwrap()
}

#[async_trait]
impl StoreUnderTest for Sqlite {
    fn store(&self) -> Arc<dyn JobStore> {
        self.store.clone()
    }

    fn admin(&self) -> Arc<dyn AdminStore> {
        self.store.clone()
    }

    async fn advance(&self, by: Duration) {
        self.clock.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    async fn reopen(&mut self) {
        self.reopen_with(None).await;
    }

    async fn counters(&self) -> BTreeMap<String, i64> {
        let rows = sqlx::query("SELECT name, value FROM counters WHERE value <> 0");
        let rows = rows.fetch_all(&mut *self.inspect.lock().await).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn events(&self, job: JobId) -> Vec<(String, String, u32)> {
        let sql = "SELECT kind, state, attempt FROM events WHERE job = ? ORDER BY seq";
        let rows = sqlx::query(sql).bind(job.0).fetch_all(&mut *self.inspect.lock().await).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    async fn dump(&self) -> String {
        let mut conn = self.inspect.lock().await;
        let columns = "SELECT tables.name, group_concat('quote(\"' || columns.name || '\")', '||') \
                       FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns \
                       WHERE tables.type = 'table' GROUP BY tables.name";
        let mut dump = String::new();
        for table in sqlx::query(columns).fetch_all(&mut *conn).await.unwrap() {
            let (name, columns): (String, String) = (table.get(0), table.get(1));
            let rows = sqlx::query(AssertSqlSafe(format!("SELECT {columns} FROM \"{name}\"")));
            for row in rows.fetch_all(&mut *conn).await.unwrap() {
                dump.push_str(row.get(0));
            }
        }
        dump
    }

    async fn damage(&self, sqlite: &'static str, _postgres: &'static str) {
        self.execute(sqlite).await;
    }
}
