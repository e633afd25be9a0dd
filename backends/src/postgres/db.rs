//! Sessions with the server: every wait has a limit, a session that went wrong is closed and never used again, and a
//! transaction that another one was in the way of is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use contract::StoreError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Row};
use time::OffsetDateTime;

use super::PostgresClock;
use super::fault::Fault;
use super::row::at;

/// Longest wait for a session.
const ACQUIRE: Duration = Duration::from_secs(2);
/// Longest that the server works on one statement, and longest that it lets a transaction idle, whose locks others
/// wait for.
const STATEMENT_MS: &str = "10000";
/// Longest wait for the answer to one statement: a little more, so that the server's own limit is met first.
const ANSWER: Duration = Duration::from_secs(12);
/// A session that idled for longer is asked whether it lives before it is used.
const IDLE: Duration = Duration::from_secs(1);
/// How often a transaction is tried that others were in the way of.
const TRIES: u32 = 4;

/// Settings of every session, for whoever explains a statement as the store runs it. Plans are made once, from no statistics, and must be right for an empty table as well as
/// for millions of rows: by index, in nested loops, which also follow the order of their input when they lock rows.
pub const SESSION_SETTINGS: [(&str, &str); 8] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    ("statement_timeout", STATEMENT_MS),
    ("idle_in_transaction_session_timeout", STATEMENT_MS),
];

/// How sessions are opened.
pub(super) fn session_options(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(sqlx::Error::Configuration("the scheme is not postgres:".into()));
    }
    let options: PgConnectOptions = url.parse()?;
    Ok(options.application_name("penstock").options(SESSION_SETTINGS).disable_statement_logging())
}

/// Bytes that the server at this URL has written to its log since it was made, for benchmarks.
///
/// # Errors
/// The server's, or the URL's.
pub async fn log_bytes(url: &str) -> Result<u64, sqlx::Error> {
    let mut conn = session_options(url)?.connect().await?;
    let row = sqlx::query("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS bytes")
        .fetch_one(&mut conn)
        .await?;
    Ok(row.try_get::<i64, _>("bytes")?.unsigned_abs())
}

/// The server, and the clock.
#[derive(Clone)]
pub(super) struct Db {
    pool: PgPool,
    clock: PostgresClock,
}

/// One operation: some statements that succeed or fail together. It may be applied more than once, each time after
/// what it did before was rolled back.
#[async_trait]
pub(super) trait Write: Send + Sync {
    /// What it finds out.
    type Answer: Send;

    /// Does it, within the transaction.
    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault>;

    /// Whether the answer says that nothing was written: then there is nothing to make durable.
    fn wrote_nothing(_answer: &Self::Answer) -> bool {
        false
    }
}

/// An open transaction.
pub(super) struct Tx<'c> {
    /// Where its statements run.
    pub(super) conn: &'c mut PgConnection,
    /// The test's clock, if one holds it: the first parameter of every statement that needs the time.
    pub(super) fixed: Option<OffsetDateTime>,
    /// How often it was tried before.
    pub(super) tries: u32,
}

/// A session that is closed when it is dropped, unless it was given back: what was under way in it ends with it.
struct Session(Option<PoolConnection<Postgres>>);

impl Session {
    fn conn(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("a session that was given back is not used")
    }

    /// Nothing is under way in it.
    fn give_back(mut self) {
        self.0 = None;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            drop(conn.detach());
        }
    }
}

