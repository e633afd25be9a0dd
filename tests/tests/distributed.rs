//! Many processes on real services: an API, a scheduler and workers, each on its own.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};
use tests::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(60);

fn completion(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true})
}

fn job(class: &str, prompt: &str, max_tokens: u32) -> Value {
    json!({"type": "completion", "class": class, "request": completion(prompt, max_tokens)})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_through_every_process() {
    let cluster = Cluster::new().await;
    let worker = cluster.worker();
    let _scheduler = cluster.scheduler();
    let api = cluster.api();

    // A call that somebody waits for, whole and streamed.
    let (status, answer) = api.client.post("/v1/completions", &completion("Hello", 8)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    let mut streamed = completion("Hello", 200);
    streamed["stream"] = true.into();
    let stream = api.client.http.post(api.client.url("/v1/completions")).json(&streamed).send().await.unwrap();
    let text = stream.text().await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(text.matches("\"text\"").count() > 20, "the tokens did not come as they were made: {text}");

    // Jobs of every class, which the feeder brings.
    let ids = join_all((0..60).map(|n| {
        let client = api.client.clone();
        async move {
            let class = ["interactive", "standard", "bulk"][n % 3];
            let (status, answer) = client.post("/v1/jobs", &job(class, &n.to_string(), 5)).await;
            assert_eq!(status, 202, "{answer}");
            answer["id"].as_str().unwrap().to_owned()
        }
    }))
    .await;
    for id in &ids {
        let ended = api.client.finished(id, PATIENCE).await;
        assert_eq!((&ended["status"], &ended["attempt"]), (&json!("succeeded"), &json!(1)), "{ended}");
    }

    // Another API process knows all of it.
    let second = cluster.api();
    assert_eq!(second.client.job(&ids[0]).await["status"], "succeeded");
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_stop_hands_its_jobs_over() {
    let cluster = Cluster::new().await.with("PENSTOCK_SERVE__DRAIN_SECONDS", 1);
    let mut first = cluster.worker();
    let _scheduler = cluster.scheduler();
    let api = cluster.api();
    let mut ids = Vec::new();
    for n in 0..40 {
        let (status, answer) = api.client.post("/v1/jobs", &job("standard", &n.to_string(), 3_500)).await;
        assert_eq!(status, 202, "{answer}");
        ids.push(answer["id"].as_str().unwrap().to_owned());
    }
    let begin = Instant::now();
    while api.client.job(&ids[0]).await["status"] == "queued" {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.terminate();
    assert!(first.wait(Duration::from_secs(20)).is_some_and(|status| status.success()), "{}", first.log());
    // It took its leave: nobody counts on it for as long as its last sign of life would be good.
    let (status, ready) = api.client.get("/readyz").await;
    assert_eq!(status, 503, "{ready}");
    assert!(ready["reason"].as_str().unwrap().contains("no worker"), "{ready}");
    let _second = cluster.worker();
    for id in &ids {
        let ended = api.client.finished(id, PATIENCE).await;
        assert_eq!(ended["status"], "succeeded", "{ended}");
        assert_eq!(
            (&ended["losses"], &ended["errors"]),
            (&json!(0), &json!(0)),
            "handing back spends nothing: {ended}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_that_leads_nowhere_is_named_at_the_start() {
    let cluster = Cluster::new().await;
    let cases = [
        ("PENSTOCK_STORE__URL", "postgres://nobody@127.0.0.1:1/none", "store.url"),
        ("PENSTOCK_QUEUE__URL", "kafka://127.0.0.1", "queue.url"),
        ("PENSTOCK_BUS__URL", "nats://127.0.0.1", "bus.url"),
        ("PENSTOCK_OBJECTS__URL", "s3://no-such-bucket", "objects.url"),
    ];
    for (variable, url, setting) in cases {
        let refused = cluster.command(&["scheduler"]).env(variable, url).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        let error = said.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_else(|| panic!("{said}"));
        assert!(!refused.status.success() && error.contains(setting), "{error}");
        let (causes, mut once) = (error.split(": ").collect::<Vec<_>>(), error.split(": ").collect::<Vec<_>>());
        once.sort_unstable();
        once.dedup();
        assert_eq!(causes.len(), once.len(), "said twice: {error}");
    }
}
