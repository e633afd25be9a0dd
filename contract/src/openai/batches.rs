//! Bodies of the batch routes, and the lines of input and output files.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::{Fields, wrong_value};
use super::files::{MAX_LIFE_SECONDS, MIN_LIFE_SECONDS};
use super::job::keep_seconds;
use super::kinds::ErrorEnvelope;
use super::views::result_body;
use super::webhooks::{HookRequest, hook};
use super::{MAX_STRING_BYTES, ParseCode, ParseError, Parsed, common, json};
use crate::batch::{self, Batch, BatchError, BatchState, Line, RECENT};
use crate::file::FileId;
use crate::life::JobState;
use crate::record::Record;
use crate::request::Kind;
use crate::time::Timestamp;
use crate::webhook::Hook;

/// Shortest time a batch can be given, in seconds.
const MIN_WINDOW_SECONDS: u64 = 60;
/// Longest time a batch can be given, in seconds: 30 days.
const MAX_WINDOW_SECONDS: u64 = 30 * 24 * 3_600;
/// Most characters of a line's `custom_id`.
const MAX_CUSTOM_ID_CHARS: usize = 512;
/// Last second of the year 9999.
const MAX_UNIX_SECONDS: i64 = 253_402_300_799;

/// The route of each kind, as `endpoint` and `url` name it.
pub fn endpoint(kind: Kind) -> &'static str {
    match kind {
        Kind::Chat => "/v1/chat/completions",
        Kind::Completion => "/v1/completions",
        Kind::Embedding => "/v1/embeddings",
    }
}

/// The kind whose route this is.
pub fn kind_of(route: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| endpoint(*kind) == route)
}

/// What `POST /v1/batches` takes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BatchRequest {
    /// An uploaded file of purpose `batch`: a JSON object a line, `{"custom_id", "method": "POST", "url", "body"}`.
    pub input_file_id: String,
    /// `/v1/chat/completions`, `/v1/completions` or `/v1/embeddings`; all lines name the same.
    #[schema(pattern = "^/v1/(chat/completions|completions|embeddings)$")]
    pub endpoint: String,
    /// The time it has: `24h`, or any other number of minutes (`m`), hours (`h`) or days (`d`), up to 30 days.
    #[schema(example = "24h", pattern = "^[0-9]+[mhd]$")]
    pub completion_window: String,
    /// The client's own pairs.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Life of its output files. Default: 30 days.
    pub output_expires_after: Option<OutputExpiresAfter>,
    /// Unix seconds before which none of its lines runs; `completion_window` counts from then. Penstock's own.
    pub run_after: Option<i64>,
    /// Where it alone is told of, beside the webhooks of its tenant. Penstock's own.
    pub webhook: Option<HookRequest>,
    /// How long the payload of a line is kept after its end, but never shorter than until the batch has ended; its files
    /// have a life of their own. Default: the server's policy. Penstock's own.
    #[schema(minimum = 60, maximum = 315_360_000)]
    pub keep_seconds: Option<u64>,
}

/// Life of a batch's output files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputExpiresAfter {
    /// Always `created_at`: from when the file was made.
    #[schema(pattern = "^created_at$")]
    pub anchor: String,
    /// 3,600 to 2,592,000.
    pub seconds: u64,
}

/// A batch that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedBatch {
    /// Its input.
    pub input: FileId,
    /// Which route its lines call.
    pub endpoint: Kind,
    /// The time it has.
    pub window: Duration,
    /// The same as the client wrote it.
    pub window_text: String,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Life of its output files.
    pub output_life: Option<Duration>,
    /// None of its lines runs before this.
    pub run_after: Option<Timestamp>,
    /// Where it alone is told of.
    pub webhook: Option<Hook>,
    /// How long the payload of a line is kept after its end.
    pub keep: Option<Duration>,
}

