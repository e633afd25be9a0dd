//! The OpenAI routes without streaming.

use contract::Class;
use serde_json::json;

use crate::support::{MODEL, World, chat, model, request};

const CHAT: &str = "/v1/chat/completions";
const SCRIPT: [(u32, &str); 2] = [(10, "He"), (12, "llo")];

#[tokio::test]
async fn a_chat_waits_for_its_job() {
    let world = World::new().await;
    let calling =
        world.start(request(CHAT, &[("x-request-id", "mine-1"), ("authorization", "Bearer x")], &chat(false)));
    let leased = world.lease(Class::Interactive).await;
    world.succeed(&leased, &SCRIPT).await;
    let answer = calling.await.unwrap();
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["id"], format!("chatcmpl-{}", leased.lease.job));
    assert_eq!(body["choices"][0]["message"], json!({"role": "assistant", "content": "Hello", "refusal": null}));
    assert_eq!(body["model"], MODEL);
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    assert_eq!(answer.header("penstock-release"), Some(model().release.as_str()));
    assert_eq!(answer.header("penstock-job"), Some(leased.lease.job.to_string().as_str()));
    assert!(answer.header("server-timing").unwrap().contains("first-token;dur="));
}

#[tokio::test]
async fn a_completion_has_its_own_shape() {
    let world = World::new().await;
    let calling = world.start(request("/v1/completions", &[], &json!({"model": MODEL, "prompt": [1, 2]})));
    let leased = world.lease(Class::Interactive).await;
    assert_eq!(leased.request.max_tokens, Some(16));
    world.succeed(&leased, &SCRIPT).await;
    let body = calling.await.unwrap().json();
    assert_eq!(
        (body["object"].as_str(), body["choices"][0]["text"].as_str()),
        (Some("text_completion"), Some("Hello"))
    );
}

#[tokio::test]
async fn an_interactive_job_is_published_at_once() {
    use contract::{Queue, QueueId};
    let world = World::new().await;
    world.submit(Class::Interactive).await;
    world.submit(Class::Standard).await;
    let ready = async |class| world.queue.ready(&QueueId { release: model().release, class }).await.unwrap();
    assert_eq!((ready(Class::Interactive).await, ready(Class::Standard).await), (1, 0));
}

#[tokio::test]
async fn respond_async_answers_with_the_job() {
    let world = World::new().await;
    let answer = world.post_with(CHAT, &[("prefer", "respond-async")], &chat(false)).await;
    assert_eq!((answer.status.as_u16(), answer.header("preference-applied")), (202, Some("respond-async")));
    let job = answer.json();
    assert_eq!((job["object"].as_str(), job["class"].as_str()), (Some("job"), Some("interactive")));
    assert_eq!(answer.header("location"), job["urls"]["get"].as_str());

    let calling = world.start(request(CHAT, &[("prefer", "respond-async, wait=30")], &chat(false)));
    // The first one is still in the queue, before this one.
    for _ in 0..2 {
        let leased = world.lease(Class::Interactive).await;
        world.succeed(&leased, &SCRIPT).await;
    }
    let answer = calling.await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.json()["object"].as_str()), (200, Some("chat.completion")));

    let answer = world.post_with(CHAT, &[("prefer", "respond-async")], &chat(true)).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["param"].as_str()), (400, Some("stream")));
}

#[tokio::test]
async fn a_repeat_with_the_same_key_waits_for_the_same_job() {
    let world = World::new().await;
    let calls: Vec<_> = (0..3).map(|_| world.start(request(CHAT, &[("idempotency-key", "k")], &chat(false)))).collect();
    let leased = world.lease(Class::Interactive).await;
    world.succeed(&leased, &SCRIPT).await;
    let mut replays = 0;
    for call in calls {
        let answer = call.await.unwrap();
        assert_eq!(answer.json()["id"], format!("chatcmpl-{}", leased.lease.job));
        replays += usize::from(answer.header("idempotency-replayed").is_some());
    }
    assert_eq!(replays, 2);
    let late = world.post_with(CHAT, &[("idempotency-key", "k")], &chat(false)).await;
    assert_eq!((late.status.as_u16(), late.header("idempotency-replayed")), (200, Some("true")));
    // The key covers the route too.
    let body = json!({"type": "chat", "request": chat(false)});
    assert_eq!(world.post_with("/v1/jobs", &[("idempotency-key", "k")], &body).await.status.as_u16(), 422);
}
