//! The wiring: backends as configured, and the parts over them. `serve` runs all parts in one process, `score` feeds a
//! dataset to the embedded ones, `api`, `scheduler` and `worker` run one part each. The only caller of `backends::open`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backends::{BackendUrls, Backends};
use contract::guard::Guard;
use contract::{JobStore, ServedModel, WorkerId};
use gpu_worker::engine::EngineStatus;
use gpu_worker::engine::planner::Limits;
use gpu_worker::engine::single::SingleLimits;
use gpu_worker::{BeatPorts, Identified, LoadedRelease, OpenBeatPorts, PrefixCache, WorkerConfig};
use scheduler::ArchiveConfig;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::{Config, Secret};
use crate::model::{Progress, ResolvedModel, ensure};

/// A model file that was found, checked and read up to its weights.
pub struct Model {
    identified: Identified,
    /// What the API offers.
    pub served: ServedModel,
}

/// Finds the model, fetches it if it must, and reads its header, tokenizer and template.
///
/// # Errors
/// The file cannot be had or cannot be served; the message says why and what to do.
pub async fn find_model(name_or_path: &str) -> anyhow::Result<Model> {
    let progress = Arc::new(Progress::on_stderr());
    let ResolvedModel { name, path, sha256 } = ensure(name_or_path, &progress).await?;
    let identified = tokio::task::spawn_blocking(move || gpu_worker::identify(&path, &name, &sha256)).await??;
    let served = identified.served.clone();
    Ok(Model { identified, served })
}

impl Model {
    /// Loads the weights with a cache of at least `n_tokens`.
    ///
    /// # Errors
    /// As the loader says.
    pub async fn load_for_tokens(self, n_tokens: usize) -> anyhow::Result<LoadedRelease> {
        let mib = self.identified.kv_cache_mib_for(n_tokens);
        Ok(tokio::task::spawn_blocking(move || self.identified.load(mib, &mut |_, _| {})).await??)
    }
}

/// Where the embedded backends under one data folder are.
fn embedded_urls(data_dir: &Path, config: &Config) -> anyhow::Result<BackendUrls> {
    let folder = std::path::absolute(data_dir).with_context(|| format!("{} is no path", data_dir.display()))?;
    Ok(BackendUrls {
        store: format!("sqlite://{}", folder.join("jobs.db").display()),
        queue: "memory:".to_owned(),
        queue_limit: config.queue.limit.get() as usize,
        queue_prefix: config.queue.prefix.clone(),
        bus: "memory:".to_owned(),
        bus_prefix: config.bus.prefix.clone(),
        objects: format!("file://{}", folder.join("objects").display()),
    })
}

/// Where the backends are: as configured, and embedded under the data folder where nothing is.
///
/// # Errors
/// The data folder is no path.
pub fn urls(data_dir: &Path, config: &Config) -> anyhow::Result<BackendUrls> {
    let embedded = embedded_urls(data_dir, config)?;
    let or = |url: &Option<Secret>, embedded| url.as_ref().map_or(embedded, |url| url.reveal().to_owned());
    Ok(BackendUrls {
        store: or(&config.store.url, embedded.store),
        queue: or(&config.queue.url, embedded.queue),
        bus: or(&config.bus.url, embedded.bus),
        objects: or(&config.objects.url, embedded.objects),
        ..embedded
    })
}

/// Opens the embedded backends under one data folder, which stays locked as long as they live, whatever is configured.
///
/// # Errors
/// Another process has the folder, or it cannot be used.
pub async fn open_embedded(data_dir: &Path, config: &Config) -> anyhow::Result<Backends> {
    Ok(backends::open(&embedded_urls(data_dir, config)?).await?)
}

/// Opens the backends as configured.
///
/// # Errors
/// One cannot be reached or used; another process has the data folder.
pub async fn open_backends(config: &Config) -> anyhow::Result<Backends> {
    Ok(backends::open(&urls(&config.serve.data_dir, config)?).await?)
}

/// What a scheduler over these backends works with.
///
/// # Errors
/// A network of the settings is none.
pub fn scheduler_deps(backends: &Backends, config: &Config) -> anyhow::Result<scheduler::Deps> {
    Ok(scheduler::Deps {
        guard: guard(config)?,
        progress_every: config.webhooks.progress_every,
        store: Arc::clone(&backends.store),
        admin: Arc::clone(&backends.admin),
        trajectories: crate::serve::trajectories(config),
        queue: Arc::clone(&backends.queue),
        bus: Arc::clone(&backends.bus),
        objects: Arc::clone(&backends.objects),
        archive: ArchiveConfig {
            segment_bytes: usize::try_from(config.trajectories.segment_bytes).unwrap_or(usize::MAX),
            segment_age: config.trajectories.segment_age,
        },
        holder: WorkerId::unique(),
    })
}

/// Which addresses webhooks may have.
///
/// # Errors
/// A network of the settings is none.
pub fn guard(config: &Config) -> anyhow::Result<Guard> {
    Guard::allowing(&config.webhooks.allowed_networks).context("setting `webhooks.allowed_networks`")
}

/// Where the heartbeat gets its store and bus: connections of its own to servers, the same ones where they are in this
/// process.
///
/// # Errors
/// The data folder is no path.
pub fn beat_ports(backends: &Backends, config: &Config) -> anyhow::Result<OpenBeatPorts> {
    let urls = urls(&config.serve.data_dir, config)?;
    let ports = BeatPorts { store: Arc::clone(&backends.store), bus: Arc::clone(&backends.bus) };
    Ok(Box::new(move || {
        let (urls, ports) = (urls.clone(), ports.clone());
        Box::pin(async move {
            let own = backends::open_again(&urls).await?;
            Ok(BeatPorts { store: own.store.unwrap_or(ports.store), bus: own.bus.unwrap_or(ports.bus) })
        })
    }))
}