/// Reads the body of `POST /v1/batches`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_batch(body: &Value) -> Result<ParsedBatch, ParseError> {
    let mut fields = Fields::of(body, "")?;
    fields.required("input_file_id")?;
    let input = fields.string("input_file_id", MAX_STRING_BYTES)?.unwrap_or_default();
    let input = input.parse().map_err(|error| wrong_value("input_file_id", format_args!("is wrong: {error}")))?;
    fields.required("endpoint")?;
    let route = fields.string("endpoint", MAX_STRING_BYTES)?.unwrap_or_default();
    let kind = kind_of(route).ok_or_else(|| {
        let shown: String = route.chars().take(80).collect();
        let routes = Kind::ALL.map(endpoint).join(", ");
        wrong_value("endpoint", format_args!("is `{shown}`; it must be one of {routes}"))
    })?;
    fields.required("completion_window")?;
    let (window, window_text) = completion_window(&mut fields)?.unwrap_or_default();
    let metadata = common::metadata(&mut fields)?;
    let output_life = match fields.take("output_expires_after") {
        None => None,
        Some(value) => {
            let mut inner = Fields::of(value, "output_expires_after")?;
            inner.required("anchor")?;
            if inner.string("anchor", MAX_STRING_BYTES)? != Some("created_at") {
                return Err(wrong_value("output_expires_after.anchor", "must be created_at"));
            }
            inner.required("seconds")?;
            let (min, max) = (MIN_LIFE_SECONDS.cast_signed(), MAX_LIFE_SECONDS.cast_signed());
            let seconds = inner.integer("seconds", min, max)?.unwrap_or(max);
            inner.finish()?;
            Some(Duration::from_secs(seconds.unsigned_abs()))
        }
    };
    let run_after = fields.integer("run_after", 0, MAX_UNIX_SECONDS)?.map(|at| Timestamp(at * 1_000));
    let webhook = hook(&mut fields)?;
    let keep = keep_seconds(&mut fields)?;
    if fields.boolean("store")? == Some(false) {
        let what = "cannot be false: a batch's results are its file, whose life `output_expires_after` gives";
        return Err(wrong_value("store", what));
    }
    fields.finish()?;
    Ok(ParsedBatch { input, endpoint: kind, window, window_text, metadata, output_life, run_after, webhook, keep })
}

/// What `POST /v1/batches/{id}/resubmit` may take.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ResubmitRequest {
    /// The time the new batch has. Default: as the first one.
    pub completion_window: Option<String>,
    /// The client's own pairs. Default: those of the first one.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// What a resubmission changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedResubmit {
    /// The time the new batch has, and the same as the client wrote it.
    pub window: Option<(Duration, String)>,
    /// The client's own pairs.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Reads the body of `POST /v1/batches/{id}/resubmit`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_resubmit(body: &Value) -> Result<ParsedResubmit, ParseError> {
    let mut fields = Fields::of(body, "")?;
    let window = completion_window(&mut fields)?;
    let is_given = body.get("metadata").is_some_and(|pairs| !pairs.is_null());
    let metadata = common::metadata(&mut fields)?;
    fields.finish()?;
    Ok(ParsedResubmit { window, metadata: is_given.then_some(metadata) })
}

/// `completion_window`, also as it was written.
fn completion_window(fields: &mut Fields<'_>) -> Result<Option<(Duration, String)>, ParseError> {
    let Some(text) = fields.string("completion_window", MAX_STRING_BYTES)? else { return Ok(None) };
    let window = window(text).ok_or_else(|| {
        let what = "must be a number of minutes, hours or days, as in 90m, 24h or 7d, from 1m to 30d";
        wrong_value("completion_window", what)
    })?;
    Ok(Some((window, text.to_owned())))
}

