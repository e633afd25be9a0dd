//! Vectors and scores of prompts by the whole product, against the figures of transformers for the same weights, by every way
//! in: a call, a job, a batch, `penstock score`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::server::data_dir;
use tests::{Client, Server, Settings, penstock, repository};

const PATIENCE: Duration = Duration::from_secs(120);

fn serve(data: &Path) -> Server {
    Server::start(data, &Settings { model: Some(tiny_model()), ..Settings::default() })
}

fn golden() -> Vec<Value> {
    let text = std::fs::read_to_string(repository().join("fixtures/golden/tiny.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn check_vectors(body: &Value, expected: &[Value], which: &str) {
    let data = body["data"].as_array().unwrap();
    assert_eq!(data.len(), expected.len());
    for (nth, (vector, record)) in data.iter().zip(expected).enumerate() {
        assert_eq!(vector["index"], nth);
        let cosine = cosine(&numbers(&vector["embedding"]), &numbers(&record[which]));
        assert!(cosine >= 0.9999, "{which} of text {nth}: cosine {cosine}");
    }
}

async fn called(client: &Client, path: &str, body: &Value) -> Value {
    let (status, answer) = client.post(path, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn vectors_are_those_of_transformers_by_every_way_in() {
    let (folder, data) = data_dir();
    let server = serve(&data);
    let (client, golden) = (server.client(), golden());
    let ids: Vec<&Value> = golden.iter().map(|record| &record["ids"]).collect();
    let n_tokens: usize = ids.iter().map(|ids| ids.as_array().unwrap().len()).sum();
    for (pooling, which) in [("last", "last"), ("mean", "mean")] {
        let body = json!({"model": "tiny", "input": ids, "pooling": pooling});
        let answer = called(&client, "/v1/embeddings", &body).await;
        check_vectors(&answer, &golden, which);
        assert_eq!(answer["usage"]["prompt_tokens"], n_tokens);
        let (status, job) = client.post("/v1/jobs", &json!({"type": "embedding", "request": body})).await;
        assert_eq!(status, 202, "{job}");
        let job = client.finished(job["id"].as_str().unwrap(), PATIENCE).await;
        assert_eq!(job["result"]["data"], answer["data"], "a job gives the same bits");
    }
    // A result that is far beyond a row's 16 KiB is whole, and so is its trajectory.
    let texts: Vec<String> = (0..2_048).map(|nth| format!("number {nth}")).collect();
    let body = json!({"model": "tiny", "input": texts});
    let (_, job) = client.post("/v1/jobs", &json!({"type": "embedding", "request": body})).await;
    let job = client.finished(job["id"].as_str().unwrap(), PATIENCE).await;
    assert_eq!((&job["status"], job["result"]["data"].as_array().map(Vec::len)), (&json!("succeeded"), Some(2_048)));
    let one = called(&client, "/v1/embeddings", &json!({"model": "tiny", "input": "number 2047"})).await;
    assert_eq!(one["data"][0]["embedding"], job["result"]["data"][2_047]["embedding"]);
    let (status, trajectory) = client.get(&format!("/v1/jobs/{}/trajectory", job["id"].as_str().unwrap())).await;
    assert_eq!((status.as_u16(), trajectory["record"]["vectors"].as_array().map(Vec::len)), (200, Some(2_048)));
    // A batch, and the same lines by `penstock score`.
    let line = |nth: usize| {
        let body = json!({"model": "tiny", "input": ids[nth], "encoding_format": "float"});
        json!({"custom_id": format!("n{nth}"), "method": "POST", "url": "/v1/embeddings", "body": body})
    };
    let too_wide = json!({"custom_id": "wide", "method": "POST", "url": "/v1/embeddings",
        "body": {"model": "tiny", "input": "x", "dimensions": 65}});
    let lines: String = (0..golden.len()).map(line).chain([too_wide]).map(|line| format!("{line}\n")).collect();
    let file = folder.path().join("lines.jsonl");
    std::fs::write(&file, lines).unwrap();
    let results = folder.path().join("results.jsonl");
    let mut command = penstock();
    command.args(["batch", "submit"]).arg(&file).args(["--wait", "-o"]).arg(&results);
    let output = command.env("PENSTOCK_SERVER", &server.address).output().unwrap();
    let by_batch = answers(&results);
    assert_eq!(by_batch.len(), golden.len() + 1, "{}", String::from_utf8_lossy(&output.stderr));
    server.kill();
    let scored = folder.path().join("scored.jsonl");
    let mut command = penstock();
    command.arg("score").arg(&file).arg("-o").arg(&scored).args(["--model", &tiny_model(), "--max-tokens", "3"]);
    let output = command.output().unwrap();
    let by_score = answers(&scored);
    assert_eq!(by_score.len(), golden.len() + 1, "{}", String::from_utf8_lossy(&output.stderr));
    for (name, (status, body)) in &by_batch {
        let (also, same) = &by_score[name];
        assert_eq!((status, &body["data"]), (also, &same["data"]), "{name}");
        match name.strip_prefix('n') {
            Some(nth) => check_vectors(body, &golden[nth.parse::<usize>().unwrap()..][..1], "last"),
            None => assert_eq!((*status, &body["error"]["param"]), (400, &json!("dimensions"))),
        }
    }
}

fn answers(path: &Path) -> std::collections::BTreeMap<String, (u64, Value)> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let response = &line["response"];
        let body = (response["status_code"].as_u64().unwrap(), response["body"].clone());
        (line["custom_id"].as_str().unwrap().to_owned(), body)
    };
    text.lines().map(line).collect()
}

#[tokio::test]
async fn scores_of_prompts_are_those_of_transformers_with_a_warm_cache_and_without() {
    let (_folder, data) = data_dir();
    let server = serve(&data);
    let client = server.client();
    let mut differences = Vec::new();
    for record in golden() {
        let body = json!({"model": "tiny", "prompt": record["ids"], "max_tokens": 0, "echo": true, "logprobs": 5});
        let cold = called(&client, "/v1/completions", &body).await;
        // The prompt is in the cache now, from this call and from one that generates.
        let warming = json!({"model": "tiny", "prompt": record["ids"], "max_tokens": 2, "ignore_eos": true});
        called(&client, "/v1/completions", &warming).await;
        let warm = called(&client, "/v1/completions", &body).await;
        assert_eq!(warm["choices"], cold["choices"], "to the bit, whatever is in the cache");
        assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let logprobs = &cold["choices"][0]["logprobs"]["token_logprobs"];
        let ours: Vec<Option<f64>> = serde_json::from_value(logprobs.clone()).unwrap();
        let expected = numbers(&record["logprobs"]);
        assert_eq!((ours.len(), ours[0]), (expected.len() + 1, None));
        differences.extend(ours[1..].iter().zip(&expected).map(|(ours, theirs)| (ours.unwrap() - theirs).abs()));
        let listed = json!({"model": "tiny", "prompt": record["ids"], "max_tokens": 1, "prompt_logprobs": 0});
        let listed = called(&client, "/v1/completions", &listed).await;
        let listed = listed["choices"][0]["prompt_logprobs"].as_array().unwrap();
        let own = |nth: usize| listed[nth][record["ids"][nth].to_string()]["logprob"].as_f64();
        assert_eq!((1..listed.len()).map(own).collect::<Vec<_>>(), ours[1..], "vLLM's list says the same");
    }
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    assert!(differences.len() > 300 && mean < 0.03, "mean difference {mean} of {}", differences.len());
}

/// Eight answers of one job take both places of answers for long; vectors need none of them.
#[tokio::test]
async fn vectors_are_computed_beside_answers() {
    let (_folder, data) = data_dir();
    let settings = Settings { model: Some(tiny_model()), ..Settings::default() };
    let server = Server::start(&data, &settings.with("PENSTOCK_ENGINE__MAX_SEQUENCES", 2));
    let client = server.client();
    let request = json!({"model": "tiny", "prompt": "x", "max_tokens": 3_500, "ignore_eos": true, "n": 8});
    let (_, long) = client.post("/v1/jobs", &json!({"type": "completion", "request": request})).await;
    let begin = Instant::now();
    while client.job(long["id"].as_str().unwrap()).await["status"] == "queued" {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for nth in 0..3 {
        called(&client, "/v1/embeddings", &json!({"model": "tiny", "input": format!("text {nth}")})).await;
    }
    assert_eq!(client.job(long["id"].as_str().unwrap()).await["status"], "running", "it is not over yet");
}
