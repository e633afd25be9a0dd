//! Bodies of the native job routes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::bodies::UsageBody;
use super::views::{ResultBody, result_body};
use crate::ids::{Class, JobId};
use crate::job::Job;
use crate::life::JobState;
use crate::outcome::{ErrorCode, JobError, Usage};
use crate::record::{Record, TokenLogprob};
use crate::request::Kind;
use crate::sequence::OnFailure;
use crate::time::Timestamp;

/// A job as clients see it. Times are RFC 3339, by the store's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobObject {
    /// Its id.
    #[schema(value_type = String, example = "job_0193f0c0d0e070008000000000000001")]
    pub id: JobId,
    /// Always `job`.
    pub object: String,
    /// Where it stands.
    pub status: JobState,
    /// How urgent it is.
    pub class: Class,
    /// Chat or completion.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The model name of the request.
    pub model: String,
    /// Fingerprint of the release that answers it.
    pub release: String,
    /// When it was accepted.
    pub created_at: String,
    /// When its last attempt was leased to a worker.
    #[schema(required)]
    pub started_at: Option<String>,
    /// When its first token came.
    #[schema(required)]
    pub first_token_at: Option<String>,
    /// When it ended.
    #[schema(required)]
    pub finished_at: Option<String>,
    /// Its deadline: then it ends as `expired` unless it has ended before.
    pub expires_at: String,
    /// How long after its end request, result, trajectory and metadata are kept; null is for ever.
    #[schema(required)]
    pub keep_seconds: Option<u64>,
    /// When that is over; null until it has ended, and when they are kept for ever.
    #[schema(required)]
    pub result_expires_at: Option<String>,
    /// When they were removed: what is left is what there is.
    #[schema(required)]
    pub emptied_at: Option<String>,
    /// Leases so far.
    pub attempt: u32,
    /// Its own transient failures so far.
    pub errors: u32,
    /// Workers that were lost while they ran it.
    pub losses: u32,
    /// The seed: the client's, or drawn at acceptance. With the release and the request it fixes every token.
    pub seed: i64,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Jobs of one key run one at a time in order of acceptance.
    #[schema(required)]
    pub sequence_key: Option<String>,
    /// What those behind it do when it fails or expires; null without a key.
    #[schema(required)]
    pub on_failure: Option<OnFailure>,
    /// Tokens used; null while none are known.
    #[schema(required)]
    pub usage: Option<UsageBody>,
    /// Why it failed, or why its last attempt did.
    #[schema(required)]
    pub error: Option<JobErrorBody>,
    /// Earlier attempts: when and why each ended.
    pub history: Vec<Value>,
    /// The OpenAI body, once the job succeeded. Null in lists: get the job for it.
    #[schema(required)]
    pub result: Option<ResultBody>,
    /// Durations.
    pub timings: JobTimings,
    /// Where to go from here.
    pub urls: JobUrls,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobErrorBody {
    /// The stable code.
    #[schema(example = "context_length_exceeded")]
    pub code: String,
    /// What happened and what to do about it.
    pub message: String,
    /// The request's field at fault, if one is.
    #[schema(required)]
    pub param: Option<String>,
}

impl From<&JobError> for JobErrorBody {
    fn from(error: &JobError) -> Self {
        Self { code: error.code.as_str().to_owned(), message: error.message.clone(), param: error.param.clone() }
    }
}

impl From<JobErrorBody> for JobError {
    /// A code that only a newer server knows is one of its own failures.
    fn from(body: JobErrorBody) -> Self {
        let code = serde_json::from_value(Value::from(body.code)).unwrap_or(ErrorCode::EngineFailed);
        Self { code, message: body.message, param: body.param }
    }
}

/// Durations of a job in milliseconds, by the store's clock; null until both ends are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobTimings {
    /// Accepted to leased (the last attempt's lease).
    #[schema(required)]
    pub queue_wait_ms: Option<u64>,
    /// Accepted to first token.
    #[schema(required)]
    pub ttft_ms: Option<u64>,
    /// Mean gap between tokens after the first, of all answers together.
    #[schema(required)]
    pub tpot_ms: Option<f64>,
    /// Accepted to ended.
    #[schema(required)]
    pub total_ms: Option<u64>,
}

impl JobTimings {
    /// The durations of a job.
    pub fn of(job: &Job) -> Self {
        let since_accept = |at: Option<Timestamp>| at.map(|at| at.millis_since(job.accepted_at));
        let tpot_ms = match (job.first_token_at, job.finished_at) {
            (Some(first), Some(finished)) if job.usage.output_tokens > 1 => {
                Some(finished.millis_since(first) as f64 / f64::from(job.usage.output_tokens - 1))
            }
            _ => None,
        };
        Self {
            queue_wait_ms: since_accept(job.started_at),
            ttft_ms: since_accept(job.first_token_at),
            tpot_ms,
            total_ms: since_accept(job.finished_at),
        }
    }
}

