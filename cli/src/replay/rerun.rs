//! The engine again, with what was recorded as its input. All records share one loaded model and run together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use contract::{ChoiceRecord, Class, Input, Lease, Leased, Prompt, Record, Request, TenantId, Usage};
use gpu_worker::collect::{Collected, Running, Unfinished};
use gpu_worker::engine::fault::FaultPoint;
use gpu_worker::engine::planner::Limits;
use gpu_worker::engine::sequence::DropMark;
use gpu_worker::engine::{self, Command};
use gpu_worker::grammar::Grammars;
use gpu_worker::prepare::Preparer;

use crate::embedded::Model;

/// Nobody waits: a replay has no deadline.
const NO_DEADLINE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Tokens of cache beyond which more only takes memory.
const ENOUGH_CACHE: usize = 16_384;

/// Runs `records`, each of which [`super::compare::check`] let pass; answers for each what came out, or why nothing did.
///
/// # Errors
/// The model cannot be loaded, or the engine died.
pub async fn run(
    model: Model,
    records: &[Record],
    limits: Limits,
) -> anyhow::Result<Vec<Result<Vec<ChoiceRecord>, String>>> {
    let tokens = |record: &Record| (record.prompt_ids.len() + longest_output(record) + 1) * record.choices.len();
    let all: usize = records.iter().map(tokens).sum();
    let longest = records.iter().map(|record| record.prompt_ids.len() + longest_output(record) + 1).max().unwrap_or(0);
    let longest = longest.min(model.served.context_tokens as usize + 1);
    let loaded = model.load_for_tokens(all.min(ENOUGH_CACHE).max(longest)).await?;
    let release = loaded.served.release.clone();
    let preparer = Preparer {
        context_tokens: loaded.forward.context_tokens(),
        vocab_size: loaded.forward.vocab_size(),
        cache_tokens: loaded.cache_tokens,
        // Every record is computed as a whole: what is compared owes nothing to another.
        scopes: None,
        prompts: loaded.prompts,
        grammars: Arc::new(Grammars::new(Arc::clone(&loaded.tokenizer))),
        tokenizer: Arc::clone(&loaded.tokenizer),
    };
    let mut engine = engine::spawn(loaded.forward, limits, FaultPoint::default())?;
    let mut answers: Vec<Option<Result<Vec<ChoiceRecord>, String>>> = records.iter().map(|_| None).collect();
    let mut running: HashMap<Running, Collected> = HashMap::new();
    let mut next = 0;
    // Twice as many as run, so that the engine never waits for the next one.
    let window = limits.max_sequences.max(1) * 2;
    loop {
        while running.len() < window && next < records.len() {
            let (name, leased, now) = (Running(next as u64), again(&records[next]), Instant::now());
            match preparer.prepare(name, &leased, DropMark::default(), now) {
                Ok(ready) => {
                    let job = Collected::new(leased, now, ready.prompt_text, ready.prompt_ids);
                    // As it was read then: the prompt by its tokens is no chat any more.
                    running.insert(name, job.read_as(records[next].reading));
                    for sequence in ready.prepared {
                        let started = engine.commands.send(Command::Start(Box::new(sequence))).await;
                        started.ok().context("the engine died")?;
                    }
                }
                Err(err) => answers[next] = Some(Err(err.message)),
            }
            next += 1;
        }
        if running.is_empty() {
            break;
        }
        let Some(step) = engine.outputs.recv().await else { bail!("the engine died") };
        for token in step.tokens {
            if let Some(job) = running.get_mut(&Running::of(token.id).0) {
                job.push(token, &loaded.tokenizer);
            }
        }
        for ended in step.ended {
            let (name, choice) = Running::of(ended.id);
            let Some(job) = running.get_mut(&name) else { continue };
            job.end(choice, ended.ending, Usage::default());
            if !job.has_ended() {
                continue;
            }
            let Some(job) = running.remove(&name) else { continue };
            answers[name.0 as usize] = Some(match job.into_record(release.clone()) {
                Ok(record) => Ok(record.choices),
                Err(Unfinished::Failed(err)) => Err(err.message),
                Err(Unfinished::Dropped | Unfinished::DeadlinePassed) => Err("the engine dropped it".to_owned()),
            });
        }
    }
    let ended = tokio::task::spawn_blocking(move || engine.join()).await?;
    anyhow::ensure!(ended, "the engine died");
    answers.into_iter().map(|answer| answer.context("the engine left a job out")).collect()
}

/// Tokens of the longest answer.
fn longest_output(record: &Record) -> usize {
    record.choices.iter().map(|choice| choice.output_ids.len()).max().unwrap_or(0)
}

/// The job as it was leased, with its prompt by token ids: rendering and tokenising are not run again.
fn again(record: &Record) -> Leased {
    let n_output = longest_output(record);
    let request = Request {
        input: Input::Completion(Prompt::Tokens(record.prompt_ids.clone())),
        // Without a limit the server's cache was one. What ended before a limit ends so again, or is found out.
        max_tokens: Some(u32::try_from(n_output).unwrap_or(u32::MAX)),
        ..record.request.clone()
    };
    Leased {
        lease: Lease { job: record.job, attempt: record.attempt },
        tenant: TenantId::local(),
        class: Class::Bulk,
        request,
        seed: record.seed,
        losses: 0,
        deadline_in: NO_DEADLINE,
        traceparent: None,
    }
}
