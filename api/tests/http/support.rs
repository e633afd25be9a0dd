//! A server over SQLite, the in-process queue and bus and local files in a folder of its own; the test plays the worker
//! through the same ports a worker uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{Deps, Limits};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use backends::memory_bus::BusLimits;
use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore, local_objects};
use contract::record::{AttemptTimings, ChoiceRecord, Record, RecordLocation};
use contract::release::Manifest;
use contract::{
    Bus, CallSyntax, Class, FinishReason, JobError, JobEvent, JobEventBody, JobId, JobState, JobStore, Lease, Leased,
    NewJob, Outcome, Queue, QueueId, Reading, ServedModel, Signal, TenantId, ThoughtSyntax, TokenEvent, Usage, Wake,
    WorkerId, WorkerInfo,
};
use object_store::ObjectStore;
use serde_json::{Value, json};
use tower::ServiceExt;

pub const MODEL: &str = "tiny";
/// The same, of a chat template that knows no functions.
pub const PLAIN: &str = "plain";

/// The server and everything behind it.
pub struct World {
    pub store: Arc<SqliteStore>,
    pub queue: Arc<InProcessQueue>,
    pub bus: Arc<InProcessBus>,
    pub objects: Arc<dyn ObjectStore>,
    pub deps: Deps,
    pub router: Router,
    pub worker: WorkerId,
    /// Milliseconds that the store's clock is ahead of the system's.
    pub ahead: Arc<AtomicI64>,
    _folder: tempfile::TempDir,
}

/// What a test may choose.
pub struct Choices {
    pub limits: Limits,
    pub bus: BusLimits,
    pub max_bytes: Option<u64>,
    pub ready: bool,
}

impl Default for Choices {
    fn default() -> Self {
        Self { limits: Limits::default(), bus: BusLimits::default(), max_bytes: None, ready: true }
    }
}

