//! The API against its own description: Schemathesis makes calls of what `/openapi.json` says, right ones and wrong ones,
//! and checks each answer against it. `python/openapi_hooks.py` has what it needs to know beside the description.
//!
//! `PENSTOCK_SCHEMATHESIS_SECONDS` says how long (30 without it), `PENSTOCK_SCHEMATHESIS_SEED` where its choices begin
//! (1 without it); `-- --nocapture` shows the figures.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::python::installed;
use tests::server::data_dir;
use tests::{Client, Server, Settings, repository};

/// Longest time of a round. Each has a seed of its own, and finds what the one before has deleted made again.
const ROUND: u64 = 30;
/// A round of fewer seconds has no time for anything.
const SHORTEST: u64 = 10;
/// The events of a job come one by one, each with a schema of its own, which a description of a whole body cannot say;
/// `api/tests/http` checks them.
const NOT_DRIVEN: &str = "/v1/jobs/{id}/events";
/// Operations that it does not call: [`NOT_DRIVEN`], and the description itself, which it has read.
const NOT_CALLED: u64 = 2;
/// Where webhooks lead: to this machine, where nobody answers.
const NOWHERE: &str = "http://127.0.0.1:9/hook";
/// Calls of the first round, however busy the machine is.
const FEWEST_CALLS: u64 = 1_000;
/// Operations that must have taken some call. The others are those that a round asks for what others have deleted,
/// cancelled or never made.
const FEWEST_TAKEN: usize = 30;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Makes one of everything; answers what there is to ask for.
async fn make_one_of_each(client: &Client, own_key: &Value) -> Value {
    let request = json!({"model": "tiny", "prompt": "x", "max_tokens": 2});
    let made = async |path: &str, body: Value| {
        let (status, made) = client.post(path, &body).await;
        assert!(status.is_success(), "{path}: {made}");
        made["id"].as_str().unwrap().to_owned()
    };
    let job = json!({"type": "completion", "request": request, "webhook": {"url": NOWHERE}});
    let job = made("/v1/jobs", job).await;
    let line = |id: &str, model: &str| {
        let body = json!({"model": model, "prompt": "x", "max_tokens": 2});
        json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body})
    };
    // One line that succeeds, and one that fails.
    let lines = format!("{}\n{}\n", line("1", "tiny"), line("2", "nobody"));
    let upload = async || {
        let boundary = "boundary";
        let part = |head: &str, text: &str| {
            format!("--{boundary}\r\ncontent-disposition: form-data; {head}\r\n\r\n{text}\r\n")
        };
        let form = part("name=\"purpose\"", "batch") + &part("name=\"file\"; filename=\"a.jsonl\"", &lines);
        let post = client.http.post(client.url("/v1/files")).body(format!("{form}--{boundary}--\r\n"));
        let post = post.header("content-type", format!("multipart/form-data; boundary={boundary}"));
        let made: Value = post.send().await.unwrap().json().await.unwrap();
        made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    };
    let (input, file) = (upload().await, upload().await);
    let batch = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h"});
    let batch = made("/v1/batches", batch).await;
    // A tenant has 50 at most, and every round makes some.
    let (_, webhooks) = client.get("/v1/webhooks").await;
    for webhook in webhooks["data"].as_array().unwrap() {
        let url = client.url(&format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap()));
        client.http.delete(url).send().await.unwrap();
    }
    let webhook = made("/v1/webhooks", json!({"url": NOWHERE})).await;
    let key = made("/v1/keys", json!({"name": "another"})).await;
    let begin = Instant::now();
    let delivery = loop {
        let (_, list) = client.get("/v1/webhooks/deliveries").await;
        if let Some(id) = list["data"][0]["id"].as_str() {
            break id.to_owned();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "nobody is told of {job}: {list}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    json!({"model": "tiny", "file": input, "url": NOWHERE, "own_key": own_key, "ids": {
        "/v1/jobs": job, "/v1/batches": batch, "/v1/files": file, "/v1/webhooks": webhook,
        "/v1/webhooks/deliveries": delivery, "/v1/keys": key, "/v1/models": "tiny",
    }})
}

