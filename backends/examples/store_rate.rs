//! How many jobs a second the SQLite store takes: `cargo run --release -p backends --example store_rate [FOLDER]`.
//! The figures depend on the disk of FOLDER (default: the temporary folder), since every answer waits for its sync.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::SqliteStore;
use contract::{
    Class, Fingerprint, Input, JobId, JobStore, Lease, Message, NewJob, Outcome, QueueId, RecordLocation, Request,
    Role, Sampling, TenantId, Usage, Wake, WorkerId,
};
use futures::future::try_join_all;

const TTL: Duration = Duration::from_secs(3_600);

fn job() -> NewJob {
    NewJob {
        id: JobId::new(),
        tenant: TenantId::local(),
        release: Fingerprint("ab".repeat(32)),
        route: "small".into(),
        class: Class::Standard,
        bound: u64::MAX,
        deadline_in: TTL,
        seed: 1,
        request: Request {
            model: "small".into(),
            input: Input::Chat(vec![Message { role: Role::User, content: "word ".repeat(100), name: None }]),
            sampling: Sampling::default(),
            max_tokens: Some(64),
            min_tokens: 0,
            ignore_eos: false,
            stop: vec![],
            stop_token_ids: vec![],
            logprobs: None,
        },
        metadata: BTreeMap::new(),
        batch_line: None,
        sequence_key: None,
        traceparent: None,
        idempotency: None,
        published_by_caller: false,
        trajectory: contract::TrajectoryMode::Full,
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let folder = parent.join(format!("penstock-store-rate-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store: Arc<dyn JobStore> = Arc::new(SqliteStore::open(folder.join("jobs.db")).await?);
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
    for slice in [1_u32, 16] {
        let (mut calls, worker) = (0, WorkerId::unique());
        let mut wakes: Vec<Wake> = Vec::new();
        while calls * slice < 3_200 {
            wakes.extend(store.due(&queue, 256).await?);
            calls += 256 / slice;
        }
        let began = Instant::now();
        let mut done = 0_usize;
        for wakes in wakes.chunks(slice as usize) {
            let leased = store.lease(wakes, &worker, TTL).await?;
            let leases: Vec<Lease> = leased.into_iter().flatten().map(|leased| leased.lease).collect();
            let outcome = Outcome::Succeeded {
                record: RecordLocation::Inline(vec![7; 2_000]),
                usage: Usage::default(),
                first_token_ms: None,
            };
            let finished: Vec<(Lease, Outcome)> = leases.iter().map(|lease| (*lease, outcome.clone())).collect();
            done += store.finish(&finished).await?.iter().filter(|answer| answer.is_ok()).count();
        }
        println!("lease + finish in slices of {slice}: {:.0} jobs/s", done as f64 / began.elapsed().as_secs_f64());
    }
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
