//! SIGKILL of a server with a hundred accepted jobs in all states: after the restart every one of them ends, once.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use tests::server::data_dir;
use tests::{Server, Settings};

const JOBS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test]
async fn every_accepted_job_ends_exactly_once_after_a_kill() {
    let (_folder, data_dir) = data_dir();
    let server = Server::start(&data_dir, &Settings::default());
    let client = server.client();
    let mut ids = Vec::new();
    for idx in 0..JOBS {
        let class = ["interactive", "standard", "bulk"][idx % 3];
        // A few have deadlines that pass while the server is away, a few are cancelled.
        let deadline = if idx % 20 == 7 { 3 } else { 3_000 };
        let outer = json!({"class": class, "deadline_seconds": deadline, "metadata": {"run": "kill"}});
        let fields = json!({"max_tokens": 4 + (idx % 12)});
        ids.push(client.submit_chat(&format!("Count to {idx}."), fields, outer).await);
        if idx % 20 == 11 {
            let (status, job) = client.post(&format!("/v1/jobs/{}/cancel", ids[idx]), &json!({})).await;
            assert!(status == 200 || status == 409, "{job}");
        }
    }
    // Some have ended by now: their results must be the same afterwards.
    client.finished(&ids[0], PATIENCE).await;
    let before: HashMap<String, Value> = client
        .jobs_of_run("kill")
        .await
        .into_iter()
        .filter(|job| !matches!(job["status"].as_str(), Some("queued" | "running")))
        .map(|job| (job["id"].as_str().unwrap().to_owned(), job))
        .collect();
    let mut results = HashMap::new();
    for id in before.keys() {
        results.insert(id.clone(), client.job(id).await);
    }
    server.kill();
    tokio::time::sleep(Duration::from_secs(3)).await;

    let server = Server::start(&data_dir, &Settings::default());
    let client = server.client();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (idx, id) in ids.iter().enumerate() {
        let job = client.finished(id, PATIENCE).await;
        let status = job["status"].as_str().unwrap().to_owned();
        match status.as_str() {
            "succeeded" => {
                let text = &job["result"]["choices"][0]["message"]["content"];
                assert!(text.is_string(), "a result has its text: {job}");
            }
            "cancelled" => assert_eq!(idx % 20, 11, "{job}"),
            "expired" => assert_eq!(idx % 20, 7, "{job}"),
            _ => panic!("job {idx} ended as {status}: {job}"),
        }
        *counts.entry(status).or_default() += 1;
    }
    for (id, before) in results {
        assert_eq!(client.job(&id).await["result"], before["result"], "an ended job never changes");
    }
    let listed = client.jobs_of_run("kill").await;
    let names: HashSet<&str> = listed.iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!((listed.len(), names.len()), (JOBS, JOBS), "each job is there once");
    println!("{JOBS} jobs over a kill: {counts:?}");
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused() {
    let (_folder, data_dir) = data_dir();
    let _first = Server::start(&data_dir, &Settings::default());
    let mut second = Server::spawn(&data_dir, &Settings::default());
    let status = second.wait(Duration::from_secs(60)).expect("it ends by itself");
    assert!(!status.success());
    assert!(second.log().contains("in use by another penstock process"), "{}", second.log());
}

#[tokio::test]
async fn sigterm_drains_and_spends_no_attempt() {
    let (_folder, data_dir) = data_dir();
    let settings = Settings::default().with("PENSTOCK_SERVE__DRAIN_SECONDS", 1);
    let mut server = Server::start(&data_dir, &settings);
    let client = server.client();
    let fields = json!({"max_tokens": 3_000, "ignore_eos": true});
    let long = client.submit_chat("Tell me a very long story.", fields, json!({"deadline_seconds": 600})).await;
    while client.job(&long).await["status"] != "running" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.terminate();
    let status = server.wait(Duration::from_secs(20)).expect("it ends within its grace period and a little");
    assert!(status.success(), "{}", server.log());

    let server = Server::start(&data_dir, &Settings::default());
    let client = server.client();
    let job = client.job(&long).await;
    assert!(matches!(job["status"].as_str(), Some("queued" | "running")), "{job}");
    assert_eq!((&job["errors"], &job["losses"]), (&json!(0), &json!(0)), "handing back spends nothing: {job}");
    let (status, job) = client.post(&format!("/v1/jobs/{long}/cancel"), &json!({})).await;
    assert_eq!((status.as_u16(), job["status"].as_str()), (200, Some("cancelled")));
}
