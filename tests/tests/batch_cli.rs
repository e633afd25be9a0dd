//! `penstock batch` and `penstock score --server`, as a person types them, against a real server.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::server::data_dir;
use tests::{Server, Settings, penstock};

fn serve(data: &Path) -> Server {
    Server::start(data, &Settings { model: Some(tiny_model()), ..Settings::default() })
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn penstock_at(address: &str, arguments: &[&str]) -> Command {
    let mut command = penstock();
    command.args(arguments).env("PENSTOCK_SERVER", address).env_remove("PENSTOCK_API_KEY");
    command
}

/// Runs a command that ends with this status; its standard output without the last line end.
fn run(address: &str, arguments: &[&str], status: i32) -> String {
    let output = penstock_at(address, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn values(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn completion(name: &str, prompt: &str, max_tokens: u32) -> Value {
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0});
    json!({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})
}

fn write_lines(path: &Path, lines: &[Value]) {
    std::fs::write(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
}

fn names(lines: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = lines.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_batch_is_submitted_followed_read_and_run_again_by_the_command_line() {
    let (folder, data) = data_dir();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let server = serve(&data);
    let address = server.address.as_str();
    let good: Vec<Value> = (0..12).map(|n| completion(&format!("n{n:02}"), &format!("{n} + 1 ="), 4)).collect();
    write_lines(&at("in.jsonl"), &good);

    let (input, output) = (at("in.jsonl"), at("out.jsonl"));
    let id = run(address, &["batch", "submit", text(&input), "--wait", "-o", text(&output), "--json"], 0);
    let batch: Value = serde_json::from_str(&id).unwrap();
    let id = batch["id"].as_str().unwrap();
    assert_eq!((&batch["status"], &batch["request_counts"]["completed"]), (&json!("completed"), &json!(12)));
    let results = values(&output);
    assert_eq!(names(&results), names(&good));
    assert!(results.iter().all(|line| line["response"]["status_code"] == 200), "{results:?}");

    // A file that was torn goes on behind its last whole line, and one that is whole stays as it is.
    let whole = std::fs::read_to_string(&output).unwrap();
    let torn = whole.match_indices('\n').nth(4).unwrap().0 + 9;
    std::fs::write(&output, &whole[..torn]).unwrap();
    for _ in 0..2 {
        run(address, &["batch", "results", id, "-o", text(&output), "--follow"], 0);
        assert_eq!(std::fs::read_to_string(&output).unwrap(), whole);
    }
    assert_eq!(run(address, &["batch", "results", id], 0), whole.trim_end());
    let foreign = penstock_at(address, &["batch", "results", id, "-o", text(&input)]).output().unwrap();
    assert!(said(&foreign).contains("something else than results"), "{}", said(&foreign));
    assert_eq!(values(&input), good, "a foreign file is left as it is");

    let status = run(address, &["batch", "status", id], 0);
    assert!(status.contains("12: 12 succeeded") && status.contains("/v1/completions"), "{status}");
    let listed = run(address, &["batch", "list"], 0);
    assert!(listed.lines().nth(1).unwrap().starts_with(id) && listed.contains("12 of 12"), "{listed}");
    run(address, &["batch", "cancel", id], 1);
    let nothing = penstock_at(address, &["batch", "resubmit", id]).output().unwrap();
    assert!(!nothing.status.success() && said(&nothing).contains("409"), "{}", said(&nothing));

    // One line is refused: the rest goes on, and the line alone is run again.
    write_lines(&at("bad.jsonl"), &[good[0].clone(), completion("hot", "x", 0)]);
    let bad = at("bad.jsonl");
    let first = run(address, &["batch", "submit", text(&bad), "--idempotency-key", "--metadata", "a=b"], 0);
    let again = run(address, &["batch", "submit", text(&bad), "--idempotency-key", "--metadata", "a=b"], 0);
    let other = run(address, &["batch", "submit", text(&bad), "--idempotency-key=other", "--metadata", "a=b"], 0);
    assert_eq!(first, again);
    assert_ne!(first, other);
    run(address, &["batch", "status", &first, "--watch"], 1);
    let second = run(address, &["batch", "resubmit", &first], 0);
    run(address, &["batch", "status", &second, "--watch"], 1);
    let line: Value = serde_json::from_str(&run(address, &["batch", "results", &second], 0)).unwrap();
    assert_eq!((&line["custom_id"], &line["response"]["status_code"]), (&json!("hot"), &json!(400)));

    let missing =
        penstock_at(address, &["batch", "status", "batch_0193f0c0d0e070008000000000000001"]).output().unwrap();
    assert!(said(&missing).contains("`penstock batch list`"), "{}", said(&missing));
    std::fs::write(at("plain.jsonl"), "{\"prompt\": \"x\"}\n").unwrap();
    let plain = penstock_at(address, &["batch", "submit", text(&at("plain.jsonl"))]).output().unwrap();
    assert!(said(&plain).contains("penstock score --server"), "{}", said(&plain));
}

/// What a line says, without ids and times.
fn told(path: &Path) -> Vec<Value> {
    let mut lines = values(path);
    for line in &mut lines {
        if line["response"]["status_code"] == 200 {
            line["id"] = json!("-");
            line["response"]["request_id"] = json!("-");
            line["response"]["body"]["id"] = json!("-");
            line["response"]["body"]["created"] = json!(0);
        } else if line["response"]["request_id"].as_str().is_some_and(|id| id.starts_with("job_")) {
            line["id"] = json!("-");
            line["response"]["request_id"] = json!("-");
        }
        // Another run shares other beginnings of prompts.
        if let Some(usage) = line["response"]["body"]["usage"].as_object_mut() {
            usage.remove("prompt_tokens_details");
        }
    }
    lines
}

fn score(input: &Path, output: &Path, more: &[&str]) -> Command {
    let mut command = penstock();
    command.arg("score").arg(input).arg("-o").arg(output).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn a_dataset_has_the_same_lines_from_a_server_as_offline() {
    let (folder, data) = data_dir();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let server = serve(&data);
    let long = "word ".repeat(40_000);
    let lines = [
        "{\"prompt\": \"1 + 1 =\", \"max_tokens\": 2, \"temperature\": 0}".to_owned(),
        "not json".to_owned(),
        "{\"prompt\": \"x\", \"temperature\": 9}".to_owned(),
        completion("same", "2 + 2 =", 3).to_string(),
        completion("same", "3 + 3 =", 3).to_string(),
        String::new(),
        "{\"prompt\": \"x\", \"model\": \"gpt-4o\"}".to_owned(),
        format!("{{\"prompt\": \"{long}\"}}"),
        "{\"custom_id\": \"chat\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"temperature\": 0}"
            .to_owned(),
        "{\"messages\": []}".to_owned(),
        format!("{{\"prompt\": \"{}\"}}", "x".repeat(1_100_000)),
        "{\"prompt\": \"4 + 4 =\", \"temperature\": 0}".to_owned(),
    ];
    let input = at("in.jsonl");
    std::fs::write(&input, lines.map(|line| line + "\n").concat()).unwrap();
    let csv = at("in.csv");
    std::fs::write(&csv, "custom_id,text\na,\"two, with a comma\"\nb,too,many\nc,last\n").unwrap();
    let options = ["--max-tokens", "5", "--temperature", "0"];
    let template = ["--max-tokens", "5", "--temperature", "0", "--template", "Repeat: {{text}}"];
    for (input, options) in [(&input, &options[..]), (&csv, &template[..])] {
        let (offline, online) = (at("offline.jsonl"), at("online.jsonl"));
        let model = tiny_model();
        let ran = score(input, &offline, &[&["--model", &model, "--overwrite"], options].concat()).output().unwrap();
        assert_eq!(ran.status.code(), Some(1), "{}", said(&ran));
        let there = ["--server", &server.address, "--overwrite"];
        let ran = score(input, &online, &[&there[..], options].concat()).output().unwrap();
        assert_eq!(ran.status.code(), Some(1), "{}", said(&ran));
        for (offline, online) in told(&offline).iter().zip(&told(&online)) {
            assert_eq!(online, offline);
        }
        assert_eq!(told(&offline).len(), told(&online).len());
        assert!(!at("online.jsonl.penstock").exists(), "a finished run leaves nothing behind");
    }
    // What makes sense offline only is refused.
    let refused = score(&input, &at("x"), &["--server", &server.address, "--model", &tiny_model()]).output().unwrap();
    assert!(said(&refused).contains("is for offline runs"), "{}", said(&refused));
    let refused = score(&input, &at("x"), &["--window", "2h"]).output().unwrap();
    assert!(said(&refused).contains("--server"), "{}", said(&refused));
    assert!(!at("x").exists());
}

#[test]
fn a_killed_run_finds_its_batches_again_and_writes_each_line_once() {
    let (folder, data) = data_dir();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let server = serve(&data);
    let (input, output) = (at("in.jsonl"), at("out.jsonl"));
    // Two parts, which are two batches.
    let lines: Vec<Value> = (0..500)
        .map(|n| json!({"custom_id": format!("n{n}"), "prompt": format!("{n} ="), "max_tokens": 32, "temperature": 0}))
        .collect();
    write_lines(&input, &lines);
    let n_lines = || std::fs::read(&output).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count());
    for at_kill in [1, 200] {
        let mut child = score(&input, &output, &["--server", &server.address]).spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(300);
        while n_lines() < at_kill {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
            assert!(Instant::now() < patience, "no progress: {} lines", n_lines());
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // As a kill before the note of the batches, and in the middle of a write, leaves it.
    std::fs::remove_file(at("out.jsonl.penstock").join("parts.jsonl")).unwrap();
    let mut torn = std::fs::OpenOptions::new().append(true).open(&output).unwrap();
    std::io::Write::write_all(&mut torn, b"{\"id\":\"batch_req_torn").unwrap();
    let ran = score(&input, &output, &["--server", &server.address]).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));

    let offline = at("offline.jsonl");
    let ran = score(&input, &offline, &["--model", &tiny_model()]).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(told(&output), told(&offline));
    let listed: Value = serde_json::from_str(&run(&server.address, &["batch", "list", "--json"], 0)).unwrap();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(2), "no batch was made twice: {listed}");
}
