//! Native jobs: submit, wait, look, list, cancel, repeat.

use axum::http::StatusCode;
use contract::{Class, JobState};
use serde_json::{Value, json};

use crate::support::{MODEL, World, model, record, request, succeeded};

const SCRIPT: [(u32, &str); 3] = [(10, "He"), (11, ""), (12, "llo")];

fn body() -> Value {
    json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi", "seed": -5}, "metadata": {"run": "a"}})
}

#[tokio::test]
async fn a_job_is_accepted_run_and_read() {
    let world = World::new().await;
    let answer = world.post("/v1/jobs", &body()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let job = answer.json();
    assert_eq!((job["status"].as_str(), job["class"].as_str()), (Some("queued"), Some("standard")));
    assert_eq!((job["seed"].as_i64(), &job["metadata"]), (Some(-5), &json!({"run": "a"})));
    assert_eq!(answer.header("location"), job["urls"]["get"].as_str());
    assert_eq!(answer.header("penstock-job"), job["id"].as_str());

    let leased = world.lease(Class::Standard).await;
    assert_eq!(leased.seed, (-5i64) as u64);
    world.succeed(&leased, &SCRIPT).await;
    let answer = world.get(job["urls"]["get"].as_str().unwrap()).await;
    let job = answer.json();
    assert_eq!((job["status"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)));
    assert_eq!(job["result"]["choices"][0]["text"], "Hello");
    assert_eq!(job["usage"]["completion_tokens"], 3);
    assert_eq!(answer.header("penstock-release"), Some(model().release.as_str()));
    let timing = answer.header("server-timing").unwrap();
    assert!(timing.contains("queued;dur=") && timing.contains("finished;dur="), "{timing}");
}

#[tokio::test]
async fn a_drawn_seed_is_shown_and_kept() {
    let world = World::new().await;
    let first = world.submit(Class::Standard).await;
    let second = world.submit(Class::Standard).await;
    let seed = async |job| world.get(&format!("/v1/jobs/{job}")).await.json()["seed"].as_i64().unwrap();
    assert_ne!(seed(first).await, seed(second).await);
    assert_eq!(seed(first).await, seed(first).await);
    assert!((0..1 << 53).contains(&seed(first).await));
}

#[tokio::test]
async fn a_preferred_wait_answers_with_the_result_or_the_job() {
    let world = World::new().await;
    let calling = world.start(request("/v1/jobs", &[("prefer", "wait=30")], &body()));
    let leased = world.lease(Class::Standard).await;
    world.succeed(&leased, &SCRIPT).await;
    let answer = calling.await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.header("preference-applied")), (200, Some("wait=30")));
    assert_eq!(answer.json()["status"], "succeeded");

    let answer = world.post_with("/v1/jobs", &[("prefer", "wait=1")], &body()).await;
    assert_eq!((answer.status.as_u16(), answer.json()["status"].as_str()), (202, Some("queued")));
}

#[tokio::test]
async fn a_long_poll_ends_with_the_job() {
    let world = World::new().await;
    let job = world.submit(Class::Standard).await;
    let poll = axum::http::Request::get(format!("/v1/jobs/{job}?wait=30")).body(axum::body::Body::empty()).unwrap();
    let polling = world.start(poll);
    let leased = world.lease(Class::Standard).await;
    world.succeed(&leased, &SCRIPT).await;
    assert_eq!(polling.await.unwrap().json()["status"], "succeeded");
    // And with the time: the job is fine, and still waits.
    let job = world.submit(Class::Standard).await;
    let answer = world.get(&format!("/v1/jobs/{job}?wait=0")).await;
    assert_eq!((answer.status.as_u16(), answer.json()["status"].as_str()), (200, Some("queued")));
}

#[tokio::test]
async fn a_staged_record_is_read_from_the_object_store() {
    use object_store::ObjectStoreExt;
    let world = World::new().await;
    let job = world.submit(Class::Bulk).await;
    let leased = world.lease(Class::Bulk).await;
    let record = record(&leased, &SCRIPT);
    let key = format!("records/{job}/1");
    let path = object_store::path::Path::from(key.as_str());
    world.objects.put(&path, record.encode().unwrap().into()).await.unwrap();
    world.finish(&leased.lease, succeeded(&record, contract::RecordLocation::Staged(key))).await;
    let answer = world.get(&format!("/v1/jobs/{job}")).await;
    assert_eq!(answer.json()["result"]["choices"][0]["text"], "Hello");
    // Gone is not "no result": it is an error that may pass.
    world.objects.delete(&path).await.unwrap();
    let answer = world.get(&format!("/v1/jobs/{job}")).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store_unavailable"));
}

