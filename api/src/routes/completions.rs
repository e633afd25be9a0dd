//! The OpenAI-compatible routes: interactive jobs that somebody waits for.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use contract::openai::bodies::{ChatCompletion, TextCompletion};
use contract::openai::canonical::body_hash;
use contract::openai::native::EmptiedBody;
use contract::openai::requests::{ChatRequest, CompletionRequest};
use contract::openai::stream::{Chunks, DONE};
use contract::openai::views::result_body;
use contract::openai::{ErrorEnvelope, ParseCode, ParseError, Parsed, parse_chat, parse_completion};
use contract::{Class, IdempotencyKey, Job, Kind, Reading, Request as Asked, ServedModel, TenantId};
use tokio::time::Instant;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::follow::{Follow, Followed};
use crate::headers::{self, Prefer};
use crate::quota::{Admitted, Ask, Seat};
use crate::results::Finished;
use crate::routes::jobs::accepted_reply;
use crate::sse::{self, Pieces};
use crate::state::AppState;
use crate::submit::{self, HangUp, Submission, Submitted};
use crate::{body, results};

/// Answers a conversation.
///
/// With `stream: true` the answer is a stream of chunks that ends in `data: [DONE]`. `Prefer: respond-async` answers
/// 202 with the job at once, or, with `wait=N` beside it, when the answer is not there within N seconds.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    params(
        ("Prefer" = Option<String>, Header, description = "`respond-async`, and `wait=N` beside it"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat waits for the same job; hanging up does not cancel it"),
    ),
    responses(
        (status = 200, description = "The answer; with `stream: true`, server-sent events of ChatChunk", body = ChatCompletion),
        (status = 202, description = "Accepted, as preferred", body = contract::openai::native::JobObject),
        (status = 400, description = "A field is wrong, or the prompt is too long", body = ErrorEnvelope),
        (status = 404, description = "No such model", body = ErrorEnvelope),
        (status = 409, description = "Somebody cancelled the job", body = ErrorEnvelope),
        (status = 410, description = "The job of this key has ended, and its answer is not kept any more", body = EmptiedBody),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 429, description = "The queue is full, or the tenant has used up a limit; nothing was written", body = ErrorEnvelope),
        (status = 502, description = "The job failed", body = ErrorEnvelope),
        (status = 503, description = "No worker is ready, or the store cannot be used now", body = ErrorEnvelope),
        (status = 504, description = "The deadline passed", body = ErrorEnvelope),
    ))]
pub(super) async fn chat(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    call(state, caller, Kind::Chat, request).await
}

/// Continues a text.
///
/// Streams and preferences as with chats.
#[utoipa::path(post, path = "/v1/completions", tag = "openai", request_body = CompletionRequest,
    params(
        ("Prefer" = Option<String>, Header, description = "`respond-async`, and `wait=N` beside it"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat waits for the same job; hanging up does not cancel it"),
    ),
    responses(
        (status = 200, description = "The answer; with `stream: true`, server-sent events of the same shape", body = TextCompletion),
        (status = 202, description = "Accepted, as preferred", body = contract::openai::native::JobObject),
        (status = 400, description = "A field is wrong, or the prompt is too long", body = ErrorEnvelope),
        (status = 404, description = "No such model", body = ErrorEnvelope),
        (status = 409, description = "Somebody cancelled the job", body = ErrorEnvelope),
        (status = 410, description = "The job of this key has ended, and its answer is not kept any more", body = EmptiedBody),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 429, description = "The queue is full, or the tenant has used up a limit; nothing was written", body = ErrorEnvelope),
        (status = 502, description = "The job failed", body = ErrorEnvelope),
        (status = 503, description = "No worker is ready, or the store cannot be used now", body = ErrorEnvelope),
        (status = 504, description = "The deadline passed", body = ErrorEnvelope),
    ))]
pub(super) async fn completion(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    call(state, caller, Kind::Completion, request).await
}

