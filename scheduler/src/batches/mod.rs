//! Batches: their files are read and checked, their lines become jobs in chunks, and when all have ended their results
//! are written. Every step can be done again: a kill in the middle of one costs only its time.
//!
//! - **Validate** reads the whole file once. A file that is wrong fails its batch; a line whose body is no good request
//!   is that line's own affair.
//! - **Expand** makes jobs of a chunk of lines, then moves the batch's cursor. After a kill in between, the chunk is
//!   expanded again: the store knows a line by its batch and number.
//! - **Finalize** writes both files in one pass over the lines, in order, then ends the batch in one transaction that
//!   refuses files which lack a line.

mod answers;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use contract::batch::MAX_LINES;
use contract::openai::batches::{InputLine, parse_line, parse_line_body};
use contract::openai::{ErrorEnvelope, ErrorKind};
use contract::{
    Batch, BatchEnd, BatchError, BatchId, BatchState, Class, Cursor, JobId, JobState, LineSet, NewJob, QueueId,
    Refused, RefusedLine, ServedModel, Signal, Storage, StoreError,
};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use self::answers::AnswerFile;
use crate::Deps;
use crate::lead::{self, Lead};
use crate::lines::{LineError, Lines, RawLine};
use crate::patience::{Chain, Patience};
use crate::records::RecordFault;

/// How often the store is asked for batches that have not ended.
const LOOK: Duration = Duration::from_millis(500);
/// Batches looked at.
const BATCHES: u32 = 1_000;
/// Batches worked on at the same time: read, expanded or ended. One that waits for its jobs takes no place.
const AT_ONCE: usize = 4;
/// How long a batch is left alone after a fault.
const AFTER_FAULT: Duration = Duration::from_secs(2);
/// Lines that become jobs in one go.
const CHUNK: usize = 500;
/// Nor more bytes of them than this, and one line.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;
/// Lines read from the store in one go.
const PAGE: u32 = 500;
/// Most errors of a file that are told.
const ERRORS: usize = 100;

