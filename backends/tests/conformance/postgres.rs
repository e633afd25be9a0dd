//! Postgres under test: a database of its own for each case, made from a template that was migrated once, and a clock
//! that the test moves.

mod faults;
mod plans;
mod stress;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use backends::postgres::{PostgresClock, PostgresOptions, PostgresStore, migrate};
use contract::{AdminStore, JobId, JobStore};
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::help::StoreUnderTest;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations/postgres");

/// A database that lives as long as this value.
pub struct Database {
    pub url: String,
    name: String,
}

pub struct Postgres {
    pub store: Arc<PostgresStore>,
    pub database: Database,
    clock: Arc<AtomicI64>,
    inspect: Mutex<PgConnection>,
}

/// The server that the suite may use; its role may create databases.
fn server() -> String {
    std::env::var("PENSTOCK_TEST_STORE").expect(
        "PENSTOCK_TEST_STORE is not set: run tests/run, or deploy/services up and eval \"$(deploy/services env)\"",
    )
}

/// The same server with another database.
fn url_of(database: &str) -> String {
    let server = server();
    let (base, _) = server.rsplit_once('/').expect("PENSTOCK_TEST_STORE ends in /DATABASE");
    format!("{base}/{database}")
}

pub async fn connect(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().unwrap();
    options.connect().await.unwrap()
}

async fn execute(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The name of the migrated template, made by whoever comes first, in this process or another.
async fn template(admin: &mut PgConnection) -> String {
    let sum = MIGRATIONS
        .iter()
        .flat_map(|migration| migration.checksum.iter())
        .fold(0_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let name = format!("penstock_template_{sum:016x}");
    execute(admin, "SELECT pg_advisory_lock(7205)".into()).await;
    let databases: Vec<String> =
        sqlx::query_scalar("SELECT datname::text FROM pg_database WHERE datname LIKE 'penstock_case_%'")
            .fetch_all(&mut *admin)
            .await
            .unwrap();
    for old in databases {
        // Left by a run that was killed.
        let made: u64 = old.split('_').nth(2).and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
        if made + 3_600 < unix_seconds() {
            execute(admin, format!("DROP DATABASE IF EXISTS {old} WITH (FORCE)")).await;
        }
    }
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut *admin)
        .await
        .unwrap();
    if !exists {
        let new = format!("penstock_case_{}_{}", unix_seconds(), Uuid::now_v7().simple());
        execute(admin, format!("CREATE DATABASE {new}")).await;
        assert!(!migrate(&url_of(&new)).await.unwrap().is_empty());
        // Complete before it has its name.
        execute(admin, format!("ALTER DATABASE {new} RENAME TO {name}")).await;
    }
    execute(admin, "SELECT pg_advisory_unlock(7205)".into()).await;
    name
}

impl Database {
    /// One with the tables of this build.
    pub async fn fresh() -> Self {
        let mut admin = connect(&server()).await;
        let template = template(&mut admin).await;
        Self::make(&mut admin, &format!("TEMPLATE {template}")).await
    }

    /// One without tables.
    pub async fn empty() -> Self {
        Self::make(&mut connect(&server()).await, "").await
    }

    async fn make(admin: &mut PgConnection, options: &str) -> Self {
        let name = format!("penstock_case_{}_{}", unix_seconds(), Uuid::now_v7().simple());
        execute(admin, format!("CREATE DATABASE {name} {options}")).await;
        Self { url: url_of(&name), name }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Also after a panic, and outside the test's runtime.
        let drop_it = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { execute(&mut connect(&server()).await, drop_it).await });
        });
        let _ = dropping.join();
    }
}

impl Postgres {
    pub async fn fresh() -> Self {
        let database = Database::fresh().await;
        let clock = Arc::new(AtomicI64::new(1_764_439_454_000));
        let store = Arc::new(open(&database.url, clock.clone()).await);
        let inspect = Mutex::new(connect(&database.url).await);
        Self { store, database, clock, inspect }
    }

    /// Another process's store on the same database and clock.
    pub async fn another(&self) -> Arc<PostgresStore> {
        Arc::new(open(&self.database.url, self.clock.clone()).await)
    }

    /// Runs a statement beside the store's back.
    pub async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut *self.inspect.lock().await).await.unwrap();
    }
}

async fn open(url: &str, clock: Arc<AtomicI64>) -> PostgresStore {
    let clock = PostgresClock::Given(Arc::new(move || clock.load(Ordering::SeqCst)));
    PostgresStore::connect_with(PostgresOptions { clock, ..PostgresOptions::new(url) }).await.unwrap()
}

#[async_trait]
impl StoreUnderTest for Postgres {
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
        self.store = self.another().await;
    }

    async fn counters(&self) -> BTreeMap<String, i64> {
        let rows = sqlx::query("SELECT name, value FROM counters WHERE value <> 0");
        let rows = rows.fetch_all(&mut *self.inspect.lock().await).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn events(&self, job: JobId) -> Vec<(String, String, u32)> {
        let sql = "SELECT kind, state, attempt FROM events WHERE job = $1 ORDER BY seq";
        let rows = sqlx::query(sql).bind(job.0).fetch_all(&mut *self.inspect.lock().await).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), u32::try_from(row.get::<i32, _>(2)).unwrap())).collect()
    }

    async fn dump(&self) -> String {
        let mut conn = self.inspect.lock().await;
        let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
        let mut dump = String::new();
        for table in sqlx::query(tables).fetch_all(&mut *conn).await.unwrap() {
            let name: String = table.get(0);
            let rows = sqlx::query(AssertSqlSafe(format!("SELECT row::text FROM \"{name}\" AS row")));
            for row in rows.fetch_all(&mut *conn).await.unwrap() {
                dump.push_str(row.get(0));
            }
        }
        dump
    }

    async fn damage(&self, _sqlite: &'static str, postgres: &'static str) {
        self.execute(postgres).await;
    }
}
