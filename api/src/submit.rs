//! From a parsed request to an accepted, published job; and back, by cancelling it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contract::openai::{ParseCode, ParseError, parse_job};
use contract::{
    CancelAnswer, Class, Hook, IdempotencyKey, Input, Job, JobId, JobState, Kind, NewJob, OnFailure, Prompt, Published,
    QueueId, Refused, Request, ServedModel, Signal, Storage, TenantId, Wake,
};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::routes::webhooks::check_url;
use crate::state::AppState;

/// Furthest ahead that something may be put off: 30 days.
const MAX_DELAY: Duration = Duration::from_secs(30 * 24 * 3_600);

fn unix_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The latest time that something may be put off to, in Unix milliseconds by this server's clock.
pub(crate) fn latest_run_after() -> i64 {
    unix_millis().saturating_add(i64::try_from(MAX_DELAY.as_millis()).unwrap_or(i64::MAX))
}

/// What a route wants done.
pub(crate) struct Submission {
    pub tenant: TenantId,
    pub request: Request,
    pub class: Class,
    pub deadline: Duration,
    pub metadata: BTreeMap<String, String>,
    pub sequence_key: Option<String>,
    pub on_failure: OnFailure,
    pub webhook: Option<Hook>,
    /// How long its payload is kept.
    pub storage: Storage,
    /// It is put off for so long.
    pub delay: Duration,
    pub traceparent: Option<String>,
    pub idempotency: Option<IdempotencyKey>,
    /// Most unfinished jobs of the tenant, if that is limited.
    pub tenant_bound: Option<u64>,
    /// Somebody waits for the answer on this very call.
    pub is_waited_for: bool,
}

impl Submission {
    /// What the body of a native job asks for, once nothing about it is surely wrong. Nobody waits for it on its call.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_job(
        state: &AppState,
        tenant: &TenantId,
        body: &Value,
        traceparent: Option<String>,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Self, ApiError> {
        let mut parsed = parse_job(body)?;
        check(&state.model(&parsed.request.model)?, &parsed.request, "request")?;
        if let Some(hook) = &mut parsed.webhook {
            hook.url = check_url(state, &hook.url, "webhook.url")?;
        }
        if parsed.run_after.is_some_and(|at| at.0 > latest_run_after()) {
            return Err(ApiError::query("run_after", "is more than 30 days ahead"));
        }
        // The servers' clocks are near the store's: what is put off by days does not ask for more.
        let delay = parsed.run_after.map_or(0, |at| at.0.saturating_sub(unix_millis()).max(0));
        let delay = Duration::from_millis(delay.unsigned_abs());
        Ok(Self {
            tenant: tenant.clone(),
            request: parsed.request,
            class: parsed.class,
            deadline: parsed.deadline,
            metadata: parsed.metadata,
            sequence_key: parsed.sequence_key,
            on_failure: parsed.on_failure,
            webhook: parsed.webhook,
            storage: parsed.storage,
            delay,
            traceparent,
            idempotency,
            tenant_bound: None,
            is_waited_for: false,
        })
    }
}

/// A job that was accepted, now or by an earlier call with the same key.
pub(crate) struct Submitted {
    pub job: JobId,
    pub replayed: bool,
    /// The job as it was accepted by this call.
    pub new: Option<Job>,
    /// Cancels the job when the caller goes away, unless disarmed.
    pub hang_up: HangUp,
}

/// Refuses what is surely wrong for this model, so that it costs no queue room. `at` is the path of the request in its
/// body, empty or `request`.
pub(crate) fn check(model: &ServedModel, request: &Request, at: &str) -> Result<(), ApiError> {
    let path = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    let context = model.context_tokens;
    let too_long = |param: String, what: String| ApiError::TooLong {
        message: format!("`{param}` {what}; the context of `{}` is {context} tokens", model.name),
        param,
    };
    if request.kind() == Kind::Chat && !model.has_chat_template {
        return Err(ApiError::NoChatTemplate { name: model.name.clone() });
    }
    check_tools(model, request, path)?;
    if let Some(max) = request.max_tokens.filter(|max| *max > context) {
        return Err(too_long(path("max_tokens"), format!("is {max}")));
    }
    if request.min_tokens > context {
        return Err(too_long(path("min_tokens"), format!("is {}", request.min_tokens)));
    }
    let bytes = request.input_bytes() as u64;
    if bytes > u64::from(context) * u64::from(model.longest_token_bytes) {
        let field = if request.kind() == Kind::Chat { "messages" } else { "prompt" };
        return Err(too_long(path(field), format!("has {bytes} bytes, more than any prompt that fits")));
    }
    let in_vocabulary = |ids: &[u32], field: &str| match ids.iter().position(|id| *id >= model.vocab_size) {
        None => Ok(()),
        Some(nth) => {
            let problem = format_args!("is {}; `{}` has token ids below {}", ids[nth], model.name, model.vocab_size);
            Err(ApiError::query(path(&format!("{field}[{nth}]")), problem))
        }
    };
    if let Input::Completion(Prompt::Tokens(ids)) = &request.input {
        if ids.len() as u64 >= u64::from(context) {
            return Err(too_long(path("prompt"), format!("has {} tokens", ids.len())));
        }
        in_vocabulary(ids, "prompt")?;
    }
    if let Some(id) = request.sampling.logit_bias.keys().find(|id| **id >= model.vocab_size) {
        let problem = format_args!("is no token of `{}`, which has ids below {}", model.name, model.vocab_size);
        return Err(ApiError::query(path(&format!("logit_bias.{id}")), problem));
    }
    in_vocabulary(&request.stop_token_ids, "stop_token_ids")
}