#[derive(Debug, thiserror::Error)]
enum BatchFault {
    #[error("the store")]
    Store(#[from] StoreError),
    #[error("the object store")]
    Objects(#[from] object_store::Error),
    #[error("a file")]
    Line(#[from] LineError),
    #[error(transparent)]
    Record(#[from] RecordFault),
    #[error("{0}")]
    Contradiction(String),
}

/// The loop's state.
pub(crate) struct Batches {
    deps: Deps,
    lead: Lead,
    patience: Patience,
}

impl Batches {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::BATCHES, deps.holder.clone());
        Self { deps, lead, patience: Patience::new("batches") }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        // Dropped with their work when the lead is lost.
        let mut working: JoinSet<(BatchId, bool)> = JoinSet::new();
        let mut busy: HashSet<BatchId> = HashSet::new();
        // Batches whose last step failed, and until when they are left alone.
        let mut failed: HashMap<BatchId, Instant> = HashMap::new();
        loop {
            failed.retain(|_, until| *until > Instant::now());
            match self.turn(&mut working, &mut busy, &failed).await {
                Ok(true) => self.patience.succeeded(),
                // Whoever only looks on knows nothing of the backends.
                Ok(false) => {
                    working = JoinSet::new();
                    busy.clear();
                }
                Err(err) => tokio::time::sleep(self.patience.failed(&err)).await,
            }
            let pause = tokio::time::sleep(LOOK);
            tokio::select! {
                () = pause => {}
                Some(ended) = working.join_next() => match ended {
                    Ok((batch, has_failed)) => {
                        busy.remove(&batch);
                        if has_failed {
                            failed.insert(batch, Instant::now() + AFTER_FAULT);
                        }
                    }
                    // A bug's panic. Whose is not known here: all steps begin anew, as after a kill.
                    Err(err) => {
                        tracing::error!(error = %err, "a step of a batch panicked");
                        working = JoinSet::new();
                        busy.clear();
                        tokio::time::sleep(AFTER_FAULT).await;
                    }
                }
            }
        }
    }

    /// False when another scheduler leads.
    async fn turn(
        &mut self,
        working: &mut JoinSet<(BatchId, bool)>,
        busy: &mut HashSet<BatchId>,
        failed: &HashMap<BatchId, Instant>,
    ) -> Result<bool, StoreError> {
        if !self.lead.is_ours().await? {
            return Ok(false);
        }
        if busy.len() >= AT_ONCE {
            return Ok(true);
        }
        let open = self.deps.admin.open_batches(BATCHES).await?;
        for batch in open {
            if busy.len() >= AT_ONCE {
                break;
            }
            if !failed.contains_key(&batch.id) && busy.insert(batch.id) {
                let worker = BatchWorker { deps: self.deps.clone() };
                working.spawn(async move {
                    let id = batch.id;
                    let outcome = worker.step(batch).await;
                    if let Err(err) = &outcome {
                        tracing::warn!(batch.id = %id, error = %Chain(err), "a batch waits");
                    }
                    (id, outcome.is_err())
                });
            }
        }
        Ok(true)
    }
}

/// Works on one batch.
struct BatchWorker {
    deps: Deps,
}

impl BatchWorker {
    /// Takes a batch as far as it goes now.
    async fn step(&self, batch: Batch) -> Result<(), BatchFault> {
        match batch.state {
            BatchState::Validating if is_over(&batch) => self.end(&batch, BatchState::Expired).await,
            BatchState::Validating => self.validate(&batch).await,
            BatchState::InProgress if is_over(&batch) => self.end(&batch, BatchState::Expired).await,
            // The store does not name it before its time.
            BatchState::InProgress if batch.run_after.is_some_and(|at| at > batch.now) => Ok(()),
            BatchState::InProgress if batch.cursor.line < batch.total => self.expand(&batch).await,
            BatchState::InProgress => match self.deps.admin.finalize_batch(&batch.id).await? {
                true => self.end(&batch, BatchState::Completed).await,
                // Nor one whose jobs run: this was the last moment of another look.
                false => Ok(()),
            },
            BatchState::Finalizing => self.end(&batch, BatchState::Completed).await,
            BatchState::Cancelling => self.end(&batch, BatchState::Cancelled).await,
            BatchState::Failed | BatchState::Completed | BatchState::Expired | BatchState::Cancelled => Ok(()),
        }
    }

    async fn validate(&self, batch: &Batch) -> Result<(), BatchFault> {
        let admin = &self.deps.admin;
        match self.check(batch).await {
            Ok(Checked { errors, .. }) if !errors.is_empty() => {
                tracing::info!(batch.id = %batch.id, errors = errors.len(), "the file of a batch is wrong");
                admin.fail_batch(&batch.id, &errors).await?;
            }
            Ok(Checked { model, total, .. }) => {
                tracing::info!(batch.id = %batch.id, lines = total, "a batch is in progress");
                admin.begin_batch(&batch.id, &model, total).await?;
            }
            Err(BatchFault::Line(LineError::TooLong)) => {
                let error = wrong("invalid_json_line", LineError::TooLong.to_string(), None);
                admin.fail_batch(&batch.id, &[error]).await?;
            }
            Err(BatchFault::Line(LineError::Objects(object_store::Error::NotFound { .. }))) => {
                let error = wrong("input_file_missing", "the input file has no bytes any more".to_owned(), None);
                admin.fail_batch(&batch.id, &[error]).await?;
            }
            Err(err) => return Err(err),
        }
        Ok(())
    }

    /// Reads the whole file.
    async fn check(&self, batch: &Batch) -> Result<Checked, BatchFault> {
        let mut lines = self.lines(batch, Cursor::default()).await?;
        let mut checked = Checked::default();
        let mut seen: HashSet<[u8; 16]> = HashSet::new();
        while let Some(line) = lines.next().await? {
            if checked.total == MAX_LINES {
                let what = format!("the file has more than {MAX_LINES} lines: make several batches of it");
                checked.errors.push(wrong("too_many_tasks", what, None));
                break;
            }
            checked.total += 1;
            if let Err(error) = checked.take(&line.bytes, batch, &mut seen) {
                checked.errors.push(BatchError { line: Some(lines.read), ..error });
                if checked.errors.len() >= ERRORS {
                    break;
                }
            }
            // Thousands of lines in a row: others share this thread.
            if checked.total.is_multiple_of(256) {
                tokio::task::yield_now().await;
            }
        }
        if checked.total == 0 {
            checked.errors.push(wrong("empty_file", "the file has no lines".to_owned(), None));
        }
        Ok(checked)
    }

    /// The lines of a batch from a place on.
    async fn lines(&self, batch: &Batch, from: Cursor) -> Result<BatchLines, BatchFault> {
        let only = self.deps.admin.batch_lines(&batch.id).await?;
        let lines = Lines::open(&*self.deps.objects, &batch.input.object_key(), from.offset).await?;
        // Its place in the file is behind that of the line before it.
        let nth = match (&only, from.line.checked_sub(1)) {
            (Some(only), Some(before)) => only.iter().nth(before as usize).map_or(0, |line| line + 1),
            _ => from.line,
        };
        Ok(BatchLines { lines, only, nth, read: 0 })
    }

    /// Makes jobs of the lines from the cursor on, chunk by chunk, until the end or the batch's own.
    async fn expand(&self, batch: &Batch) -> Result<(), BatchFault> {
        let models = self.deps.store.offered().await?;
        let mut lines = self.lines(batch, batch.cursor).await?;
        let mut from = batch.cursor;
        while from.line < batch.total {
            let mut to = from;
            let (mut jobs, mut refused, mut n_bytes) = (Vec::with_capacity(CHUNK), Vec::new(), 0);
            while jobs.len() + refused.len() < CHUNK && n_bytes < CHUNK_BYTES && to.line < batch.total {
                let Some(line) = lines.next().await? else {
                    let what = format!("{}: its file ends before line {}", batch.id, batch.total);
                    return Err(BatchFault::Contradiction(what));
                };
                to.offset = line.next;
                n_bytes += line.bytes.len();
                let input = parse_line(&line.bytes, batch.endpoint).map_err(|err| {
                    BatchFault::Contradiction(format!("{}: its file has changed: {}", batch.id, err.message))
                })?;
                match self.job(batch, to.line, &input, &models) {
                    Ok(job) => jobs.push(job),
                    Err((kind, message, param)) => refused.push(RefusedLine {
                        line: to.line,
                        custom_id: input.custom_id,
                        status: kind.look().status,
                        body: serde_json::to_value(ErrorEnvelope::new(kind, message, param)).unwrap_or_default(),
                    }),
                }
                to.line += 1;
            }
            self.accept(&jobs).await?;
            if !self.deps.admin.batch_expanded(&batch.id, &refused, from, to).await? {
                // Cancelled, or another scheduler expands it.
                return Ok(());
            }
            from = to;
        }
        Ok(())
    }

    fn job(
        &self,
        batch: &Batch,
        line: u32,
        input: &InputLine,
        models: &[ServedModel],
    ) -> Result<NewJob, (ErrorKind, String, Option<String>)> {
        let parsed = parse_line_body(batch.endpoint, &input.body)
            .map_err(|err| (ErrorKind::Parameter(err.code), err.message.clone(), err.param.clone()))?;
        let Some(model) = models.iter().find(|model| model.name == parsed.request.model) else {
            let message = format!("there is no model `{}`", parsed.request.model.chars().take(80).collect::<String>());
            return Err((ErrorKind::ModelNotFound, message, Some("model".to_owned())));
        };
        let seed = match parsed.request.sampling.seed {
            Some(seed) => seed,
            // Decided by the line, so that expanding twice draws the same: 53 bits, which every JSON reader shows exactly.
            None => seed_of(batch.id, line) >> 11,
        };
        // What a line says of itself wins over its batch.
        let storage = match parsed.storage {
            Storage::AsSet => batch.keep.map_or(Storage::AsSet, Storage::For),
            own => own,
        };
        let (trajectory, keep) = self.deps.trajectories.kept(&batch.tenant, storage);
        let left = batch.expires_at.0.saturating_sub(batch.now.0);
        Ok(NewJob {
            id: JobId::new(),
            tenant: batch.tenant.clone(),
            release: model.release.clone(),
            route: parsed.request.model.clone(),
            class: Class::Bulk,
            bound: u64::MAX,
            tenant_bound: None,
            delay: Duration::ZERO,
            deadline_in: Duration::from_millis(left.max(1).unsigned_abs()),
            seed,
            trajectory,
            keep,
            request: parsed.request,
            metadata: parsed.metadata,
            batch_line: Some((batch.id.0, line)),
            custom_id: Some(input.custom_id.clone()),
            webhook: None,
            sequence_key: None,
            on_failure: contract::OnFailure::Skip,
            traceparent: None,
            idempotency: None,
            published_by_caller: false,
        })
    }

    async fn accept(&self, jobs: &[NewJob]) -> Result<(), BatchFault> {
        if jobs.is_empty() {
            return Ok(());
        }
        for answer in self.deps.store.accept(jobs).await? {
            match answer {
                Ok(_) => {}
                // Lines have no bound and no keys.
                Err(refused @ (Refused::QueueFull { .. } | Refused::TenantFull { .. } | Refused::KeyReused)) => {
                    return Err(BatchFault::Contradiction(format!("a line was refused: {refused}")));
                }
            }
        }
        let queues: HashSet<QueueId> =
            jobs.iter().map(|job| QueueId { release: job.release.clone(), class: job.class }).collect();
        for queue in queues {
            self.deps.bus.tell(Signal::Due { queue }).await;
        }
        Ok(())
    }

    /// Ends what has not ended, writes the files, and ends the batch.
    async fn end(&self, batch: &Batch, state: BatchState) -> Result<(), BatchFault> {
        if state != BatchState::Completed {
            self.cancel_lines(batch).await?;
        }
        let mut output = AnswerFile::new(&self.deps, batch, "output");
        let mut errors = AnswerFile::new(&self.deps, batch, "errors");
        let written = self.write(batch, state, &mut output, &mut errors).await;
        let finished = match written {
            Ok(()) => Ok((output.finish().await?, errors.finish().await?)),
            Err(err) => Err(err),
        };
        let (output, errors) = finished?;
        let end = BatchEnd { state, output, errors };
        match self.deps.admin.end_batch(&batch.id, &end).await {
            Ok(Some(ended)) => {
                tracing::info!(batch.id = %batch.id, state = ended.state.as_str(), "a batch has ended");
                Ok(())
            }
            // Somebody was first, or a job of it had not ended yet: another look tells.
            Ok(None) => {
                self.remove(&end).await;
                Ok(())
            }
            Err(err) => {
                if err.surely_not_applied() {
                    self.remove(&end).await;
                }
                Err(err.into())
            }
        }
    }

    async fn remove(&self, end: &BatchEnd) {
        for (file, _) in end.output.iter().chain(&end.errors) {
            if let Err(err) = self.deps.objects.delete(&Path::from(file.id.object_key())).await {
                tracing::debug!(file = %file.id, error = %err, "a file that nobody reads stays");
            }
        }
    }

    /// Cancels every job of a batch that has not ended.
    async fn cancel_lines(&self, batch: &Batch) -> Result<(), BatchFault> {
        loop {
            let unfinished = self.deps.admin.unfinished_lines(&batch.id, PAGE).await?;
            if unfinished.is_empty() {
                return Ok(());
            }
            let cancels = futures::stream::iter(unfinished).map(|job| async move {
                self.deps.store.cancel(&batch.tenant, &job).await?;
                self.deps.bus.tell(Signal::Cancelled { job }).await;
                self.deps.bus.tell(Signal::Ended { job, state: JobState::Cancelled }).await;
                Ok::<_, StoreError>(())
            });
            cancels.buffer_unordered(64).try_collect::<()>().await?;
        }
    }
}

/// The lines of a file that a batch is of.
struct BatchLines {
    lines: Lines,
    /// `None` for all.
    only: Option<LineSet>,
    /// Number of the file's next line that is not blank.
    nth: u32,
    /// Lines read, also blank ones.
    read: u64,
}

impl BatchLines {
    /// The next one that is not blank.
    async fn next(&mut self) -> Result<Option<RawLine>, LineError> {
        while let Some(line) = self.lines.next().await? {
            self.read += 1;
            if is_blank(&line.bytes) {
                continue;
            }
            let nth = self.nth;
            self.nth += 1;
            if self.only.as_ref().is_none_or(|only| only.contains(nth)) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

fn is_over(batch: &Batch) -> bool {
    batch.expires_at <= batch.now
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

fn wrong(code: &str, message: String, param: Option<&str>) -> BatchError {
    BatchError { code: code.to_owned(), message, param: param.map(str::to_owned), line: None }
}

fn seed_of(batch: BatchId, line: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(batch.0.as_bytes());
    hash.update(line.to_le_bytes());
    let bytes: [u8; 32] = hash.finalize().into();
    u64::from_le_bytes(bytes[..8].try_into().expect("eight of 32 bytes"))
}

/// What a file is found to be.
#[derive(Default)]
struct Checked {
    model: String,
    total: u32,
    errors: Vec<BatchError>,
}

impl Checked {
    fn take(&mut self, bytes: &[u8], batch: &Batch, seen: &mut HashSet<[u8; 16]>) -> Result<(), BatchError> {
        let line = parse_line(bytes, batch.endpoint)?;
        let digest: [u8; 32] = Sha256::digest(line.custom_id.as_bytes()).into();
        if !seen.insert(digest[..16].try_into().expect("half of 32 bytes")) {
            let what = "`custom_id` is that of an earlier line: each line needs its own".to_owned();
            return Err(wrong("duplicate_custom_id", what, Some("custom_id")));
        }
        // Another type is the line's own affair.
        let Some(model) = line.body["model"].as_str() else { return Ok(()) };
        if self.model.is_empty() {
            self.model = model.chars().take(512).collect();
        } else if self.model != model {
            let what = format!("`model` is not `{}`, which the lines before name: one batch has one model", self.model);
            return Err(wrong("model_mismatch", what, Some("body.model")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lines_seed_is_its_own_and_stays() {
        let batch = BatchId::new();
        assert_eq!(seed_of(batch, 1), seed_of(batch, 1));
        assert_ne!(seed_of(batch, 1), seed_of(batch, 2));
        assert_ne!(seed_of(batch, 1), seed_of(BatchId::new(), 1));
    }
}
