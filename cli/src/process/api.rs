//! `penstock api`: HTTP in, jobs out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use contract::{JobStore, ServedModel};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{shared_backends, stop_at_once_when_asked_again};
use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, logging, serve, terminal};

/// How often the models on offer are read.
const MODELS_EVERY: Duration = Duration::from_secs(2);

/// Run the HTTP server alone, on backends it shares with schedulers and workers.
///
/// It offers the models that workers have offered. Needs store.url, queue.url, bus.url and objects.url.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: PENSTOCK_STORE__URL=postgres://… penstock api --listen 0.0.0.0:8080")]
pub struct ApiArgs {
    /// Address and port of the HTTP server [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

/// Runs `penstock api` until SIGINT or SIGTERM, then drains.
///
/// # Errors
/// The backends or the address cannot be used.
pub async fn run(args: &ApiArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default().set("serve.listen", "--listen", args.listen))?.config;
    logging::start(&settings.log)?;
    let backends = shared_backends(&settings).await?;
    let listener = TcpListener::bind(settings.serve.listen)
        .await
        .with_context(|| format!("{} cannot be listened on; choose another with --listen", settings.serve.listen))?;
    let address = listener.local_addr()?;
    let offered = backends.store.offered().await?;
    if offered.is_empty() {
        tracing::warn!("no worker has offered a model so far; requests get 404 until one does");
    }
    let (models, known_models) = watch::channel(offered);
    let reading = tokio::spawn(read_models(Arc::clone(&backends.store), models));
    let deps = api::Deps {
        store: Arc::clone(&backends.store),
        admin: Arc::clone(&backends.admin),
        needs_key: settings.auth.required,
        queue: Arc::clone(&backends.queue),
        bus: Arc::clone(&backends.bus),
        objects: Arc::clone(&backends.objects),
        models: known_models,
        trajectories: serve::trajectories(&settings),
        guard: crate::embedded::guard(&settings)?,
        limits: serve::api_limits(&settings),
    };
    let (stop, stopped) = watch::channel(false);
    let mut serving = tokio::spawn(api::run(listener, deps, embedded::turned_on(stopped)));
    tracing::info!(listen = %address, "api listening");
    terminal::say(&format!("Penstock's API is ready on http://{address}"));
    tokio::select! {
        asked = embedded::asked_to_stop() => asked?,
        _ = &mut serving => anyhow::bail!("the HTTP server ended by itself"),
    }
    tracing::info!(grace = ?settings.serve.drain, "stopping: calls that wait may end");
    stop_at_once_when_asked_again();
    let _nobody_serves = stop.send(true);
    let _served = tokio::time::timeout(settings.serve.drain + Duration::from_secs(5), serving).await;
    reading.abort();
    Ok(true)
}

/// Keeps the models on offer up to date. A store that is away changes nothing.
async fn read_models(store: Arc<dyn JobStore>, models: watch::Sender<Vec<ServedModel>>) {
    loop {
        tokio::time::sleep(MODELS_EVERY).await;
        match store.offered().await {
            Ok(offered) => {
                models.send_if_modified(|known| {
                    let changed = *known != offered;
                    if changed {
                        for model in &offered {
                            tracing::info!(model = %model.name, release = model.release.short(), "model on offer");
                        }
                        *known = offered;
                    }
                    changed
                });
            }
            Err(err) => tracing::warn!(error = &err as &dyn std::error::Error, "the models on offer cannot be read"),
        }
    }
}
