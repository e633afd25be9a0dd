//! `penstock worker`: one engine, and the loop that pulls jobs for it.

use tokio::sync::watch;

use super::{shared_backends, stop_at_once_when_asked_again};
use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, logging, terminal, threads};

/// Run one worker: load a model, offer it, and work on the jobs that are queued for its release.
///
/// SIGTERM drains: it takes nothing more, lets running jobs finish within serve.drain_seconds, and hands the rest back
/// without spending an attempt. Needs store.url, queue.url, bus.url and objects.url.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: PENSTOCK_STORE__URL=postgres://… penstock worker --model ./model.gguf")]
pub struct WorkerArgs {
    /// Catalogue name, or path of a GGUF file or model folder [default: qwen2.5-coder-0.5b-instruct-q4_k_m]
    #[arg(long, value_name = "NAME|PATH")]
    model: Option<String>,
}

/// Runs `penstock worker` until SIGINT or SIGTERM, then drains.
///
/// # Errors
/// The model or the backends cannot be used; or the engine died.
pub async fn run(args: &WorkerArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default().set("serve.model", "--model", args.model.clone()))?.config;
    threads::settle(settings.engine.threads)?;
    logging::start(&settings.log)?;
    let model = embedded::find_model(&settings.serve.model).await?;
    let served = model.served.clone();
    logging::serves(&served.release);
    let backends = shared_backends(&settings).await?;
    let (stop, stopped) = watch::channel(false);
    let (on_ready, mut engine) = watch::channel(None);
    let deps = embedded::worker_deps(&backends);
    let beat = embedded::beat_ports(&backends, &settings)?;
    let store = std::sync::Arc::clone(&backends.store);
    let mut working = tokio::spawn(embedded::work(model, deps, beat, settings.clone(), on_ready, stopped));
    tokio::spawn(async move {
        if engine.wait_for(Option::is_some).await.is_ok() {
            embedded::offer(&*store, &served).await;
            terminal::say(&format!("Penstock's worker is ready: {} (release {})", served.name, served.release.short()));
        }
    });
    tokio::select! {
        asked = embedded::asked_to_stop() => asked?,
        ended = &mut working => {
            ended??;
            anyhow::bail!("the worker ended by itself");
        }
    }
    tracing::info!(grace = ?settings.serve.drain, "stopping: running jobs may finish, the rest is handed back");
    stop_at_once_when_asked_again();
    let _nobody_works = stop.send(true);
    working.await??;
    Ok(true)
}