pub fn model() -> ServedModel {
    let manifest = Manifest {
        model_sha256: "00".into(),
        engine: "test".into(),
        numerics: "test".into(),
        reading: Reading { calls: Some(CallSyntax::Hermes), thoughts: Some(ThoughtSyntax::Tagged) },
    };
    ServedModel {
        name: MODEL.into(),
        release: manifest.fingerprint(),
        manifest,
        context_tokens: 1_000,
        longest_token_bytes: 16,
        has_chat_template: true,
        vocab_size: 100,
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(Choices::default()).await
    }

    pub async fn with(choices: Choices) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ahead = Arc::new(AtomicI64::new(0));
        let clock_ahead = ahead.clone();
        let mut options = SqliteOptions::new(folder.path().join("jobs.db"));
        options.max_bytes = choices.max_bytes;
        options.clock = Arc::new(move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
            now + clock_ahead.load(Ordering::Relaxed)
        });
        let store = Arc::new(SqliteStore::open_with(options).await.unwrap());
        let queue = Arc::new(InProcessQueue::default());
        let bus = Arc::new(InProcessBus::new(choices.bus));
        let objects: Arc<dyn ObjectStore> = Arc::new(local_objects(&folder.path().join("objects")).unwrap());
        let base = ServedModel { name: "base".into(), has_chat_template: false, ..model() };
        let manifest = Manifest { reading: Reading::default(), ..model().manifest };
        let plain = ServedModel { name: PLAIN.into(), manifest, ..model() };
        let deps = Deps {
            store: store.clone(),
            admin: store.clone(),
            needs_key: false,
            queue: queue.clone(),
            bus: bus.clone(),
            objects: objects.clone(),
            models: tokio::sync::watch::channel(vec![model(), base, plain]).1,
            trajectories: contract::Trajectories::default(),
            guard: contract::guard::Guard::default(),
            limits: choices.limits,
        };
        let world = Self {
            router: api::router(deps.clone()),
            store,
            queue,
            bus,
            objects,
            deps,
            worker: WorkerId::unique(),
            ahead,
            _folder: folder,
        };
        if choices.ready {
            world.beat(true).await;
        }
        world
    }

    /// A sign of life of the worker.
    pub async fn beat(&self, ready: bool) {
        let info = WorkerInfo {
            id: self.worker.clone(),
            release: model().release,
            model: MODEL.into(),
            ready,
            draining: false,
            running: 0,
            capacity: 16,
            used_blocks: 0,
            cached_blocks: 0,
            total_blocks: 64,
            steps: 0,
            preemptions: 0,
        };
        self.bus.beat(info, Duration::from_secs(600)).await.unwrap();
    }

    pub async fn call(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.call(request(path, headers, body)).await
    }

    /// Sends a request that a worker answers meanwhile.
    pub fn start(&self, request: Request<Body>) -> tokio::task::JoinHandle<Answer> {
        let router = self.router.clone();
        tokio::spawn(async move {
            let response = router.oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
            Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
        })
    }

    /// Submits a native job and returns its id.
    pub async fn submit(&self, class: Class) -> JobId {
        let body = json!({"type": "completion", "class": class, "request": {"model": MODEL, "prompt": "Hi"}});
        let answer = self.post("/v1/jobs", &body).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
        answer.json()["id"].as_str().unwrap().parse().unwrap()
    }

    /// Number of jobs of the local tenant.
    pub async fn jobs(&self) -> usize {
        self.get("/v1/jobs?limit=100").await.json()["data"].as_array().unwrap().len()
    }

    /// Takes the next job of a class as a worker does: from the queue, or as the feeder would bring it.
    pub async fn lease(&self, class: Class) -> Leased {
        let queue = QueueId { release: model().release, class };
        for _ in 0..2_000 {
            let mut wakes: Vec<Wake> = Vec::new();
            for delivery in self.queue.take(&queue, 1).await.unwrap() {
                wakes.push(delivery.wake);
                self.queue.ack(delivery).await;
            }
            if wakes.is_empty() {
                wakes = self.store.due(&queue, 1).await.unwrap();
            }
            let leased = self.store.lease(&wakes, &self.worker, Duration::from_secs(15)).await.unwrap();
            if let Some(leased) = leased.into_iter().flatten().next() {
                self.event(&leased.lease, JobEventBody::Started).await;
                return leased;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("no {class} job came");
    }

    pub async fn event(&self, lease: &Lease, body: JobEventBody) {
        self.bus.append(&[JobEvent { job: lease.job, attempt: lease.attempt, body }]).await.unwrap();
    }

    /// Emits tokens `from..` of a script, as far as `to` (positions from 1).
    pub async fn tokens(&self, lease: &Lease, script: &[(u32, &str)], positions: std::ops::RangeInclusive<u32>) {
        for (position, (id, text)) in (1u32..).zip(script) {
            if positions.contains(&position) {
                let token = TokenEvent { position, id: *id, choice: 0, text: (*text).to_owned(), logprob: None };
                self.event(lease, JobEventBody::Token(token)).await;
            }
        }
    }

    /// Ends a job as a worker does: commit, then tell.
    pub async fn finish(&self, lease: &Lease, outcome: Outcome) {
        let state = match &outcome {
            Outcome::Succeeded { .. } => JobState::Succeeded,
            Outcome::Failed { .. } => JobState::Failed,
            Outcome::Expired { .. } => JobState::Expired,
        };
        let done = self.store.finish(&[(*lease, outcome)]).await.unwrap();
        assert_eq!(done, [Ok(())]);
        self.event(lease, JobEventBody::Ended { state }).await;
        self.bus.tell(Signal::Ended { job: lease.job, state }).await;
    }

    pub async fn succeed(&self, leased: &Leased, script: &[(u32, &str)]) {
        let record = record(leased, script);
        let bytes = RecordLocation::Inline(record.encode().unwrap());
        self.finish(&leased.lease, succeeded(&record, bytes)).await;
    }

    pub async fn fail(&self, lease: &Lease, error: JobError) {
        self.finish(lease, Outcome::Failed { error, usage: Usage::default() }).await;
    }

    /// A job of another tenant, accepted past the server.
    pub async fn foreign_job(&self) -> JobId {
        let request = contract::openai::parse_completion(&json!({"model": MODEL, "prompt": "Hi"})).unwrap().request;
        let job = NewJob {
            id: JobId::new(),
            tenant: TenantId::from("somebody else"),
            release: model().release,
            route: MODEL.into(),
            class: Class::Standard,
            bound: 10,
            tenant_bound: None,
            delay: Duration::ZERO,
            deadline_in: Duration::from_secs(60),
            seed: 1,
            request,
            metadata: BTreeMap::new(),
            batch_line: None,
            custom_id: None,
            webhook: None,
            sequence_key: None,
            on_failure: contract::OnFailure::Skip,
            traceparent: None,
            idempotency: None,
            published_by_caller: false,
            trajectory: contract::TrajectoryMode::Full,
            keep: None,
        };
        self.store.accept(&[job]).await.unwrap()[0].clone().unwrap().job
    }

    pub async fn state(&self, job: &JobId) -> JobState {
        self.store.get(&TenantId::local(), job).await.unwrap().unwrap().state
    }
}

pub fn succeeded(record: &Record, location: RecordLocation) -> Outcome {
    Outcome::Succeeded { record: location, usage: record.usage, first_token_ms: Some(1) }
}

/// The record of a job whose tokens and texts are the script's.
pub fn record(leased: &Leased, script: &[(u32, &str)]) -> Record {
    let (mut text, mut ends) = (String::new(), Vec::new());
    for (_, piece) in script {
        text.push_str(piece);
        ends.push(text.len() as u32);
    }
    Record {
        v: 1,
        job: leased.lease.job,
        attempt: leased.lease.attempt,
        release: model().release,
        kind: leased.request.kind(),
        request: leased.request.clone(),
        seed: leased.seed,
        prompt_text: "Hi".into(),
        prompt_ids: vec![1, 2],
        choices: vec![ChoiceRecord {
            output_ids: script.iter().map(|(id, _)| *id).collect(),
            text,
            ends,
            logprobs: None,
            finish_reason: FinishReason::Stop,
            stop_reason: None,
        }],
        usage: Usage { prompt_tokens: 2, cached_tokens: 0, output_tokens: script.len() as u32 },
        timings: AttemptTimings::default(),
        reading: model().manifest.reading.of(&leased.request),
    }
}

pub fn request(path: &str, headers: &[(&str, &str)], body: &Value) -> Request<Body> {
    let mut builder = Request::post(path).header("content-type", "application/json");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::from(body.to_string())).unwrap()
}

pub fn chat(stream: bool) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": stream})
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// `error.code`.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The events of a stream as (name, id, data).
    pub fn events(&self) -> Vec<(String, String, String)> {
        events(&self.text)
    }
}

/// Events of a stream as (name, id, data), by the rules of the standard as far as they are used here.
pub fn events(text: &str) -> Vec<(String, String, String)> {
    let mut events = Vec::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let field = |name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
            line.unwrap_or_default().to_owned()
        };
        if !block.starts_with(':') {
            events.push((field("event"), field("id"), field("data")));
        }
    }
    events
}
