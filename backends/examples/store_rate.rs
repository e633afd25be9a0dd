//! How many jobs a second a store takes: `cargo run --release -p backends --example store_rate [FOLDER | URL]`. SQLite in
//! FOLDER (default: the temporary folder), or the Postgres database of URL, which should be one of its own: it is
//! migrated, and the jobs stay in it. The figures depend on the disk, since every answer waits for its sync.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::SqliteStore;
use backends::postgres::{PostgresStore, migrate};
use contract::{
    Class, Fingerprint, Input, JobId, JobStore, Lease, Message, NewJob, Outcome, QueueId, RecordLocation, Request,
    Role, Sampling, TenantId, Usage, Wake, WorkerId,
};
use futures::future::try_join_all;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};

const TTL: Duration = Duration::from_secs(3_600);

fn job() -> NewJob {
    NewJob {
        id: JobId::new(),
        tenant: TenantId::local(),
        release: Fingerprint("ab".repeat(32)),
        route: "small".into(),
        class: Class::Standard,
        bound: u64::MAX,
        tenant_bound: None,
        delay: Duration::ZERO,
        deadline_in: TTL,
        seed: 1,
        request: Request {
            model: "small".into(),
            input: Input::Chat(vec![Message::of(Role::User, "word ".repeat(100))]),
            sampling: Sampling::default(),
            max_tokens: Some(64),
            min_tokens: 0,
            ignore_eos: false,
            stop: vec![],
            include_stop: false,
            stop_token_ids: vec![],
            logprobs: None,
            constraint: None,
            tools: None,
        },
        metadata: BTreeMap::new(),
        batch_line: None,
        custom_id: None,
        webhook: None,
        sequence_key: None,
        on_failure: contract::OnFailure::Skip,
        traceparent: None,
        idempotency: None,
        published_by_caller: false,
        trajectory: contract::TrajectoryMode::Full,
        keep: None,
    }
}

/// Runs `calls` of `one`, shared by some callers at a time; prints calls a second.
async fn rate<F: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static>(
    name: &str,
    callers: usize,
    calls: usize,
    one: impl Fn() -> F + Send + Sync + Clone + 'static,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let began = Instant::now();
    let tasks = (0..callers).map(|_| {
        let one = one.clone();
        tokio::spawn(async move {
            for _ in 0..calls / callers {
                one().await?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        })
    });
    for result in try_join_all(tasks).await? {
        result?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{name}, {callers} callers: {:.0}/s, {:.2} ms each",
        calls as f64 / seconds,
        seconds * 1e3 * callers as f64 / calls as f64
    );
    Ok(())
}

fn outcome() -> Outcome {
    let record = RecordLocation::Inline(vec![7; 2_000]);
    Outcome::Succeeded { record, usage: Usage::default(), first_token_ms: None }
}

/// One job from its acceptance to its result, as a caller that waits for it sees it.
async fn live(store: &dyn JobStore, worker: &WorkerId) -> Result<(), Box<dyn Error + Send + Sync>> {
    let accepted = store.accept(&[job()]).await?.remove(0)?;
    let wake = Wake { job: accepted.job, attempt: 0 };
    let leased = store.lease(&[wake], worker, TTL).await?.remove(0).ok_or("a new job was not leasable")?;
    store.finish(&[(leased.lease, outcome())]).await?.remove(0)?;
    Ok(())
}

/// Bytes of log that a Postgres server has written since it was made; nothing for SQLite.
async fn wal_bytes(conn: &mut Option<PgConnection>) -> Result<Option<i64>, sqlx::Error> {
    let Some(conn) = conn else { return Ok(None) };
    sqlx::query_scalar("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetch_one(conn).await.map(Some)
}

async fn measure(
    store: Arc<dyn JobStore>,
    inspect: &mut Option<PgConnection>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for callers in [1, 16, 64] {
        let store = store.clone();
        rate("accept", callers, 3_200, move || {
            let store = store.clone();
            async move {
                store.accept(&[job()]).await?.remove(0)?;
                Ok(())
            }
        })
        .await?;
    }
    for callers in [1, 16, 64, 128] {
        let (store, worker) = (store.clone(), WorkerId::unique());
        let before = wal_bytes(inspect).await?;
        let jobs = 50 * callers.max(32);
        rate("accept, lease, finish", callers, jobs, move || {
            let (store, worker) = (store.clone(), worker.clone());
            async move { live(&*store, &worker).await }
        })
        .await?;
        if let (Some(before), Some(after)) = (before, wal_bytes(inspect).await?) {
            println!("  {} bytes of log per job", (after - before) / i64::try_from(jobs)?);
        }
    }
    let began = Instant::now();
    for _ in 0..100 {
        let jobs: Vec<NewJob> = (0..100).map(|_| job()).collect();
        store.accept(&jobs).await?;
    }
    println!("accept in slices of 100: {:.0} jobs/s", 10_000.0 / began.elapsed().as_secs_f64());

    let queue = QueueId { release: job().release, class: Class::Standard };
    let began = Instant::now();
    let queued = store.queued(&queue).await?;
    println!("count of {queued} queued: {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
    for slice in [1_usize, 16, 64] {
        let worker = WorkerId::unique();
        let mut wakes: Vec<Wake> = Vec::new();
        let began = Instant::now();
        while wakes.len() < 3_200 {
            wakes.extend(store.due(&queue, 256).await?);
        }
        println!("due in slices of 256: {:.0} jobs/s", wakes.len() as f64 / began.elapsed().as_secs_f64());
        let began = Instant::now();
        let mut done = 0_usize;
        for wakes in wakes.chunks(slice) {
            let leased = store.lease(wakes, &worker, TTL).await?;
            let leases: Vec<Lease> = leased.into_iter().flatten().map(|leased| leased.lease).collect();
            let finished: Vec<(Lease, Outcome)> = leases.iter().map(|lease| (*lease, outcome())).collect();
            done += store.finish(&finished).await?.iter().filter(|answer| answer.is_ok()).count();
        }
        println!("lease + finish in slices of {slice}: {:.0} jobs/s", done as f64 / began.elapsed().as_secs_f64());
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    match std::env::args().nth(1) {
        Some(url) if url.starts_with("postgres") => {
            migrate(&url).await?;
            let mut inspect = Some(url.parse::<PgConnectOptions>()?.connect().await?);
            measure(Arc::new(PostgresStore::connect(&url).await?), &mut inspect).await
        }
        folder => {
            let parent = folder.map_or_else(std::env::temp_dir, Into::into);
            let folder = parent.join(format!("penstock-store-rate-{}", std::process::id()));
            std::fs::create_dir_all(&folder)?;
            let store = SqliteStore::open(folder.join("jobs.db")).await?;
            measure(Arc::new(store), &mut None).await?;
            std::fs::remove_dir_all(&folder)?;
            Ok(())
        }
    }
}
