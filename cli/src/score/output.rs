//! The answer lines: appended in order, a torn last one cut off when a run goes on.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use contract::openai::ErrorEnvelope;
use contract::openai::batches::OutputLine;
use contract::openai::views::result_body;
use contract::{Job, JobState, Record};
use serde_json::{Value, json};

use super::request::Refusal;

/// Lines that succeeded and that did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Answered with 200.
    pub succeeded: u64,
    /// The rest.
    pub failed: u64,
}

/// Opens the file of a run's output, which is made where it is not there, for this run alone: another one is refused until
/// this file and its clones are closed, whatever name it reaches it by. Nothing of it is changed.
///
/// # Errors
/// It cannot be written, or another run writes to it.
pub fn hold(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another penstock is writing to {}: name another file, or stop that one", path.display())
        }
        Err(TryLockError::Error(err)) => Err(err).with_context(|| format!("{} cannot be locked", path.display())),
    }
}

/// The open output.
pub struct Output {
    writer: BufWriter<File>,
    /// Whole lines in the file.
    pub written: u64,
    /// Of all lines, those of earlier runs included.
    pub totals: Totals,
}

impl Output {
    /// Appends to a file that is held: cuts off a torn last line and counts the whole ones.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(mut file: File, path: &Path) -> anyhow::Result<Self> {
        let context = || format!("{} cannot be written", path.display());
        let mut reader = BufReader::new(&mut file);
        let (mut whole, mut written, mut totals) = (0u64, 0u64, Totals::default());
        let mut line = Vec::new();
        loop {
            line.clear();
            let taken = reader.read_until(b'\n', &mut line).with_context(context)?;
            if taken == 0 || line.last() != Some(&b'\n') {
                break;
            }
            whole += taken as u64;
            written += 1;
            let succeeded = serde_json::from_slice::<Value>(&line)
                .is_ok_and(|line| line.pointer("/response/status_code") == Some(&json!(200)));
            totals.count(succeeded);
        }
        file.set_len(whole).with_context(context)?;
        file.seek(SeekFrom::End(0)).with_context(context)?;
        Ok(Self { writer: BufWriter::new(file), written, totals })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn write(&mut self, line: &Line) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.writer, &line.json)?;
        self.writer.write_all(b"\n")?;
        self.written += 1;
        self.totals.count(line.succeeded);
        Ok(())
    }

    /// Hands what was written to the system, so that a kill of this process loses none of it.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush().context("the output cannot be written")
    }

    /// Makes everything durable: the end of the run.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn close(mut self) -> anyhow::Result<Totals> {
        self.flush()?;
        self.writer.get_ref().sync_all().context("the output cannot be written")?;
        Ok(self.totals)
    }
}

impl Totals {
    fn count(&mut self, succeeded: bool) {
        if succeeded {
            self.succeeded += 1;
        } else {
            self.failed += 1;
        }
    }
}

/// One answer line, in the form of OpenAI's batch output files, with `line` and `release` beside.
#[derive(Debug, Clone)]
pub struct Line {
    json: Value,
    succeeded: bool,
}

/// Where a line stands in the input, and who answers it.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its line in the input file.
    pub line: u64,
    /// Its own name.
    pub custom_id: String,
    /// The release's fingerprint.
    pub release: String,
}

impl Line {
    fn new(place: &Place, id: &str, response: Value, error: Value) -> Self {
        let succeeded = response.get("status_code") == Some(&json!(200));
        let json = json!({
            "id": format!("batch_req_{id}"),
            "custom_id": place.custom_id,
            "response": response,
            "error": error,
            "line": place.line,
            "release": place.release,
        });
        Self { json, succeeded }
    }

    /// The answer of a finished job.
    pub fn of_job(place: &Place, job: &Job, record: Option<&Record>) -> Self {
        let id = job.id.to_string();
        let response = |status: u16, body: Value| json!({"status_code": status, "request_id": id, "body": body});
        match (record, &job.error) {
            (Some(record), _) => {
                let body = serde_json::to_value(result_body(record, job.accepted_at)).unwrap_or_default();
                Self::new(place, &id, response(200, body), Value::Null)
            }
            (None, Some(error)) if job.state == JobState::Failed => {
                let (status, mut envelope) = ErrorEnvelope::of_failed_job(Some(error));
                envelope.error.message = at_line(place, &envelope.error.message);
                let body = serde_json::to_value(envelope).unwrap_or_default();
                Self::new(place, &id, response(status, body), Value::Null)
            }
            _ => {
                let code = match job.state {
                    JobState::Expired => "batch_expired",
                    JobState::Cancelled => "batch_cancelled",
                    _ => "request_failed",
                };
                let message = at_line(place, &format!("the job ended as {}", job.state));
                Self::new(place, &id, Value::Null, json!({"code": code, "message": message}))
            }
        }
    }

    /// The answer to a line whose choices were scored by this job and others.
    pub fn of_choices(place: &Place, job: &Job, body: Value) -> Self {
        let id = job.id.to_string();
        Self::new(place, &id, json!({"status_code": 200, "request_id": id, "body": body}), Value::Null)
    }

