//! `penstock bench queue`: everything around the engine, with an engine that does next to nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use contract::{Bus, Class, JobId, ServedModel, Signal};
use futures::StreamExt;
use gpu_worker::WorkerConfig;
use gpu_worker::engine::planner::Limits;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::latency::{Latency, Percentiles};
use crate::config::{self, Config, ConfigArgs, Flags};
use crate::{embedded, http, serve, terminal};

/// A tokenizer for the engine without a model.
const TINY: &[u8] = include_bytes!("../../../fixtures/tiny/tiny.gguf");
/// Blocks of its cache: more than its sequences can fill.
const BLOCKS: usize = 8_192;
/// Sequences it takes at once.
const SEQUENCES: usize = 256;
/// A job that has not ended after this counts as an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bulk calls at once.
const BULK_CALLS: usize = 4;

/// Durable jobs per second through HTTP, store, queue, lease and commit, with an engine that does one trivial step.
///
/// API, scheduler and worker run in this process on the configured backends (embedded ones in a temporary folder without
/// any), and clients call the API over loopback. Each client submits its next job when its last one has ended. The engine
/// is not a model, and its release says so. Its jobs stay in the store like any others: give it a store of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: eval \"$(deploy/services env --settings)\"; penstock migrate; penstock bench queue")]
pub struct QueueArgs {
    /// Clients at once, one row each
    #[arg(long, value_delimiter = ',', default_value = "1,16,128", value_name = "N,…")]
    clients: Vec<usize>,
    /// Jobs of each row; at least eight calls in the row of bulk submits
    #[arg(long, default_value_t = 4000, value_name = "N")]
    jobs: usize,
    /// Jobs of one call in the row of bulk submits; 0 leaves the row out
    #[arg(long, default_value_t = 500, value_name = "N")]
    bulk: usize,
    /// Class of the jobs: interactive is published by the API while its queue is shallow, standard and bulk by the feeder
    #[arg(long, default_value = "interactive", value_name = "CLASS")]
    class: Class,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    conditions: QueueConditions,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct QueueConditions {
    engine: String,
    store: String,
    queue: String,
    bus: String,
    class: Class,
    jobs: usize,
    cpu: String,
    cores: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    clients: usize,
    /// Jobs of one call.
    jobs_per_call: usize,
    succeeded: u64,
    errors: BTreeMap<String, u64>,
    seconds: f64,
    accepted_per_s: f64,
    jobs_per_s: f64,
    accept_ms: Option<Percentiles>,
    end_to_end_ms: Option<Percentiles>,
    /// Bytes that Postgres wrote to its log for each job.
    log_bytes_per_job: Option<u64>,
}

/// Runs `penstock bench queue`; false when any job failed.
///
/// # Errors
/// The backends cannot be used, or the arguments make no sense.
pub async fn run(args: &QueueArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    if args.jobs == 0 || args.clients.contains(&0) {
        bail!("--jobs and --clients are at least 1");
    }
    let settings = config::load(config, Flags::default())?.config;
    let (clients, jobs, bulk, class) = (args.clients.clone(), args.jobs, args.bulk, args.class);
    // A runtime of several threads: this is no command that waits, as the others are.
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(measure(settings, &clients, jobs, bulk, class))
    });
    let report = measured.await.context("the benchmark panicked")??;
    if args.json {
        terminal::print_json(&report)?;
    } else {
        show(&report)?;
    }
    Ok(report.rows.iter().all(|row| row.errors.is_empty()))
}

/// An installation in this process: API, scheduler and a worker without a model.
pub(super) struct Parts {
    pub(super) backends: backends::Backends,
    pub(super) served: ServedModel,
    pub(super) urls: backends::BackendUrls,
    base: String,
    stop: watch::Sender<bool>,
    working: JoinHandle<Result<(), gpu_worker::WorkerError>>,
    scheduling: JoinHandle<Result<(), scheduler::SchedulerError>>,
    serving: JoinHandle<()>,
    /// Of embedded backends; removed with this.
    _folder: tempfile::TempDir,
}

