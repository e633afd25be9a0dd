//! The `penstock` binary.
#![allow(rustdoc::invalid_rust_codeblocks, reason = "indented examples of commands, as --help shows them")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod audit;
mod batch;
mod bench;
mod client;
mod config;
mod embedded;
mod folders;
mod http;
mod keys;
mod logging;
mod model;
mod process;
mod records;
mod replay;
mod schedules;
mod score;
mod sequences;
mod serve;
mod suggest;
mod tenants;
mod terminal;
mod threads;
mod usage;
mod webhooks;

use std::process::ExitCode;

use clap::Parser;

/// Penstock: an asynchronous job queue in front of a language model.
#[derive(Debug, Parser)]
#[command(name = "penstock", version)]
struct Cli {
    #[command(flatten)]
    config: config::ConfigArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Api(process::api::ApiArgs),
    Scheduler(process::scheduler::SchedulerArgs),
    Worker(process::worker::WorkerArgs),
    Migrate(process::migrate::MigrateArgs),
    Score(Box<score::ScoreArgs>),
    Replay(replay::ReplayArgs),
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    #[command(subcommand)]
    Batch(batch::BatchCommand),
    #[command(subcommand)]
    Schedules(schedules::SchedulesCommand),
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    #[command(subcommand)]
    Tenants(tenants::TenantsCommand),
    #[command(subcommand)]
    Sequences(sequences::SequencesCommand),
    #[command(subcommand)]
    Webhooks(webhooks::WebhooksCommand),
    Usage(usage::UsageArgs),
    Audit(audit::AuditArgs),
    #[command(subcommand)]
    Model(model::ModelCommand),
    Config(config::show::ConfigCommand),
    #[command(flatten)]
    Client(client::ClientCommand),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli).await {
        Ok(code) => code,
        Err(error) => {
            terminal::say(&format!("error: {}", terminal::chain(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let done = |well: bool| if well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    match &cli.command {
        Command::Serve(args) => serve::run(args, &cli.config).await.map(done),
        Command::Api(args) => process::api::run(args, &cli.config).await.map(done),
        Command::Scheduler(args) => process::scheduler::run(args, &cli.config).await.map(done),
        Command::Worker(args) => process::worker::run(args, &cli.config).await.map(done),
        Command::Migrate(args) => process::migrate::run(args, &cli.config).await.map(done),
        Command::Score(args) => {
            logging::start_quiet();
            score::run(args, &cli.config).await.map(done)
        }
        Command::Replay(args) => {
            logging::start_quiet();
            replay::run(args, &cli.config).await.map(done)
        }
        Command::Bench(command) => {
            logging::start_quiet();
            bench::run(command, &cli.config).await.map(done)
        }
        Command::Batch(command) => {
            let loaded = config::load(&cli.config, command.server_args().flags())?;
            batch::run(command, &loaded.config.client).await
        }
        Command::Schedules(command) => {
            let loaded = config::load(&cli.config, command.server_args().flags())?;
            schedules::run(command, &loaded.config.client).await
        }
        Command::Keys(command) => keys::run(command, &cli.config).await,
        Command::Tenants(command) => {
            let loaded = config::load(&cli.config, command.server_args().flags())?;
            tenants::run(command, &loaded.config.client).await
        }
        Command::Sequences(command) => sequences::run(command, &cli.config).await,
        Command::Webhooks(command) => webhooks::run(command, &cli.config).await,
        Command::Usage(args) => usage::run(args, &cli.config).await,
        Command::Audit(args) => audit::run(args, &cli.config).await,
        Command::Model(command) => model::run(command).await,
        Command::Config(command) => {
            config::show::run(command, &config::load(&cli.config, config::Flags::default())?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Client(command) => {
            let loaded = config::load(&cli.config, command.server_args().flags())?;
            client::run(command, &loaded.config.client).await
        }
    }
}
