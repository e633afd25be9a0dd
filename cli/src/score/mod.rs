//! `penstock score`: a dataset through the same durable jobs and the same engine as everything else, offline.
//!
//! Jobs live in a folder beside the output (`OUTPUT.penstock`) until the run is done. Output lines are written in the
//! order of the input, so the number of whole lines says where to go on after a kill; a job that had ended by then is
//! read from the store, not run again.

mod lines;
mod output;
mod request;
mod run;
mod state;
mod template;

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, terminal, threads};
use request::Defaults;

/// Score a dataset offline: one answer line per input line.
///
/// Input: JSONL of OpenAI batch lines (`{"custom_id", "method": "POST", "url", "body"}`) or of objects with `prompt` or
/// `messages` (sampling fields beside them); or CSV with --template. Output: OpenAI batch output lines, in the order of the
/// input, each with its `line` and the `release` that answered. A bad line becomes an error line; the rest goes on.
/// Killed or stopped, the same command goes on where it was. Exit status 0 only if every line succeeded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  penstock score questions.jsonl -o answers.jsonl --max-tokens 64\n  \
    penstock score reviews.csv -o labels.jsonl --chat --template \"Is this review good or bad? {{text}}\"")]
pub struct ScoreArgs {
    /// Dataset: .jsonl, .csv or .tsv
    input: PathBuf,
    /// Where the answer lines go
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Catalogue name or path of a GGUF file [default: the configured model]
    #[arg(long, value_name = "NAME|PATH")]
    model: Option<String>,
    /// How a CSV record becomes a prompt: text with {{column}} in it
    #[arg(long)]
    template: Option<String>,
    /// Send `prompt` lines and CSV records through the chat template, as one user message
    #[arg(long)]
    chat: bool,
    /// Most tokens of an answer, for lines that do not say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Temperature, 0 to 2, for lines that do not say
    #[arg(long, value_name = "T", value_parser = temperature)]
    temperature: Option<f64>,
    /// Seed, for lines that do not say
    #[arg(long, value_name = "N")]
    seed: Option<i64>,
    /// Answer lines that ask for another model, too
    #[arg(long)]
    any_model: bool,
    /// Begin anew, discarding OUTPUT and what an earlier run left
    #[arg(long)]
    overwrite: bool,
}

fn temperature(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=2.0).contains(&value) { Ok(value) } else { Err("must be from 0 to 2".to_owned()) }
}

/// Whether two names are of one file that exists, by whatever way they reach it.
fn is_one_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    place(a).is_some_and(|of_a| place(b) == Some(of_a))
}

/// Runs `penstock score`; true only if every line succeeded.
///
/// # Errors
/// Input, output or model cannot be used, or the run was stopped; the message says what to do.
pub async fn run(args: &ScoreArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let settings = config::load(config, Flags::default().set("serve.model", "--model", args.model.clone()))?.config;
    threads::settle(settings.engine.threads)?;
    let dataset = lines::Dataset::open(&args.input, args.template.as_deref())?;
    if args.output.is_dir() {
        bail!("{} is a folder; name a file with -o", args.output.display());
    }
    if is_one_file(&args.input, &args.output) {
        bail!("{} is the dataset itself: name another file with -o", args.output.display());
    }
    let model = embedded::find_model(&settings.serve.model).await?;
    let plan = state::Plan {
        input: std::path::absolute(&args.input)?,
        input_bytes: std::fs::metadata(&args.input)?.len(),
        release: model.served.release.to_string(),
        template: args.template.clone(),
        chat: args.chat,
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        seed: args.seed,
        any_model: args.any_model,
    };
    let defaults =
        Defaults { max_tokens: args.max_tokens, temperature: args.temperature, seed: args.seed, chat: args.chat };
    let folder = embedded::folder_beside(&args.output);
    let batch = state::begin_or_resume(&folder, &args.output, &plan, args.overwrite)?;
    let output = output::Output::open(&args.output)?;
    if output.written > 0 {
        terminal::say(&format!("going on after {} lines", output.written));
    }
    let any_model = plan.any_model;
    let scorer = run::Scorer { dataset, input_bytes: plan.input_bytes, output, batch, defaults, any_model };
    let totals = scorer.run(model, &folder, &settings).await?;
    state::finish(&folder)?;
    terminal::say(&format!(
        "{} lines: {} succeeded, {} failed; answers in {}",
        totals.succeeded + totals.failed,
        totals.succeeded,
        totals.failed,
        args.output.display()
    ));
    Ok(totals.failed == 0)
}
