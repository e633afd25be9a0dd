//! Who answers lines one at a time: the engine in this process, or a server. Both run what is under way together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use backends::Backends;
use contract::openai::ErrorEnvelope;
use contract::openai::batches::{LineError, LineResponse, OutputLine};
use contract::openai::native::JobErrorBody;
use contract::{Class, JobError, JobId, JobState, NewJob, QueueId, ServedModel, Signal, TenantId};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::super::output::{Line, Place};
use super::super::request::Body;
use super::super::run;
use crate::batch::key;
use crate::client::job::JobView;
use crate::client::server::{LONG_POLL_SECONDS, Server, ServerError};

/// Behind every signal stands a poll.
const POLL: Duration = Duration::from_secs(1);
/// Between two tries of a request that did not get through.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a line is submitted once more because the result of its job is not kept any more.
const AGAIN: u32 = 3;

/// See the module.
pub enum Scorer {
    /// In this process.
    Embedded(Embedded),
    /// Elsewhere.
    Remote(Remote),
}

impl Scorer {
    /// The answer to a request. Under the same key a server gives the same one.
    ///
    /// # Errors
    /// Nothing can be answered any more.
    pub async fn answer(&self, place: &Place, body: Body, key: &str) -> anyhow::Result<Line> {
        match self {
            Self::Embedded(embedded) => embedded.answer(place, body).await,
            Self::Remote(remote) => remote.answer(place, body, key).await,
        }
    }
}

type Waiting = Arc<Mutex<HashMap<JobId, Arc<Notify>>>>;

fn lock(waiting: &Waiting) -> MutexGuard<'_, HashMap<JobId, Arc<Notify>>> {
    // Nothing panics while it is held.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The embedded store and whoever works on its jobs.
pub struct Embedded {
    backends: Backends,
    served: ServedModel,
    deadline: Duration,
    waiting: Waiting,
    listener: AbortHandle,
}

impl Embedded {
    /// Jobs in these backends.
    pub async fn new(backends: Backends, served: ServedModel, deadline: Duration) -> Self {
        let waiting = Waiting::default();
        let mut signals = backends.bus.signals().await;
        let listener = tokio::spawn({
            let waiting = Arc::clone(&waiting);
            async move {
                while let Some(signal) = signals.next().await {
                    if let Signal::Ended { job, .. } = signal
                        && let Some(told) = lock(&waiting).get(&job)
                    {
                        told.notify_one();
                    }
                }
            }
        });
        Self { backends, served, deadline, waiting, listener: listener.abort_handle() }
    }

    async fn answer(&self, place: &Place, body: Body) -> anyhow::Result<Line> {
        let job = NewJob {
            deadline_in: self.deadline,
            batch_line: None,
            ..run::new_job(body.parsed, &self.served, (Uuid::nil(), 0))
        };
        let id = job.id;
        // Before it is accepted, or its end could be missed.
        let told = Arc::new(Notify::new());
        lock(&self.waiting).insert(id, Arc::clone(&told));
        let answer = self.run(place, job, &told).await;
        lock(&self.waiting).remove(&id);
        answer
    }