/// Runs a round; answers its report.
fn round(server: &Server, key: &str, known: &Value, seed: u64, seconds: u64, folder: &Path) -> Value {
    let path = folder.join(format!("round-{seed}.json"));
    let mut command = installed("schemathesis");
    command.args(["--no-color", "run", &format!("{}/openapi.json", server.address)]);
    command.args(["--header", &format!("Authorization: Bearer {key}")]);
    command.args(["--phases", "examples,coverage,fuzzing", "--exclude-path", NOT_DRIVEN]);
    // All but one: what the description allows may be refused for what it cannot say, such as that two fields exclude
    // each other.
    command.args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"]);
    command.args(["--seed", &seed.to_string(), "--max-time", &seconds.to_string(), "--continue-on-failure"]);
    command.args(["--generation-database", "none", "--suppress-health-check", "all", "--request-timeout", "60"]);
    // The key is good for this server only, and a call is repeated by what is printed.
    command.args(["--output-sanitize", "false", "--report", "json", "--report-json-path"]).arg(&path);
    command.env("SCHEMATHESIS_HOOKS", repository().join("tests/python/openapi_hooks.py"));
    command.env("PENSTOCK_OPENAPI_KNOWN", known.to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.current_dir(folder).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "seed {seed}:\n{said}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let nothing = [&report["failures"], &report["errors"]].map(|list| list.as_array().is_some_and(Vec::is_empty));
    assert_eq!(nothing, [true, true], "seed {seed}:\n{said}");
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_as_the_description_says() {
    let seconds = number("PENSTOCK_SCHEMATHESIS_SECONDS", ROUND);
    let first_seed = number("PENSTOCK_SCHEMATHESIS_SEED", 1);
    assert!(seconds >= SHORTEST, "PENSTOCK_SCHEMATHESIS_SECONDS is at least {SHORTEST}");
    let (folder, data_dir) = data_dir();
    let settings = Settings { model: Some(tiny_model()), ..Settings::default() };
    let settings = settings.with("PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS", r#"["127.0.0.1/32"]"#);
    let mut server = Server::start(&data_dir, &settings);
    let mut client = server.client();
    let (_, description) = client.get("/openapi.json").await;
    let (_, made) = client.post("/v1/keys", &json!({"scopes": ["submit", "read", "admin"]})).await;
    let key = made["key"].as_str().unwrap_or_else(|| panic!("{made}"));
    let bearer = [(reqwest::header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap())];
    client.http = reqwest::Client::builder().no_proxy().default_headers(bearer.into_iter().collect()).build().unwrap();

    let methods = |path: &Value| path.as_object().unwrap().len() as u64;
    let n_described: u64 = description["paths"].as_object().unwrap().values().map(methods).sum();
    let mut taken = BTreeSet::new();
    let (begin, mut n_calls) = (Instant::now(), 0);
    for seed in first_seed.. {
        let left = seconds.saturating_sub(begin.elapsed().as_secs());
        if seed > first_seed && left < SHORTEST {
            break;
        }
        let known = make_one_of_each(&client, &made["id"]).await;
        let report = round(&server, key, &known, seed, left.min(ROUND), folder.path());
        let operations = &report["operations"];
        assert_eq!(operations["tested"], n_described - NOT_CALLED, "{operations}");
        assert_eq!(report["warnings"]["missing_auth"], json!([]), "seed {seed}: the key was refused");
        n_calls += report["test_cases"]["generated"].as_u64().unwrap();
        for (operation, phases) in report["valid_rates"].as_object().unwrap() {
            if phases.as_object().unwrap().values().any(|calls| calls["accepted"].as_u64() > Some(0)) {
                taken.insert(operation.clone());
            }
        }
        let took = begin.elapsed().as_secs();
        println!(
            "after {took} s, seed {seed}: {n_calls} calls of {} operations; {} took some",
            operations["tested"],
            taken.len()
        );
    }
    assert!(n_calls >= FEWEST_CALLS, "only {n_calls} calls");
    assert!(taken.len() >= FEWEST_TAKEN, "only these took any call: {taken:?}");
    assert!(server.is_running(), "{}", server.log());
}
