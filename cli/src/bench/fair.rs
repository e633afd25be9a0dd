//! `penstock bench fair`: how long one tenant's jobs wait while another tenant has a long queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use contract::{
    Class, Input, JobId, JobState, JobStore, NewJob, Prompt, QueueId, Request, Sampling, Signal, TenantId,
    TrajectoryMode,
};
use futures::StreamExt;
use serde::Serialize;
use tokio::task::JoinSet;

use super::latency::{Latency, Percentiles};
use super::queue::{Ends, Parts, start};
use crate::config::{self, Config, ConfigArgs, Flags};
use crate::terminal;

/// Jobs of the long queue that are accepted together.
const CHUNK: usize = 500;
/// Jobs of the other tenant that are not measured: connections, prepared statements, queues.
const WARM_UP: usize = 4;
/// The long queue is given up when none of it ends for so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Until the next look at whether it has ended.
const LOOK: Duration = Duration::from_millis(50);

/// How long the jobs of tenant B wait for their start, first alone, then while tenant A has a long queue.
///
/// A queues all its jobs at once; B submits one after another, whatever becomes of those before. The wait is from
/// acceptance to start by the store's clock, as a job shows it in `timings.queue_wait_ms`. Scheduler and worker run in
/// this process on the configured backends, as in `bench queue`, with an engine that is not a model. The jobs stay in the
/// store like any others: give it a store of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: eval \"$(deploy/services env --settings)\"; penstock migrate; penstock bench fair")]
pub struct FairArgs {
    /// Jobs of tenant A
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    jobs: usize,
    /// Seconds in which B submits; fewer where A's queue is empty before
    #[arg(long, default_value_t = 10, value_name = "N")]
    seconds: u64,
    /// Milliseconds from one job of B to the next
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    every_ms: u64,
    /// Class of all jobs; interactive ones are all left to the feeder, as the API does while others wait
    #[arg(long, default_value = "standard", value_name = "CLASS")]
    class: Class,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    conditions: FairConditions,
    alone: Row,
    beside: Row,
}

#[derive(Debug, Serialize)]
struct FairConditions {
    engine: String,
    store: String,
    queue: String,
    bus: String,
    class: Class,
    every_ms: u64,
    cpu: String,
    cores: usize,
}

/// What B saw.
#[derive(Debug, Serialize)]
struct Row {
    /// A's jobs that waited when B began.
    a_waiting: u64,
    /// A's jobs that ended in a second while B submitted.
    a_jobs_per_s: f64,
    b_jobs: u64,
    b_errors: BTreeMap<String, u64>,
    /// From acceptance to start.
    b_queue_wait_ms: Option<Percentiles>,
}

/// Runs `penstock bench fair`; false when any job failed.
///
/// # Errors
/// The backends cannot be used, or the arguments make no sense.
pub async fn run(args: &FairArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    if args.jobs == 0 || args.seconds == 0 {
        bail!("--jobs and --seconds are at least 1");
    }
    let settings = config::load(config, Flags::default())?.config;
    let shape = Shape {
        jobs: args.jobs,
        during: Duration::from_secs(args.seconds),
        every: Duration::from_millis(args.every_ms),
        class: args.class,
    };
    // A runtime of several threads: this is no command that waits, as the others are.
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(measure(settings, shape))
    });
    let report = measured.await.context("the benchmark panicked")??;
    if args.json {
        terminal::print_json(&report)?;
    } else {
        show(&report)?;
    }
    if report.beside.b_jobs < report.alone.b_jobs {
        terminal::say("A's queue was empty before B had submitted all its jobs: --jobs gives it more");
    }
    Ok([&report.alone, &report.beside].iter().all(|row| row.b_jobs > 0 && row.b_errors.is_empty()))
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    jobs: usize,
    during: Duration,
    every: Duration,
    class: Class,
}