/// `90m`, `24h`, `7d`.
fn window(text: &str) -> Option<Duration> {
    let unit = match text.as_bytes().last()? {
        b'm' => 60,
        b'h' => 3_600,
        b'd' => 24 * 3_600,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let n: u64 = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let seconds = n.checked_mul(unit).filter(|n| (MIN_WINDOW_SECONDS..=MAX_WINDOW_SECONDS).contains(n))?;
    Some(Duration::from_secs(seconds))
}

/// One line of an input file, as far as the file decides: its body may still be no good request.
#[derive(Debug, Clone, PartialEq)]
pub struct InputLine {
    /// The client's name for it; unique in its batch.
    pub custom_id: String,
    /// The request.
    pub body: Value,
}

/// Reads a line of an input file.
///
/// # Errors
/// What makes the whole file wrong; its `line` is left to the caller.
pub fn parse_line(bytes: &[u8], kind: Kind) -> Result<InputLine, BatchError> {
    let wrong = |code: &str, message: String, param: Option<&str>| BatchError {
        code: code.to_owned(),
        message,
        param: param.map(str::to_owned),
        line: None,
    };
    let value = json::parse(bytes).map_err(|error| {
        let message = format!("the line is not valid JSON: {} (column {})", error.message, error.column);
        wrong("invalid_json_line", message, None)
    })?;
    let head = || -> Result<(String, Value, bool, bool), ParseError> {
        let mut fields = Fields::of(&value, "")?;
        fields.required("custom_id")?;
        let custom_id = fields.string("custom_id", MAX_STRING_BYTES)?.unwrap_or_default();
        let n_chars = custom_id.chars().count();
        if !(1..=MAX_CUSTOM_ID_CHARS).contains(&n_chars) {
            return Err(wrong_value("custom_id", format_args!("must have 1 to {MAX_CUSTOM_ID_CHARS} characters")));
        }
        fields.required("method")?;
        let is_post = fields.string("method", MAX_STRING_BYTES)? == Some("POST");
        fields.required("url")?;
        let is_ours = fields.string("url", MAX_STRING_BYTES)? == Some(endpoint(kind));
        let body = fields.required("body")?.clone();
        fields.finish()?;
        Ok((custom_id.to_owned(), body, is_post, is_ours))
    };
    match head() {
        Err(error) => Err(wrong("invalid_line", error.message.clone(), error.param.as_deref())),
        Ok((_, _, false, _)) => Err(wrong("invalid_method", "`method` must be POST".to_owned(), Some("method"))),
        Ok((_, _, _, false)) => {
            let message = format!("`url` must be {}, which the batch's `endpoint` names", endpoint(kind));
            Err(wrong("url_mismatch", message, Some("url")))
        }
        Ok((custom_id, body, true, true)) => Ok(InputLine { custom_id, body }),
    }
}

/// Reads the request of a line.
///
/// # Errors
/// What the route itself would answer with a 400.
pub fn parse_line_body(kind: Kind, body: &Value) -> Result<Parsed, ParseError> {
    let parsed = super::parse(kind, body)?;
    if parsed.stream {
        let message = "`stream` cannot be true in a batch: leave it out".to_owned();
        return Err(ParseError { param: Some("stream".to_owned()), message, code: ParseCode::InvalidValue });
    }
    Ok(parsed)
}

/// One line of an output or error file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputLine {
    /// The job's id, or the line's own where there is no job.
    pub id: String,
    /// The client's name for the line.
    pub custom_id: String,
    /// What the route answered; null when it never did.
    #[schema(required)]
    pub response: Option<LineResponse>,
    /// Why there is no answer.
    #[schema(required)]
    pub error: Option<LineError>,
}

/// What the route answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LineResponse {
    /// The HTTP status.
    pub status_code: u16,
    /// Names the request in logs: the job's id.
    pub request_id: String,
    /// The body.
    pub body: Value,
}

/// Why a line has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LineError {
    /// `batch_expired` or `batch_cancelled`; in `/results` also `result_expired`.
    pub code: String,
    /// For people.
    pub message: String,
}

impl OutputLine {
    /// What a line's answer is, and whether it belongs to the results; `None` while its job has not ended. `record` is
    /// that of a job that succeeded.
    pub fn of(line: &Line, record: Option<&Record>) -> Option<(Self, bool)> {
        let (custom_id, job) = match line {
            Line::Refused(refused) => {
                let id = format!("line_{}", refused.line);
                let response =
                    LineResponse { status_code: refused.status, request_id: id.clone(), body: refused.body.clone() };
                return Some((
                    Self { id, custom_id: refused.custom_id.clone(), response: Some(response), error: None },
                    false,
                ));
            }
            Line::Job { custom_id, job, .. } => (custom_id, job),
        };
        let id = job.id.to_string();
        let answer = |status_code, body| Some(LineResponse { status_code, request_id: id.clone(), body });
        let (response, error) = match job.state {
            JobState::Queued | JobState::Running => return None,
            JobState::Succeeded if job.is_gone() && record.is_none() => (None, Some(LineError::result_expired())),
            JobState::Succeeded => {
                let body = serde_json::to_value(result_body(record?, job.accepted_at)).unwrap_or_default();
                (answer(200, body), None)
            }
            JobState::Failed => {
                let (status, envelope) = ErrorEnvelope::of_failed_job(job.error.as_ref());
                (answer(status, serde_json::to_value(envelope).unwrap_or_default()), None)
            }
            JobState::Cancelled => (None, Some(LineError::cancelled())),
            JobState::Expired => (None, Some(LineError::expired())),
        };
        let is_result = job.state == JobState::Succeeded;
        Some((Self { id, custom_id: custom_id.clone(), response, error }, is_result))
    }

