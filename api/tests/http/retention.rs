//! What is kept for a time: how clients say for how long, what they read until then, and what there is afterwards.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use contract::{AdminStore, Class, JobId, JobStore, Leased, TenantId, Trajectories, TrajectoryMode};
use serde_json::{Value, json};

use crate::support::{Answer, MODEL, World, chat, request};

const SCRIPT: [(u32, &str); 2] = [(10, "Hel"), (11, "lo")];

fn body(more: &Value) -> Value {
    let mut body = json!({"type": "completion", "class": "bulk", "request": {"model": MODEL, "prompt": "Hi"}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A job of this body that succeeded.
async fn ended(world: &World, more: &Value) -> JobId {
    let answer = world.post("/v1/jobs", &body(more)).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
    let leased = world.lease(Class::Bulk).await;
    world.succeed(&leased, &SCRIPT).await;
    answer.json()["id"].as_str().unwrap().parse().unwrap()
}

fn later(world: &World, seconds: i64) {
    world.ahead.fetch_add(seconds * 1_000, Ordering::Relaxed);
}

/// Removes what is to be removed, as the scheduler does where nothing is in the object store.
async fn empty(world: &World) -> usize {
    let jobs: Vec<JobId> = world.store.expired_jobs(100).await.unwrap().iter().map(|row| row.job).collect();
    assert_eq!(world.store.empty_jobs(&jobs).await.unwrap(), jobs.len() as u64);
    jobs.len()
}

fn refusal(answer: &Answer) -> (u16, String) {
    (answer.status.as_u16(), answer.code())
}

fn gone() -> (u16, String) {
    (410, "job_emptied".to_owned())
}

#[tokio::test]
async fn a_job_says_how_long_it_is_kept_and_then_is_gone() {
    let world = World::new().await;
    let job = ended(&world, &json!({"keep_seconds": 600, "metadata": {"who": "me"}})).await;
    let path = format!("/v1/jobs/{job}");
    let before = world.get(&path).await.json();
    assert_eq!((&before["keep_seconds"], &before["emptied_at"]), (&json!(600), &json!(null)));
    let at = |field: &str| contract::Timestamp::parse_rfc3339(before[field].as_str().unwrap()).unwrap().0;
    assert_eq!(at("result_expires_at") - at("finished_at"), 600_000);
    assert_eq!(before["result"]["choices"][0]["text"], "Hello");
    assert_eq!(world.get(&path).await.json()["result"], before["result"], "reading does not consume");

    later(&world, 600);
    for is_emptied in [false, true] {
        assert_eq!(empty(&world).await, 1 - usize::from(is_emptied));
        for path in [path.clone(), format!("{path}?wait=1"), format!("{path}/trajectory"), format!("{path}/events")] {
            let answer = world.get(&path).await;
            assert_eq!(refusal(&answer), gone(), "{path}: {}", answer.text);
            let left = &answer.json()["job"];
            assert_eq!((&left["id"], &left["status"]), (&json!(job.to_string()), &json!("succeeded")));
            assert_eq!((&left["usage"], &left["finished_at"]), (&before["usage"], &before["finished_at"]));
            assert_eq!((&left["result"], &left["metadata"]), (&json!(null), &json!({})));
            assert!(left["emptied_at"].is_string());
            assert!(!answer.text.contains("Hello"));
        }
        let listed = world.get("/v1/jobs").await.json();
        assert_eq!(listed["data"][0]["id"], json!(job.to_string()));
        assert!(listed["data"][0]["emptied_at"].is_string());
    }
    let other = world.foreign_job().await;
    assert_eq!(refusal(&world.get(&format!("/v1/jobs/{other}")).await), (404, "job_not_found".to_owned()));
}

#[tokio::test]
async fn at_its_time_a_job_is_gone_whether_its_bytes_are_or_not() {
    let world = World::new().await;
    let job = ended(&world, &json!({"keep_seconds": 60})).await;
    later(&world, 59);
    assert_eq!(world.get(&format!("/v1/jobs/{job}")).await.status, StatusCode::OK);
    later(&world, 1);
    for path in ["", "/trajectory", "/events"] {
        let answer = world.get(&format!("/v1/jobs/{job}{path}")).await;
        assert_eq!(refusal(&answer), gone(), "{path}");
        assert!(!answer.text.contains("Hello"));
    }
    assert!(world.store.get(&TenantId::local(), &job).await.unwrap().unwrap().record.is_some(), "the bytes are there");
}

#[tokio::test]
async fn the_servers_policy_applies_where_a_job_says_nothing() {
    let mut world = World::new().await;
    let unset = ended(&world, &json!({})).await;
    let shown = world.get(&format!("/v1/jobs/{unset}")).await.json();
    assert_eq!((&shown["keep_seconds"], &shown["result_expires_at"]), (&json!(null), &json!(null)), "for ever");
    let day = std::time::Duration::from_secs(86_400);
    world.deps.trajectories = Trajectories { keep: Some(day), ..Trajectories::default() };
    world.router = api::router(world.deps.clone());
    let by_policy = world.post("/v1/jobs", &body(&json!({}))).await.json();
    assert_eq!((&by_policy["keep_seconds"], &by_policy["result_expires_at"]), (&json!(86_400), &json!(null)));
    let own = world.post("/v1/jobs", &body(&json!({"keep_seconds": 60}))).await.json();
    assert_eq!(own["keep_seconds"], 60);
    let many = json!([body(&json!({"keep_seconds": 120})), body(&json!({"store": false}))]);
    let accepted = world.post("/v1/jobs:batch", &many).await.json();
    for (nth, seconds) in [(0, 120), (1, 300)] {
        let id = accepted["data"][nth]["id"].as_str().unwrap();
        assert_eq!(world.get(&format!("/v1/jobs/{id}")).await.json()["keep_seconds"], seconds);
    }
}

#[tokio::test]
async fn what_contradicts_itself_is_refused() {
    let world = World::new().await;
    let store_inside = json!({"keep_seconds": 60, "request": {"model": MODEL, "prompt": "Hi", "store": false}});
    for (more, param, code) in [
        (json!({"keep_seconds": 59}), "keep_seconds", "invalid_value"),
        (json!({"keep_seconds": 315_360_001}), "keep_seconds", "invalid_value"),
        (json!({"keep_seconds": true}), "keep_seconds", "invalid_type"),
        (json!({"store": 0}), "store", "invalid_type"),
        (json!({"store": false, "keep_seconds": 60}), "keep_seconds", "invalid_value"),
        (store_inside, "keep_seconds", "invalid_value"),
    ] {
        let answer = world.post("/v1/jobs", &body(&more)).await;
        assert_eq!(refusal(&answer), (400, code.to_owned()), "{more}");
        assert_eq!(answer.json()["error"]["param"], param, "{more}");
    }
    let batch = |more: Value| {
        let mut body = json!({"input_file_id": contract::FileId::new().to_string(), "endpoint": "/v1/completions",
            "completion_window": "1h"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let answer = world.post("/v1/batches", &batch(json!({"store": false}))).await;
    assert_eq!(
        (refusal(&answer), &answer.json()["error"]["param"]),
        ((400, "invalid_value".to_owned()), &json!("store"))
    );
    assert!(answer.text.contains("output_expires_after"), "{}", answer.text);
    let answer = world.post("/v1/batches", &batch(json!({"keep_seconds": 5}))).await;
    assert_eq!(answer.json()["error"]["param"], "keep_seconds");
}

#[tokio::test]
async fn a_job_that_is_not_stored_gives_its_result_and_nothing_stays() {
    let world = World::new().await;
    let job = ended(&world, &json!({"store": false})).await;
    let shown = world.get(&format!("/v1/jobs/{job}")).await.json();
    assert_eq!((&shown["keep_seconds"], &shown["result"]["choices"][0]["text"]), (&json!(300), &json!("Hello")));
    let trajectory = world.get(&format!("/v1/jobs/{job}/trajectory")).await;
    assert_eq!(refusal(&trajectory), (404, "no_trajectory".to_owned()));
    assert!(world.store.unarchived(10).await.unwrap().is_empty(), "it goes into no segment");
    later(&world, 300);
    assert_eq!(refusal(&world.get(&format!("/v1/jobs/{job}")).await), gone());
    assert_eq!(empty(&world).await, 1);
}

/// Answers the next call that somebody waits for.
async fn answer(world: &World) -> Leased {
    let leased = world.lease(Class::Interactive).await;
    world.succeed(&leased, &SCRIPT).await;
    leased
}

#[tokio::test]
async fn a_call_that_is_not_stored_is_answered_and_its_key_then_is_of_something_gone() {
    let world = World::new().await;
    for stream in [false, true] {
        let mut body = chat(stream);
        body["store"] = json!(false);
        let key = [("idempotency-key", if stream { "s" } else { "w" })];
        let call = |body: &Value| request("/v1/chat/completions", &key, body);
        let waiting = world.start(call(&body));
        let leased = answer(&world).await;
        let first = waiting.await.unwrap();
        assert_eq!(first.status, StatusCode::OK, "{}", first.text);
        assert!(first.text.contains("Hel") && first.text.contains("lo"));
        let kept = world.store.get(&TenantId::local(), &leased.lease.job).await.unwrap().unwrap();
        assert_eq!((kept.keep.map(|keep| keep.as_secs()), kept.trajectory), (Some(300), TrajectoryMode::Off));
        // A repeat within the grace gets the same answer.
        later(&world, 299);
        assert_eq!(world.call(call(&body)).await.status, StatusCode::OK);
        later(&world, 1);
        for is_emptied in [false, true] {
            assert_eq!(empty(&world).await, 1 - usize::from(is_emptied));
            let again = world.call(call(&body)).await;
            assert_eq!(refusal(&again), gone(), "stream: {stream}: {}", again.text);
            assert_eq!(again.json()["job"]["id"], json!(leased.lease.job.to_string()));
        }
    }
}

#[tokio::test]
async fn a_repeated_submit_still_names_its_job() {
    let world = World::new().await;
    let key = [("idempotency-key", "k")];
    let body = body(&json!({"keep_seconds": 60}));
    let first = world.post_with("/v1/jobs", &key, &body).await.json();
    let leased = world.lease(Class::Bulk).await;
    world.succeed(&leased, &SCRIPT).await;
    later(&world, 60);
    assert_eq!(empty(&world).await, 1);
    let again = world.post_with("/v1/jobs", &key, &body).await;
    assert_eq!((again.status, &again.json()["id"]), (StatusCode::ACCEPTED, &first["id"]));
    assert!(again.json()["emptied_at"].is_string());
    // Who asks for the result as well is told that there is none.
    let waiting = [("idempotency-key", "k"), ("prefer", "wait=1")];
    assert_eq!(refusal(&world.post_with("/v1/jobs", &waiting, &body).await), gone());
}

#[tokio::test]
async fn cancelling_again_is_still_the_same_answer() {
    let world = World::new().await;
    let id =
        world.post("/v1/jobs", &body(&json!({"keep_seconds": 60}))).await.json()["id"].as_str().unwrap().to_owned();
    let cancel = format!("/v1/jobs/{id}/cancel");
    assert_eq!(world.post(&cancel, &json!({})).await.status, StatusCode::OK);
    later(&world, 60);
    assert_eq!(empty(&world).await, 1);
    let again = world.post(&cancel, &json!({})).await;
    assert_eq!((again.status, &again.json()["status"]), (StatusCode::OK, &json!("cancelled")));
    assert_eq!(refusal(&world.get(&format!("/v1/jobs/{id}")).await), gone());
}