/// Starts it on the configured backends, or on embedded ones in a temporary folder.
pub(super) async fn start(mut settings: Config) -> anyhow::Result<Parts> {
    let folder = tempfile::tempdir().context("there is no place for temporary files")?;
    settings.serve.data_dir = folder.path().to_owned();
    let urls = embedded::urls(folder.path(), &settings)?;
    let backends = embedded::open_backends(&settings).await?;
    let release = gpu_worker::trivial(TINY, BLOCKS).context("the tokenizer in this binary cannot be read")?;
    let served = release.served.clone();

    let (stop, stopped) = watch::channel(false);
    let scheduling = tokio::spawn(scheduler::run(
        embedded::scheduler_deps(&backends, &settings)?,
        embedded::turned_on(stopped.clone()),
    ));
    let worker_config = WorkerConfig {
        limits: Limits { max_sequences: SEQUENCES, step_tokens: 16 * SEQUENCES, ..Limits::default() },
        prefix_cache: embedded::prefix_cache(&settings),
        lease_ttl: settings.worker.lease(),
        drain_grace: Duration::from_secs(1),
        preparing: 2,
    };
    let (ready, is_ready) = oneshot::channel();
    let on_ready = move |_| {
        let _nobody_waits_any_more = ready.send(());
    };
    let beat = embedded::beat_ports(&backends, &settings)?;
    let deps = embedded::worker_deps(&backends);
    let working = tokio::spawn(gpu_worker::run(
        deps,
        beat,
        release,
        worker_config,
        on_ready,
        embedded::turned_on(stopped.clone()),
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let base = format!("http://{}", listener.local_addr()?);
    let mut limits = serve::api_limits(&settings);
    limits.bounds = api::Bounds { interactive: 1_000_000, standard: 1_000_000, bulk: 1_000_000 };
    limits.body_bytes = 64 << 20;
    let serving = tokio::spawn(api::run(
        listener,
        api::Deps {
            store: Arc::clone(&backends.store),
            admin: Arc::clone(&backends.admin),
            needs_key: false,
            queue: Arc::clone(&backends.queue),
            bus: Arc::clone(&backends.bus),
            objects: Arc::clone(&backends.objects),
            models: watch::channel(vec![served.clone()]).1,
            trajectories: serve::trajectories(&settings),
            guard: crate::embedded::guard(&settings)?,
            limits,
        },
        embedded::turned_on(stopped),
    ));
    is_ready.await.context("the worker did not start")?;
    Ok(Parts { backends, served, urls, base, stop, working, scheduling, serving, _folder: folder })
}

impl Parts {
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let _nobody_runs = self.stop.send(true);
        self.working.await.context("the worker panicked")??;
        self.scheduling.await.context("the scheduler panicked")??;
        let _served = tokio::time::timeout(Duration::from_secs(10), self.serving).await;
        Ok(())
    }
}

async fn measure(
    settings: Config,
    clients: &[usize],
    jobs: usize,
    bulk: usize,
    class: Class,
) -> anyhow::Result<Report> {
    let parts = start(settings).await?;
    let Parts { backends, served, urls, base, .. } = &parts;
    let bench = Bench {
        http: http::client(PATIENCE)?,
        base: base.clone(),
        class,
        model: served.name.clone(),
        ends: Ends::listening(Arc::clone(&backends.bus)).await,
    };
    // Connections, prepared statements, queues: as many as the widest row needs.
    let widest = clients.iter().copied().max().unwrap_or(1);
    bench.row(widest, widest * 4, 1).await;
    let store = backends::scheme(&urls.store).to_owned();
    let mut rows = Vec::new();
    let shapes = clients.iter().map(|clients| (*clients, 1)).chain((bulk > 0).then_some((BULK_CALLS, bulk)));
    for (clients, jobs_per_call) in shapes {
        let before = backends::log_bytes(urls).await;
        let jobs = if jobs_per_call == 1 { jobs } else { jobs.max(jobs_per_call * BULK_CALLS * 2) };
        let mut row = bench.row(clients, jobs, jobs_per_call).await;
        let after = backends::log_bytes(urls).await;
        row.log_bytes_per_job = before.zip(after).map(|(before, after)| (after - before) / row.succeeded.max(1));
        rows.push(row);
    }
    let conditions = QueueConditions {
        engine: served.manifest.numerics.clone(),
        store,
        queue: backends::scheme(&urls.queue).to_owned(),
        bus: backends::scheme(&urls.bus).to_owned(),
        class,
        jobs,
        cpu: super::cpu_name(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
    };
    parts.stop().await?;
    Ok(Report { conditions, rows })
}

/// Who waits for the end of which job, and which ended before anybody waited.
pub(super) struct Ends(Arc<Mutex<HashMap<JobId, End>>>);

enum End {
    Came(Instant),
    Awaited(oneshot::Sender<Instant>),
}

impl Ends {
    pub(super) async fn listening(bus: Arc<dyn Bus>) -> Self {
        let ends: Arc<Mutex<HashMap<JobId, End>>> = Arc::default();
        let mut signals = bus.signals().await;
        let listener = Arc::clone(&ends);
        tokio::spawn(async move {
            while let Some(signal) = signals.next().await {
                let Signal::Ended { job, .. } = signal else { continue };
                let now = Instant::now();
                let mut ends = listener.lock().unwrap_or_else(PoisonError::into_inner);
                match ends.remove(&job) {
                    // Nobody listens any more after a timeout.
                    Some(End::Awaited(waiter)) => drop(waiter.send(now)),
                    _ => drop(ends.insert(job, End::Came(now))),
                }
            }
        });
        Self(ends)
    }

    /// When the job ended.
    pub(super) async fn of(&self, job: JobId) -> Option<Instant> {
        let waiting = {
            let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(End::Came(at)) = ends.remove(&job) {
                return Some(at);
            }
            let (waiter, waiting) = oneshot::channel();
            ends.insert(job, End::Awaited(waiter));
            waiting
        };
        tokio::time::timeout(PATIENCE, waiting).await.ok()?.ok()
    }
}

struct Bench {
    http: reqwest::Client,
    base: String,
    class: Class,
    model: String,
    ends: Ends,
}

/// What one call gave: the time of its answer, and the time to the end of each of its jobs.
struct Call {
    accept: Duration,
    ends: Vec<Option<Duration>>,
}

impl Bench {
    fn job(&self) -> Value {
        json!({
            "type": "completion",
            "class": self.class,
            "request": {"model": self.model, "prompt": "Hello there", "max_tokens": 1},
        })
    }

    async fn call(&self, jobs: usize) -> Result<Call, String> {
        let begin = Instant::now();
        let (path, body) = match jobs {
            1 => ("/v1/jobs", self.job()),
            _ => ("/v1/jobs:batch", Value::from(vec![self.job(); jobs])),
        };
        let answer = self.http.post(format!("{}{path}", self.base)).json(&body).send().await;
        let answer = answer.map_err(|error| http::cause(&error))?;
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.map_err(|error| http::cause(&error))?;
        let accept = begin.elapsed();
        if status != 202 {
            return Err(format!("{status} {}", body["error"]["code"].as_str().unwrap_or_default()));
        }
        let id = |job: &Value| job["id"].as_str().and_then(|id| id.parse::<JobId>().ok());
        let ids: Vec<Option<JobId>> = match jobs {
            1 => vec![id(&body)],
            _ => body["data"].as_array().map(|items| items.iter().map(id).collect()).unwrap_or_default(),
        };
        let mut ends = Vec::with_capacity(ids.len());
        for id in ids {
            let end = match id {
                Some(id) => self.ends.of(id).await,
                None => None,
            };
            ends.push(end.map(|end| end - begin));
        }
        Ok(Call { accept, ends })
    }

    async fn row(&self, clients: usize, jobs: usize, jobs_per_call: usize) -> Row {
        let (mut accept, mut end_to_end) = (Latency::default(), Latency::default());
        let (mut succeeded, mut accepting) = (0, Duration::ZERO);
        let mut errors: BTreeMap<String, u64> = BTreeMap::new();
        let begin = Instant::now();
        let calls = jobs.div_ceil(jobs_per_call);
        let mut answers = futures::stream::iter(0..calls).map(|_| self.call(jobs_per_call)).buffer_unordered(clients);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(call) => {
                    accept.record(call.accept);
                    accepting += call.accept;
                    for end in call.ends {
                        match end {
                            Some(time) => {
                                succeeded += 1;
                                end_to_end.record(time);
                            }
                            None => *errors.entry("not ended or not accepted".to_owned()).or_default() += 1,
                        }
                    }
                }
                Err(what) => *errors.entry(what).or_default() += 1,
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        Row {
            clients,
            jobs_per_call,
            succeeded,
            errors,
            seconds,
            accepted_per_s: succeeded as f64 * clients as f64 / accepting.as_secs_f64().max(1e-9),
            jobs_per_s: succeeded as f64 / seconds,
            accept_ms: accept.percentiles(),
            end_to_end_ms: end_to_end.percentiles(),
            log_bytes_per_job: None,
        }
    }
}

fn show(report: &Report) -> anyhow::Result<()> {
    let conditions = &report.conditions;
    terminal::say(&format!(
        "engine: {}; store {}, queue {}, bus {}; class {}, {} jobs a row; {} cores of {}; times in ms",
        conditions.engine,
        conditions.store,
        conditions.queue,
        conditions.bus,
        conditions.class,
        conditions.jobs,
        conditions.cores,
        conditions.cpu,
    ));
    let three = |times: &Option<Percentiles>| match times {
        Some(times) => format!("{:.1} / {:.1} / {:.1}", times.p50, times.p95, times.p99),
        None => "-".to_owned(),
    };
    let rows = report.rows.iter().map(|row| {
        let errors: Vec<String> = row.errors.iter().map(|(what, n)| format!("{n} x {what}")).collect();
        [
            row.clients.to_string(),
            row.jobs_per_call.to_string(),
            row.succeeded.to_string(),
            if errors.is_empty() { "none".to_owned() } else { errors.join(", ") },
            format!("{:.0}", row.accepted_per_s),
            format!("{:.0}", row.jobs_per_s),
            three(&row.accept_ms),
            three(&row.end_to_end_ms),
            row.log_bytes_per_job.map_or("-".to_owned(), |bytes| bytes.to_string()),
        ]
    });
    terminal::print(&terminal::table(
        &[
            "clients",
            "jobs/call",
            "ended",
            "errors",
            "accepted/s",
            "jobs/s",
            "accept p50/95/99",
            "end to end p50/95/99",
            "log bytes/job",
        ],
        rows,
    ))
}
