//! `penstock bench`: figures with their conditions.

mod engine;
mod perplexity;

use crate::config::ConfigArgs;

/// Measure this machine with a real model. Every figure comes with its conditions.
#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Prefill and decode speed of the engine by batch size, without queue or HTTP
    Engine(engine::EngineArgs),
    /// Perplexity of a text: whether the model computes what it should
    Perplexity(perplexity::PerplexityArgs),
}

/// Runs a benchmark.
///
/// # Errors
/// The model cannot be loaded, or the request makes no sense; the message says why.
pub async fn run(command: &BenchCommand, config: &ConfigArgs) -> anyhow::Result<bool> {
    match command {
        BenchCommand::Engine(args) => engine::run(args, config).await,
        BenchCommand::Perplexity(args) => perplexity::run(args, config).await,
    }
}

/// The conditions that stand beside every figure.
#[derive(Debug, serde::Serialize)]
pub struct Conditions {
    /// The model's name.
    pub model: String,
    /// Its release.
    pub release: String,
    /// How it computes.
    pub numerics: String,
    /// Compute threads.
    pub threads: usize,
    /// The processor.
    pub cpu: String,
}

impl Conditions {
    fn of(served: &contract::ServedModel) -> Self {
        Self {
            model: served.name.clone(),
            release: served.release.to_string(),
            numerics: served.manifest.numerics.clone(),
            threads: kernels::threads(),
            cpu: cpu_name(),
        }
    }
}

/// The processor's name as the system gives it.
fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}
