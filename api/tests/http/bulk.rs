//! Many jobs in one call.

use axum::body::Body;
use axum::http::{Request, StatusCode};
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
    let answer = world.post(PATH, &json!([17])).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    assert_eq!(world.jobs().await, 0);
}

#[tokio::test]
async fn lines_are_as_good_as_an_array() {
    let world = World::new().await;
    let send = async |media_type: &str, body: String| {
        let request = Request::post(PATH).header("content-type", media_type).body(Body::from(body)).unwrap();
        world.call(request).await
    };
    // A blank line has no place, a broken one has, and the last one needs no break.
    let body = format!("{}\r\n\n{{\"type\": \n{}", item("a"), item("b"));
    for media_type in ["application/x-ndjson", "application/jsonl; charset=utf-8"] {
        let answer = send(media_type, body.clone()).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
        let items = answer.json()["data"].as_array().unwrap().clone();
        assert_eq!(items.len(), 3);
        assert!(items[0]["id"].is_string() && items[2]["id"].is_string());
        assert_eq!(items[1]["error"]["code"], "invalid_json");
        assert!(items[1]["error"]["message"].as_str().unwrap().contains("line 3"), "{}", items[1]);
    }
    assert_eq!(send("text/plain", body).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(world.jobs().await, 4);
}

#[tokio::test]
async fn one_key_makes_the_same_jobs_again() {
    let mut choices = Choices::default();
    choices.limits.bounds.standard = 2;
    let world = World::with(choices).await;
    let body = json!([item("a"), item("b"), item("c")]);
    let send = async |body: &Value| world.post_with(PATH, &[("idempotency-key", "k")], body).await;
    let first = send(&body).await.json();
    assert_eq!((&first["accepted"], &first["refused"]), (&json!(2), &json!(1)));
    let again = send(&body).await.json();
    assert_eq!(again["data"], first["data"]);
    let other = send(&json!([item("a"), item("b"), item("d")])).await;
    assert_eq!((other.status, other.code()), (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused".to_owned()));
    let longer = send(&json!([item("a"), item("b"), item("c"), item("d")])).await;
    assert_eq!((longer.status, world.jobs().await), (StatusCode::UNPROCESSABLE_ENTITY, 2), "nothing of it is accepted");
    // There is room again for the one that was refused.
    let leased = world.lease(Class::Standard).await;
    world.succeed(&leased, &[(3, "x")]).await;
    let last = send(&body).await.json();
    assert_eq!((&last["data"][0], &last["data"][1]), (&first["data"][0], &first["data"][1]));
    assert!(last["data"][2]["id"].is_string(), "{last}");
    assert_eq!(world.jobs().await, 3);
}

#[tokio::test]
async fn all_or_none_is_kept() {
    let mut choices = Choices::default();
    choices.limits.bounds.standard = 3;
    let world = World::with(choices).await;
    let path = format!("{PATH}?all_or_none=true");
    let wrong = json!({"type": "completion", "request": {"model": MODEL, "prompt": "b", "temperature": 9}});
    let answer = world.post(&path, &json!([item("a"), wrong, item("c")])).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    let body = answer.json();
    assert_eq!((&body["accepted"], &body["error"]["param"]), (&json!(0), &json!("request.temperature")));
    assert_eq!(body["data"][0]["error"]["code"], "others_refused");
    let answer = world.post(&path, &Value::from(vec![item("x"); 4])).await;
    // Waiting does not help these.
    assert_eq!((answer.status, answer.code()), (StatusCode::BAD_REQUEST, "request_exceeds_limit".to_owned()));
    let items = answer.json()["data"].as_array().unwrap().clone();
    let codes: Vec<&str> = items.iter().map(|item| item["error"]["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["others_refused", "others_refused", "others_refused", "request_exceeds_limit"]);
    assert_eq!(world.jobs().await, 0);
    let answer = world.post(&path, &Value::from(vec![item("x"); 3])).await;
    assert_eq!((answer.status, &answer.json()["accepted"]), (StatusCode::ACCEPTED, &json!(3)));
    assert_eq!(world.jobs().await, 3);
    let answer = world.post(&path, &Value::from(vec![item("x"); 2])).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::TOO_MANY_REQUESTS, "queue_full".to_owned()));
    assert_eq!(world.post(&format!("{PATH}?all_or_none=1"), &json!([item("x")])).await.status, StatusCode::BAD_REQUEST);
}
