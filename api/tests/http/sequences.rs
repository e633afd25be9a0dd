//! Sequences: what a failure blocks, and who resumes it.

use axum::http::StatusCode;
use contract::{Bus, Class, ErrorCode, JobError, JobId, JobState, QueueId, Signal};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::support::{Answer, MODEL, World, model};

fn body(key: &str, on_failure: Option<&str>) -> Value {
    json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}, "sequence_key": key,
        "on_failure": on_failure})
}

async fn submit(world: &World, key: &str, on_failure: Option<&str>) -> Value {
    let answer = world.post("/v1/jobs", &body(key, on_failure)).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
    answer.json()
}

/// The next job fails.
async fn fail_next(world: &World) -> JobId {
    let leased = world.lease(Class::Standard).await;
    world.fail(&leased.lease, JobError::new(ErrorCode::NotFinite, "nan")).await;
    leased.lease.job
}

async fn resume(world: &World, path: &str) -> Answer {
    world.post(&format!("/v1/sequences/{path}/resume"), &Value::Null).await
}

#[tokio::test]
async fn a_failure_blocks_its_sequence_until_it_is_resumed() {
    let world = World::new().await;
    let (key, path) = ("order 17/4 \u{e4}?#%", "order%2017%2F4%20%C3%A4%3F%23%25");
    let first = submit(&world, key, Some("block")).await;
    assert_eq!((&first["sequence_key"], &first["on_failure"]), (&json!(key), &json!("block")));
    let second = submit(&world, key, None).await;
    assert_eq!(second["on_failure"], "skip");
    let free = submit(&world, "another", Some("skip")).await;

    let one = world.get(&format!("/v1/sequences/{path}")).await;
    assert_eq!(one.status, StatusCode::OK, "{}", one.text);
    let idle = json!({"key": key, "object": "sequence", "state": "idle", "blocked_at": null, "blocked_by": null,
        "unfinished": 2, "next_job": first["id"]});
    assert_eq!(one.json(), idle);
    assert_eq!(world.get("/v1/sequences").await.json()["data"], json!([]));
    // Resuming what is not blocked changes nothing.
    assert_eq!(resume(&world, path).await.json(), idle);

    let leased = world.lease(Class::Standard).await;
    assert_eq!(leased.lease.job.to_string(), first["id"].as_str().unwrap());
    assert_eq!(world.get(&format!("/v1/sequences/{path}")).await.json()["state"], "running");
    world.fail(&leased.lease, JobError::new(ErrorCode::NotFinite, "nan")).await;
    let ended = world.get(first["urls"]["get"].as_str().unwrap()).await.json();
    let blocked = json!({"key": key, "object": "sequence", "state": "blocked", "blocked_at": ended["finished_at"],
        "blocked_by": first["id"], "unfinished": 1, "next_job": second["id"]});
    assert_eq!(world.get(&format!("/v1/sequences/{path}")).await.json(), blocked);
    let list = json!({"object": "list", "data": [blocked], "last_key": key, "has_more": false});
    assert_eq!(world.get("/v1/sequences").await.json(), list);

    // The other sequence runs on; this one does not, whatever is submitted.
    let leased = world.lease(Class::Standard).await;
    assert_eq!(leased.lease.job.to_string(), free["id"].as_str().unwrap());
    world.succeed(&leased, &[(3, "Hi")]).await;
    let third = submit(&world, key, None).await;
    let queue = QueueId { release: model().release, class: Class::Standard };
    assert!(contract::JobStore::due(&*world.store, &queue, 10).await.unwrap().is_empty());

    let mut signals = world.bus.signals().await;
    let resumed = resume(&world, path).await;
    assert_eq!(resumed.status, StatusCode::OK, "{}", resumed.text);
    let mut expected = idle.clone();
    expected["next_job"] = second["id"].clone();
    assert_eq!(resumed.json(), expected);
    assert_eq!(signals.next().await, Some(Signal::Due { queue }));
    assert_eq!(resume(&world, path).await.json(), expected);
    for job in [second, third] {
        let leased = world.lease(Class::Standard).await;
        assert_eq!(leased.lease.job.to_string(), job["id"].as_str().unwrap());
        world.succeed(&leased, &[(3, "Hi")]).await;
        assert_eq!(world.state(&leased.lease.job).await, JobState::Succeeded);
    }
    let gone = world.get(&format!("/v1/sequences/{path}")).await;
    assert_eq!((gone.status, gone.code()), (StatusCode::NOT_FOUND, "sequence_not_found".to_owned()));
    assert_eq!(resume(&world, path).await.code(), "sequence_not_found");
}

#[tokio::test]
async fn jobs_of_one_call_can_block_too() {
    let world = World::new().await;
    let answer = world.post("/v1/jobs:batch", &json!([body("s", Some("block")), body("s", None)])).await;
    assert!(answer.status.is_success(), "{}", answer.text);
    let failed = fail_next(&world).await;
    let shown = world.get("/v1/sequences/s").await.json();
    assert_eq!((&shown["blocked_by"], &shown["unfinished"]), (&json!(failed.to_string()), &json!(1)));
    let without = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}, "on_failure": "block"});
    let refused = world.post("/v1/jobs", &without).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("on_failure")));
}

#[tokio::test]
async fn blocked_sequences_are_paged() {
    let world = World::new().await;
    for key in ["b", "a", "d", "c"] {
        submit(&world, key, Some("block")).await;
        fail_next(&world).await;
    }
    let first = world.get("/v1/sequences?limit=3").await.json();
    let keys = |page: &Value| page["data"].as_array().unwrap().iter().map(|one| one["key"].clone()).collect::<Vec<_>>();
    assert_eq!(keys(&first), ["a", "b", "c"]);
    assert_eq!((&first["has_more"], &first["last_key"]), (&json!(true), &json!("c")));
    let rest = world.get("/v1/sequences?limit=3&after=c").await.json();
    assert_eq!((keys(&rest), &rest["has_more"]), (vec![json!("d")], &json!(false)));
    for (query, param) in [("limit=0", "limit"), ("limit=101", "limit"), ("state=blocked", "state")] {
        let refused = world.get(&format!("/v1/sequences?{query}")).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)));
    }
}

#[tokio::test]
async fn a_key_that_nothing_has_is_not_found() {
    let world = World::new().await;
    for key in ["nothing", "%00", "%FF", "%2E", &"x".repeat(2_000)] {
        for answer in [world.get(&format!("/v1/sequences/{key}")).await, resume(&world, key).await] {
            assert_eq!(
                (answer.status, answer.code()),
                (StatusCode::NOT_FOUND, "sequence_not_found".to_owned()),
                "{key}"
            );
        }
    }
}
