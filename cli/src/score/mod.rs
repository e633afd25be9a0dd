//! `penstock score`: a dataset through the same durable jobs and the same engine as everything else, offline.
//!
//! Jobs live in a folder beside the output (`OUTPUT.penstock`) until the run is done. Output lines are written in the
//! order of the input, so the number of whole lines says where to go on after a kill; a job that had ended by then is
//! read from the store, not run again. With `--server` the jobs are those of a server's batches instead: see [`remote`].

mod choices;
mod follow;
mod lines;
mod output;
mod reading;
mod remote;
mod request;
mod run;
mod shown;
mod state;
mod template;

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::config::{self, ConfigArgs, Flags};
use crate::{embedded, terminal, threads};
use request::Defaults;

/// Score a dataset, offline or on a server: one answer line per input line.
///
/// Input: JSONL of OpenAI batch lines (`{"custom_id", "method": "POST", "url", "body"}`) or of objects with `prompt` or
/// `messages` (sampling fields beside them); or CSV with --template. Output: OpenAI batch output lines, in the order of the
/// input, each with its `line` and the `release` that answered. A bad line becomes an error line; the rest goes on.
/// Killed or stopped, the same command goes on where it was. Exit status 0 only if every line succeeded.
///
/// With --server the lines run as batches there, behind all other work, and go on when this command is stopped.
///
/// With --choices nothing is written: of each line's choices the log-probability behind its prompt is told, and how often
/// the likeliest was the right one, in all, by right answer and by slice. Texts are taken as they are: a choice that is a
/// word begins with a space.
///
/// With --follow lines are answered as they come: from the standard input or a RabbitMQ queue, to the standard output, a
/// file or an exchange. A message is acknowledged when its answer is durable, so it is answered at least once; answers to
/// the same message are equal and have the same name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  penstock score questions.jsonl -o answers.jsonl --max-tokens 64\n  \
    penstock score reviews.csv -o labels.jsonl --chat --template \"Is this review good or bad? {{text}}\"\n  \
    penstock score questions.jsonl -o answers.jsonl --server http://127.0.0.1:8080\n  \
    penstock score reviews.csv -o scores.jsonl --template \"{{text}} All in all it was\" --choices \" good\" \" bad\" --slice lang\n  \
    tail -n +1 -F questions.jsonl | penstock score --follow --max-tokens 64\n  \
    PENSTOCK_FOLLOW__AMQP=amqp://user:password@host/vhost penstock score --follow --from-queue questions --to-exchange answers")]
pub struct ScoreArgs {
    /// Dataset: .jsonl, .csv or .tsv; with --follow `-`, the standard input
    #[arg(required = false, required_unless_present = "follow", default_value_if("follow", "true", "-"))]
    input: PathBuf,
    /// Where the answer lines go; with --follow, also `-`, the standard output [with --follow, the default]
    #[arg(short, long, value_name = "FILE", required = false, required_unless_present = "follow")]
    #[arg(default_value_if("follow", "true", "-"))]
    output: PathBuf,
    /// Catalogue name or path of a GGUF file [default: the configured model]; with --server, one of its models' names
    /// [default: the only one]
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
    /// Score on this server instead of in this process
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Key sent as bearer token [variable PENSTOCK_API_KEY, which other users cannot see]
    #[arg(long, value_name = "KEY", requires = "server")]
    api_key: Option<String>,
    /// Time that the server has, from 1m to 30d: lines that are not done by then expire [default: 30d]
    #[arg(long, value_name = "TIME", requires = "server")]
    window: Option<String>,
    #[command(flatten)]
    choices: choices::ChoiceArgs,
    #[command(flatten)]
    follow: follow::FollowArgs,
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

impl ScoreArgs {
    /// Opens the dataset, once it is clear that the output is another file.
    fn open(&self) -> anyhow::Result<lines::Dataset> {
        let dataset = lines::Dataset::open(&self.input, self.template.as_deref())?;
        if self.output.is_dir() {
            bail!("{} is a folder; name a file with -o", self.output.display());
        }
        if is_one_file(&self.input, &self.output) {
            bail!("{} is the dataset itself: name another file with -o", self.output.display());
        }
        Ok(dataset)
    }

    /// The plan of an offline run by this release.
    fn plan(&self, release: String, choices: Option<choices::Choices>) -> anyhow::Result<state::Plan> {
        Ok(state::Plan {
            server: None,
            model: None,
            input: std::path::absolute(&self.input)?,
            input_bytes: std::fs::metadata(&self.input)?.len(),
            input_sha256: None,
            release,
            template: self.template.clone(),
            chat: self.chat,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            seed: self.seed,
            any_model: self.any_model,
            window: None,
            choices,
        })
    }

    fn report(&self, totals: &output::Totals) {
        terminal::say(&format!(
            "{} lines: {} succeeded, {} failed; answers in {}",
            totals.succeeded + totals.failed,
            totals.succeeded,
            totals.failed,
            self.output.display()
        ));
    }
}

impl Defaults {
    fn of(args: &ScoreArgs) -> Self {
        Self { max_tokens: args.max_tokens, temperature: args.temperature, seed: args.seed, chat: args.chat }
    }
}

/// Runs `penstock score`; true only if every line succeeded.
///
/// # Errors
/// Input, output or model cannot be used, or the run was stopped; the message says what to do.
pub async fn run(args: &ScoreArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    if args.follow.follow {
        return follow::run(args, config).await;
    }
    if args.server.is_some() {
        return remote::run(args, config).await;
    }
    let settings = config::load(config, Flags::default().set("serve.model", "--model", args.model.clone()))?.config;
    threads::settle(settings.engine.threads)?;
    let mut dataset = args.open()?;
    let choices = args.choices.choices()?;
    if let Some(choices) = &choices {
        choices.keep_columns(&mut dataset)?;
    }
    let model = embedded::find_model(&settings.serve.model).await?;
    let plan = args.plan(model.served.release.to_string(), choices.clone())?;
    let reading = reading::Reading {
        model: model.served.name.clone(),
        release: plan.release.clone(),
        any_model: args.any_model,
        defaults: Defaults::of(args),
    };
    let folder = embedded::folder_beside(&args.output);
    // Until what the run kept is removed, too.
    let held = output::hold(&args.output)?;
    let batch = state::begin_or_resume(&folder, (&args.output, &held), &plan, args.overwrite)?.batch;
    let output = output::Output::open(held.try_clone()?, &args.output)?;
    if output.written > 0 {
        terminal::say(&format!("going on after {} lines", output.written));
    }
    let scorer = run::Scorer { dataset, input_bytes: plan.input_bytes, output, batch, reading, choices };
    let has_choices = scorer.choices.is_some();
    let totals = scorer.run(model, &folder, &settings).await?;
    state::finish(&folder)?;
    args.report(&totals);
    if has_choices {
        terminal::say(&choices::Accuracy::of(&args.output)?.to_string());
    }
    Ok(totals.failed == 0)
}
