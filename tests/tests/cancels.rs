//! A thousand cancels and hang-ups at random moments over HTTP: every block is free at the end, and every job has ended.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tests::client::MODEL;
use tests::server::data_dir;
use tests::{Client, Server, Settings};

const N: u64 = 1_000;
const AT_ONCE: usize = 16;

/// A number below `below` that only depends on `n` and `salt` (splitmix64).
fn draw(n: u64, salt: u64, below: u64) -> u64 {
    let mut z = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(salt);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) % below
}

/// Submits a job and cancels it, or calls synchronously (streamed or not) and hangs up, after a random while.
async fn disturb(client: &Client, n: u64) {
    let pause = Duration::from_millis(draw(n, 1, 400));
    let messages = json!([{"role": "user", "content": "word ".repeat(draw(n, 2, 60) as usize + 1)}]);
    let body = json!({"model": MODEL, "messages": messages, "max_tokens": 500, "ignore_eos": true,
        "metadata": {"run": "cancels"}, "stream": n % 3 == 1});
    if n.is_multiple_of(3) {
        let fields = json!({"max_tokens": 500, "ignore_eos": true, "messages": messages});
        let id = client.submit_chat("", fields, json!({"metadata": {"run": "cancels"}})).await;
        tokio::time::sleep(pause).await;
        let (status, job) = client.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
        assert_eq!((status.as_u16(), job["status"].as_str()), (200, Some("cancelled")), "{job}");
        return;
    }
    let call = async {
        let answer = client.http.post(client.url("/v1/chat/completions")).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut chunks = answer.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            chunk.unwrap();
        }
        panic!("500 tokens came within {pause:?}");
    };
    // Dropping the call closes its connection.
    let _hung_up = tokio::time::timeout(pause, call).await;
}

async fn worker(client: &Client) -> Value {
    let (_, stats) = client.get("/v1/stats").await;
    stats["workers"][0].clone()
}

#[tokio::test]
async fn a_thousand_cancels_and_hang_ups_leave_nothing_behind() {
    let (_folder, data_dir) = data_dir();
    let server = Server::start(&data_dir, &Settings::default());
    let client = server.client();
    let before = worker(&client).await;
    assert_eq!(before["used_blocks"], 0);
    let begin = Instant::now();
    stream::iter(0..N).for_each_concurrent(AT_ONCE, |n| disturb(&client, n)).await;
    let took = begin.elapsed();
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let now = worker(&client).await;
        if now["used_blocks"] == 0 && now["running"] == 0 {
            assert_eq!(now["total_blocks"], before["total_blocks"]);
            break;
        }
        assert!(Instant::now() < patience, "blocks are left: {now}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let jobs = client.jobs_of_run("cancels").await;
    let left: Vec<&Value> = jobs.iter().filter(|job| job["status"] != "cancelled").collect();
    assert!(left.is_empty(), "{} jobs are not cancelled, the first: {}", left.len(), left[0]);
    // A call that hung up before its job was accepted has none.
    println!("{N} cancels and hang-ups of {} accepted jobs in {took:.0?}: all blocks free", jobs.len());
    let answer = client.submit_chat("Say yes.", json!({"max_tokens": 3}), json!({})).await;
    assert_eq!(client.finished(&answer, Duration::from_secs(30)).await["status"], "succeeded");
}
