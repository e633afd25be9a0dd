//! One service away, the others there: what goes on, what is refused, and what happens when it is back. A proxy stands in
//! front of each of the shared services.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tests::Process;
use tests::client::unix_ms;
use tests::cluster::{Api, Cluster};
use tests::proxy::Proxies;
use tests::services::Services;

const PATIENCE: Duration = Duration::from_secs(60);

/// An installation of one process of each kind, every service behind a proxy.
struct Installation {
    services: Proxies,
    api: Api,
    _scheduler: Process,
    _worker: Process,
    _cluster: Cluster,
}

impl Installation {
    async fn with(settings: &[(&str, u32)]) -> Self {
        let shared = Services::shared();
        let services = Proxies::to(&shared).await;
        let mut cluster = Cluster::on(&shared, |url| services.way(url)).await;
        for (name, value) in settings {
            cluster = cluster.with(name, value);
        }
        let worker = cluster.worker();
        let scheduler = cluster.scheduler();
        let api = cluster.api();
        Self { services, api, _scheduler: scheduler, _worker: worker, _cluster: cluster }
    }

    async fn submit(&self, body: &Value) -> (u16, Value) {
        let (status, answer) = self.api.client.post("/v1/jobs", body).await;
        (status.as_u16(), answer)
    }

    async fn accepted(&self, body: &Value) -> String {
        let (status, answer) = self.submit(body).await;
        assert_eq!(status, 202, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    async fn succeeds(&self, id: &str) -> Value {
        let job = self.api.client.finished(id, PATIENCE).await;
        assert_eq!(job["status"], "succeeded", "{job}");
        job
    }
}

fn completion(max_tokens: u32) -> Value {
    json!({"model": "tiny", "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": true})
}

fn job(class: &str, max_tokens: u32) -> Value {
    json!({"type": "completion", "class": class, "request": completion(max_tokens)})
}

/// One whose record is too large for its row.
fn large(deadline_seconds: u32) -> Value {
    let mut body = job("standard", 2_000);
    body["request"]["logprobs"] = 5.into();
    body["deadline_seconds"] = deadline_seconds.into();
    body
}

/// Waits until something holds; what it was is in the message.
async fn becomes(what: &str, holds: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_object_store_large_records_wait_and_small_ones_go_on() {
    let all = Installation::with(&[]).await;
    let before = all.accepted(&large(600)).await;
    all.succeeds(&before).await;

    all.services.objects.refuse(true);
    let (waiting, expiring) = (all.accepted(&large(600)).await, all.accepted(&large(6)).await);
    for class in ["interactive", "standard", "bulk"] {
        all.succeeds(&all.accepted(&job(class, 20)).await).await;
    }
    let expired = all.api.client.finished(&expiring, PATIENCE).await;
    assert_eq!(expired["status"], "expired", "{expired}");
    assert_eq!(all.api.client.job(&waiting).await["status"], "running", "generated, and not to be put anywhere");
    // Small ones go on beside it as before.
    all.succeeds(&all.accepted(&job("standard", 20)).await).await;

    all.services.objects.refuse(false);
    let ended = all.succeeds(&waiting).await;
    assert_eq!((&ended["attempt"], &ended["usage"]["completion_tokens"]), (&json!(1), &json!(2_000)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_queue_jobs_are_accepted_up_to_the_bound_and_calls_are_told_to_wait() {
    let all = Installation::with(&[("PENSTOCK_LIMITS__STANDARD", 20)]).await;
    all.succeeds(&all.accepted(&job("standard", 5)).await).await;

    all.services.queue.refuse(true);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(all.accepted(&job("standard", 5)).await);
    }
    let (status, refused) = all.submit(&job("standard", 5)).await;
    assert_eq!((status, &refused["error"]["code"]), (429, &json!("queue_full")), "{refused}");
    let call = all.api.client.http.post(all.api.client.url("/v1/completions")).json(&completion(5));
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), 503);
    let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=600).contains(&wait), "{wait}");
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "queue_unavailable", "{answer}");
    let (status, ready) = all.api.client.get("/readyz").await;
    assert_eq!((status.as_u16(), &ready["degraded"]), (200, &json!(["the queue cannot be reached"])));

    all.services.queue.refuse(false);
    for id in &ids {
        assert_eq!(all.succeeds(id).await["attempt"], 1);
    }
    becomes("calls are answered again", async || all.api.client.post("/v1/completions", &completion(5)).await.0 == 200)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_bus_calls_are_answered_from_the_store() {
    let all = Installation::with(&[]).await;
    let (status, whole) = all.api.client.post("/v1/completions", &completion(5)).await;
    assert_eq!(status, 200);

    all.services.bus.refuse(true);
    let begin = Instant::now();
    let (status, answer) = all.api.client.post("/v1/completions", &completion(5)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"], whole["usage"]);
    println!("a call of 5 tokens without the bus: {:.2} s", begin.elapsed().as_secs_f64());
    let mut streamed = completion(300);
    streamed["stream"] = true.into();
    let stream = all.api.client.http.post(all.api.client.url("/v1/completions")).json(&streamed).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let text = stream.text().await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    for class in ["interactive", "standard", "bulk"] {
        all.succeeds(&all.accepted(&job(class, 20)).await).await;
    }
    let (status, ready) = all.api.client.get("/readyz").await;
    assert_eq!(status, 200, "{ready}");
    assert_eq!(ready["degraded"].as_array().unwrap().len(), 1, "{ready}");

    all.services.bus.refuse(false);
    becomes("the bus is back", async || {
        all.api.client.get("/readyz").await.1["degraded"].as_array().unwrap().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_nothing_is_accepted_and_what_runs_is_committed_later() {
    let all = Installation::with(&[("PENSTOCK_WORKER__LEASE_SECONDS", 30)]).await;
    let mut running = Vec::new();
    for _ in 0..8 {
        running.push(all.accepted(&job("standard", 3_500)).await);
    }
    becomes("they run", async || all.api.client.job(&running[7]).await["status"] != "queued").await;

    let cut_at = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    all.services.store.refuse(true);
    let answer = all.api.client.http.post(all.api.client.url("/v1/jobs")).json(&job("standard", 5)).send().await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    let answer: Value = answer.json().await.unwrap();
    assert!(answer["error"]["message"].is_string(), "{answer}");
    assert_eq!(all.api.client.get("/readyz").await.0, 503);
    // Long enough for the engine to be done with them, and shorter than their leases.
    tokio::time::sleep(Duration::from_secs(8)).await;

    all.services.store.refuse(false);
    let mut n_late = 0;
    for id in &running {
        let ended = all.succeeds(id).await;
        n_late += u32::from(unix_ms(ended["finished_at"].as_str().unwrap()) > cut_at);
        assert_eq!((&ended["attempt"], &ended["losses"]), (&json!(1), &json!(0)), "{ended}");
    }
    assert!(n_late > 0, "all of them had ended before the store went away");
}
