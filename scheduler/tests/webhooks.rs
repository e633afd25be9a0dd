//! Webhooks from the event to the receiver: real servers on this machine, with the clock of the store in the test's hand.
#![allow(clippy::unwrap_used, reason = "tests; some helpers are no test functions")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore, local_objects};
use contract::guard::Guard;
use contract::webhook::SECRET_BYTES;
use contract::{
    AdminStore, Class, DeliveryFilter, DeliveryState, Fingerprint, Hook, JobId, JobStore, NewJob, NewWebhook, Secret,
    TenantId, Trajectories, TrajectoryMode, WebhookDelivery, WebhookId, WorkerId,
};
use scheduler::{ArchiveConfig, Deps, SchedulerError, run};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What a receiver does with a request.
#[derive(Clone, Copy)]
enum Conduct {
    Takes,
    Answers(u16),
    AsksToWait(u64),
    Redirects,
    Hangs,
}

/// One request as a receiver saw it.
#[derive(Debug, Clone)]
struct Seen {
    path: String,
    id: String,
    body: Value,
    /// The store's clock, in seconds since the world began.
    at: i64,
}

/// A receiver of webhooks.
struct Receiver {
    address: SocketAddr,
    conduct: Arc<Mutex<Conduct>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Receiver {
    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn ids(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.id).collect()
    }

    fn conducts_itself(&self, conduct: Conduct) {
        *self.conduct.lock().unwrap() = conduct;
    }
}

#[derive(Clone)]
struct Serving {
    conduct: Arc<Mutex<Conduct>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    ahead: Arc<AtomicI64>,
}

async fn receive(State(serving): State<Serving>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let verifier = standardwebhooks::Webhook::new(secret().reveal()).unwrap();
    verifier.verify(&body, &headers).unwrap();
    let id = headers["webhook-id"].to_str().unwrap().to_owned();
    let at = serving.ahead.load(Ordering::SeqCst) / 1_000;
    serving.seen.lock().unwrap().push(Seen {
        path: uri.path().to_owned(),
        id,
        body: serde_json::from_slice(&body).unwrap(),
        at,
    });
    let conduct = *serving.conduct.lock().unwrap();
    let with = |status: u16, name: &'static str, value: String| {
        let mut response = StatusCode::from_u16(status).unwrap().into_response();
        response.headers_mut().insert(name, HeaderValue::try_from(value).unwrap());
        response
    };
    match conduct {
        Conduct::Takes => StatusCode::NO_CONTENT.into_response(),
        Conduct::Answers(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Conduct::AsksToWait(seconds) => with(503, "retry-after", seconds.to_string()),
        Conduct::Redirects => with(302, "location", "/elsewhere".to_owned()),
        Conduct::Hangs => std::future::pending().await,
    }
}

fn secret() -> Secret {
    Secret::new([9; SECRET_BYTES])
}

fn tenant() -> TenantId {
    TenantId::from("acme")
}

type Running = JoinHandle<Result<(), SchedulerError>>;

