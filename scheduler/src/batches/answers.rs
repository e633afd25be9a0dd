//! The files of a batch's answers.

use std::sync::Arc;
use std::time::Duration;

use contract::openai::batches::{LineError as NoAnswer, OutputLine, parse_line};
use contract::{Batch, BatchState, Cursor, FileId, Line, LineSet, NewFile, Purpose};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};

use super::{BatchFault, BatchWorker, PAGE};
use crate::Deps;
use crate::lines::LineError;
use crate::records;

/// Life of files whose batch names none: 30 days.
const OUTPUT_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Pieces in which files are written.
const PIECE: usize = 5 * 1024 * 1024;

impl BatchWorker {
    /// Writes every line to one of the files.
    pub(super) async fn write(
        &self,
        batch: &Batch,
        state: BatchState,
        output: &mut AnswerFile,
        errors: &mut AnswerFile,
    ) -> Result<(), BatchFault> {
        let (mut next, mut written) = (0, LineSet::default());
        loop {
            let page = self.deps.admin.lines(&batch.id, next, PAGE).await?;
            let Some(last) = page.last().map(Line::number) else { break };
            let mut rest = page.as_slice();
            while !rest.is_empty() {
                let (these, after) = rest.split_at(records::held_together(rest.iter().map(Line::job)));
                self.write_lines(batch, state, these, &mut written, output, errors).await?;
                rest = after;
            }
            next = last + 1;
        }
        self.write_never_run(batch, state, &written, errors).await
    }

    async fn write_lines(
        &self,
        batch: &Batch,
        state: BatchState,
        lines: &[Line],
        written: &mut LineSet,
        output: &mut AnswerFile,
        errors: &mut AnswerFile,
    ) -> Result<(), BatchFault> {
        let jobs: Vec<_> = lines.iter().filter_map(Line::job).collect();
        let mut records = records::records(&self.deps, &jobs).await?.into_iter();
        for line in lines {
            let record = line.job().and_then(|_| records.next()).flatten();
            let number = line.number();
            if written.contains(number) {
                // Refused by a build that is stricter than the one that made it a job: the job is what ran.
                continue;
            }
            written.insert(number);
            let (answer, is_result) = OutputLine::of(line, record.as_ref())
                .ok_or_else(|| BatchFault::Contradiction(format!("line {number} of {} has not ended", batch.id)))?;
            // A job that its batch's end cut off says whose end it was.
            let answer = match (state, answer.error.is_some()) {
                (BatchState::Expired, true) => OutputLine { error: Some(NoAnswer::expired()), ..answer },
                _ => answer,
            };
            if is_result { output.put(&answer).await? } else { errors.put(&answer).await? }
        }
        Ok(())
    }

    /// The lines that are neither jobs nor refused: never expanded, or refused in a chunk that the batch's end overtook.
    async fn write_never_run(
        &self,
        batch: &Batch,
        state: BatchState,
        written: &LineSet,
        errors: &mut AnswerFile,
    ) -> Result<(), BatchFault> {
        if (0..batch.total).all(|number| written.contains(number)) {
            return Ok(());
        }
        let why = || match state {
            BatchState::Expired => NoAnswer::expired(),
            _ => NoAnswer::cancelled(),
        };
        let mut lines = match self.lines(batch, Cursor::default()).await {
            // Its bytes are gone: then nobody knows what these lines were called, and the batch ends all the same.
            Err(BatchFault::Line(LineError::Objects(object_store::Error::NotFound { .. }))) => {
                for number in (0..batch.total).filter(|number| !written.contains(*number)) {
                    errors.put(&OutputLine::never_run(number, String::new(), why())).await?;
                }
                return Ok(());
            }
            lines => lines?,
        };
        let mut number = 0;
        while let Some(line) = lines.next().await? {
            if !written.contains(number) {
                let input = parse_line(&line.bytes, batch.endpoint).map_err(|err| {
                    BatchFault::Contradiction(format!("{}: its file has changed: {}", batch.id, err.message))
                })?;
                errors.put(&OutputLine::never_run(number, input.custom_id, why())).await?;
            }
            number += 1;
        }
        Ok(())
    }
}

/// One file of a batch, on its way to the object store. Nothing is written while there are no lines.
pub(super) struct AnswerFile {
    objects: Arc<dyn ObjectStore>,
    file: NewFile,
    upload: Option<WriteMultipart>,
    lines: u32,
}

impl AnswerFile {
    pub(super) fn new(deps: &Deps, batch: &Batch, what: &str) -> Self {
        let file = NewFile {
            id: FileId::new(),
            tenant: batch.tenant.clone(),
            filename: format!("{}_{what}.jsonl", batch.id),
            purpose: Purpose::BatchOutput,
            bytes: 0,
            expires_in: Some(batch.output_life.unwrap_or(OUTPUT_LIFE)),
            idempotency: None,
        };
        Self { objects: deps.objects.clone(), file, upload: None, lines: 0 }
    }

    async fn put(&mut self, line: &OutputLine) -> Result<(), BatchFault> {
        let mut bytes = serde_json::to_vec(line)
            .map_err(|err| BatchFault::Contradiction(format!("a line has no JSON form: {err}")))?;
        bytes.push(b'\n');
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => {
                let upload = self.objects.put_multipart(&Path::from(self.file.id.object_key())).await?;
                none.insert(WriteMultipart::new_with_chunk_size(upload, PIECE))
            }
        };
        upload.wait_for_capacity(2).await?;
        upload.write(&bytes);
        self.file.bytes += bytes.len() as u64;
        self.lines += 1;
        Ok(())
    }

    /// The file with its number of lines, once it is whole and durable.
    pub(super) async fn finish(self) -> Result<Option<(NewFile, u32)>, BatchFault> {
        let Some(upload) = self.upload else { return Ok(None) };
        upload.finish().await?;
        Ok(Some((self.file, self.lines)))
    }
}