/// A model whose chat template has no way to call functions is offered none, and shown no calls.
fn check_tools(model: &ServedModel, request: &Request, path: impl Fn(&str) -> String) -> Result<(), ApiError> {
    if model.manifest.reading.calls.is_some() {
        return Ok(());
    }
    let of_tools = match &request.input {
        Input::Chat(messages) => messages.iter().position(|message| message.is_of_tools()),
        Input::Completion(_) => None,
    };
    let param = match (&request.tools, of_tools) {
        (Some(_), _) => path("tools"),
        (None, Some(nth)) => path(&format!("messages[{nth}]")),
        (None, None) => return Ok(()),
    };
    let message = format!(
        "`{param}` is not supported by `{}`: its chat template has no way to call functions that this server reads",
        model.name
    );
    Err(ApiError::Parameter(ParseError { param: Some(param), message, code: ParseCode::UnsupportedParameter }))
}

/// Accepts a job and makes it known. The work goes on when the caller goes away in the middle of it, so that what was
/// committed is also published, or cancelled if `cancel_on_hang_up`.
pub(crate) async fn submit(
    state: &AppState,
    submission: Submission,
    cancel_on_hang_up: bool,
) -> Result<Submitted, ApiError> {
    let (answer, waiting) = oneshot::channel();
    let worker_state = state.clone();
    state.tasks.spawn(async move {
        let result = accept(&worker_state, submission, cancel_on_hang_up).await;
        // If nobody waits any more, dropping the answer drops its `HangUp`, which cancels the job.
        drop(answer.send(result));
    });
    waiting.await.unwrap_or(Err(ApiError::Internal))
}

async fn accept(state: &AppState, submission: Submission, cancel_on_hang_up: bool) -> Result<Submitted, ApiError> {
    let (is_waited_for, is_keyed) = (submission.is_waited_for, submission.idempotency.is_some());
    let mut job = new_job(state, submission)?;
    if is_waited_for && !state.deps.queue.is_reachable() {
        return Err(ApiError::QueueAway { kept: false });
    }
    let queue = QueueId { release: job.release.clone(), class: job.class };
    let places = state.depths.take_places(std::slice::from_mut(&mut job));
    let answers = state.deps.store.accept(std::slice::from_ref(&job)).await?;
    let accepted = match answers.into_iter().next() {
        Some(answer) => answer.map_err(|refused| refusal(state, refused))?,
        None => return Err(ApiError::Internal),
    };
    // Armed before anything else can be interrupted.
    let mut hang_up =
        HangUp { state: state.clone(), tenant: job.tenant.clone(), job: accepted.job, armed: cancel_on_hang_up };
    if !accepted.replayed {
        state.counters.accepted.fetch_add(1, Ordering::Relaxed);
        if !accepted.held && job.delay.is_zero() {
            let wakes = [(queue, Wake { job: accepted.job, attempt: 0 })];
            let is_known = make_known(state, &wakes, job.published_by_caller).await;
            if is_known {
                places.published();
            }
            if !is_known && is_waited_for {
                // The feeder would bring it on its way one day; a client that waits for it now is told the truth. With a
                // key the job stays, and a repeat of the call finds it.
                if !is_keyed {
                    cancel(state, &job.tenant, accepted.job).await?;
                }
                // Nobody hung up.
                hang_up.disarm();
                return Err(ApiError::QueueAway { kept: is_keyed });
            }
        }
    }
    let new = accepted.at.map(|at| Job::just_accepted(job, at));
    Ok(Submitted { job: accepted.job, replayed: accepted.replayed, new, hang_up })
}

/// Why a job was not accepted, as the client is told.
pub(crate) fn refusal(state: &AppState, refused: Refused) -> ApiError {
    match refused {
        Refused::QueueFull { queue, bound } => {
            state.counters.refused.fetch_add(1, Ordering::Relaxed);
            ApiError::QueueFull { queue, bound }
        }
        Refused::TenantFull { bound } => {
            state.counters.refused.fetch_add(1, Ordering::Relaxed);
            ApiError::TenantFull { bound }
        }
        Refused::KeyReused => ApiError::KeyReused,
    }
}

