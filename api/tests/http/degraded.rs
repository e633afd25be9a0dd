//! Parts that are away: the queue, the bus.

use std::sync::Arc;
use std::time::Duration;

use api::Deps;
use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use contract::{
    Bus, BusError, Class, Delivery, Gone, JobEvent, JobId, JobState, Published, Queue, QueueError, QueueId, Signal,
    Wake, WorkerInfo,
};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::json;
use tower::ServiceExt;

use crate::support::{Answer, MODEL, World, request};

/// A bus behind a cut line.
struct Away;

/// A broker behind a cut line.
pub struct AwayBroker {
    /// False: it goes away just now, and nobody has noticed.
    pub is_known: bool,
}

#[async_trait]
impl Queue for AwayBroker {
    async fn publish(&self, wakes: &[(QueueId, Wake)]) -> Vec<Published> {
        vec![Published::Unknown; wakes.len()]
    }

    async fn take(&self, _: &QueueId, _: usize) -> Result<Vec<Delivery>, QueueError> {
        Err(QueueError::Unreachable("cut".into()))
    }

    async fn ack(&self, _: Delivery) {}

    async fn put_back(&self, _: Delivery) {}

    async fn arrived(&self) {
        std::future::pending().await
    }

    async fn rest(&self) {}

    async fn ready(&self, _: &QueueId) -> Result<u64, QueueError> {
        Err(QueueError::Unreachable("cut".into()))
    }

    fn limit(&self) -> u64 {
        256
    }

    fn is_reachable(&self) -> bool {
        !self.is_known
    }
}

#[async_trait]
impl Bus for Away {
    async fn append(&self, _: &[JobEvent]) -> Result<(), BusError> {
        Err(BusError::Unreachable("cut".into()))
    }

    async fn events(&self, _: &JobId, _: u32) -> Result<BoxStream<'static, Result<JobEvent, Gone>>, Gone> {
        Err(Gone)
    }

    async fn tell(&self, _: Signal) {}

    async fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    async fn beat(&self, _: WorkerInfo, _: Duration) -> Result<(), BusError> {
        Err(BusError::Unreachable("cut".into()))
    }

    async fn workers(&self) -> Result<Vec<WorkerInfo>, BusError> {
        Err(BusError::Unreachable("cut".into()))
    }
}

pub async fn answer(router: axum::Router, request: Request<Body>) -> Answer {
    let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
    let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

#[tokio::test]
async fn without_the_queue_jobs_are_accepted_and_calls_are_told() {
    let world = World::new().await;
    let router = api::router(Deps { queue: Arc::new(AwayBroker { is_known: true }), ..world.deps.clone() });
    let body = json!({"model": MODEL, "prompt": "Hi"});
    for headers in [&[][..], &[("idempotency-key", "k")], &[("idempotency-key", "k")]] {
        let refused = answer(router.clone(), request("/v1/completions", headers, &body)).await;
        assert_eq!((refused.status, refused.code()), (StatusCode::SERVICE_UNAVAILABLE, "queue_unavailable".to_owned()));
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(world.jobs().await, 0, "a refused call leaves nothing behind");

    for (class, prefer) in [("standard", ""), ("interactive", "")] {
        let job = json!({"type": "completion", "class": class, "request": body});
        let accepted = answer(router.clone(), request("/v1/jobs", &[("prefer", prefer)], &job)).await;
        assert_eq!(accepted.status, StatusCode::ACCEPTED, "{}", accepted.text);
    }
    // Both are the feeder's at once.
    world.lease(Class::Interactive).await;
    world.lease(Class::Standard).await;

    let ready = answer(router, Request::get("/readyz").body(Body::empty()).unwrap()).await;
    assert_eq!((ready.status, &ready.json()["degraded"]), (StatusCode::OK, &json!(["the queue cannot be reached"])));
    assert_eq!(world.get("/readyz").await.json()["degraded"], json!([]));
}

#[tokio::test]
async fn a_call_whose_queue_goes_away_just_then_runs_for_nobody() {
    let world = World::new().await;
    let router = api::router(Deps { queue: Arc::new(AwayBroker { is_known: false }), ..world.deps.clone() });
    let body = json!({"model": MODEL, "prompt": "Hi"});
    let refused = answer(router.clone(), request("/v1/completions", &[], &body)).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::SERVICE_UNAVAILABLE, "queue_unavailable".to_owned()));
    assert_eq!(world.get("/v1/jobs").await.json()["data"][0]["status"], "cancelled");

    // With a key the job stays for the repeat, and the client is told.
    let keyed = answer(router, request("/v1/completions", &[("idempotency-key", "k")], &body)).await;
    assert_eq!(keyed.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(keyed.text.contains("job is kept"), "{}", keyed.text);
    let listed = world.get("/v1/jobs").await.json();
    assert_eq!((&listed["data"][0]["status"], listed["data"].as_array().unwrap().len()), (&json!("queued"), 2));
    // The feeder's at once.
    let leased = world.lease(Class::Interactive).await;
    assert_eq!(listed["data"][0]["id"], leased.lease.job.to_string());
}

#[tokio::test]
async fn without_the_bus_calls_poll_the_store() {
    let world = World::new().await;
    let router = api::router(Deps { bus: Arc::new(Away), ..world.deps.clone() });
    let whole = json!({"model": MODEL, "prompt": "Hi"});
    let streamed = json!({"model": MODEL, "prompt": "Hi", "stream": true});
    let calls =
        [whole, streamed].map(|body| tokio::spawn(answer(router.clone(), request("/v1/completions", &[], &body))));
    for _ in &calls {
        let leased = world.lease(Class::Interactive).await;
        world.succeed(&leased, &[(3, "Hel"), (4, "lo")]).await;
    }
    let [whole, streamed] = calls;
    let whole = whole.await.unwrap();
    assert_eq!((whole.status, &whole.json()["choices"][0]["text"]), (StatusCode::OK, &json!("Hello")));
    let streamed = streamed.await.unwrap();
    assert_eq!(streamed.status, StatusCode::OK);
    assert!(streamed.text.contains("Hel") && streamed.text.ends_with("data: [DONE]\n\n"), "{}", streamed.text);

    let ready = answer(router, Request::get("/readyz").body(Body::empty()).unwrap()).await;
    assert_eq!((ready.status, &ready.json()["degraded"]), (StatusCode::OK, &json!(["the bus cannot be reached"])));
    assert_eq!(world.jobs().await, 2);
    let listed = world.get("/v1/jobs").await.json();
    assert_eq!(listed["data"][0]["status"], JobState::Succeeded.as_str());
}
