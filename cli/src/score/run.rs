//! The run itself: a window of jobs ahead of the output, so that memory does not grow with the dataset.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use backends::Backends;
use contract::openai::Parsed;
use contract::{Class, Job, JobId, NewJob, QueueId, Signal, TenantId};
use futures::StreamExt;
use tokio::sync::watch;
use uuid::Uuid;

use super::choices::{Choices, MOST, Question};
use super::lines::Dataset;
use super::output::{Line, Output, Place, Totals};
use super::reading::Reading;
use super::shown::Shown;
use crate::config::Config;
use crate::embedded::{self, Model};
use crate::records;

/// A stopped run may be gone on with whenever its owner likes: its lines do not expire.
const NO_DEADLINE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Jobs accepted in one transaction.
const GROUP: usize = 64;
/// Behind every signal stands a poll.
const POLL: Duration = Duration::from_millis(200);

/// A dataset on its way to its output.
pub struct Scorer {
    /// The input.
    pub dataset: Dataset,
    /// Size of the input file.
    pub input_bytes: u64,
    /// The output, with what earlier runs wrote.
    pub output: Output,
    /// The id that the run's jobs share.
    pub batch: Uuid,
    /// How its items become requests.
    pub reading: Reading,
    /// How choices are scored, where that is asked in place of answers.
    pub choices: Option<Choices>,
}

/// A line that waits for its turn in the output.
struct Pending {
    place: Place,
    end: u64,
    answer: Answer,
}

enum Answer {
    Ready(Line),
    Job(JobId),
    /// One job for each choice, in order.
    Choices(Question, Vec<JobId>),
}

/// An item, before its jobs are accepted.
enum Asked {
    Ready(Line),
    Job,
    /// With so many jobs.
    Choices(Question, usize),
}

impl Scorer {
    /// Scores what is not written yet.
    ///
    /// # Errors
    /// Input or output fail, the engine dies, or somebody stops the run; the same command then goes on.
    pub async fn run(mut self, model: Model, folder: &Path, config: &Config) -> anyhow::Result<Totals> {
        let served = model.served.clone();
        let backends = embedded::open_embedded(folder, config)
            .await
            .with_context(|| format!("the unfinished run in {} cannot be opened", folder.display()))?;
        for _ in 0..self.output.written {
            if self.dataset.next()?.is_none() {
                bail!("the output has more lines than the input; pass --overwrite to begin anew");
            }
        }
        let (stop, stopped) = watch::channel(false);
        let mut settings = config.clone();
        // What runs when somebody stops the run is repeated by the next one; nobody waits for it.
        settings.serve.drain = Duration::from_secs(1);
        let running = embedded::start(model, &backends, embedded::shared_ports(&backends), &settings, stopped)?;
        let window = (config.engine.max_sequences.get() * 8).clamp(GROUP, 1024);
        let queue = QueueId { release: served.release.clone(), class: Class::Bulk };
        let scored = tokio::select! {
            scored = self.feed_and_write(&backends, &served, &queue, window) => scored,
            asked = embedded::asked_to_stop() => {
                asked?;
                Err(anyhow::anyhow!("stopped; run the same command again to go on"))
            }
            () = embedded::ended(&running) => Err(anyhow::anyhow!("the engine ended before the dataset did")),
        };
        self.output.flush()?;
        let _worker_is_gone = stop.send(true);
        let ended = running.join().await;
        scored?;
        ended?;
        self.output.close()
    }

    async fn feed_and_write(
        &mut self,
        backends: &Backends,
        served: &contract::ServedModel,
        queue: &QueueId,
        window: usize,
    ) -> anyhow::Result<()> {
        let mut signals = backends.bus.signals().await;
        let mut pending: VecDeque<Pending> = VecDeque::new();
        let mut next_line = u32::try_from(self.output.written).context("a dataset has at most 4 billion lines")?;
        let mut at_end = false;
        let mut shown = Shown::new(self.input_bytes);
        loop {
            while !at_end && pending.len() + GROUP <= window {
                at_end = self.feed(backends, served, &mut pending, &mut next_line).await?;
                backends.bus.tell(Signal::Due { queue: queue.clone() }).await;
            }
            let before = self.output.written;
            while let Some(head) = pending.front() {
                let Some(line) = finished(head, backends).await? else { break };
                self.output.write(&line)?;
                shown.at(head.end, &self.output.totals);
                pending.pop_front();
            }
            if self.output.written > before {
                self.output.flush()?;
            }
            if at_end && pending.is_empty() {
                return Ok(());
            }
            if pending.len() + GROUP <= window && !at_end {
                continue;
            }
            // Any job's end may free the head; a burst of ends is looked at once.
            let _told_or_time = tokio::time::timeout(POLL, async {
                while !matches!(signals.next().await, Some(Signal::Ended { .. }) | None) {}
            })
            .await;
        }
    }