    /// A line that never became a job.
    pub fn never_run(line: u32, custom_id: String, error: LineError) -> Self {
        Self { id: format!("line_{line}"), custom_id, response: None, error: Some(error) }
    }
}

impl LineError {
    /// The time of its batch was over first.
    pub fn expired() -> Self {
        let message = "the batch's time was over before this line was done".to_owned();
        Self { code: "batch_expired".to_owned(), message }
    }

    /// It succeeded, and its payload was removed since.
    pub fn result_expired() -> Self {
        let message = "the time of this line's result is over; the batch's output file has it for a time of its own";
        Self { code: "result_expired".to_owned(), message: message.to_owned() }
    }

    /// It was cancelled, alone or with its batch.
    pub fn cancelled() -> Self {
        Self { code: "batch_cancelled".to_owned(), message: "this line was cancelled before it was done".to_owned() }
    }
}

/// A batch as clients see it. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchObject {
    /// Its id.
    #[schema(example = "batch_0193f0c0d0e070008000000000000001")]
    pub id: String,
    /// Always `batch`.
    pub object: String,
    /// Which route its lines call.
    pub endpoint: String,
    /// The model its lines name, once they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What is wrong with its file.
    #[schema(required)]
    pub errors: Option<BatchErrors>,
    /// Its input.
    pub input_file_id: String,
    /// The time it has.
    pub completion_window: String,
    /// Where it stands.
    pub status: BatchState,
    /// Its results; null while it runs, and when nothing succeeded.
    #[schema(required)]
    pub output_file_id: Option<String>,
    /// Lines without a result; null while it runs, and when all succeeded.
    #[schema(required)]
    pub error_file_id: Option<String>,
    /// When it was accepted.
    pub created_at: i64,
    /// When its lines could run.
    #[schema(required)]
    pub in_progress_at: Option<i64>,
    /// When it ends unfinished.
    #[schema(required)]
    pub expires_at: Option<i64>,
    /// When its last line had ended.
    #[schema(required)]
    pub finalizing_at: Option<i64>,
    /// When its files were complete.
    #[schema(required)]
    pub completed_at: Option<i64>,
    /// When its file was found wrong.
    #[schema(required)]
    pub failed_at: Option<i64>,
    /// When its time was over.
    #[schema(required)]
    pub expired_at: Option<i64>,
    /// When it was asked to be cancelled.
    #[schema(required)]
    pub cancelling_at: Option<i64>,
    /// When that was done.
    #[schema(required)]
    pub cancelled_at: Option<i64>,
    /// Lines by what became of them.
    pub request_counts: RequestCounts,
    /// Tokens of its lines so far.
    pub usage: BatchUsage,
    /// The client's own pairs.
    #[schema(required)]
    pub metadata: Option<BTreeMap<String, String>>,
    /// The schedule that made it; only there where one did. Penstock's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
}

/// What is wrong with a batch's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchErrors {
    /// Always `list`.
    pub object: String,
    /// The errors, the first hundred.
    pub data: Vec<BatchError>,
}

/// Lines by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestCounts {
    /// Lines of the file.
    pub total: u64,
    /// Lines with a result.
    pub completed: u64,
    /// Lines that ended without one.
    pub failed: u64,
}

/// Tokens of a batch, in the words of OpenAI's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchUsage {
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// More about them.
    pub input_tokens_details: InputTokensDetails,
    /// Tokens generated.
    pub output_tokens: u64,
    /// More about them.
    pub output_tokens_details: OutputTokensDetails,
    /// Both together.
    pub total_tokens: u64,
}

/// More about the tokens of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputTokensDetails {
    /// Tokens whose keys and values were already in the cache.
    pub cached_tokens: u64,
}

/// More about the tokens generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Always 0: no model here thinks apart from its answer.
    pub reasoning_tokens: u64,
}

