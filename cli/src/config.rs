//! Settings: one TOML file, `PENSTOCK_…` variables over it, flags over both; read once, into final types.
//!
//! Each section is a small struct with its own defaults ([`sections`]). [`layers`] merges what was set where and refuses
//! what it does not know; [`show`] prints the result with the source of every value.

mod layers;
mod sections;
pub mod show;
mod units;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use layers::{ConfigError, Flags};
pub use sections::{
    Auth, Backend, Bus, Client, Engine, Follow, Limits, Log, LogFormat, Queue, Secret, Serve, Trajectories, Webhooks,
    Worker,
};

/// Every setting, in its final type. `deploy/penstock.toml` says what each means.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the server listens and keeps its data, and which model it serves.
    pub serve: Serve,
    /// Who may call.
    pub auth: Auth,
    /// Where webhooks may lead.
    pub webhooks: Webhooks,
    /// The engine's threads and memory.
    pub engine: Engine,
    /// Most unfinished jobs of each class, and the largest body.
    pub limits: Limits,
    /// Where jobs are kept.
    pub store: Backend,
    /// The wake-up queue.
    pub queue: Queue,
    /// Tokens while they come, and signals.
    pub bus: Bus,
    /// Where large things are kept.
    pub objects: Backend,
    /// Leases.
    pub worker: Worker,
    /// How much is kept of jobs beside their results.
    pub trajectories: Trajectories,
    /// What is logged, and how.
    pub log: Log,
    /// Which server the client commands talk to.
    pub client: Client,
    /// Where continuous work comes from and goes to.
    pub follow: Follow,
}

/// The settings, and where each was set.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The result.
    pub config: Config,
    /// By setting (`serve.listen`): `default`, `file PATH`, `variable NAME` or `flag --NAME`.
    pub origins: BTreeMap<String, String>,
}

/// Where a command finds its settings file; every command takes this.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConfigArgs {
    /// Settings file (TOML). Without it: `penstock.toml` in the working directory, else
    /// `$XDG_CONFIG_HOME/penstock/config.toml` (`~/.config/…`), if there is one.
    #[arg(long, value_name = "FILE", global = true, env = "PENSTOCK_CONFIG", help_heading = "Global options")]
    pub config: Option<PathBuf>,
}

/// Reads the settings of this process: file, environment, then `flags`.
///
/// # Errors
/// A file that is named but missing, or is not TOML; an unknown setting; a value of the wrong kind. Each says where.
pub fn load(args: &ConfigArgs, flags: Flags) -> Result<Loaded, ConfigError> {
    layers::resolve(layers::find_file(args.config.as_deref())?, std::env::vars_os(), flags)
}

#[cfg(test)]
pub use layers::resolve as load_from;