/// The row of a submission, left to the feeder unless [`crate::depth::Depths::take_places`] says otherwise.
pub(crate) fn new_job(state: &AppState, submission: Submission) -> Result<NewJob, ApiError> {
    let release = state.model(&submission.request.model)?.release;
    let seed = match submission.request.sampling.seed {
        Some(seed) => seed,
        // 53 bits: a number that every JSON reader shows exactly, so that it can be sent again.
        None => getrandom::u64().map_err(|_| ApiError::Internal)? >> 11,
    };
    let (trajectory, keep) = state.deps.trajectories.kept(&submission.tenant, submission.storage);
    Ok(NewJob {
        id: JobId::new(),
        trajectory,
        keep,
        tenant: submission.tenant,
        release,
        route: submission.request.model.clone(),
        class: submission.class,
        bound: state.deps.limits.bounds.of(submission.class),
        tenant_bound: submission.tenant_bound,
        delay: submission.delay,
        deadline_in: submission.deadline,
        seed,
        request: submission.request,
        metadata: submission.metadata,
        batch_line: None,
        custom_id: None,
        webhook: submission.webhook,
        sequence_key: submission.sequence_key,
        on_failure: submission.on_failure,
        traceparent: submission.traceparent,
        idempotency: submission.idempotency,
        published_by_caller: false,
    })
}

/// Jobs that have a place in the queue are published at once; the others are the feeder's, which is told to look. All are
/// of one queue. False when nobody knows whether the queue has them, or surely it does not get them now: it is away.
pub(crate) async fn make_known(state: &AppState, wakes: &[(QueueId, Wake)], publish: bool) -> bool {
    let deps = &state.deps;
    let Some((queue, _)) = wakes.first() else { return true };
    let queue = queue.clone();
    if !publish {
        deps.bus.tell(Signal::Due { queue }).await;
        // The feeder has the same way to it.
        return deps.queue.is_reachable();
    }
    let answers = deps.queue.publish(wakes).await;
    let answers = answers.into_iter().chain(std::iter::repeat(Published::Unknown));
    let (mut is_known, mut left) = (true, Vec::new());
    for ((_, wake), answer) in wakes.iter().zip(answers) {
        is_known &= answer != Published::Unknown;
        if answer != Published::Confirmed {
            left.push(wake.job);
        }
    }
    if left.len() < wakes.len() {
        deps.bus.tell(Signal::Ready { queue: queue.clone() }).await;
    }
    if !left.is_empty() {
        // Not now: the rows become the feeder's. If even that fails, they are due in 60 s all the same.
        if let Err(error) = deps.store.wake_now(&left).await {
            tracing::warn!(jobs = left.len(), error = %error, "jobs could not be made due; they will be in 60 s");
        }
        deps.bus.tell(Signal::Due { queue }).await;
    }
    is_known
}

/// Cancels a job and tells everybody, again if it is asked again: signals get lost.
pub(crate) async fn cancel(state: &AppState, tenant: &TenantId, job: JobId) -> Result<CancelAnswer, ApiError> {
    let answer = state.deps.store.cancel(tenant, &job).await?;
    if let CancelAnswer::Cancelled { .. } = answer {
        state.deps.bus.tell(Signal::Cancelled { job }).await;
        state.deps.bus.tell(Signal::Ended { job, state: JobState::Cancelled }).await;
    }
    Ok(answer)
}

/// Cancels its job when dropped while armed: the client of a synchronous call hung up.
pub(crate) struct HangUp {
    state: AppState,
    tenant: TenantId,
    job: JobId,
    armed: bool,
}

impl HangUp {
    /// The job has ended, or may go on alone.
    pub fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (state, tenant, job) = (self.state.clone(), self.tenant.clone(), self.job);
        // Without a runtime the process is going down, and the job's deadline ends it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let cancelling = async move {
            match cancel(&state, &tenant, job).await {
                Ok(CancelAnswer::Cancelled { .. }) => {
                    state.counters.hang_ups.fetch_add(1, Ordering::Relaxed);
                    let why =
                        if state.closing.is_cancelled() { "this server's grace is over" } else { "the client hung up" };
                    tracing::info!(job.id = %job, why, "a call that somebody waited for was cancelled");
                }
                Ok(CancelAnswer::AlreadyEnded(_) | CancelAnswer::NotFound) => {}
                Err(error) => tracing::warn!(job.id = %job, error = %error, "a hang-up could not cancel its job"),
            }
        };
        self.state.tasks.spawn_on(cancelling, &runtime);
    }
}
