//! `penstock bench perplexity`: the method of llama.cpp's llama-perplexity, so that figures can be held side by side.

use std::path::PathBuf;

use anyhow::Context;
use gpu_worker::model::perplexity::perplexity;
use serde::Serialize;

use super::Conditions;
use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, terminal, threads};

/// Perplexity of a text: whether the model computes what it should.
///
/// The text is cut into chunks of CONTEXT tokens; what counts is the second half of each, given the chunk from its start.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: penstock bench perplexity fixtures/golden/text.txt")]
pub struct PerplexityArgs {
    /// A UTF-8 text file, at least one chunk long
    file: PathBuf,
    /// Catalogue name, or path of a GGUF file or model folder [default: the configured model]
    #[arg(long, value_name = "NAME|PATH")]
    model: Option<String>,
    /// Tokens of a chunk
    #[arg(long, default_value_t = 512, value_name = "N")]
    context: usize,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    conditions: Conditions,
    context: usize,
    chunks: usize,
    tokens: usize,
    perplexity: f64,
}

/// Runs `penstock bench perplexity`.
///
/// # Errors
/// The text or the model cannot be read, or the text is shorter than a chunk.
pub async fn run(args: &PerplexityArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default().set("serve.model", "--model", args.model.clone()))?.config;
    threads::settle(settings.engine.threads)?;
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("{} cannot be read as UTF-8 text", args.file.display()))?;
    let model = embedded::find_model(&settings.serve.model).await?;
    let loaded = model.load_for_tokens(args.context.min(1_000_000) + 16).await?;
    let conditions = Conditions::of(&loaded.served);
    let ids = loaded.tokenizer.encode_prompt(&text, false)?;
    let bos = loaded.tokenizer.adds_bos().then(|| loaded.tokenizer.bos_id()).flatten();
    let mut forward = loaded.forward;
    let context = args.context;
    let measured = tokio::task::spawn_blocking(move || perplexity(forward.as_mut(), &ids, context, bos));
    let measured = measured.await.context("the benchmark panicked")??;
    let report = Report {
        conditions,
        context: args.context,
        chunks: measured.chunks,
        tokens: measured.tokens,
        perplexity: measured.ppl,
    };
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::say(&format!("{} ({})", report.conditions.model, report.conditions.numerics));
        let summary = format!("{:.3} over {} tokens of {} chunks\n", report.perplexity, report.tokens, report.chunks);
        terminal::print(&summary)?;
    }
    Ok(true)
}
