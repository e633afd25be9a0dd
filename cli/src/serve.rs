//! `penstock serve`: API, scheduler and worker in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::{self, Config, ConfigArgs, Flags};
use crate::{embedded, logging, terminal, threads};

/// Run everything in one process: API, scheduler and worker on SQLite and local files. Nothing to install.
///
/// The first start fetches the default model. What was accepted survives a kill: the next start on the same data folder
/// goes on with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: penstock serve --model qwen2.5-coder-0.5b-instruct-q4_k_m --listen 127.0.0.1:8080")]
pub struct ServeArgs {
    /// Catalogue name, or path of a GGUF file or model folder [default: qwen2.5-coder-0.5b-instruct-q4_k_m]
    #[arg(long, value_name = "NAME|PATH")]
    model: Option<String>,
    /// Address and port of the HTTP server [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Folder of the database and the objects; one server at a time [default: the user's data folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl ServeArgs {
    fn flags(&self) -> Flags {
        Flags::default()
            .set("serve.model", "--model", self.model.clone())
            .set("serve.listen", "--listen", self.listen)
            .set("serve.data_dir", "--data-dir", self.data_dir.clone())
    }
}

/// Runs `penstock serve` until SIGINT or SIGTERM, then drains.
///
/// # Errors
/// The model, the data folder or the address cannot be used; or the engine died.
pub async fn run(args: &ServeArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, args.flags())?.config;
    threads::settle(settings.engine.threads)?;
    logging::start(&settings.log)?;
    let model = embedded::find_model(&settings.serve.model).await?;
    let served = model.served.clone();
    logging::serves(&served.release);
    let backends = embedded::open_backends(&settings).await?;
    let listener = TcpListener::bind(settings.serve.listen)
        .await
        .with_context(|| format!("{} cannot be listened on; choose another with --listen", settings.serve.listen))?;
    let address = listener.local_addr()?;
    warn_of_others(&backends, &served).await?;

    let (stop, stopped) = watch::channel(false);
    let deps = api::Deps {
        store: Arc::clone(&backends.store),
        admin: Arc::clone(&backends.admin),
        needs_key: settings.auth.required,
        queue: Arc::clone(&backends.queue),
        bus: Arc::clone(&backends.bus),
        objects: Arc::clone(&backends.objects),
        models: watch::channel(vec![served.clone()]).1,
        trajectories: trajectories(&settings),
        guard: crate::embedded::guard(&settings)?,
        limits: api_limits(&settings),
    };
    embedded::offer(&*backends.store, &served).await;
    let beat = embedded::beat_ports(&backends, &settings)?;
    let running = embedded::start(model, &backends, beat, &settings, stopped.clone())?;
    let mut serving = tokio::spawn(api::run(listener, deps, embedded::turned_on(stopped)));
    tracing::info!(
        listen = %address,
        model = %served.name,
        release = %served.release,
        data_dir = %settings.serve.data_dir.display(),
        "listening; ready once the model is loaded"
    );
    let mut engine = running.engine.clone();
    tokio::spawn(async move {
        if engine.wait_for(Option::is_some).await.is_ok() {
            terminal::say(&format!("Penstock is ready on http://{address}"));
        }
    });
    tokio::select! {
        asked = embedded::asked_to_stop() => {
            asked?;
            tracing::info!(grace = ?settings.serve.drain, "stopping: running jobs may finish, the rest is kept");
        }
        () = embedded::ended(&running) => tracing::error!("the engine ended; stopping"),
        _ = &mut serving => anyhow::bail!("the HTTP server ended by itself"),
    }
    tokio::spawn(async {
        // Asked twice: whatever still runs is found again by the next start.
        if embedded::asked_to_stop().await.is_ok() {
            terminal::say("stopped at once");
            std::process::exit(130);
        }
    });
    let _nobody_runs = stop.send(true);
    let ended = running.join().await;
    let _served = tokio::time::timeout(settings.serve.drain + Duration::from_secs(5), serving).await;
    ended?;
    Ok(true)
}

/// How much is kept of whose jobs.
pub fn trajectories(settings: &Config) -> contract::Trajectories {
    let tenants = settings.trajectories.tenants.iter();
    contract::Trajectories {
        default: settings.trajectories.default,
        tenants: tenants.map(|(tenant, mode)| (contract::TenantId::from(tenant.as_str()), *mode)).collect(),
        keep: (!settings.trajectories.keep.is_zero()).then_some(settings.trajectories.keep),
    }
}

/// Bounds and times of the HTTP side.
pub fn api_limits(settings: &Config) -> api::Limits {
    let defaults = api::Limits::default();
    api::Limits {
        bounds: api::Bounds {
            interactive: settings.limits.interactive.get().into(),
            standard: settings.limits.standard.get().into(),
            bulk: settings.limits.bulk.get().into(),
        },
        body_bytes: usize::try_from(settings.limits.body_bytes).unwrap_or(usize::MAX),
        grace: settings.serve.drain,
        ..defaults
    }
}

/// Jobs of another release wait for that release: they are never answered by this one.
async fn warn_of_others(backends: &backends::Backends, served: &contract::ServedModel) -> anyhow::Result<()> {
    for queue in backends.store.queues().await? {
        if queue.release != served.release {
            let waiting = backends.store.queued(&queue).await?;
            tracing::warn!(
                release = queue.release.short(),
                class = %queue.class,
                jobs = waiting,
                "jobs in the data folder were accepted for another release; they wait for it until their deadline"
            );
        }
    }
    Ok(())
}