impl Db {
    pub(super) fn new(options: PgConnectOptions, max_connections: u32, clock: PostgresClock) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(ACQUIRE)
            .test_before_acquire(false)
            .before_acquire(|conn, about| {
                Box::pin(async move {
                    if about.idle_for < IDLE {
                        return Ok(true);
                    }
                    Ok(tokio::time::timeout(IDLE, conn.ping()).await.is_ok_and(|alive| alive.is_ok()))
                })
            })
            .connect_lazy_with(options);
        Self { pool, clock }
    }

    /// The test's clock, if one holds it.
    pub(super) fn fixed(&self) -> Option<OffsetDateTime> {
        match &self.clock {
            PostgresClock::Database => None,
            PostgresClock::Given(clock) => Some(at(clock())),
        }
    }

    /// Closes all sessions.
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    /// Does an operation in a transaction and makes it durable.
    pub(super) async fn transact<W: Write>(&self, write: &W) -> Result<W::Answer, StoreError> {
        let mut tries = 0;
        loop {
            match self.try_transact(write, tries).await {
                Err(Ended::RolledBack(fault)) if (fault.is_conflict() || fault.is_duplicate()) && tries + 1 < TRIES => {
                    tries += 1;
                    tokio::time::sleep(jitter(tries)).await;
                }
                Err(Ended::RolledBack(fault)) => return Err(fault.nothing_written()),
                Err(Ended::Committing(fault)) => return Err(fault.of_commit()),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    async fn try_transact<W: Write>(&self, write: &W, tries: u32) -> Result<W::Answer, Ended> {
        let mut session = self.begin().await.map_err(Ended::RolledBack)?;
        let mut tx = Tx { conn: session.conn(), fixed: self.fixed(), tries };
        match write.apply(&mut tx).await {
            Ok(answer) if W::wrote_nothing(&answer) => {
                roll_back(session).await;
                Ok(answer)
            }
            Ok(answer) => {
                run(session.conn(), "COMMIT").await.map_err(Ended::Committing)?;
                session.give_back();
                Ok(answer)
            }
            Err(fault) => {
                if !fault.is_of_connection() {
                    roll_back(session).await;
                }
                Err(Ended::RolledBack(fault))
            }
        }
    }

    /// Does an operation of one statement, which commits by itself.
    pub(super) async fn once<W: Write>(&self, write: &W) -> Result<W::Answer, StoreError> {
        let mut tries = 0;
        loop {
            let mut session = self.session().await.map_err(Fault::nothing_written)?;
            let mut tx = Tx { conn: session.conn(), fixed: self.fixed(), tries };
            match write.apply(&mut tx).await {
                Ok(answer) => {
                    session.give_back();
                    return Ok(answer);
                }
                Err(fault) if fault.is_of_connection() => return Err(fault.of_commit()),
                Err(fault) => {
                    session.give_back();
                    if !fault.is_conflict() || tries + 1 >= TRIES {
                        return Err(fault.nothing_written());
                    }
                    tries += 1;
                    tokio::time::sleep(jitter(tries)).await;
                }
            }
        }
    }

    /// Reads; once more on a new session if the first was cut.
    pub(super) async fn read<W: Write>(&self, read: &W) -> Result<W::Answer, StoreError> {
        let mut tries = 0;
        loop {
            let mut session = self.session().await.map_err(Fault::nothing_written)?;
            let mut tx = Tx { conn: session.conn(), fixed: self.fixed(), tries };
            match read.apply(&mut tx).await {
                Ok(answer) => {
                    session.give_back();
                    return Ok(answer);
                }
                Err(fault) => {
                    let cut = fault.is_of_connection();
                    if !cut {
                        session.give_back();
                    }
                    if !cut || matches!(fault, Fault::Silent(_)) || tries > 0 {
                        return Err(fault.nothing_written());
                    }
                    tries += 1;
                }
            }
        }
    }

    async fn session(&self) -> Result<Session, Fault> {
        Ok(Session(Some(self.pool.acquire().await?)))
    }

    /// A session with an open transaction. Sessions that a restart of the server left dead are passed over.
    async fn begin(&self) -> Result<Session, Fault> {
        let since = Instant::now();
        loop {
            let mut session = self.session().await?;
            match run(session.conn(), "BEGIN").await {
                Ok(()) => return Ok(session),
                Err(fault) if fault.is_of_connection() && since.elapsed() < ACQUIRE => {}
                Err(fault) => return Err(fault),
            }
        }
    }
}

/// How far a transaction came that failed.
enum Ended {
    RolledBack(Fault),
    Committing(Fault),
}

/// Waits for one answer of the server, up to the limit.
pub(super) async fn answer<T>(query: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER, query).await {
        Ok(result) => result.map_err(Fault::from),
        Err(_) => Err(Fault::Silent(ANSWER)),
    }
}

async fn run(conn: &mut PgConnection, sql: &'static str) -> Result<(), Fault> {
    answer(sqlx::raw_sql(sql).execute(conn)).await.map(|_| ())
}

async fn roll_back(mut session: Session) {
    // A session that cannot roll back is closed, which does the same.
    if run(session.conn(), "ROLLBACK").await.is_ok() {
        session.give_back();
    }
}

/// Up to 20 ms, then 40 ms and so on.
fn jitter(tries: u32) -> Duration {
    let bound = 20_000_u64 << tries.saturating_sub(1).min(6);
    Duration::from_micros(RandomState::new().hash_one(tries) % bound)
}