    /// Reads up to [`GROUP`] items and accepts the jobs among them; true at the end of the input.
    async fn feed(
        &mut self,
        backends: &Backends,
        served: &contract::ServedModel,
        pending: &mut VecDeque<Pending>,
        next_line: &mut u32,
    ) -> anyhow::Result<bool> {
        let mut jobs = Vec::new();
        let mut places: Vec<(Place, u64, Asked)> = Vec::new();
        let mut at_end = false;
        while places.len() < GROUP {
            let Some(item) = self.dataset.next()? else {
                at_end = true;
                break;
            };
            let end = item.end;
            let (place, asked) = match &self.choices {
                None => {
                    let (place, read) = self.reading.read(item);
                    let asked = match read {
                        Ok(body) => {
                            jobs.push(new_job(body.parsed, served, (self.batch, *next_line)));
                            Asked::Job
                        }
                        Err(line) => Asked::Ready(line),
                    };
                    (place, asked)
                }
                Some(choices) => {
                    let (place, read) = self.reading.read_choices(item, choices);
                    let asked = match read {
                        Ok((question, requests)) => {
                            // Numbers of their own for the jobs of a line, whatever the lines before it had.
                            let first = next_line.checked_mul(MOST).context("a dataset with choices is too long")?;
                            let n = requests.len();
                            let numbered = (first..).zip(requests);
                            jobs.extend(numbered.map(|(nth, parsed)| new_job(parsed, served, (self.batch, nth))));
                            Asked::Choices(question, n)
                        }
                        Err(line) => Asked::Ready(line),
                    };
                    (place, asked)
                }
            };
            *next_line = next_line.checked_add(1).context("a dataset has at most 4 billion lines")?;
            places.push((place, end, asked));
        }
        let accepted = backends.store.accept(&jobs).await?;
        let mut accepted = accepted.into_iter();
        let mut next = || -> anyhow::Result<JobId> { Ok(accepted.next().context("the store answers every job")??.job) };
        for (place, end, asked) in places {
            let answer = match asked {
                Asked::Ready(line) => Answer::Ready(line),
                Asked::Job => Answer::Job(next()?),
                Asked::Choices(question, n) => {
                    Answer::Choices(question, (0..n).map(|_| next()).collect::<anyhow::Result<_>>()?)
                }
            };
            pending.push_back(Pending { place, end, answer });
        }
        Ok(at_end)
    }
}

/// A job of the bulk class for a line; it does not expire, and nothing but its result is kept.
pub fn new_job(parsed: Parsed, served: &contract::ServedModel, batch_line: (Uuid, u32)) -> NewJob {
    let id = JobId::new();
    NewJob {
        // The random part of the id: as good a draw as any, and kept with the job.
        seed: parsed.request.sampling.seed.unwrap_or(id.0.as_u128() as u64),
        id,
        tenant: TenantId::local(),
        release: served.release.clone(),
        route: parsed.request.model.clone(),
        class: Class::Bulk,
        bound: Class::Bulk.default_bound(),
        tenant_bound: None,
        delay: Duration::ZERO,
        deadline_in: NO_DEADLINE,
        request: parsed.request,
        metadata: BTreeMap::new(),
        batch_line: Some(batch_line),
        custom_id: None,
        webhook: None,
        sequence_key: None,
        on_failure: contract::OnFailure::Skip,
        traceparent: None,
        idempotency: None,
        published_by_caller: false,
        // Its answers are in the output; the folder of the run goes away with its records.
        trajectory: contract::TrajectoryMode::Off,
        keep: None,
    }
}

/// The head's line, once its job or jobs have ended.
async fn finished(head: &Pending, backends: &Backends) -> anyhow::Result<Option<Line>> {
    let jobs = match &head.answer {
        Answer::Ready(line) => return Ok(Some(line.clone())),
        Answer::Job(job) => std::slice::from_ref(job),
        Answer::Choices(_, jobs) => jobs,
    };
    let mut ended = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Some(job) = backends.store.get(&TenantId::local(), job).await? else {
            bail!("job {job} of line {} is gone from the store", head.place.line);
        };
        if !job.state.is_terminal() {
            return Ok(None);
        }
        ended.push(job);
    }
    let mut records = Vec::with_capacity(ended.len());
    for job in &ended {
        match read_record(job, backends).await? {
            Some(record) => records.push(record),
            // One that failed says why, for the whole line.
            None => return Ok(Some(Line::of_job(&head.place, job, None))),
        }
    }
    let Some(job) = ended.first() else { bail!("line {} has no job", head.place.line) };
    Ok(Some(match &head.answer {
        Answer::Choices(question, _) => {
            let body = question.answer(&records);
            let body = body.with_context(|| format!("the scores of line {} are not whole", head.place.line))?;
            Line::of_choices(&head.place, job, body)
        }
        Answer::Ready(_) | Answer::Job(_) => Line::of_job(&head.place, job, records.first()),
    }))
}

/// The record of a job that has one.
///
/// # Errors
/// It cannot be read.
pub async fn read_record(job: &Job, backends: &Backends) -> anyhow::Result<Option<contract::Record>> {
    match &job.record {
        Some(location) => Ok(Some(records::read(location, backends.objects.as_ref()).await?)),
        None => Ok(None),
    }
}