#[tokio::test]
async fn cancel_is_idempotent_and_knows_when_it_is_too_late() {
    let world = World::new().await;
    let job = world.submit(Class::Standard).await;
    for _ in 0..2 {
        let answer = world.post(&format!("/v1/jobs/{job}/cancel"), &json!(null)).await;
        assert_eq!((answer.status.as_u16(), answer.json()["status"].as_str()), (200, Some("cancelled")));
    }
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    world.succeed(&leased, &SCRIPT).await;
    let answer = world.post(&format!("/v1/jobs/{job}/cancel"), &json!(null)).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "job_already_ended"));
    assert!(answer.text.contains("succeeded"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(world.state(&job).await, JobState::Succeeded);
}

#[tokio::test]
async fn a_repeat_with_the_same_key_is_the_same_job() {
    let world = World::new().await;
    let first = world.post_with("/v1/jobs", &[("idempotency-key", "\"k1\"")], &body()).await;
    assert_eq!(first.header("idempotency-replayed"), None);
    // Other order of fields, key unquoted: the same request.
    let reordered = json!({"metadata": {"run": "a"}, "request": {"seed": -5, "prompt": "Hi", "model": MODEL}, "type": "completion"});
    let second = world.post_with("/v1/jobs", &[("idempotency-key", "k1")], &reordered).await;
    assert_eq!((second.status.as_u16(), second.header("idempotency-replayed")), (202, Some("true")));
    assert_eq!(first.json()["id"], second.json()["id"]);
    let mut other = body();
    other["metadata"]["run"] = json!("b");
    let refused = world.post_with("/v1/jobs", &[("idempotency-key", "k1")], &other).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "idempotency_key_reused"));
    assert_eq!(world.jobs().await, 1);
}

#[tokio::test]
async fn twenty_at_once_with_one_key_are_one_job() {
    let world = World::new().await;
    let calls: Vec<_> =
        (0..20).map(|_| world.start(request("/v1/jobs", &[("idempotency-key", "k")], &body()))).collect();
    let mut ids = std::collections::BTreeSet::new();
    for call in calls {
        let answer = call.await.unwrap();
        assert_eq!(answer.status.as_u16(), 202, "{}", answer.text);
        ids.insert(answer.json()["id"].as_str().unwrap().to_owned());
    }
    assert_eq!((ids.len(), world.jobs().await), (1, 1));
}

#[tokio::test]
async fn the_list_pages_and_filters() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        let class = if n % 2 == 0 { "bulk" } else { "standard" };
        let job = json!({"type": "completion", "class": class, "metadata": {"n": n.to_string(), "run": "x"},
            "request": {"model": MODEL, "prompt": "Hi"}});
        ids.insert(0, world.post("/v1/jobs", &job).await.json()["id"].as_str().unwrap().to_owned());
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/jobs?limit=3{after}")).await.json();
        let data = page["data"].as_array().unwrap();
        seen.extend(data.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        assert_eq!((&page["first_id"], &page["last_id"]), (&data[0]["id"], &data[data.len() - 1]["id"]));
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().unwrap());
    }
    assert_eq!(seen, ids, "newest first, each once");
    let count =
        async |query: &str| world.get(&format!("/v1/jobs?{query}")).await.json()["data"].as_array().unwrap().len();
    assert_eq!(count("class=bulk").await, 4);
    assert_eq!(count("metadata.n=3").await, 1);
    assert_eq!(count("metadata.n=3&metadata.run=y").await, 0);
    assert_eq!(count("metadata.run=x&class=standard").await, 3);
    let id = ids.last().unwrap();
    world.post(&format!("/v1/jobs/{id}/cancel"), &json!(null)).await;
    assert_eq!(count("status=cancelled").await, 1);
    assert_eq!(count("status=queued,cancelled").await, 7);
    assert_eq!(count("status=running").await, 0);
}
