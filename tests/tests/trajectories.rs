//! Trajectories of a real server: before and after they are archived, run again bit for bit, and found out when somebody
//! changed them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::server::data_dir;
use tests::{Client, Server, Settings, penstock};

const PATIENCE: Duration = Duration::from_secs(180);

/// A server that archives records of this age.
fn settings(seconds: u32) -> Settings {
    Settings::default().with("PENSTOCK_TRAJECTORIES__SEGMENT_SECONDS", seconds)
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

async fn trajectory(client: &Client, job: &str) -> Value {
    let (status, body) = client.get(&format!("/v1/jobs/{job}/trajectory")).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// Waits until a job's trajectory is in a segment.
async fn archived(client: &Client, job: &str) -> Value {
    let begin = Instant::now();
    loop {
        let found = trajectory(client, job).await;
        if !found["segment"].is_null() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "not archived: {found}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs `penstock replay --json`; whether it ended well, and its report.
fn replay(args: &[&str]) -> (bool, Value) {
    let output = penstock().arg("replay").arg("--json").args(args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|err| panic!("{err}: {said}"));
    (output.status.success(), report)
}

fn verdicts(report: &Value) -> Vec<(&str, &str)> {
    let rows = report["jobs"].as_array().unwrap();
    rows.iter().map(|row| (row["job"].as_str().unwrap(), row["verdict"].as_str().unwrap())).collect()
}

/// Jobs of all kinds: greedy and drawn, with stops, with log-probabilities, one too large for its row.
async fn submit(client: &Client) -> Vec<String> {
    let mut ids = Vec::new();
    for idx in 0..6u32 {
        let drawn = json!({"max_tokens": 8 + idx, "temperature": 0.9, "top_p": 0.95, "top_k": 40 + idx});
        ids.push(client.submit_chat(&format!("Write line {idx} of a poem."), drawn, json!({})).await);
        let greedy = json!({"max_tokens": 6 + idx, "ignore_eos": true, "logprobs": true, "top_logprobs": idx});
        ids.push(client.submit_chat(&format!("Count from {idx}."), greedy, json!({"class": "interactive"})).await);
    }
    let stops = json!({"max_tokens": 64, "stop": ["5", "\n\n"], "temperature": 1.3, "seed": 77});
    ids.push(client.submit_chat("Count from 1 to 20, one number a line.", stops, json!({})).await);
    ids.push(client.submit_chat("Say only: yes", json!({}), json!({})).await);
    let several = json!({"max_tokens": 12, "n": 3, "temperature": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2,
        "repetition_penalty": 1.1, "typical_p": 0.95, "logit_bias": {"11": -5}, "logprobs": true});
    ids.push(client.submit_chat("Name a river.", several, json!({})).await);
    let large = json!({"max_tokens": 200, "ignore_eos": true, "logprobs": true, "top_logprobs": 20});
    ids.push(client.submit_chat("Tell me a long story.", large, json!({})).await);
    ids
}

#[tokio::test]
async fn trajectories_outlive_archiving_and_replay_bit_for_bit() {
    let (_folder, data_dir) = data_dir();
    let mut server = Server::start(&data_dir, &settings(86_400));
    let client = server.client();
    let ids = submit(&client).await;
    let mut before = Vec::new();
    for id in &ids {
        let job = client.finished(id, PATIENCE).await;
        assert_eq!(job["status"], "succeeded", "{job}");
        let found = trajectory(&client, id).await;
        assert!(found["segment"].is_null());
        assert_eq!(found["record"]["choices"][0]["text"], job["result"]["choices"][0]["message"]["content"]);
        let choices = found["record"]["choices"].as_array().unwrap();
        let n_outputs: usize = choices.iter().map(|choice| choice["output_ids"].as_array().unwrap().len()).sum();
        assert_eq!(n_outputs as u64, job["usage"]["completion_tokens"].as_u64().unwrap());
        before.push((job, found));
    }
    assert_eq!(files(&data_dir.join("objects/records")).len(), 1, "one record is too large for its row");
    server.terminate();
    assert!(server.wait(Duration::from_secs(60)).unwrap().success());

    let server = Server::start(&data_dir, &settings(1));
    let client = server.client();
    for (id, (job, found)) in ids.iter().zip(&before) {
        let now = archived(&client, id).await;
        assert_eq!(now["record"], found["record"]);
        assert_eq!(client.job(id).await["result"], job["result"], "archiving changes no result");
    }
    let begin = Instant::now();
    while !files(&data_dir.join("objects/records")).is_empty() {
        assert!(begin.elapsed() < PATIENCE, "the staged record stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // From the server.
    let mut args: Vec<&str> = ids.iter().map(String::as_str).collect();
    args.extend(["--server", &server.address]);
    let (well, report) = replay(&args);
    assert!(well && report["bit_equal"] == ids.len(), "{report:#}");
    // From the segments themselves, as they lie there.
    let mut n_lines = 0;
    for segment in files(&data_dir.join("objects/trajectories")) {
        let (well, report) = replay(&["--file", segment.to_str().unwrap()]);
        assert!(well, "{report:#}");
        n_lines += report["jobs"].as_array().unwrap().len();
    }
    assert_eq!(n_lines, ids.len(), "each job has exactly one trajectory");
    tampered(&data_dir, &before);
}

/// Trajectories that somebody changed.
fn tampered(folder: &Path, before: &[(Value, Value)]) {
    let path = folder.join("tampered.jsonl");
    let mut records: Vec<Value> = before.iter().take(5).map(|(_, found)| found["record"].clone()).collect();
    let id = records[1]["choices"][0]["output_ids"][3].as_u64().unwrap();
    records[1]["choices"][0]["output_ids"][3] = json!(id + 1);
    let release = "0".repeat(64);
    records[2]["release"] = json!(release);
    let logprob = records[3]["choices"][0]["logprobs"][2]["logprob"].as_f64().unwrap() as f32;
    records[3]["choices"][0]["logprobs"][2]["logprob"] = json!(logprob.next_down());
    records[4]["choices"][0]["output_ids"].as_array_mut().unwrap().pop();
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(&path, lines).unwrap();
    let (well, report) = replay(&["--file", path.to_str().unwrap()]);
    assert!(!well && report["bit_equal"] == 1, "{report:#}");
    let found: Vec<&str> = verdicts(&report).into_iter().map(|(_, verdict)| verdict).collect();
    assert_eq!(found, ["bit_equal", "parts", "not_replayed", "parts", "not_replayed"], "{report:#}");
    let rows = &report["jobs"];
    assert_eq!((&rows[1]["at"], &rows[1]["what"]), (&json!(3), &json!("token")));
    assert_eq!((&rows[1]["recorded"], &rows[1]["got"]), (&json!(id + 1), &json!(id)));
    let reason = rows[2]["reason"].as_str().unwrap();
    let here = report["release"].as_str().unwrap();
    assert!(reason.contains(&release) && reason.contains(here), "both releases are named: {reason}");
    assert_eq!((&rows[3]["at"], &rows[3]["what"]), (&json!(2), &json!("logprob")));
    assert!(rows[4]["reason"].as_str().unwrap().contains("damaged"), "{report:#}");
}

#[tokio::test]
async fn redacted_and_switched_off_ones_cannot_be_replayed_and_say_so() {
    let (_folder, data_dir) = data_dir();
    let redacted = settings(1).with("PENSTOCK_TRAJECTORIES__TENANTS", "{ local = \"redacted\" }");
    let mut server = Server::start(&data_dir, &redacted);
    let client = server.client();
    let job = client.submit_chat("My name is Rumpelstiltskin.", json!({"max_tokens": 5}), json!({})).await;
    let result = client.finished(&job, PATIENCE).await;
    let found = archived(&client, &job).await;
    assert_eq!(found["mode"], "redacted");
    assert_eq!(found["record"]["choices"][0]["n_output"], result["usage"]["completion_tokens"]);
    assert!(!found.to_string().contains("Rumpelstiltskin"), "{found}");
    assert_eq!(client.job(&job).await["result"], result["result"]);
    let (well, report) = replay(&[&job, "--server", &server.address]);
    assert!(!well && report["jobs"][0]["reason"].as_str().unwrap().contains("redacted"), "{report:#}");
    server.terminate();
    assert!(server.wait(Duration::from_secs(60)).unwrap().success());

    let server = Server::start(&data_dir, &settings(1).with("PENSTOCK_TRAJECTORIES__DEFAULT", "off"));
    let client = server.client();
    let off = client.submit_chat("Hello.", json!({"max_tokens": 3}), json!({})).await;
    assert_eq!(client.finished(&off, PATIENCE).await["status"], "succeeded");
    let (status, body) = client.get(&format!("/v1/jobs/{off}/trajectory")).await;
    assert_eq!((status.as_u16(), &body["error"]["code"]), (404, &json!("no_trajectory")), "{body}");
    // The mode of the time it was accepted stays with a job.
    assert_eq!(trajectory(&client, &job).await["mode"], "redacted");
    let (well, report) = replay(&[&off, "--server", &server.address]);
    assert!(!well && report["jobs"][0]["verdict"] == "not_replayed", "{report:#}");
}
