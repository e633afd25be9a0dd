//! Answers of a batch's lines, also while others of them run.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use contract::openai::ErrorEnvelope;
use contract::openai::batches::{LineError, OutputLine};
use contract::{BatchState, Job, Line, LineId, TenantId};
use futures::{StreamExt, stream};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::results;
use crate::routes::batches::{batch_id, find};
use crate::routes::jobs::PathText;
use crate::routes::list::{most, pairs};
use crate::state::AppState;

/// Where the batch stood when its lines were asked for.
const STATUS: HeaderName = HeaderName::from_static("penstock-batch-status");
/// Whether more lines have ended than this answer has.
const HAS_MORE: HeaderName = HeaderName::from_static("penstock-has-more");

/// Most answers of a call, and as many unless fewer are asked for: their rows are in memory together, their records are
/// not.
const MAX_LIMIT: u32 = 1_000;
/// Records read from the object store at the same time.
const READS: usize = 16;

/// The answers of a batch's lines that have ended, also while others run.
///
/// Each is a line as the batch's files have it, results and errors alike, in the order in which they ended. Who goes on
/// from the `id` of the last one gets each once. What never became a job, because the batch was cancelled or its time was
/// over, is only in the error file. A result whose time is over (`result_expires_at` of its job) is an error
/// `result_expired`; the output file has a time of its own.
#[utoipa::path(get, path = "/v1/batches/{id}/results", tag = "batches",
    params(
        ("id" = String, Path, description = "The batch's id"),
        ("after" = Option<String>, Query, description = "The `id` of the last answer that is known"),
        ("limit" = Option<u32>, Query, description = "Most answers; default 1,000", minimum = 1, maximum = 1_000),
    ),
    responses(
        (status = 200, description = "A JSON object a line", body = OutputLine, content_type = "application/jsonl",
            headers(
                ("penstock-batch-status" = String, description = "Where the batch stands"),
                ("penstock-has-more" = bool, description = "Whether more lines have ended"),
            )),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such batch", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn results(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let id = batch_id(path)?;
    let (after, limit) = parameters(query.as_deref())?;
    // Its state first: the lines of one that has ended are then complete.
    let batch = find(&state, &caller, &id).await?;
    let found = state.deps.admin.ended_lines(&id, after, limit).await?;
    let (lines, has_more) = found.ok_or_else(|| ApiError::query("after", "is no line of this batch that has ended"))?;
    let batch_state = batch.state;
    let answers = stream::iter(lines).map(move |line| answer(state.clone(), caller.tenant.clone(), line, batch_state));
    let mut response = Response::new(Body::from_stream(answers.buffered(READS)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
    headers.insert(STATUS, HeaderValue::from_static(batch.state.as_str()));
    headers.insert(HAS_MORE, HeaderValue::from_static(if has_more { "true" } else { "false" }));
    Ok(response)
}

fn parameters(query: Option<&str>) -> Result<(Option<LineId>, u32), ApiError> {
    let (mut after, mut limit) = (None, MAX_LIMIT);
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "after" => {
                let id = value.parse();
                after = Some(id.map_err(|problem| ApiError::query("after", format_args!("is wrong: {problem}")))?);
            }
            "limit" => limit = most(&value, MAX_LIMIT)?,
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    Ok((after, limit))
}

/// One line of the answer. An error ends the body in the middle, which the client sees.
async fn answer(state: AppState, tenant: TenantId, line: Line, batch: BatchState) -> Result<Bytes, ApiError> {
    let (line, record) = match line {
        // Payloads of lines stay at least until the batch has ended.
        Line::Job { line, custom_id, job } if job.record.is_some() && !(batch.is_terminal() && job.is_gone()) => {
            let job = Job { tenant, ..*job };
            let finished = results::with_record(&state, job).await.inspect_err(|error| error.log())?;
            (Line::Job { line, custom_id, job: Box::new(finished.job) }, finished.record)
        }
        line => (line, None),
    };
    let (mut answer, is_result) = OutputLine::of(&line, record.as_ref()).ok_or(ApiError::Internal)?;
    if batch == BatchState::Expired && !is_result && answer.error.is_some() {
        // A job that its batch's end cut off says whose end it was, as in the file.
        answer.error = Some(LineError::expired());
    }
    let mut bytes = serde_json::to_vec(&answer).map_err(|_| ApiError::Internal)?;
    bytes.push(b'\n');
    Ok(bytes.into())
}
