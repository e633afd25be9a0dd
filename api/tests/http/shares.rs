//! Interactive jobs of several tenants: one that sends many does not keep the queue from the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Deps;
use axum::http::{Method, StatusCode};
use contract::{Class, Queue, QueueId, Scope, TenantId};
use serde_json::{Value, json};

use crate::degraded::AwayBroker;
use crate::keys::{call, key};
use crate::support::{Answer, MODEL, World, model, request};

/// Of the 256 interactive jobs that a release has room for.
const FLOOD: usize = 200;
/// What a server publishes of a burst by itself.
const ROOM: u64 = 16;

fn item() -> Value {
    json!({"type": "completion", "class": "interactive", "request": {"model": MODEL, "prompt": "Hi"}})
}

async fn ready(world: &World) -> u64 {
    world.queue.ready(&QueueId { release: model().release, class: Class::Interactive }).await.unwrap()
}

async fn post(world: &World, key: &str, path: &str, body: &Value) -> Answer {
    let answer = call(world, &Method::POST, path, Some(key), Some(body)).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
    answer
}

/// One tenant sends many jobs, and then another one sends one.
async fn one_beside_many(in_one_call: bool) {
    let world = World::new().await;
    let (_, many) = key(&world, "many", &Scope::ALL, None).await;
    let (_, one) = key(&world, "one", &Scope::ALL, None).await;
    if in_one_call {
        let answer = post(&world, &many, "/v1/jobs:batch", &Value::from(vec![item(); FLOOD])).await.json();
        assert_eq!(answer["accepted"], FLOOD);
    } else {
        for _ in 0..FLOOD {
            post(&world, &many, "/v1/jobs", &item()).await;
        }
    }
    let published = ready(&world).await;
    assert!((1..=ROOM).contains(&published), "{published} of {FLOOD} are in the queue");
    post(&world, &one, "/v1/jobs", &item()).await;
    let mut before = 0;
    while world.lease(Class::Interactive).await.tenant != TenantId::from("one") {
        before += 1;
    }
    // Those in the queue, and a turn of the other's.
    assert!(before <= published + 2, "{before} jobs came before it");
}

#[tokio::test]
async fn a_single_job_does_not_wait_for_all_that_another_tenant_sent_before_it() {
    one_beside_many(false).await;
}

#[tokio::test]
async fn nor_for_all_of_a_bulk_call() {
    one_beside_many(true).await;
}

#[tokio::test]
async fn an_empty_queue_is_published_to_again() {
    let world = World::new().await;
    let flood = world.post("/v1/jobs:batch", &Value::from(vec![item(); FLOOD])).await;
    assert_eq!(flood.status, StatusCode::ACCEPTED, "{}", flood.text);
    let lease_all = async |jobs: usize| {
        for _ in 0..jobs {
            world.lease(Class::Interactive).await;
        }
    };
    lease_all(FLOOD - 50).await;
    assert_eq!(ready(&world).await, 0, "what was left to the feeder is no message");
    lease_all(50).await;
    // The first one may find that nobody has looked since.
    let begin = Instant::now();
    loop {
        world.submit(Class::Interactive).await;
        let is_published = ready(&world).await == 1;
        lease_all(1).await;
        if is_published {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "jobs are left to the feeder for ever");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_broker_that_goes_away_is_told_to_every_call() {
    let world = World::new().await;
    let router = api::router(Deps { queue: Arc::new(AwayBroker { is_known: false }), ..world.deps.clone() });
    let body = json!({"model": MODEL, "prompt": "Hi"});
    for _ in 0..2 * ROOM {
        let refused = crate::degraded::answer(router.clone(), request("/v1/completions", &[], &body)).await;
        assert_eq!((refused.status, refused.code()), (StatusCode::SERVICE_UNAVAILABLE, "queue_unavailable".to_owned()));
    }
}
