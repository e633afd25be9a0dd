//! A job that takes its worker down, among others: only it fails, as `quarantined`, and only after it did so alone.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use serde_json::json;
use tests::server::data_dir;
use tests::{Server, Settings};

const POISON: u64 = 666_013;

#[tokio::test]
async fn only_the_job_that_kills_its_worker_three_times_fails() {
    let (_folder, data_dir) = data_dir();
    let settings = Settings::default().with("PENSTOCK_FAULT_ABORT_ON_SEED", POISON);
    let mut server = Server::start(&data_dir, &settings);
    let client = server.client();
    let outer = || json!({"deadline_seconds": 900, "metadata": {"run": "poison"}});
    let mut innocent = Vec::new();
    for idx in 0..5 {
        innocent.push(client.submit_chat(&format!("Say {idx}."), json!({"max_tokens": 40}), outer()).await);
    }
    let poison = client.submit_chat("Boom.", json!({"max_tokens": 5, "seed": POISON}), outer()).await;
    for idx in 5..10 {
        innocent.push(client.submit_chat(&format!("Say {idx}."), json!({"max_tokens": 40}), outer()).await);
    }
    // A supervisor that starts the worker again whenever it dies.
    let mut deaths = 0;
    let job = loop {
        if server.wait(Duration::from_millis(10)).is_some() {
            deaths += 1;
            assert!(deaths <= 3, "it killed a fourth worker:\n{}", server.log());
            server = Server::start(&data_dir, &settings);
        }
        let client = server.client();
        let url = client.url(&format!("/v1/jobs/{poison}"));
        if let Ok(answer) = client.http.get(url).send().await {
            let Ok(job) = answer.json::<serde_json::Value>().await else { continue };
            if job["status"] == "failed" {
                break job;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(deaths, 3);
    assert_eq!(job["error"]["code"], "quarantined", "{job}");
    assert_eq!(job["losses"], 3);
    assert!(job["history"].as_array().is_some_and(|history| history.len() >= 3), "history is kept: {job}");
    let client = server.client();
    for id in &innocent {
        let job = client.finished(id, Duration::from_secs(120)).await;
        assert_eq!(job["status"], "succeeded", "{job}");
    }
}
