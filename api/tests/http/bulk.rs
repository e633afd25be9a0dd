//! Many jobs in one call.

use axum::http::StatusCode;
use contract::{Class, Queue, QueueId};
use serde_json::{Value, json};

use crate::support::{Choices, MODEL, World, model};

const PATH: &str = "/v1/jobs:batch";

fn item(prompt: &str) -> Value {
    json!({"type": "completion", "request": {"model": MODEL, "prompt": prompt}})
}

#[tokio::test]
async fn each_job_is_accepted_or_refused_by_itself() {
    let world = World::new().await;
    let body = json!([
        item("a"),
        {"type": "completion", "request": {"model": MODEL, "prompt": "b", "temperature": 9}},
        {"type": "completion", "class": "bulk", "request": {"model": "another", "prompt": "c"}},
        {"type": "completion", "class": "interactive", "request": {"model": MODEL, "prompt": "d"}},
        17,
    ]);
    let answer = world.post(PATH, &body).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
    let answer = answer.json();
    assert_eq!((&answer["accepted"], &answer["refused"]), (&json!(2), &json!(3)));
    let items = answer["data"].as_array().unwrap();
    assert_eq!(items.iter().map(|item| item["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(items[1]["error"]["param"], "request.temperature");
    assert_eq!(items[2]["error"]["code"], "model_not_found");
    assert_eq!(items[4]["error"]["type"], "invalid_request_error");
    assert_eq!(world.jobs().await, 2);
    // The interactive one is published at once, the standard one is left to the feeder.
    for (class, expected) in [(Class::Interactive, 1), (Class::Standard, 0)] {
        assert_eq!(world.queue.ready(&QueueId { release: model().release, class }).await.unwrap(), expected, "{class}");
    }
    let leased = world.lease(Class::Interactive).await;
    assert_eq!(items[3]["id"], leased.lease.job.to_string());
    let leased = world.lease(Class::Standard).await;
    world.succeed(&leased, &[(3, "x")]).await;
    let job = world.get(&format!("/v1/jobs/{}", items[0]["id"].as_str().unwrap())).await.json();
    assert_eq!(job["status"], "succeeded");
}

#[tokio::test]
async fn a_full_queue_takes_what_it_has_room_for() {
    let mut choices = Choices::default();
    choices.limits.bounds.standard = 700;
    let world = World::with(choices).await;
    let items: Vec<Value> = (0..1_000).map(|n| item(&n.to_string())).collect();
    let answer = world.post(PATH, &Value::from(items.clone())).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::ACCEPTED, Some("5")));
    let body = answer.json();
    assert_eq!((&body["accepted"], &body["refused"]), (&json!(700), &json!(300)));
    assert_eq!(body["data"][999]["error"]["code"], "queue_full");
    let answer = world.post(PATH, &Value::from(items)).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::TOO_MANY_REQUESTS, "queue_full".to_owned()));
    // Each is told by itself all the same.
    let body = answer.json();
    assert!(body["data"].as_array().unwrap().iter().all(|item| item["error"]["code"] == "queue_full"), "{body}");
    assert_eq!((&body["accepted"], answer.header("retry-after").is_some()), (&json!(0), true));
    assert_eq!(answer.header("retry-after"), Some("5"));
}

#[tokio::test]
async fn what_is_no_list_of_jobs_is_refused() {
    let world = World::new().await;
    for body in [json!({}), json!([]), json!("x"), Value::from(vec![item("x"); 10_001])] {
        let answer = world.post(PATH, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    }
    let answer = world.post_with(PATH, &[("idempotency-key", "k")], &json!([item("x")])).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::BAD_REQUEST, "invalid_header".to_owned()));
    let answer = world.post(PATH, &json!([17])).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    assert_eq!(world.jobs().await, 0);
}
