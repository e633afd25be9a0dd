//! How synchronous calls show the ends of their jobs that are no results.

use std::sync::atomic::Ordering;
use std::time::Duration;

use contract::{Class, ErrorCode, JobError, JobState, JobStore, Leased, Signal};
use serde_json::json;

use crate::support::{World, chat, request};

const CHAT: &str = "/v1/chat/completions";

enum End {
    Fails(ErrorCode),
    IsCancelled,
    Expires,
}

async fn end(world: &World, leased: &Leased, end: &End) {
    let job = leased.lease.job;
    match end {
        End::Fails(code) => world.fail(&leased.lease, JobError::new(*code, "the words of the worker")).await,
        End::IsCancelled => {
            let answer = world.post(&format!("/v1/jobs/{job}/cancel"), &json!(null)).await;
            assert_eq!(answer.status.as_u16(), 200);
        }
        End::Expires => {
            world.ahead.fetch_add(121_000, Ordering::Relaxed);
            use contract::Bus;
            let reaped = world.store.reap(10).await.unwrap();
            assert_eq!(reaped.ended, [(job, JobState::Expired)]);
            world.bus.tell(Signal::Ended { job, state: JobState::Expired }).await;
        }
    }
}

#[tokio::test]
async fn each_end_has_its_status_streaming_or_not() {
    let cases = [
        (End::Fails(ErrorCode::ContextLengthExceeded), 400, "context_length_exceeded", None),
        (End::Fails(ErrorCode::InvalidRequest), 400, "invalid_request", None),
        (End::Fails(ErrorCode::NotFinite), 502, "job_failed", Some("false")),
        (End::Fails(ErrorCode::Quarantined), 502, "quarantined", Some("false")),
        (End::IsCancelled, 409, "job_cancelled", Some("false")),
        (End::Expires, 504, "deadline_exceeded", Some("false")),
    ];
    for (how, status, code, should_retry) in cases {
        for stream in [false, true] {
            let world = World::new().await;
            let calling = world.start(request(CHAT, &[], &chat(stream)));
            let leased = world.lease(Class::Interactive).await;
            end(&world, &leased, &how).await;
            let answer = calling.await.unwrap();
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{}", answer.text);
            assert_eq!(answer.header("x-should-retry"), should_retry, "{code}");
            assert_eq!(answer.header("penstock-job"), Some(leased.lease.job.to_string().as_str()));
        }
    }
}

#[tokio::test]
async fn after_the_first_token_an_end_is_an_event() {
    let world = World::new().await;
    let calling = world.start(request(CHAT, &[], &chat(true)));
    let leased = world.lease(Class::Interactive).await;
    world.tokens(&leased.lease, &[(10, "He")], 1..=1).await;
    // The head and the first token are out once a stream is open.
    while world.get("/v1/stats").await.json()["http"]["open_streams"] == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    end(&world, &leased, &End::Fails(ErrorCode::NotFinite)).await;
    let answer = calling.await.unwrap();
    assert_eq!(answer.status.as_u16(), 200);
    let events = answer.events();
    let last: serde_json::Value = serde_json::from_str(&events.last().unwrap().2).unwrap();
    assert_eq!(last["error"]["code"], "job_failed");
    assert!(!answer.text.contains("[DONE]"), "{}", answer.text);
}

#[tokio::test]
async fn a_failed_job_is_shown_with_its_error() {
    let world = World::new().await;
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    let error = JobError::new(ErrorCode::ContextLengthExceeded, "too long").with_param("prompt");
    world.fail(&leased.lease, error).await;
    let answer = world.get(&format!("/v1/jobs/{job}")).await;
    assert_eq!(answer.status.as_u16(), 200);
    let body = answer.json();
    assert_eq!((body["status"].as_str(), &body["result"]), (Some("failed"), &json!(null)));
    assert_eq!(body["error"], json!({"code": "context_length_exceeded", "message": "too long", "param": "prompt"}));
    let events = world.get(&format!("/v1/jobs/{job}/events")).await.events();
    assert_eq!(events.last().unwrap().0, "ended");
    let data: serde_json::Value = serde_json::from_str(&events.last().unwrap().2).unwrap();
    assert_eq!((data["job"]["status"].as_str(), &data["output_hash"]), (Some("failed"), &json!(null)));
}