impl BatchObject {
    /// What is shown of a batch.
    pub fn of(batch: &Batch) -> Self {
        let at = |at: Option<Timestamp>| at.map(Timestamp::unix_seconds);
        let counts = batch.counts;
        let known = counts.succeeded + counts.failed + counts.cancelled + counts.expired + counts.unfinished;
        // Lines that were never expanded into jobs ended with their batch. Not by its cursor: jobs are made before it moves.
        let left = if batch.state.is_terminal() { u64::from(batch.total).saturating_sub(known) } else { 0 };
        let errors =
            (!batch.errors.is_empty()).then(|| BatchErrors { object: "list".to_owned(), data: batch.errors.clone() });
        Self {
            id: batch.id.to_string(),
            object: "batch".to_owned(),
            endpoint: endpoint(batch.endpoint).to_owned(),
            model: batch.model.clone(),
            errors,
            input_file_id: batch.input.to_string(),
            completion_window: batch.window_text.clone(),
            status: batch.state,
            output_file_id: batch.output.map(|id| id.to_string()),
            error_file_id: batch.error_file.map(|id| id.to_string()),
            created_at: batch.created_at.unix_seconds(),
            in_progress_at: at(batch.in_progress_at),
            expires_at: Some(batch.expires_at.unix_seconds()),
            finalizing_at: at(batch.finalizing_at),
            completed_at: at(batch.completed_at),
            failed_at: at(batch.failed_at),
            expired_at: at(batch.expired_at),
            cancelling_at: at(batch.cancelling_at),
            cancelled_at: at(batch.cancelled_at),
            request_counts: RequestCounts {
                total: u64::from(batch.total),
                completed: counts.succeeded,
                failed: counts.failed + counts.cancelled + counts.expired + left,
            },
            usage: BatchUsage {
                input_tokens: batch.usage.prompt_tokens,
                input_tokens_details: InputTokensDetails { cached_tokens: batch.usage.cached_tokens },
                output_tokens: batch.usage.output_tokens,
                output_tokens_details: OutputTokensDetails { reasoning_tokens: 0 },
                total_tokens: batch.usage.prompt_tokens.saturating_add(batch.usage.output_tokens),
            },
            metadata: (!batch.metadata.is_empty()).then(|| batch.metadata.clone()),
            schedule_id: batch.schedule.map(|id| id.to_string()),
        }
    }
}

/// How far a batch is. Penstock's own: [`BatchObject`] has the members of the public API, and its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchProgress {
    /// Always `batch.progress`.
    pub object: String,
    /// The batch's id.
    pub id: String,
    /// Where it stands.
    pub status: BatchState,
    /// Unix seconds before which none of its lines runs.
    #[schema(required)]
    pub run_after: Option<i64>,
    /// Lines of its file, once they were read.
    pub total: u64,
    /// Lines that are jobs, or were refused as such.
    pub expanded: u64,
    /// Jobs that wait.
    pub queued: u64,
    /// Jobs that run.
    pub running: u64,
    /// Lines with a result.
    pub succeeded: u64,
    /// Lines that failed or were refused.
    pub failed: u64,
    /// Lines that were cancelled.
    pub cancelled: u64,
    /// Lines whose time was over.
    pub expired: u64,
    /// Lines that ended, by the second, over the last minute; null before the first.
    #[schema(required)]
    pub lines_per_second: Option<f64>,
    /// Seconds to its end at that speed; null where there is none, and after the end.
    #[schema(required)]
    pub seconds_left: Option<u64>,
    /// Waiting jobs of the same tenant, model and class that were accepted before its next one; null when none of its own
    /// waits. Jobs of other tenants take turns with them.
    #[schema(required)]
    pub jobs_ahead: Option<u64>,
    /// How long the payload of a line is kept after its end, if the batch says.
    #[schema(required)]
    pub keep_seconds: Option<u64>,
}

impl BatchProgress {
    /// What is shown of it.
    pub fn of(progress: &batch::BatchProgress) -> Self {
        let batch::BatchProgress { batch, running, recent, jobs_ahead } = progress;
        let counts = batch.counts;
        let ended = counts.succeeded + counts.failed + counts.cancelled + counts.expired;
        let left = u64::from(batch.total).saturating_sub(ended);
        // A batch younger than the span over which is measured has had less time for the same lines.
        let ran_ms = batch.in_progress_at.map_or(0, |at| batch.now.millis_since(at)).min(RECENT.as_millis() as u64);
        let is_measured = *recent > 0 && ran_ms > 0 && !batch.state.is_terminal();
        let per_second = is_measured.then(|| *recent as f64 * 1_000.0 / ran_ms as f64);
        Self {
            object: "batch.progress".to_owned(),
            id: batch.id.to_string(),
            status: batch.state,
            run_after: batch.run_after.map(Timestamp::unix_seconds),
            total: u64::from(batch.total),
            expanded: u64::from(batch.cursor.line),
            queued: counts.unfinished.saturating_sub(*running),
            running: *running,
            succeeded: counts.succeeded,
            failed: counts.failed,
            cancelled: counts.cancelled,
            expired: counts.expired,
            lines_per_second: per_second,
            seconds_left: per_second.map(|speed| (left as f64 / speed).ceil() as u64),
            jobs_ahead: *jobs_ahead,
            keep_seconds: batch.keep.map(|keep| keep.as_secs()),
        }
    }
}

