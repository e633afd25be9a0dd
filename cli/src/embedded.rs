//! The embedded composition: store, scheduler and worker in this process. `serve` puts the API in front of it, `score`
//! feeds a dataset to it. The only caller of `backends::open`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use backends::{BackendUrls, Backends};
use contract::{ServedModel, WorkerId};
use gpu_worker::engine::EngineStatus;
use gpu_worker::engine::planner::Limits;
use gpu_worker::{Identified, LoadedRelease, WorkerConfig};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
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

/// Opens store, queue, bus and objects under one data folder, which stays locked as long as they live.
///
/// # Errors
/// Another process has the folder, or it cannot be used.
pub async fn open_backends(data_dir: &Path, config: &Config) -> anyhow::Result<Backends> {
    let folder = std::path::absolute(data_dir).with_context(|| format!("{} is no path", data_dir.display()))?;
    let urls = BackendUrls {
        store: format!("sqlite://{}", folder.join("jobs.db").display()),
        queue: "memory:".to_owned(),
        queue_limit: config.queue.limit.get() as usize,
        bus: "memory:".to_owned(),
        objects: format!("file://{}", folder.join("objects").display()),
    };
    Ok(backends::open(&urls).await?)
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
pub fn start(model: Model, backends: &Backends, config: &Config, stop: watch::Receiver<bool>) -> Running {
    let (stop_scheduler, scheduler_stop) = watch::channel(false);
    let scheduler_deps = scheduler::Deps {
        store: Arc::clone(&backends.store),
        queue: Arc::clone(&backends.queue),
        bus: Arc::clone(&backends.bus),
        holder: WorkerId::unique(),
    };
    let scheduler = tokio::spawn(async move {
        scheduler::run(scheduler_deps, turned_on(scheduler_stop)).await?;
        Ok(())
    });
    let (on_ready, engine) = watch::channel(None);
    let worker = tokio::spawn(work(model, worker_deps(backends), config.clone(), on_ready, stop));
    Running { engine, worker, scheduler, stop_scheduler }
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

fn worker_deps(backends: &Backends) -> gpu_worker::Deps {
    gpu_worker::Deps {
        store: Arc::clone(&backends.store),
        queue: Arc::clone(&backends.queue),
        bus: Arc::clone(&backends.bus),
        objects: Arc::clone(&backends.objects),
    }
}

/// Engine limits as configured.
pub fn limits(config: &Config) -> Limits {
    Limits { max_sequences: config.engine.max_sequences.get(), step_tokens: config.engine.step_tokens.get() }
}

async fn work(
    model: Model,
    deps: gpu_worker::Deps,
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
        lease_ttl: config.worker.lease(),
        drain_grace: config.serve.drain,
        preparing: 2,
    };
    // `send_replace` keeps the value for whoever asks later.
    let ready = |status| drop(on_ready.send_replace(Some(status)));
    gpu_worker::run(deps, loaded, worker_config, ready, turned_on(stop)).await?;
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