async fn call(state: AppState, caller: Caller, kind: Kind, request: Request) -> Result<Response, ApiError> {
    let (prefer, traceparent) = (Prefer::of(request.headers()), headers::traceparent(request.headers()));
    let key = headers::idempotency_key(request.headers())?;
    let value = body::json(request, &state.deps.limits).await?;
    let (parsed, route) = match kind {
        Kind::Chat => (parse_chat(&value)?, "/v1/chat/completions"),
        Kind::Completion => (parse_completion(&value)?, "/v1/completions"),
    };
    let model = state.model(&parsed.request.model)?;
    submit::check(&model, &parsed.request, "")?;
    if prefer.respond_async {
        refuse_stream(&parsed)?;
    } else {
        ready(&state, &model).await?;
    }
    let cancel_on_hang_up = key.is_none() && !prefer.respond_async;
    let Parsed { request, stream, include_usage, metadata, storage } = parsed;
    let is_waited_for = !prefer.respond_async || prefer.wait.is_some();
    let shape = stream.then(|| Shape::of(&request, &model, include_usage));
    let ask = Ask { tokens: request.estimated_tokens().into(), is_waited_for, ..Ask::ONE };
    let Admitted { tenant_bound, seat } = state.quotas.admit(&caller.tenant, ask)?;
    let submission = Submission {
        tenant: caller.tenant.clone(),
        request,
        class: Class::Interactive,
        deadline: Duration::from_secs(Class::Interactive.default_deadline_seconds()),
        metadata,
        sequence_key: None,
        on_failure: contract::OnFailure::Skip,
        webhook: None,
        storage,
        delay: Duration::ZERO,
        traceparent,
        idempotency: key.map(|key| IdempotencyKey { key, body_hash: body_hash(route, &value) }),
        tenant_bound,
        is_waited_for: !prefer.respond_async,
    };
    let submitted = submit::submit(&state, submission, cancel_on_hang_up).await?;
    if prefer.respond_async {
        answer_async(&state, &caller.tenant, submitted, prefer).await
    } else if let Some(shape) = shape {
        answer_stream(&state, &caller.tenant, submitted, shape, seat).await
    } else {
        answer_whole(&state, &caller.tenant, submitted).await
    }
}

fn refuse_stream(parsed: &Parsed) -> Result<(), ApiError> {
    if !parsed.stream {
        return Ok(());
    }
    let message =
        "`stream` cannot be true with `Prefer: respond-async`: read the tokens at `urls.events` of the answer";
    Err(ApiError::Parameter(ParseError {
        param: Some("stream".to_owned()),
        message: message.to_owned(),
        code: ParseCode::InvalidValue,
    }))
}

/// A synchronous call needs somebody to answer it.
async fn ready(state: &AppState, model: &ServedModel) -> Result<(), ApiError> {
    if state.draining.is_cancelled() {
        return Err(ApiError::ShuttingDown);
    }
    super::health::ready_worker(state, model).await.map_err(|reason| ApiError::NotReady { reason })
}

async fn answer_async(
    state: &AppState,
    tenant: &TenantId,
    submitted: Submitted,
    prefer: Prefer,
) -> Result<Response, ApiError> {
    let job = match prefer.wait {
        Some(wait) => {
            let job = results::wait(state, tenant, submitted.job, Some(Instant::now() + wait)).await?;
            if job.state.is_terminal() {
                return whole_reply(state, job, submitted.replayed, prefer).await;
            }
            job
        }
        None => results::job(state, tenant, &submitted.job).await?,
    };
    // Without a wait this is a 202 even for a job that has ended: the client did not ask for an answer.
    accepted_reply(state, job, prefer, submitted.replayed).await
}

async fn answer_whole(state: &AppState, tenant: &TenantId, mut submitted: Submitted) -> Result<Response, ApiError> {
    let job = results::wait(state, tenant, submitted.job, None).await?;
    submitted.hang_up.disarm();
    whole_reply(state, job, submitted.replayed, Prefer::default()).await
}

async fn whole_reply(state: &AppState, job: Job, replayed: bool, prefer: Prefer) -> Result<Response, ApiError> {
    let finished = results::finished(state, job).await?;
    let mut response = match finished.record() {
        Ok(record) => Json(result_body(record, finished.job.accepted_at)).into_response(),
        Err(error) => error.into_response(),
    };
    describe(&mut response, &finished.job, replayed);
    if let Some(applied) = prefer.applied() {
        response.headers_mut().insert(headers::PREFERENCE_APPLIED, applied);
    }
    Ok(response)
}

fn describe(response: &mut Response, job: &Job, replayed: bool) {
    headers::describe(response.headers_mut(), job);
    if replayed {
        response.headers_mut().insert(headers::REPLAYED, HeaderValue::from_static("true"));
    }
}

/// What a stream is to hold.
struct Shape {
    include_usage: bool,
    /// Answers that were asked for.
    n_choices: u32,
    /// How the answers are read, as far as is known before there is a record.
    reading: Reading,
    /// The functions that may be called.
    names: Vec<String>,
}

