//! What a tenant may use: headers, refusals, and what counts.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use contract::{AdminStore, Class, LimitChange, Scope, TenantChange, TenantId};
use serde_json::{Value, json};

use crate::files::{upload_of, uploaded};
use crate::keys::{call, key};
use crate::support::{Answer, MODEL, World, chat, request};

/// Sets limits of the local tenant as its operator does.
async fn limit(world: &World, limits: Value) {
    let answer = world.post("/v1/tenants/local", &limits).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
}

/// A job that is estimated at this many tokens: its prompt has less than four bytes.
fn job_of(tokens: u32) -> Value {
    let request = json!({"model": MODEL, "prompt": "Hi", "max_tokens": tokens});
    json!({"type": "completion", "class": "standard", "request": request})
}

async fn submit(world: &World, tokens: u32) -> Answer {
    world.post("/v1/jobs", &job_of(tokens)).await
}

/// A member of `RateLimit`: what is left, and for how many seconds.
fn standing(answer: &Answer, name: &str) -> (u64, u64) {
    let members = answer.header("ratelimit").unwrap().split(", ");
    let member =
        members.map(|member| member.split(';').collect::<Vec<_>>()).find(|parts| parts[0] == format!("\"{name}\""));
    let parts = member.unwrap();
    let number = |part: &str, key: &str| part.strip_prefix(key).unwrap().parse().unwrap();
    (number(parts[1], "r="), number(parts[2], "t="))
}

fn number(answer: &Answer, header: &str) -> u64 {
    answer.header(header).unwrap().parse().unwrap()
}

fn refused(answer: &Answer, code: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::TOO_MANY_REQUESTS, code), "{}", answer.text);
    assert!(number(answer, "retry-after") >= 1);
}