struct World {
    store: Arc<SqliteStore>,
    /// Added to the store's clock, in milliseconds.
    ahead: Arc<AtomicI64>,
    folder: TempDir,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("jobs.db"));
        let (system, ahead) = (options.clock.clone(), Arc::new(AtomicI64::new(0)));
        let shift = ahead.clone();
        let clock = Arc::new(move || system() + shift.load(Ordering::SeqCst));
        let store = SqliteStore::open_with(SqliteOptions { clock, ..options }).await.unwrap();
        let world = Self { store: Arc::new(store), ahead, folder };
        // Addresses that jobs name are signed with the tenant's own secret.
        world.add_webhook(None).await;
        world
    }

    async fn add_webhook(&self, url: Option<String>) -> WebhookId {
        let new = NewWebhook {
            id: WebhookId::new(),
            tenant: tenant(),
            url,
            events: vec![],
            description: String::new(),
            secret: secret(),
            idempotency: None,
        };
        self.store.add_webhook(&new).await.unwrap().unwrap().into_inner().id
    }

    fn start(&self) -> Running {
        let deps = Deps {
            store: self.store.clone(),
            admin: self.store.clone(),
            queue: Arc::new(InProcessQueue::new(64)),
            bus: Arc::new(InProcessBus::default()),
            objects: Arc::new(local_objects(&self.folder.path().join("objects")).unwrap()),
            archive: ArchiveConfig::default(),
            trajectories: Trajectories::default(),
            guard: Guard::allowing(&["127.0.0.1/32"]).unwrap(),
            progress_every: Duration::from_secs(30),
            holder: WorkerId::unique(),
        };
        tokio::spawn(run(deps, std::future::pending::<()>()))
    }

    async fn receiver(&self, conduct: Conduct) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (conduct, seen) = (Arc::new(Mutex::new(conduct)), Arc::new(Mutex::new(Vec::new())));
        let serving = Serving { conduct: conduct.clone(), seen: seen.clone(), ahead: self.ahead.clone() };
        let router = Router::new().fallback(receive).with_state(serving);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Receiver { address, conduct, seen }
    }

    fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Cancels a new job, of which this address is told.
    async fn cancel_one(&self, url: &str) -> JobId {
        let asked = serde_json::json!({"model": "tiny", "prompt": "x"});
        let job = NewJob {
            id: JobId::new(),
            tenant: tenant(),
            release: Fingerprint("ab".repeat(32)),
            route: "tiny".into(),
            class: Class::Standard,
            bound: 100_000,
            tenant_bound: None,
            delay: Duration::ZERO,
            deadline_in: Duration::from_secs(36_000),
            seed: 1,
            request: contract::openai::parse_completion(&asked).unwrap().request,
            metadata: BTreeMap::new(),
            batch_line: None,
            custom_id: None,
            webhook: (!url.is_empty()).then(|| Hook { url: url.to_owned(), events: vec![] }),
            sequence_key: None,
            on_failure: contract::OnFailure::Skip,
            traceparent: None,
            idempotency: None,
            published_by_caller: false,
            trajectory: TrajectoryMode::Full,
            keep: None,
        };
        let id = job.id;
        self.store.accept(&[job]).await.unwrap().remove(0).unwrap();
        self.store.cancel(&tenant(), &id).await.unwrap();
        id
    }

    async fn deliveries(&self) -> Vec<WebhookDelivery> {
        let filter = DeliveryFilter { limit: 1_000, ..DeliveryFilter::default() };
        self.store.deliveries(&tenant(), &filter).await.unwrap().0
    }

    /// Waits until every delivery that waits was tried and put off, or has ended.
    async fn until(&self, what: &str, holds: impl Fn(&[WebhookDelivery]) -> bool) {
        let begin = Instant::now();
        loop {
            let deliveries = self.deliveries().await;
            if holds(&deliveries) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: it does not come to that: {deliveries:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn all_delivered(deliveries: &[WebhookDelivery]) -> bool {
    deliveries.iter().all(|delivery| delivery.state == DeliveryState::Delivered)
}

#[tokio::test]
async fn receivers_of_every_kind_get_what_they_are_due() {
    let world = World::new().await;
    let scheduler = world.start();
    let kinds = [
        ("takes", Conduct::Takes),
        ("fails", Conduct::Answers(500)),
        ("asks to wait", Conduct::AsksToWait(3_600)),
        ("redirects", Conduct::Redirects),
        ("is gone", Conduct::Answers(410)),
        ("hangs", Conduct::Hangs),
    ];
    let mut receivers = Vec::new();
    for (name, conduct) in kinds {
        let receiver = world.receiver(conduct).await;
        let id = world.cancel_one(&format!("http://{}/{}", receiver.address, name.replace(' ', "-"))).await;
        receivers.push((name, receiver, id));
    }
    let attempts = |n: u32| move |all: &[WebhookDelivery]| all.iter().all(|delivery| delivery.attempts >= n);
    world.until("the first attempts", attempts(1)).await;
    let by_name = |name: &str| &receivers.iter().find(|(known, ..)| *known == name).unwrap().1;
    assert!(by_name("redirects").seen().iter().all(|seen| seen.path == "/redirects"), "a redirect is not followed");
    by_name("hangs").conducts_itself(Conduct::Takes);
    // An hour goes by, and then all are well again.
    for step in [5, 60, 300, 1_800, 1_800] {
        if step == 1_800 {
            for (_, receiver, _) in &receivers {
                receiver.conducts_itself(Conduct::Takes);
            }
        }
        // A fifth more, by which pauses are spread.
        world.advance(Duration::from_secs(step * 6 / 5 + 1));
        world
            .until("what is due is taken", |all| all.iter().all(|one| one.next_at.is_none_or(|at| at > one.now)))
            .await;
        // Taken is not yet sent: what the receivers here do takes no time.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    world.until("all have ended", |all| all.iter().all(|delivery| delivery.state != DeliveryState::Waiting)).await;
    println!("{:<14} {:>8} {:>10}  attempts at (simulated s)", "receiver", "attempts", "end");
    for (name, receiver, job) in &receivers {
        let seen = receiver.seen();
        let all = world.deliveries().await;
        let delivery = all.iter().find(|delivery| delivery.subject.to_string() == job.to_string()).unwrap();
        let times: Vec<i64> = seen.iter().map(|seen| seen.at).collect();
        println!("{name:<14} {:>8} {:>10}  {times:?}", delivery.attempts, delivery.state.as_str());
        assert!(seen.iter().all(|seen| seen.id == delivery.id.to_string()), "the same id in every attempt");
        assert!(seen.iter().all(|seen| seen.body == seen_body(&seen.body, delivery)));
        let expected = if *name == "is gone" { DeliveryState::Failed } else { DeliveryState::Delivered };
        assert_eq!(delivery.state, expected, "{name}");
    }
    assert_eq!(by_name("takes").ids().len(), 1);
    assert_eq!(by_name("is gone").ids().len(), 1, "410 is the last word");
    let asked = by_name("asks to wait").seen();
    assert!(
        asked.len() == 2 && asked[1].at - asked[0].at >= 3_600,
        "it is left alone for as long as it asked: {asked:?}"
    );
    assert!(by_name("fails").seen().len() >= 4);
    scheduler.abort();
}

/// What every attempt must say.
fn seen_body(body: &Value, delivery: &WebhookDelivery) -> Value {
    assert_eq!(body["id"], delivery.id.to_string());
    assert_eq!((&body["type"], &body["sequence"]), (&Value::from("job.cancelled"), &Value::from(2)));
    assert_eq!(
        (&body["data"]["id"], &body["data"]["status"]),
        (&delivery.subject.to_string().into(), &"cancelled".into())
    );
    assert_eq!(body["timestamp"], delivery.at.rfc3339());
    body.clone()
}

#[tokio::test]
async fn who_never_answers_is_given_up_after_three_days_and_disabled() {
    let world = World::new().await;
    let scheduler = world.start();
    let receiver = world.receiver(Conduct::Answers(500)).await;
    let webhook = world.add_webhook(Some(format!("http://{}", receiver.address))).await;
    world.cancel_one("").await;
    let mut hours = 0;
    while world.deliveries().await[0].state == DeliveryState::Waiting {
        world.until("what is due is tried", |all| all[0].next_at.is_none_or(|at| at > all[0].now)).await;
        world.advance(Duration::from_secs(3_600));
        hours += 1;
        assert!(hours < 100);
    }
    assert!((72..=74).contains(&hours), "{hours}");
    let disabled = world.store.webhook(&tenant(), &webhook).await.unwrap().unwrap();
    assert!(disabled.disabled_why.unwrap().contains("three days"));
    // At the full hours, since the clock goes in steps of one.
    assert!((9..=12).contains(&receiver.ids().len()), "{:?}", receiver.seen());
    scheduler.abort();
}

#[tokio::test]
async fn schedulers_that_die_on_the_way_lose_no_event() {
    let world = World::new().await;
    let receiver = world.receiver(Conduct::Takes).await;
    world.add_webhook(Some(format!("http://{}/all", receiver.address))).await;
    let hanging = world.receiver(Conduct::Hangs).await;
    let mut jobs = Vec::new();
    for nth in 0..200 {
        let url = if nth % 10 == 0 { format!("http://{}/hangs", hanging.address) } else { String::new() };
        jobs.push(world.cancel_one(&url).await);
    }
    for round in 0u64.. {
        let scheduler = world.start();
        tokio::time::sleep(Duration::from_millis(20 + 37 * (round % 7))).await;
        scheduler.abort();
        drop(scheduler.await);
        // Its lead runs out, and what it held is due again.
        world.advance(Duration::from_secs(95));
        let left = world.deliveries().await;
        if left.iter().filter(|delivery| delivery.webhook.is_some()).all(|d| d.state == DeliveryState::Delivered) {
            break;
        }
        assert!(round < 300, "no end in sight");
    }
    // Each at least once, whoever was killed in between; a receiver knows repeats by their id.
    let seen = receiver.seen();
    for job in &jobs {
        let ids: std::collections::BTreeSet<_> =
            seen.iter().filter(|seen| seen.body["data"]["id"] == job.to_string()).map(|seen| &seen.id).collect();
        assert_eq!(ids.len(), 1, "{job}");
    }
    println!("200 events, {} requests", seen.len());
    // The one that hangs is well again.
    hanging.conducts_itself(Conduct::Takes);
    let scheduler = world.start();
    world.advance(Duration::from_secs(4 * 3_600));
    world.until("everything is delivered", all_delivered).await;
    scheduler.abort();
}

#[tokio::test]
async fn one_that_hangs_keeps_nobody_waiting() {
    let world = World::new().await;
    let scheduler = world.start();
    let hanging = world.receiver(Conduct::Hangs).await;
    let well = world.receiver(Conduct::Takes).await;
    for _ in 0..50 {
        world.cancel_one(&format!("http://{}", hanging.address)).await;
    }
    let begin = Instant::now();
    world.cancel_one(&format!("http://{}", well.address)).await;
    world.until("the other one", |all| all.iter().any(|delivery| delivery.state == DeliveryState::Delivered)).await;
    assert!(begin.elapsed() < Duration::from_secs(10), "less than one attempt at the one that hangs takes");
    assert!(hanging.ids().len() <= 8, "a few at a time: {}", hanging.ids().len());
    scheduler.abort();
}
