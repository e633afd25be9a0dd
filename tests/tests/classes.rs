//! Three classes that are all full: each gets its share, none starves; and deadlines are kept.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use serde_json::{Value, json};
use tests::server::data_dir;
use tests::{Client, Server, Settings};

const PER_CLASS: usize = 72;

async fn started_order(client: &Client) -> Vec<(String, String)> {
    let mut jobs: Vec<(String, String)> = client
        .jobs_of_run("classes")
        .await
        .iter()
        .filter_map(|job| Some((job["started_at"].as_str()?.to_owned(), job["class"].as_str()?.to_owned())))
        .collect();
    jobs.sort();
    jobs
}

fn millis(job: &Value, name: &str) -> f64 {
    job["timings"][name].as_f64().unwrap_or_else(|| panic!("timings.{name} is a number: {job}"))
}

#[tokio::test]
async fn saturated_classes_are_served_by_weight_and_none_starves() {
    let (_folder, data_dir) = data_dir();
    let settings = Settings::default().with("PENSTOCK_ENGINE__MAX_SEQUENCES", 4);
    let server = Server::start(&data_dir, &settings);
    let client = server.client();
    // One long job holds no seat: all four seats are taken by jobs of the run from the start.
    let mut waits: Vec<(String, String)> = Vec::new();
    for idx in 0..PER_CLASS {
        for class in ["bulk", "standard", "interactive"] {
            let outer = json!({"class": class, "deadline_seconds": 1_800, "metadata": {"run": "classes"}});
            let id = client.submit_chat(&format!("{idx}"), json!({"max_tokens": 6, "ignore_eos": true}), outer).await;
            waits.push((class.to_owned(), id));
        }
    }
    for (_, id) in &waits {
        client.finished(id, Duration::from_secs(600)).await;
    }
    let order = started_order(&client).await;
    assert_eq!(order.len(), 3 * PER_CLASS);
    // While interactive jobs were waiting, all three classes were: count the starts up to its last but four.
    let share_end = order.iter().rposition(|(_, class)| class == "interactive").unwrap_or(0).saturating_sub(4);
    // The first starts happened while jobs were still being submitted.
    let counted = &order[order.len() / 10..share_end];
    let count = |class: &str| counted.iter().filter(|(_, of)| of == class).count() as f64;
    let total = counted.len() as f64;
    let shares = ["interactive", "standard", "bulk"].map(|class| count(class) / total);
    let mut longest_wait_ms = 0f64;
    for (class, id) in &waits {
        if class == "bulk" {
            longest_wait_ms = longest_wait_ms.max(millis(&client.job(id).await, "queue_wait_ms"));
        }
    }
    println!(
        "shares over {} starts: interactive {:.2}, standard {:.2}, bulk {:.2} (weights 0.67, 0.25, 0.08); longest wait of bulk {:.1} s",
        counted.len(),
        shares[0],
        shares[1],
        shares[2],
        longest_wait_ms / 1e3
    );
    for (share, weight) in shares.iter().zip([8.0 / 12.0, 3.0 / 12.0, 1.0 / 12.0]) {
        assert!((share - weight).abs() < 0.08, "shares {shares:?}");
    }
    let gap = counted.iter().scan(0, |since, (_, class)| {
        *since = if class == "bulk" { 0 } else { *since + 1 };
        Some(*since)
    });
    assert!(gap.max().unwrap_or(0) <= 24, "bulk is served all along");
}

#[tokio::test]
async fn a_job_past_its_deadline_is_expired_within_a_second_and_never_run_late() {
    let (_folder, data_dir) = data_dir();
    let settings = Settings::default().with("PENSTOCK_ENGINE__MAX_SEQUENCES", 1);
    let server = Server::start(&data_dir, &settings);
    let client = server.client();
    let fields = json!({"max_tokens": 4_000, "ignore_eos": true});
    let running = client.submit_chat("A long story.", fields, json!({"deadline_seconds": 6})).await;
    let mut queued = Vec::new();
    for idx in 0..10 {
        let outer = json!({"deadline_seconds": 2 + idx % 3});
        queued.push(client.submit_chat("Never run.", json!({"max_tokens": 4}), outer).await);
    }
    for id in queued.iter().chain([&running]) {
        let job = client.finished(id, Duration::from_secs(30)).await;
        assert_eq!(job["status"], "expired", "{job}");
        let at = |name: &str| tests::client::unix_ms(job[name].as_str().expect("a time"));
        let late = at("finished_at") - at("expires_at");
        assert!((0..=1_000).contains(&late), "expired {late} ms after its deadline: {job}");
        if id != &running {
            assert!(job["started_at"].is_null(), "it was not run: {job}");
        }
    }
}
