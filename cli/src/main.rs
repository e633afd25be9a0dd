//! The `penstock` binary.

mod config;
mod folders;
mod http;
mod model;
mod suggest;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

/// Penstock: an asynchronous job queue in front of a language model.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    config: config::ConfigArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(subcommand)]
    Model(model::ModelCommand),
    Config(config::show::ConfigCommand),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Model(command) => model::run(command).await,
        Command::Config(command) => (|| {
            config::show::run(command, &config::load(&cli.config, config::Flags::default())?)?;
            Ok(true)
        })(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            terminal::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
