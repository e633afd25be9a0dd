//! `penstock replay`: jobs again, from their trajectories, through the same engine.
//!
//! What a release answers to a prompt, parameters and seed is decided, whatever else was in the batch. So the same tokens
//! must come, bit for bit, or something that the fingerprint should name has changed.

mod compare;
mod rerun;
mod source;

use std::fmt::Write as _;
use std::path::PathBuf;

use contract::{Fingerprint, Record, ServedModel, Trajectory};
use serde::Serialize;

use crate::client::ServerArgs;
use crate::config::{self, ConfigArgs};
use crate::{embedded, terminal, threads};
use compare::Verdict;
use source::Asked;

/// Run jobs again from their trajectories, and say whether the same comes out, bit for bit.
///
/// The model here must be the release that answered, which its fingerprint tells; another one is refused. Prompt (by its
/// token ids), parameters and seed are the recorded ones; tokens, log-probabilities if they were asked for, text and end
/// are compared. Redacted trajectories cannot be run again. Exit status 0 only if every job was bit-equal.
///
/// For example:
///
///     penstock replay job_0193f0c0d0e070008000000000000001
///     penstock replay --file segment.jsonl.zst --json
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct ReplayArgs {
    /// Ids of the jobs; with --file, only these of it
    #[arg(value_name = "JOB", required_unless_present = "file")]
    jobs: Vec<String>,
    /// Read trajectories from this file instead of a server: one JSON document a line, plain or zstd, as segments are
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Catalogue name, or path of a GGUF file or model folder [default: the configured model]
    #[arg(long, value_name = "NAME|PATH")]
    model: Option<String>,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The outcome of one job.
#[derive(Debug, Serialize)]
struct Row {
    /// The job's id, or where its line is in the file.
    job: String,
    #[serde(flatten)]
    verdict: Verdict,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    release: String,
    jobs: Vec<Row>,
    bit_equal: usize,
}

/// Runs `penstock replay`; true only if every job was bit-equal.
///
/// # Errors
/// The trajectories or the model cannot be had, or the engine died; the message says what to do.
pub async fn run(args: &ReplayArgs, config: &ConfigArgs) -> anyhow::Result<bool> {
    let flags = args.server.flags().set("serve.model", "--model", args.model.clone());
    let settings = config::load(config, flags)?.config;
    threads::settle(settings.engine.threads)?;
    let asked = match &args.file {
        Some(path) => source::from_file(path, &args.jobs)?,
        None => source::from_server(&settings.client, &args.jobs).await?,
    };
    let model = embedded::find_model(&settings.serve.model).await?;
    let served = model.served.clone();
    let mut rows: Vec<Row> = Vec::with_capacity(asked.len());
    let mut records: Vec<(usize, Record)> = Vec::new();
    for Asked { name, found } in asked {
        let verdict = match found.and_then(|trajectory| replayable(trajectory, &served.release)) {
            Ok(record) => {
                records.push((rows.len(), record));
                // Replaced by what the run says.
                Verdict::NotReplayed { reason: "the engine gave no answer".to_owned() }
            }
            Err(reason) => Verdict::NotReplayed { reason },
        };
        rows.push(Row { job: name, verdict });
    }
    if !records.is_empty() {
        let (places, records): (Vec<usize>, Vec<Record>) = records.into_iter().unzip();
        let answers = rerun::run(model, &records, embedded::limits(&settings)).await?;
        for ((place, record), answer) in places.into_iter().zip(&records).zip(answers) {
            rows[place].verdict = match answer {
                Ok(choices) => compare::compare(&record.choices, &choices),
                Err(reason) => Verdict::NotReplayed { reason },
            };
        }
    }
    let bit_equal = rows.iter().filter(|row| matches!(row.verdict, Verdict::BitEqual { .. })).count();
    let report = Report { model: served.name.clone(), release: served.release.to_string(), jobs: rows, bit_equal };
    let all = report.bit_equal == report.jobs.len();
    if args.json {
        terminal::print_json(&report)?
    } else {
        terminal::print(&readable(&report))?
    }
    terminal::say(&summary(&report, &served));
    Ok(all)
}

/// The record to run again, if it can be.
fn replayable(trajectory: Trajectory, release: &Fingerprint) -> Result<Record, String> {
    if trajectory.release() != release {
        return Err(format!(
            "release {} answered it, and the model here is release {release}: name the right file with --model",
            trajectory.release()
        ));
    }
    match trajectory {
        Trajectory::Full(record) => compare::check(&record).map(|()| *record),
        Trajectory::Redacted(_) => {
            Err("it is redacted: without prompt and output there is nothing to run again".to_owned())
        }
    }
}

fn readable(report: &Report) -> String {
    let mut out = String::new();
    for row in &report.jobs {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}  {}", row.job, row.verdict);
    }
    out
}

fn summary(report: &Report, served: &ServedModel) -> String {
    let (n, total) = (report.bit_equal, report.jobs.len());
    format!("{n} of {total} bit-equal with {} ({})", served.name, served.release.short())
}
