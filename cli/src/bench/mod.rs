//! `penstock bench`: figures with their conditions.

mod arrival;
mod engine;
mod fair;
mod latency;
mod perplexity;
mod queue;
mod serve;
mod stream;

use crate::config::ConfigArgs;

/// Measure this machine with a real model. Every figure comes with its conditions.
#[derive(Debug, clap::Subcommand)]
pub enum BenchCommand {
    /// Prefill and decode speed of the engine by batch size, without queue or HTTP
    Engine(engine::EngineArgs),
    /// How long one tenant's jobs wait while another tenant has a long queue
    Fair(fair::FairArgs),
    /// Perplexity of a text: whether the model computes what it should
    Perplexity(perplexity::PerplexityArgs),
    /// Durable jobs per second through everything around the engine
    Queue(queue::QueueArgs),
    /// Latency and rates of any OpenAI-compatible server, as its clients see them
    Serve(serve::ServeArgs),
}

/// Runs a benchmark.
///
/// # Errors
/// The model cannot be loaded, or the request makes no sense; the message says why.
pub async fn run(command: &BenchCommand, config: &ConfigArgs) -> anyhow::Result<bool> {
    match command {
        BenchCommand::Engine(args) => engine::run(args, config).await,
        BenchCommand::Fair(args) => fair::run(args, config).await,
        BenchCommand::Perplexity(args) => perplexity::run(args, config).await,
        BenchCommand::Queue(args) => queue::run(args, config).await,
        BenchCommand::Serve(args) => serve::run(args, config).await,
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