    async fn run(&self, place: &Place, job: NewJob, told: &Notify) -> anyhow::Result<Line> {
        let accepted = self.backends.store.accept(std::slice::from_ref(&job)).await?;
        accepted.into_iter().next().context("the store answers every job")??;
        let queue = QueueId { release: self.served.release.clone(), class: Class::Bulk };
        self.backends.bus.tell(Signal::Due { queue }).await;
        loop {
            let _told_or_time = timeout(POLL, told.notified()).await;
            let Some(job) = self.backends.store.get(&TenantId::local(), &job.id).await? else {
                bail!("job {} of line {} is gone from the store", job.id, place.line);
            };
            if job.state == JobState::Expired {
                return Ok(Line::of_late(place, self.deadline));
            }
            if job.state.is_terminal() {
                let record = run::read_record(&job, &self.backends).await?;
                return Ok(Line::of_job(place, &job, record.as_ref()));
            }
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// A server's jobs.
pub struct Remote {
    /// Which.
    pub server: Server,
    /// Time that a line has there, and on the way.
    pub deadline: Duration,
}

impl Remote {
    async fn answer(&self, place: &Place, body: Body, key: &str) -> anyhow::Result<Line> {
        let begun = Instant::now();
        let job =
            json!({"type": body.kind.as_str(), "request": body.value, "deadline_seconds": self.deadline.as_secs()});
        // Other options make another body, and a key stands for one body.
        let first = key::derive(&[key.as_bytes(), &serde_json::to_vec(&job)?]);
        let (mut key, mut again) = (first.clone(), 0);
        let mut seen: Option<JobView> = None;
        loop {
            let asked = Instant::now();
            let answer = match &seen {
                None => self.server.post_once(&["v1", "jobs"], &job, Some(&key)).await.map(JobView),
                Some(job) => JobView::fetch(&self.server, job.id(), Some(LONG_POLL_SECONDS)).await,
            };
            let left = answer.as_ref().err().and_then(what_is_left);
            match left.map_or(answer, Ok) {
                // Only a new job has a result; it is the same one for whoever comes to this point again.
                Ok(job) if is_without_result(&job) && again < AGAIN => {
                    again += 1;
                    key = key::derive(&[first.as_bytes(), format!("again-{again}").as_bytes()]);
                    seen = None;
                }
                Ok(job) if job.has_ended() => return Ok(self.line(place, &job)),
                Ok(job) => {
                    // A server that answers long polls at once is not asked in a hot loop.
                    if seen.is_some() {
                        sleep(Duration::from_millis(250).saturating_sub(asked.elapsed())).await;
                    }
                    seen = Some(job);
                }
                Err(error) if may_pass(&error) => sleep(PAUSE).await,
                Err(ServerError::Refused(refusal)) if is_of_the_line(refusal.status, seen.is_some()) => {
                    let error = json!({"message": refusal.message, "type": "invalid_request_error",
                        "param": refusal.param, "code": refusal.code});
                    return Ok(self.of_server(place, None, refusal.status, json!({"error": error})));
                }
                Err(error) => return Err(error.into()),
            }
            // The server ends the job itself; this is for one that does not answer.
            if begun.elapsed() > self.deadline + PAUSE * 5 {
                return Ok(Line::of_late(place, self.deadline));
            }
        }
    }

    fn line(&self, place: &Place, job: &JobView) -> Line {
        match job.status() {
            "succeeded" if is_without_result(job) => {
                let message = "the job succeeded, and the server does not keep its result any more";
                let error = LineError { code: "result_expired".to_owned(), message: message.to_owned() };
                Self::of_error(place, job, error)
            }
            "succeeded" => self.of_server(place, Some(job), 200, job.0["result"].clone()),
            "expired" => Line::of_late(place, self.deadline),
            "failed" => {
                let error = serde_json::from_value::<JobErrorBody>(job.0["error"].clone()).ok().map(JobError::from);
                let (status, envelope) = ErrorEnvelope::of_failed_job(error.as_ref());
                self.of_server(place, Some(job), status, serde_json::to_value(envelope).unwrap_or_default())
            }
            status => {
                let message = format!("the job ended as {status}");
                Self::of_error(place, job, LineError { code: "request_failed".to_owned(), message })
            }
        }
    }

    fn of_error(place: &Place, job: &JobView, error: LineError) -> Line {
        let (id, custom_id) = (job.id().to_owned(), place.custom_id.clone());
        Line::of_server(place, OutputLine { id, custom_id, response: None, error: Some(error) })
    }

    fn of_server(&self, place: &Place, job: Option<&JobView>, status_code: u16, body: Value) -> Line {
        let id = job.map_or_else(|| format!("line_{}", place.line), |job| job.id().to_owned());
        let response = LineResponse { status_code, request_id: id.clone(), body };
        Line::of_server(
            place,
            OutputLine { id, custom_id: place.custom_id.clone(), response: Some(response), error: None },
        )
    }
}

/// What the server still has of a job whose payload is gone: a job without a result.
fn what_is_left(error: &ServerError) -> Option<JobView> {
    let ServerError::Refused(refusal) = error else { return None };
    let is_emptied = refusal.code.as_deref() == Some("job_emptied");
    refusal.job.clone().filter(|_| is_emptied).map(JobView)
}

/// Whether the job succeeded and its result is not kept any more.
fn is_without_result(job: &JobView) -> bool {
    job.has_succeeded() && job.0["result"].is_null()
}

/// Whether a request is tried again: the server is away, or has no room now.
fn may_pass(error: &ServerError) -> bool {
    match error {
        ServerError::Unreachable { .. } => true,
        ServerError::Refused(refusal) => matches!(refusal.status, 429 | 500..),
        // A proxy says that nobody is behind it.
        ServerError::Foreign { status, .. } => matches!(status, 502..=504),
    }
}

/// Whether a refusal is about one line. A key that may not, or a server without the model, is about all of them.
fn is_of_the_line(status: u16, is_accepted: bool) -> bool {
    is_accepted || !matches!(status, 401 | 403 | 404)
}

#[cfg(test)]
mod tests {
    use axum::extract::{Path, State};
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::{get, post};
    use axum::{Json, Router};

    use super::super::super::request::{Defaults, read};
    use super::*;
    use crate::client::server::Refusal;
    use crate::config::Client;

    fn refused(status: u16) -> ServerError {
        ServerError::Refused(Refusal { status, ..Default::default() })
    }

    /// A server whose first jobs have no result any more.
    #[derive(Clone, Default)]
    struct Play {
        /// How many.
        emptied: usize,
        /// Whether this is found out by looking at a job, not by submitting it.
        late: bool,
        /// The keys that came; a job's id is its key's number.
        keys: Arc<Mutex<Vec<String>>>,
    }

    impl Play {
        /// The `n`th job, once it has ended.
        fn job(&self, n: usize) -> Value {
            let result = (n >= self.emptied).then(|| json!({"choices": []}));
            json!({"id": format!("job_{n}"), "status": "succeeded", "result": result})
        }
    }

    async fn accept(State(play): State<Play>, headers: HeaderMap) -> (StatusCode, Json<Value>) {
        let mut keys = play.keys.lock().unwrap();
        let n = keys.len();
        keys.push(headers["idempotency-key"].to_str().unwrap().to_owned());
        let queued = json!({"id": format!("job_{n}"), "status": "queued", "result": null});
        (StatusCode::ACCEPTED, Json(if play.late { queued } else { play.job(n) }))
    }

    async fn show(State(play): State<Play>, Path(id): Path<String>) -> (StatusCode, Json<Value>) {
        let n = id["job_".len()..].parse::<usize>().unwrap();
        let job = play.job(n);
        if n >= play.emptied {
            return (StatusCode::OK, Json(job));
        }
        let error = json!({"message": "gone", "type": "invalid_request_error", "code": "job_emptied", "param": null});
        (StatusCode::GONE, Json(json!({"error": error, "job": job})))
    }

    /// What becomes of a line there, and the keys it was submitted under.
    async fn answer_of(play: Play) -> (Value, Vec<String>) {
        let routes = Router::new().route("/v1/jobs", post(accept)).route("/v1/jobs/{id}", get(show));
        let app = routes.with_state(play.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let server = Server::new(&Client { server, api_key: None }).unwrap();
        let remote = Remote { server, deadline: Duration::from_secs(60) };
        let place = Place { line: 1, custom_id: "mine".into(), release: "r".into() };
        let body = read(json!({"prompt": "x"}), 1, "m", false, &Defaults::default()).request.unwrap();
        let line = remote.answer(&place, body, "key").await.unwrap();
        let keys = play.keys.lock().unwrap().clone();
        (serde_json::from_slice(&line.to_bytes()).unwrap(), keys)
    }

    #[tokio::test]
    async fn a_result_that_is_not_kept_any_more_is_made_anew_and_never_a_success_without_a_body() {
        let mut earlier: Option<Vec<String>> = None;
        for late in [false, true] {
            let (line, keys) = answer_of(Play { emptied: 2, late, ..Play::default() }).await;
            assert_eq!(line["response"]["status_code"], 200, "{line}");
            assert_eq!(line["response"]["body"], json!({"choices": []}), "{line}");
            assert_eq!(keys.len(), 3);
            assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
            assert_eq!(*earlier.get_or_insert_with(|| keys.clone()), keys, "a repeat has the same keys");

            let (line, keys) = answer_of(Play { emptied: usize::MAX, late, ..Play::default() }).await;
            assert_eq!((&line["response"], &line["error"]["code"]), (&Value::Null, &json!("result_expired")), "{line}");
            assert_eq!(keys.len(), 1 + AGAIN as usize);
        }
    }

    #[test]
    fn only_what_can_pass_is_tried_again_and_only_what_is_of_all_lines_ends_the_run() {
        for (status, passes, of_the_line) in [
            (400, false, true),
            (401, false, false),
            (403, false, false),
            (404, false, false),
            (413, false, true),
            (422, false, true),
            (429, true, true),
            (503, true, true),
        ] {
            assert_eq!(may_pass(&refused(status)), passes, "{status}");
            assert_eq!(is_of_the_line(status, false), of_the_line, "{status}");
        }
        assert!(is_of_the_line(404, true), "a job that is gone is one line's");
    }
}