    /// The answer of a server, which knows the line only as one of a batch.
    pub fn of_server(place: &Place, answer: OutputLine) -> Self {
        // The number of a line that is no job is that in its batch.
        let is_job = !answer.id.starts_with("line_");
        let id = if is_job { answer.id } else { format!("line_{}", place.line) };
        let mut place = place.clone();
        let response = answer.response.map_or(Value::Null, |response| {
            let mut body = response.body;
            if let Some(Value::String(message)) = body.pointer_mut("/error/message") {
                *message = at_line(&place, message);
            }
            // A server that was given another release since says so in the answer, by its first digits.
            if let Some(release) = body["system_fingerprint"].as_str().filter(|own| !place.release.starts_with(own)) {
                place.release = release.to_owned();
            }
            json!({"status_code": response.status_code, "request_id": id, "body": body})
        });
        let error = answer
            .error
            .map_or(Value::Null, |error| json!({"code": error.code, "message": at_line(&place, &error.message)}));
        Self::new(&place, &id, response, error)
    }

    /// The answer to a line whose request is refused: a 400 inside the line.
    pub fn of_refusal(place: &Place, refusal: &Refusal) -> Self {
        let id = format!("line_{}", place.line);
        let status = if refusal.code == "model_not_found" { 404 } else { 400 };
        let error = json!({
            "message": at_line(place, &refusal.message),
            "type": "invalid_request_error",
            "param": refusal.param,
            "code": refusal.code,
        });
        let response = json!({"status_code": status, "request_id": id, "body": {"error": error}});
        Self::new(place, &id, response, Value::Null)
    }

    /// The answer to a line that is no JSON, no UTF-8, or too long.
    pub fn of_unreadable(place: &Place, why: &str) -> Self {
        let error = json!({"code": "invalid_json_line", "message": at_line(place, why)});
        Self::new(place, &format!("line_{}", place.line), Value::Null, error)
    }

    /// The answer to a line that had not ended in its time.
    pub fn of_late(place: &Place, deadline: Duration) -> Self {
        let message = at_line(place, &format!("it had not ended within {} s", deadline.as_secs()));
        let error = json!({"code": "deadline_exceeded", "message": message});
        Self::new(place, &format!("line_{}", place.line), Value::Null, error)
    }

    /// Whether it is an answer with 200.
    pub fn has_succeeded(&self) -> bool {
        self.succeeded
    }

    /// Its JSON, without a line end.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.json.to_string().into_bytes()
    }
}

fn at_line(place: &Place, message: &str) -> String {
    format!("line {}: {message}", place.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_server(answer: Value) -> Value {
        let place = Place { line: 17, custom_id: "mine".into(), release: "abcdef0123456789".into() };
        Line::of_server(&place, serde_json::from_value(answer).unwrap()).json
    }

    #[test]
    fn answers_of_a_server_look_like_those_of_an_offline_run() {
        let good = of_server(json!({"id": "job_1", "custom_id": "line-17", "error": null, "response":
            {"status_code": 200, "request_id": "job_1", "body": {"system_fingerprint": "abcdef012345"}}}));
        assert_eq!(
            good,
            json!({"id": "batch_req_job_1", "custom_id": "mine", "error": null, "line": 17, "release": "abcdef0123456789",
                "response": {"status_code": 200, "request_id": "job_1", "body": {"system_fingerprint": "abcdef012345"}}})
        );
        let other = of_server(json!({"id": "job_1", "custom_id": "line-17", "error": null, "response":
            {"status_code": 200, "request_id": "job_1", "body": {"system_fingerprint": "999999999999"}}}));
        assert_eq!(other["release"], "999999999999");
        let refused = of_server(json!({"id": "line_3", "custom_id": "line-17", "error": null, "response":
            {"status_code": 400, "request_id": "line_3", "body": {"error": {"message": "too long"}}}}));
        assert_eq!(refused["id"], "batch_req_line_17");
        assert_eq!(refused["response"]["request_id"], "line_17");
        assert_eq!(refused["response"]["body"]["error"]["message"], "line 17: too long");
        let expired = of_server(json!({"id": "line_3", "custom_id": "line-17", "response": null,
            "error": {"code": "batch_expired", "message": "late"}}));
        assert_eq!(expired["error"], json!({"code": "batch_expired", "message": "line 17: late"}));
        assert_eq!(expired["response"], Value::Null);
    }

    #[test]
    fn a_torn_line_is_cut_off_and_the_rest_counted() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out.jsonl");
        let good = r#"{"response":{"status_code":200},"error":null}"#;
        let bad = r#"{"response":{"status_code":400},"error":null}"#;
        std::fs::write(&path, format!("{good}\n{bad}\n{}", &good[..20])).unwrap();
        let mut output = Output::open(hold(&path).unwrap(), &path).unwrap();
        assert_eq!((output.written, output.totals), (2, Totals { succeeded: 1, failed: 1 }));
        let place = Place { line: 3, custom_id: "c".into(), release: "r".into() };
        output.write(&Line::of_unreadable(&place, "not JSON")).unwrap();
        assert_eq!(output.close().unwrap(), Totals { succeeded: 1, failed: 2 });
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().nth(2).unwrap().contains("line 3: not JSON"));
    }

    #[test]
    fn a_second_run_into_an_output_is_refused_and_changes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let (path, link) = (temp.path().join("out.jsonl"), temp.path().join("link.jsonl"));
        let first = Output::open(hold(&path).unwrap(), &path).unwrap();
        // The first run is in the middle of a line.
        std::fs::write(&path, "{}\n{\"id\":").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for name in [&path, &link] {
            let said = hold(name).unwrap_err().to_string();
            assert!(said.contains("another penstock is writing to"), "{said}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n{\"id\":");
        drop(first);
        assert_eq!(Output::open(hold(&link).unwrap(), &link).unwrap().written, 1);
    }
}