#[tokio::test]
async fn every_answer_says_what_is_left() {
    let world = World::new().await;
    let before = submit(&world, 16).await;
    assert!(before.header("ratelimit").is_none() && before.header("x-ratelimit-limit-requests").is_none());
    limit(&world, json!({"requests_per_minute": 3, "tokens_per_minute": 600})).await;

    let first = submit(&world, 100).await;
    assert_eq!(first.status, StatusCode::ACCEPTED, "{}", first.text);
    assert_eq!(first.header("ratelimit-policy"), Some(r#""requests";q=3;w=60, "tokens";q=600;w=60"#));
    // A request comes back every 20 s, ten tokens every second.
    let (left, seconds) = standing(&first, "requests");
    assert!(left == 2 && (15..=20).contains(&seconds), "{left} {seconds}");
    let (left, seconds) = standing(&first, "tokens");
    assert!((500..=550).contains(&left) && (5..=10).contains(&seconds), "{left} {seconds}");
    assert_eq!((number(&first, "x-ratelimit-limit-requests"), number(&first, "x-ratelimit-limit-tokens")), (3, 600));
    assert_eq!(number(&first, "x-ratelimit-remaining-requests"), 2);
    assert!((500..=550).contains(&number(&first, "x-ratelimit-remaining-tokens")));
    let reset: f64 = first.header("x-ratelimit-reset-requests").unwrap().strip_suffix('s').unwrap().parse().unwrap();
    assert!((15.0..=20.0).contains(&reset), "{reset}");

    // A body that is wrong costs nothing, and is told the same.
    let wrong = world.post("/v1/jobs", &json!({"type": "completion"})).await;
    assert_eq!((wrong.status, standing(&wrong, "requests").0), (StatusCode::BAD_REQUEST, 2));
    // What reads is not limited.
    assert!(world.get("/v1/jobs").await.header("ratelimit").is_none());

    for left in [1, 0] {
        let next = submit(&world, 100).await;
        assert_eq!((next.status, standing(&next, "requests").0), (StatusCode::ACCEPTED, left));
    }
    let over = submit(&world, 100).await;
    refused(&over, "rate_limit_exceeded");
    let error = over.json()["error"].clone();
    assert_eq!(error["type"], "requests");
    assert!(error["message"].as_str().unwrap().contains("this tenant's 3 a minute"), "{error}");
    let (left, seconds) = standing(&over, "requests");
    assert!(left == 0 && (15..=20).contains(&seconds), "{left} {seconds}");
    assert_eq!(number(&over, "retry-after"), seconds, "never before the limit has room");
    // It took no tokens either.
    assert!(standing(&over, "tokens").0 >= 300);
    assert_eq!(world.jobs().await, 4);
}

#[tokio::test]
async fn tokens_are_limited_by_what_is_asked_for() {
    let world = World::new().await;
    limit(&world, json!({"tokens_per_minute": 900})).await;
    assert_eq!(submit(&world, 600).await.status, StatusCode::ACCEPTED);
    // 300 are left, and 15 come every second: 600 fit after 20 s.
    let over = submit(&world, 600).await;
    refused(&over, "rate_limit_exceeded");
    assert_eq!(over.json()["error"]["type"], "tokens");
    let (left, seconds) = standing(&over, "tokens");
    assert!((300..=375).contains(&left) && (15..=20).contains(&seconds), "{left} {seconds}");
    assert_eq!(number(&over, "retry-after"), seconds);
    assert!(over.header("x-ratelimit-limit-requests").is_none());
    let fits = submit(&world, 300).await;
    assert_eq!(fits.status, StatusCode::ACCEPTED, "{}", fits.text);
    // More than ever is there at once: no wait helps.
    let never = submit(&world, 901).await;
    assert_eq!((never.status, never.code()), (StatusCode::BAD_REQUEST, "request_exceeds_limit".to_owned()));
    assert!(never.json()["error"]["message"].as_str().unwrap().contains("901 tokens"), "{}", never.text);
    // Calls that somebody waits for pay too.
    refused(&world.post("/v1/chat/completions", &chat(false)).await, "rate_limit_exceeded");
}

#[tokio::test]
async fn each_job_of_a_bulk_call_is_a_request() {
    let world = World::new().await;
    limit(&world, json!({"requests_per_minute": 5, "tokens_per_minute": 1_000})).await;
    let bulk = async |n: usize, tokens: u32| world.post("/v1/jobs:batch", &json!(vec![job_of(tokens); n])).await;
    let three = bulk(3, 10).await;
    assert_eq!((three.status, standing(&three, "requests").0), (StatusCode::ACCEPTED, 2));
    let over = bulk(3, 10).await;
    refused(&over, "rate_limit_exceeded");
    assert_eq!((standing(&over, "requests").0, world.jobs().await), (2, 3));
    let never = bulk(6, 10).await;
    assert_eq!((never.status, never.code()), (StatusCode::BAD_REQUEST, "request_exceeds_limit".to_owned()));
    let never = bulk(2, 501).await;
    assert_eq!((never.status, never.code()), (StatusCode::BAD_REQUEST, "request_exceeds_limit".to_owned()));
    // Only what could become a job counts.
    let mixed = world.post("/v1/jobs:batch", &json!([job_of(10), {"type": "nothing"}, job_of(10)])).await;
    assert_eq!((mixed.status, standing(&mixed, "requests").0), (StatusCode::ACCEPTED, 0));
    assert_eq!(world.jobs().await, 5);
}

#[tokio::test]
async fn files_and_batches_are_requests_and_cancelling_is_free() {
    let world = World::new().await;
    limit(&world, json!({"requests_per_minute": 3})).await;
    let file = uploaded(&world, b"{}\n").await;
    let asked = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
    let made = world.post("/v1/batches", &asked).await;
    assert_eq!((made.status, standing(&made, "requests").0), (StatusCode::OK, 1));
    let id = made.json()["id"].as_str().unwrap().to_owned();
    // It has not ended, and still the call counts.
    let again = world.post(&format!("/v1/batches/{id}/resubmit"), &json!({})).await;
    assert_eq!((again.status, standing(&again, "requests").0), (StatusCode::CONFLICT, 0), "{}", again.text);
    refused(&world.post("/v1/batches", &asked).await, "rate_limit_exceeded");
    refused(&world.call(upload_of(&[], b"{}\n")).await, "rate_limit_exceeded");
    assert_eq!(world.post(&format!("/v1/batches/{id}/cancel"), &json!({})).await.status, StatusCode::OK);
    // A schedule makes no batch yet, but a run of it does.
    let schedule = json!({"name": "s", "cron": "@daily", "batch": asked});
    let schedule = world.post("/v1/schedules", &schedule).await.json()["id"].as_str().unwrap().to_owned();
    refused(&world.post(&format!("/v1/schedules/{schedule}/run"), &json!({})).await, "rate_limit_exceeded");
    assert_eq!(world.get("/v1/files").await.json()["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_repeat_pays_again() {
    let world = World::new().await;
    limit(&world, json!({"requests_per_minute": 2})).await;
    let keyed = async || world.post_with("/v1/jobs", &[("idempotency-key", "k")], &job_of(16)).await;
    let (first, again) = (keyed().await, keyed().await);
    assert_eq!((first.status, again.status), (StatusCode::ACCEPTED, StatusCode::ACCEPTED));
    assert_eq!(first.json()["id"], again.json()["id"]);
    refused(&keyed().await, "rate_limit_exceeded");
}

#[tokio::test]
async fn calls_under_way_are_limited_until_they_end() {
    let world = World::new().await;
    limit(&world, json!({"concurrent_requests": 1})).await;
    for stream in [false, true] {
        let waiting = world.start(request("/v1/chat/completions", &[], &chat(stream)));
        let leased = world.lease(Class::Interactive).await;
        let over = world.post("/v1/chat/completions", &chat(!stream)).await;
        refused(&over, "concurrency_limit_exceeded");
        assert!(
            over.json()["error"]["message"].as_str().unwrap().contains("under way is reached (1)"),
            "{}",
            over.text
        );
        assert_eq!(world.get("/v1/limits").await.json()["concurrent_requests"], json!({"limit": 1, "used": 1}));
        refused(&world.post_with("/v1/jobs", &[("prefer", "wait=1")], &job_of(16)).await, "concurrency_limit_exceeded");
        // Nobody waits for this one.
        assert_eq!(submit(&world, 16).await.status, StatusCode::ACCEPTED);
        world.succeed(&leased, &[(3, "Hel"), (4, "lo")]).await;
        assert_eq!(waiting.await.unwrap().status, StatusCode::OK);
        assert_eq!(world.get("/v1/limits").await.json()["concurrent_requests"]["used"], 0);
    }
    // Who hangs up is not under way any more.
    let waiting = world.start(request("/v1/chat/completions", &[], &chat(false)));
    world.lease(Class::Interactive).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    assert_eq!(world.get("/v1/limits").await.json()["concurrent_requests"]["used"], 0);
}

#[tokio::test]
async fn unfinished_jobs_are_limited_by_the_store() {
    let world = World::new().await;
    limit(&world, json!({"queued_jobs": 2})).await;
    let first = submit(&world, 16).await;
    let id = first.json()["id"].as_str().unwrap().to_owned();
    assert!(first.header("ratelimit").is_none(), "it is no limit by the minute");
    let bulk = world.post("/v1/jobs:batch", &json!(vec![job_of(16); 3])).await.json();
    assert_eq!((bulk["accepted"].as_u64(), bulk["refused"].as_u64()), (Some(1), Some(2)), "{bulk}");
    assert_eq!(bulk["data"][1]["error"]["code"], "tenant_queue_full");
    let over = submit(&world, 16).await;
    refused(&over, "tenant_queue_full");
    assert!(
        over.json()["error"]["message"].as_str().unwrap().contains("unfinished jobs is reached (2)"),
        "{}",
        over.text
    );
    refused(&world.post("/v1/chat/completions", &chat(false)).await, "tenant_queue_full");
    assert_eq!(world.get("/v1/limits").await.json()["queued_jobs"], json!({"limit": 2, "used": 2}));
    assert_eq!(world.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await.status, StatusCode::OK);
    assert_eq!(submit(&world, 16).await.status, StatusCode::ACCEPTED);
    assert_eq!(world.jobs().await, 3);
}

#[tokio::test]
async fn tenants_do_not_share() {
    let world = World::new().await;
    let (_, acme) = key(&world, "acme", &Scope::ALL, None).await;
    let (_, globex) = key(&world, "globex", &Scope::ALL, None).await;
    for (tenant, limit) in [("acme", 1), ("globex", 2)] {
        let path = format!("/v1/tenants/{tenant}");
        let set = call(&world, &Method::POST, &path, Some(&acme), Some(&json!({"requests_per_minute": limit}))).await;
        assert_eq!(set.status, StatusCode::OK, "{}", set.text);
    }
    let submit = async |key: &str| call(&world, &Method::POST, "/v1/jobs", Some(key), Some(&job_of(16))).await;
    assert_eq!(submit(&acme).await.status, StatusCode::ACCEPTED);
    refused(&submit(&acme).await, "rate_limit_exceeded");
    let theirs = submit(&globex).await;
    assert_eq!((theirs.status, standing(&theirs, "requests").0), (StatusCode::ACCEPTED, 1));
    // What is another key of the same tenant is no other tenant.
    let (_, acme_too) = key(&world, "acme", &Scope::ALL, None).await;
    refused(&submit(&acme_too).await, "rate_limit_exceeded");
    let ours = call(&world, &Method::GET, "/v1/limits", Some(&acme), None).await.json();
    assert_eq!((&ours["tenant"], &ours["requests_per_minute"]["limit"]), (&json!("acme"), &json!(1)));
}

#[tokio::test]
async fn limits_that_are_changed_elsewhere_hold_after_two_seconds() {
    let world = World::new().await;
    assert_eq!(submit(&world, 16).await.status, StatusCode::ACCEPTED);
    let change = TenantChange { requests_per_minute: LimitChange::Set(1), ..TenantChange::default() };
    world.store.set_tenant(&TenantId::local(), &change).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(submit(&world, 16).await.status, StatusCode::ACCEPTED);
    refused(&submit(&world, 16).await, "rate_limit_exceeded");
    world.store.delete_tenant(&TenantId::local()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let free = submit(&world, 16).await;
    assert_eq!((free.status, free.header("ratelimit")), (StatusCode::ACCEPTED, None));
}

#[tokio::test]
async fn a_tenant_is_set_shown_and_taken_back() {
    let world = World::new().await;
    let unset = world.get("/v1/tenants/acme").await;
    let defaults = json!({
        "id": "acme", "object": "tenant", "requests_per_minute": null, "tokens_per_minute": null,
        "concurrent_requests": null, "queued_jobs": null, "weight": 1, "created_at": null, "changed_at": null,
    });
    assert_eq!((unset.status, unset.json()), (StatusCode::OK, defaults.clone()));
    assert_eq!(world.get("/v1/tenants").await.json(), json!({"object": "list", "data": []}));
    let set = world.post("/v1/tenants/acme", &json!({"tokens_per_minute": 5_000, "weight": 4})).await.json();
    assert_eq!((&set["tokens_per_minute"], &set["weight"]), (&json!(5_000), &json!(4)));
    let set = world.post("/v1/tenants/acme", &json!({"tokens_per_minute": null, "queued_jobs": 9})).await.json();
    assert_eq!((&set["tokens_per_minute"], &set["queued_jobs"], &set["weight"]), (&json!(null), &json!(9), &json!(4)));
    assert!(set["created_at"].is_string());
    assert_eq!(world.get("/v1/tenants").await.json()["data"], json!([set]));
    for _ in 0..2 {
        let reset = call(&world, &Method::DELETE, "/v1/tenants/acme", None, None).await;
        assert_eq!((reset.status, reset.json()), (StatusCode::OK, defaults.clone()));
    }
    assert_eq!(world.get("/v1/tenants/acme").await.json(), defaults);

    for (path, body, param) in [
        ("/v1/tenants/acme", json!({"weight": 0}), "weight"),
        ("/v1/tenants/acme", json!({"requests": 5}), "requests"),
        ("/v1/tenants/a%20b", json!({"weight": 2}), "tenant"),
        ("/v1/tenants/a%00b", json!({"weight": 2}), "tenant"),
    ] {
        let wrong = world.post(path, &body).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.text);
        assert_eq!(wrong.json()["error"]["param"], param, "{}", wrong.text);
    }
    assert_eq!(world.get("/v1/tenants/%FF").await.status, StatusCode::BAD_REQUEST);
}