/// The heartbeat uses the same store and bus as everything else: they are in this process.
pub fn shared_ports(backends: &Backends) -> OpenBeatPorts {
    let ports = BeatPorts { store: Arc::clone(&backends.store), bus: Arc::clone(&backends.bus) };
    Box::new(move || Box::pin(std::future::ready(Ok(ports.clone()))))
}

/// Makes the model known to whoever accepts jobs, and tries until the store has it.
pub async fn offer(store: &dyn JobStore, model: &ServedModel) {
    let mut wait = Duration::from_millis(250);
    while let Err(err) = store.offer(model).await {
        tracing::warn!(error = &err as &dyn std::error::Error, "the model cannot be offered; trying again");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(5));
    }
}

/// The running parts.
pub struct Running {
    /// The engine's counters, once the model is loaded and warmed.
    pub engine: watch::Receiver<Option<Arc<EngineStatus>>>,
    /// Ends when the worker does: by the shutdown, or because the engine died.
    pub worker: JoinHandle<anyhow::Result<()>>,
    scheduler: JoinHandle<anyhow::Result<()>>,
    stop_scheduler: watch::Sender<bool>,
}

/// Starts scheduler and worker; the model is loaded on a blocking thread meanwhile. `stop` ends the worker by draining.
///
/// # Errors
/// A network of the settings is none.
pub fn start(
    model: Model,
    backends: &Backends,
    beat: OpenBeatPorts,
    config: &Config,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<Running> {
    let (stop_scheduler, scheduler_stop) = watch::channel(false);
    let scheduler_deps = scheduler_deps(backends, config)?;
    let scheduler = tokio::spawn(async move {
        scheduler::run(scheduler_deps, turned_on(scheduler_stop)).await?;
        Ok(())
    });
    let (on_ready, engine) = watch::channel(None);
    let worker = tokio::spawn(work(model, worker_deps(backends), beat, config.clone(), on_ready, stop));
    Ok(Running { engine, worker, scheduler, stop_scheduler })
}

impl Running {
    /// Waits for the worker's end, then stops the scheduler.
    ///
    /// # Errors
    /// When either ended with an error.
    pub async fn join(self) -> anyhow::Result<()> {
        let worked = self.worker.await.context("the worker panicked").flatten();
        let _scheduler_is_gone = self.stop_scheduler.send(true);
        let scheduled = self.scheduler.await.context("the scheduler panicked").flatten();
        worked.and(scheduled)
    }
}

/// What a worker over these backends works with.
pub fn worker_deps(backends: &Backends) -> gpu_worker::Deps {
    gpu_worker::Deps {
        store: Arc::clone(&backends.store),
        queue: Arc::clone(&backends.queue),
        bus: Arc::clone(&backends.bus),
        objects: Arc::clone(&backends.objects),
    }
}

/// Engine limits as configured.
pub fn limits(config: &Config) -> Limits {
    let engine = &config.engine;
    Limits {
        max_sequences: engine.max_sequences.get(),
        step_tokens: engine.step_tokens.get(),
        singles: SingleLimits { largest_batch: engine.single_pass_batch.get(), longest_wait: engine.single_pass_wait },
    }
}

/// How beginnings of prompts are shared, as configured.
pub fn prefix_cache(config: &Config) -> PrefixCache {
    match config.engine.prefix_cache {
        true => PrefixCache::On(config.engine.shared_cache_groups.clone()),
        false => PrefixCache::Off,
    }
}

/// Loads the model and works on its jobs until `stop`, then drains.
///
/// # Errors
/// The model cannot be loaded, or the engine died.
pub async fn work(
    model: Model,
    deps: gpu_worker::Deps,
    beat: OpenBeatPorts,
    config: Config,
    on_ready: watch::Sender<Option<Arc<EngineStatus>>>,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let started = std::time::Instant::now();
    let kv_cache_mib = config.engine.kv_cache_bytes >> 20;
    let name = model.served.name.clone();
    let loaded = tokio::task::spawn_blocking(move || model.identified.load(kv_cache_mib, &mut |_, _| {})).await??;
    tracing::info!(model = %name, load_ms = started.elapsed().as_millis() as u64, "model loaded and warmed");
    let worker_config = WorkerConfig {
        limits: limits(&config),
        prefix_cache: prefix_cache(&config),
        lease_ttl: config.worker.lease(),
        drain_grace: config.serve.drain,
        preparing: 2,
    };
    // `send_replace` keeps the value for whoever asks later.
    let ready = |status| drop(on_ready.send_replace(Some(status)));
    gpu_worker::run(deps, beat, loaded, worker_config, ready, turned_on(stop)).await?;
    Ok(())
}

/// Ends when the worker or the scheduler has ended by itself.
pub async fn ended(running: &Running) {
    while !running.worker.is_finished() && !running.scheduler.is_finished() {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// Ends when the flag is true, or nobody can set it any more.
pub async fn turned_on(mut flag: watch::Receiver<bool>) {
    let _or_nobody_can = flag.wait_for(|on| *on).await;
}

/// Ends at SIGINT or SIGTERM.
///
/// # Errors
/// When the handlers cannot be installed.
pub async fn asked_to_stop() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// The folder of a run beside its output: `OUTPUT.penstock`.
pub fn folder_beside(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(".penstock");
    output.with_file_name(name)
}