/// Paths of a job's routes, relative to the server. Clients use these and build none themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobUrls {
    /// The job: `GET`.
    pub get: String,
    /// Its tokens as they come: `GET`, server-sent events.
    pub events: String,
    /// `POST` cancels it.
    pub cancel: String,
}

impl JobUrls {
    /// The paths of a job.
    pub fn of(job: &JobId) -> Self {
        let get = format!("/v1/jobs/{job}");
        Self { events: format!("{get}/events"), cancel: format!("{get}/cancel"), get }
    }
}

/// A job and, once it succeeded, its record, as clients see them.
pub fn job_object(job: &Job, record: Option<&Record>) -> JobObject {
    let at = |at: Option<Timestamp>| at.map(Timestamp::rfc3339);
    // What the client wrote itself is gone at its time, whether it was removed by then or not.
    let sequence_key = job.sequence_key.clone().filter(|_| !job.is_gone());
    JobObject {
        id: job.id,
        object: "job".to_owned(),
        status: job.state,
        class: job.class,
        kind: job.kind,
        model: job.route.clone(),
        release: job.release.to_string(),
        created_at: job.accepted_at.rfc3339(),
        started_at: at(job.started_at),
        first_token_at: at(job.first_token_at),
        finished_at: at(job.finished_at),
        expires_at: job.deadline.rfc3339(),
        keep_seconds: job.keep.map(|keep| keep.as_secs()),
        result_expires_at: at(job.result_expires_at),
        emptied_at: at(job.emptied_at),
        attempt: job.attempt,
        errors: job.errors,
        losses: job.losses,
        // The same 64 bits that the client sent, if it sent them.
        seed: job.seed as i64,
        metadata: if job.is_gone() { BTreeMap::new() } else { job.metadata.clone() },
        on_failure: sequence_key.is_some().then_some(job.on_failure),
        sequence_key,
        usage: (job.usage != Usage::default()).then(|| UsageBody::from(job.usage)),
        error: job.error.as_ref().map(JobErrorBody::from),
        history: job.history.clone(),
        result: record.map(|record| result_body(record, job.accepted_at)),
        timings: JobTimings::of(job),
        urls: JobUrls::of(&job.id),
    }
}

/// The answer for a job whose payload's time is over: 410.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EmptiedBody {
    /// What there is no more: `job_emptied`.
    pub error: super::ErrorBody,
    /// What there still is: states, times, tokens, errors.
    pub job: JobObject,
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// Always `list`.
    pub object: String,
    /// The jobs, without results.
    pub data: Vec<JobObject>,
    /// Id of the first of them.
    #[schema(required)]
    pub first_id: Option<String>,
    /// Id of the last of them: `after` of the next page.
    #[schema(required)]
    pub last_id: Option<String>,
    /// Whether older ones follow.
    pub has_more: bool,
}

impl JobList {
    /// A page.
    pub fn new(jobs: &[Job], has_more: bool) -> Self {
        Self {
            object: "list".to_owned(),
            data: jobs.iter().map(|job| job_object(job, None)).collect(),
            first_id: jobs.first().map(|job| job.id.to_string()),
            last_id: jobs.last().map(|job| job.id.to_string()),
            has_more,
        }
    }
}

/// Data of an event `started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartedData {
    /// Which attempt began.
    pub attempt: u32,
}

/// Data of an event `token`; its SSE id is the position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenData {
    /// Tokens told of so far, those of all answers and this one included, from 1.
    pub position: u32,
    /// Which answer it belongs to; left out for the first. Tokens of several come in turn: the first of each, then the
    /// second of each that has one.
    #[serde(default, skip_serializing_if = "is_first")]
    pub index: u32,
    /// The token's id in the vocabulary.
    pub token_id: u32,
    /// Text that became visible with it, as the model wrote it: calls of functions and thoughts with their marks. Empty while
    /// a character or a possible stop string is incomplete.
    pub text: String,
    /// Its log-probability, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<super::bodies::ChatTokenLogprob>)]
    pub logprob: Option<super::bodies::ChatTokenLogprob>,
}

fn is_first(index: &u32) -> bool {
    *index == 0
}

impl TokenData {
    /// The data of a token's event.
    pub fn of(token: &crate::event::TokenEvent) -> Self {
        let one = |logprob: &TokenLogprob| super::views::chat_logprobs(std::slice::from_ref(logprob)).content.pop();
        Self {
            position: token.position,
            index: token.choice,
            token_id: token.id,
            text: token.text.clone(),
            logprob: token.logprob.as_ref().and_then(one),
        }
    }
}

/// Data of the last event, `ended`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndedData {
    /// The job with its result.
    pub job: JobObject,
    /// SHA-256 (hexadecimal) over all token ids in the order of their events, little-endian 32-bit: a reader who joined two connections knows
    /// whether the pieces belong together. Null unless the job succeeded.
    #[schema(required)]
    pub output_hash: Option<String>,
}