impl Shape {
    fn of(request: &Asked, model: &ServedModel, include_usage: bool) -> Self {
        Self {
            include_usage,
            n_choices: u32::from(request.sampling.n),
            reading: model.manifest.reading.of(request),
            names: request.tools.as_ref().map(|tools| tools.names()).unwrap_or_default(),
        }
    }
}

/// Streams the answer. What ends badly before the first token, and within [`crate::Limits::first_event`], has a real
/// status; later, an error is an event.
async fn answer_stream(
    state: &AppState,
    tenant: &TenantId,
    mut submitted: Submitted,
    shape: Shape,
    seat: Option<Seat>,
) -> Result<Response, ApiError> {
    let (mut follow, job) = Follow::start(state, tenant, submitted.job, 0).await?;
    let first = tokio::time::timeout(state.deps.limits.first_event, first_visible(&mut follow)).await.ok().flatten();
    let first = match first {
        Some(Followed::Failed(error)) => return Err(error),
        Some(Followed::Ended(finished)) => {
            submitted.hang_up.disarm();
            if let Err(error) = finished.record() {
                let mut response = error.into_response();
                describe(&mut response, &finished.job, submitted.replayed);
                return Ok(response);
            }
            Some(Followed::Ended(finished))
        }
        other => other,
    };
    // A repeat under a key may find the answer of another release, which wrote otherwise.
    let reading = match &first {
        Some(Followed::Ended(finished)) => finished.record.as_ref().map_or(shape.reading, |record| record.reading),
        _ => shape.reading,
    };
    let chunks = Chunks::new(job.kind, &job.id, job.accepted_at, &job.route, &job.release, shape.include_usage)
        .reading(reading, shape.names);
    let hang_up = submitted.hang_up;
    let mut pieces = ChunkEvents { follow, chunks, hang_up, _seat: seat, ready: VecDeque::new(), ended: false };
    let openings = (0..shape.n_choices).filter_map(|index| pieces.chunks.opening(index));
    pieces.ready.extend(openings.map(|chunk| sse::event(None, None, &chunk.to_json())));
    if let Some(first) = first {
        pieces.take(first);
    }
    let mut response = sse::reply(state, pieces);
    describe(&mut response, &job, submitted.replayed);
    Ok(response)
}

/// The first thing that a client would see.
async fn first_visible(follow: &mut Follow) -> Option<Followed> {
    loop {
        match follow.next().await? {
            Followed::Started { .. } => {}
            other => return Some(other),
        }
    }
}

struct ChunkEvents {
    follow: Follow,
    chunks: Chunks,
    hang_up: HangUp,
    /// The call is under way until the stream has ended.
    _seat: Option<Seat>,
    ready: VecDeque<String>,
    ended: bool,
}

impl ChunkEvents {
    fn take(&mut self, followed: Followed) {
        match followed {
            Followed::Started { .. } => {}
            Followed::Token(token) => {
                let chunk = self.chunks.token(&token);
                self.ready.extend(chunk.map(|chunk| sse::event(None, None, &chunk.to_json())));
            }
            Followed::Ended(finished) => self.end(&finished),
            Followed::Failed(error) => {
                self.ended = true;
                self.ready.push_back(sse::error_event(None, &error));
            }
        }
    }

    fn end(&mut self, finished: &Finished) {
        self.ended = true;
        self.hang_up.disarm();
        let record = match finished.record() {
            Ok(record) => record,
            Err(error) => {
                self.ready.push_back(sse::error_event(None, &error));
                return;
            }
        };
        for (index, choice) in (0u32..).zip(&record.choices) {
            let rest = self.chunks.rest(index);
            self.ready.extend(rest.map(|chunk| sse::event(None, None, &chunk.to_json())));
            let closing = self.chunks.closing(index, choice.finish_reason, choice.stop_reason.clone());
            self.ready.push_back(sse::event(None, None, &closing.to_json()));
        }
        if let Some(usage) = self.chunks.usage(record.usage) {
            self.ready.push_back(sse::event(None, None, &usage.to_json()));
        }
        self.ready.push_back(sse::event(None, None, DONE));
    }
}

impl Pieces for ChunkEvents {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            if self.ended {
                return None;
            }
            match self.follow.next().await {
                Some(followed) => self.take(followed),
                None => self.ended = true,
            }
        }
    }
}