async fn measure(settings: Config, shape: Shape) -> anyhow::Result<Report> {
    let parts = start(settings).await?;
    let bench = Bench {
        ends: Arc::new(Ends::listening(Arc::clone(&parts.backends.bus)).await),
        n_ended: count_ends(&parts).await,
        queue: QueueId { release: parts.served.release.clone(), class: shape.class },
        parts,
    };
    let warm_up = Shape { during: shape.every.saturating_mul(WARM_UP as u32), ..shape };
    bench.row(warm_up, 0).await?;
    let alone = bench.row(shape, 0).await?;
    let queued = bench.queue_up(shape.jobs).await?;
    let beside = bench.row(shape, queued).await?;
    bench.wait_for_the_rest().await?;
    let Parts { served, urls, .. } = &bench.parts;
    let conditions = FairConditions {
        engine: served.manifest.numerics.clone(),
        store: backends::scheme(&urls.store).to_owned(),
        queue: backends::scheme(&urls.queue).to_owned(),
        bus: backends::scheme(&urls.bus).to_owned(),
        class: shape.class,
        every_ms: u64::try_from(shape.every.as_millis()).unwrap_or(u64::MAX),
        cpu: super::cpu_name(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
    };
    bench.parts.stop().await?;
    Ok(Report { conditions, alone, beside })
}

/// Counts the jobs that end, whosever they are.
async fn count_ends(parts: &Parts) -> Arc<AtomicU64> {
    let n_ended = Arc::new(AtomicU64::new(0));
    let (counter, mut signals) = (Arc::clone(&n_ended), parts.backends.bus.signals().await);
    tokio::spawn(async move {
        while let Some(signal) = signals.next().await {
            if matches!(signal, Signal::Ended { .. }) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    n_ended
}

struct Bench {
    parts: Parts,
    ends: Arc<Ends>,
    n_ended: Arc<AtomicU64>,
    queue: QueueId,
}

impl Bench {
    fn job(&self, tenant: &str) -> NewJob {
        let model = self.parts.served.name.clone();
        NewJob {
            tenant_bound: None,
            on_failure: contract::OnFailure::Skip,
            keep: None,
            id: JobId::new(),
            tenant: TenantId::from(tenant),
            release: self.queue.release.clone(),
            route: model.clone(),
            class: self.queue.class,
            bound: u64::from(u32::MAX),
            delay: Duration::ZERO,
            deadline_in: Duration::from_secs(3_600),
            seed: 1,
            request: Request {
                model,
                input: Input::Completion(Prompt::Text("Hello there".to_owned())),
                sampling: Sampling::default(),
                max_tokens: Some(1),
                min_tokens: 0,
                ignore_eos: false,
                stop: Vec::new(),
                include_stop: false,
                stop_token_ids: Vec::new(),
                logprobs: None,
                constraint: None,
                tools: None,
            },
            metadata: BTreeMap::new(),
            batch_line: None,
            custom_id: None,
            sequence_key: None,
            traceparent: None,
            webhook: None,
            idempotency: None,
            published_by_caller: false,
            trajectory: TrajectoryMode::Full,
        }
    }

    /// Accepts jobs and leaves them to the feeder, as the API does; interactive ones where the queue is not shallow.
    async fn accept(&self, jobs: &[NewJob]) -> anyhow::Result<()> {
        for answer in self.parts.backends.store.accept(jobs).await? {
            answer.map_err(|refused| anyhow!("a job was refused: {refused:?}"))?;
        }
        self.parts.backends.bus.tell(Signal::Due { queue: self.queue.clone() }).await;
        Ok(())
    }

    /// Queues A's jobs; answers how many wait now.
    async fn queue_up(&self, jobs: usize) -> anyhow::Result<u64> {
        let mut left = jobs;
        while left > 0 {
            let chunk: Vec<NewJob> = (0..left.min(CHUNK)).map(|_| self.job("a")).collect();
            self.accept(&chunk).await?;
            left -= chunk.len();
        }
        self.waiting().await
    }

    async fn waiting(&self) -> anyhow::Result<u64> {
        Ok(self.parts.backends.store.queued(&self.queue).await?)
    }

    /// B's jobs, one after another; beside A's where some wait.
    async fn row(&self, shape: Shape, a_waiting: u64) -> anyhow::Result<Row> {
        let mut ticks = tokio::time::interval(shape.every);
        let (begin, ended_before) = (Instant::now(), self.n_ended.load(Ordering::Relaxed));
        let mut waits = JoinSet::new();
        for n in 0_u32.. {
            ticks.tick().await;
            let is_late = shape.every.saturating_mul(n) >= shape.during;
            if is_late || (a_waiting > 0 && self.waiting().await? == 0) {
                break;
            }
            let job = self.job("b");
            let (id, store, ends) = (job.id, Arc::clone(&self.parts.backends.store), Arc::clone(&self.ends));
            self.accept(&[job]).await?;
            waits.spawn(async move { wait_of(id, &*store, &ends).await });
        }
        let seconds = begin.elapsed().as_secs_f64();
        let ended = self.n_ended.load(Ordering::Relaxed) - ended_before;
        let (mut latency, mut b_errors) = (Latency::default(), BTreeMap::new());
        let b_jobs = waits.len() as u64;
        for wait in waits.join_all().await {
            match wait {
                Ok(wait) => latency.record(wait),
                Err(what) => *b_errors.entry(what).or_default() += 1,
            }
        }
        let a_ended = if a_waiting > 0 { ended.saturating_sub(b_jobs) } else { 0 };
        Ok(Row {
            a_waiting,
            a_jobs_per_s: a_ended as f64 / seconds,
            b_jobs,
            b_errors,
            b_queue_wait_ms: latency.percentiles(),
        })
    }

    /// Lets A's jobs end, so that none is left for whoever starts next on this store.
    async fn wait_for_the_rest(&self) -> anyhow::Result<()> {
        let mut last = (u64::MAX, Instant::now());
        loop {
            let waiting = self.waiting().await?;
            if waiting == 0 {
                return Ok(());
            }
            if waiting != last.0 {
                last = (waiting, Instant::now());
            }
            if last.1.elapsed() > PATIENCE {
                bail!("{waiting} jobs of A wait, and none has started for {PATIENCE:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How long a job waited for its start, once it has ended.
async fn wait_of(id: JobId, store: &dyn JobStore, ends: &Ends) -> Result<Duration, String> {
    ends.of(id).await.ok_or("not ended")?;
    let job = store.get(&TenantId::from("b"), &id).await.map_err(|err| err.to_string())?;
    let job = job.ok_or("not found")?;
    let started_at = job.started_at.filter(|_| job.state == JobState::Succeeded);
    let started_at = started_at.ok_or_else(|| job.state.to_string())?;
    Ok(Duration::from_millis(started_at.0.saturating_sub(job.accepted_at.0).max(0).unsigned_abs()))
}

fn show(report: &Report) -> anyhow::Result<()> {
    let conditions = &report.conditions;
    terminal::say(&format!(
        "engine: {}; store {}, queue {}, bus {}; class {}, a job of B every {} ms; {} cores of {}; times in ms",
        conditions.engine,
        conditions.store,
        conditions.queue,
        conditions.bus,
        conditions.class,
        conditions.every_ms,
        conditions.cores,
        conditions.cpu,
    ));
    let rows = [&report.alone, &report.beside].map(|row| {
        let errors: Vec<String> = row.b_errors.iter().map(|(what, n)| format!("{n} x {what}")).collect();
        let wait = row.b_queue_wait_ms;
        let ms = |of: fn(&Percentiles) -> f64| wait.as_ref().map_or("-".to_owned(), |wait| format!("{:.0}", of(wait)));
        [
            if row.a_waiting == 0 { "none".to_owned() } else { row.a_waiting.to_string() },
            if row.a_waiting == 0 { "-".to_owned() } else { format!("{:.0}", row.a_jobs_per_s) },
            row.b_jobs.to_string(),
            if errors.is_empty() { "none".to_owned() } else { errors.join(", ") },
            ms(|wait| wait.p50),
            ms(|wait| wait.p95),
            ms(|wait| wait.p99),
            ms(|wait| wait.max),
        ]
    });
    terminal::print(&terminal::table(
        &["A waiting", "A jobs/s", "B jobs", "B errors", "B's wait p50", "p95", "p99", "max"],
        rows,
    ))
}