/// A page of batches, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchList {
    /// Always `list`.
    pub object: String,
    /// The batches.
    pub data: Vec<BatchObject>,
    /// Id of the first of them.
    #[schema(required)]
    pub first_id: Option<String>,
    /// Id of the last of them: `after` of the next page.
    #[schema(required)]
    pub last_id: Option<String>,
    /// Whether older ones follow.
    pub has_more: bool,
}

impl BatchList {
    /// A page.
    pub fn new(batches: &[Batch], has_more: bool) -> Self {
        let id = |batch: Option<&Batch>| batch.map(|batch| batch.id.to_string());
        Self {
            object: "list".to_owned(),
            data: batches.iter().map(BatchObject::of).collect(),
            first_id: id(batches.first()),
            last_id: id(batches.last()),
            has_more,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn windows_are_any_duration_from_minutes_to_days() {
        for (text, seconds) in [("24h", 86_400), ("1m", 60), ("90m", 5_400), ("30d", 2_592_000)] {
            assert_eq!(window(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "24", "0m", "31d", "1s", "-1h", "+1h", "1.5h", "24 h", "99999999999999999999d", "é"] {
            assert_eq!(window(text), None, "{text}");
        }
    }

    #[test]
    fn a_batch_is_read_and_what_is_wrong_is_named() {
        let file = FileId::new();
        let good = json!({
            "input_file_id": file.to_string(), "endpoint": "/v1/completions", "completion_window": "24h",
            "metadata": {"a": "b"}, "output_expires_after": {"anchor": "created_at", "seconds": 3_600},
        });
        let batch = parse_batch(&good).unwrap();
        assert_eq!((batch.input, batch.endpoint, batch.window.as_secs()), (file, Kind::Completion, 86_400));
        assert_eq!(batch.output_life, Some(Duration::from_secs(3_600)));
        for (field, value, param) in [
            ("input_file_id", json!("file-1"), "input_file_id"),
            ("input_file_id", json!(null), "input_file_id"),
            ("endpoint", json!("/v1/images/generations"), "endpoint"),
            ("completion_window", json!("soon"), "completion_window"),
            ("completion_window", json!(24), "completion_window"),
            ("metadata", json!({"a": 1}), "metadata.a"),
            (
                "output_expires_after",
                json!({"anchor": "last_active_at", "seconds": 3_600}),
                "output_expires_after.anchor",
            ),
            ("output_expires_after", json!({"anchor": "created_at", "seconds": 60}), "output_expires_after.seconds"),
            ("priority", json!(1), "priority"),
        ] {
            let mut body = good.clone();
            body[field] = value;
            assert_eq!(parse_batch(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_line_is_read_and_a_bad_file_is_told_from_a_bad_request() {
        let line = |value: Value| parse_line(value.to_string().as_bytes(), Kind::Completion);
        let good = json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m"}});
        assert_eq!(line(good.clone()).unwrap(), InputLine { custom_id: "a".into(), body: json!({"model": "m"}) });
        for (field, value, code) in [
            ("custom_id", json!(""), "invalid_line"),
            ("custom_id", json!(null), "invalid_line"),
            ("custom_id", json!("x".repeat(513)), "invalid_line"),
            ("method", json!("GET"), "invalid_method"),
            ("url", json!("/v1/chat/completions"), "url_mismatch"),
            ("body", json!(null), "invalid_line"),
            ("more", json!(1), "invalid_line"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert_eq!(line(bad).unwrap_err().code, code, "{field}");
        }
        assert_eq!(parse_line(b"{", Kind::Chat).unwrap_err().code, "invalid_json_line");
        assert_eq!(parse_line(b"\xff", Kind::Chat).unwrap_err().code, "invalid_json_line");
        // A body that is no good request is the line's own affair.
        let body = line(good).unwrap().body;
        assert_eq!(parse_line_body(Kind::Completion, &body).unwrap_err().param.as_deref(), Some("prompt"));
        let stream = json!({"model": "m", "prompt": "x", "stream": true});
        assert_eq!(parse_line_body(Kind::Completion, &stream).unwrap_err().param.as_deref(), Some("stream"));
    }
}
