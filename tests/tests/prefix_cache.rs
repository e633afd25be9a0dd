//! Prompts that begin alike, through the whole product: what is counted as cached, by whom it is found, and that answers
//! stay what they are.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::server::data_dir;
use tests::{Client, Server, Settings, penstock};

/// Tokens of the prompt: six blocks of 16, and four more.
const PROMPT: u32 = 100;
/// What a second one finds of it.
const FOUND: u64 = 96;

fn serve(data: &Path, settings: Settings) -> Server {
    Server::start(data, &Settings { model: Some(tiny_model()), ..settings })
}

/// The operator's key, the first one, which closes the server; and keys of these tenants.
fn keys<const N: usize>(server: &Server, tenants: [&str; N]) -> (String, [String; N]) {
    let make = |arguments: &[&str], operator: Option<&str>| {
        let mut command = penstock();
        command.args(["keys", "create"]).args(arguments).env("PENSTOCK_SERVER", &server.address);
        command.env_remove("PENSTOCK_API_KEY").envs(operator.map(|key| ("PENSTOCK_API_KEY", key)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let operator = make(&["--scope", "admin"], None);
    let keys = tenants.map(|tenant| make(&["--tenant", tenant], Some(&operator)));
    (operator, keys)
}

fn request(first: u32, more: Value) -> Value {
    let prompt: Vec<u32> = (first..first + PROMPT).collect();
    let mut body = json!({
        "model": "tiny", "prompt": prompt, "max_tokens": 5, "ignore_eos": true, "temperature": 0, "logprobs": 3
    });
    tests::client::merge(&mut body, more);
    body
}

async fn post(client: &Client, key: &str, path: &str, body: &Value) -> String {
    let answer = client.http.post(client.url(path)).bearer_auth(key).json(body).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    answer.text().await.unwrap()
}

async fn get(client: &Client, key: &str, path: &str) -> Value {
    let answer = client.http.get(client.url(path)).bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json().await.unwrap()
}

async fn complete(client: &Client, key: &str, first: u32) -> Value {
    serde_json::from_str(&post(client, key, "/v1/completions", &request(first, json!({}))).await).unwrap()
}

/// The cached tokens of an answer; the other tokens are what they always are.
fn cached(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    let tokens = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert_eq!(tokens, [100, 5, 105], "{usage}");
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_equal_prompt_is_found_by_its_tenant_alone_and_counted_wherever_tokens_are() {
    let (folder, data) = data_dir();
    let server = serve(&data, Settings::default());
    let client = server.client();
    let (operator, [acme, beta]) = &keys(&server, ["acme", "beta"]);

    let first = complete(&client, acme, 0).await;
    let second = complete(&client, acme, 0).await;
    assert_eq!((cached(&first), cached(&second)), (0, FOUND));
    assert_eq!(first["choices"], second["choices"], "texts and log-probabilities");
    let other = complete(&client, beta, 0).await;
    assert_eq!(cached(&other), 0, "what acme sent is nothing to beta");
    assert_eq!(cached(&complete(&client, beta, 0).await), FOUND);
    assert_eq!(other["choices"], first["choices"]);
    assert_eq!(cached(&complete(&client, acme, 1).await), 0, "the same tokens, one place further");

    let streamed = request(0, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let streamed = post(&client, acme, "/v1/completions", &streamed).await;
    let mut chunks =
        streamed.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let last = chunks.rfind(|chunk| !chunk["usage"].is_null()).unwrap();
    assert_eq!(cached(&last), FOUND);

    let job = json!({"type": "completion", "request": request(0, json!({}))});
    let job: Value = serde_json::from_str(&post(&client, acme, "/v1/jobs", &job).await).unwrap();
    let job = get(&client, acme, &format!("/v1/jobs/{}?wait=30", job["id"].as_str().unwrap())).await;
    assert_eq!((job["status"].as_str(), cached(&job)), (Some("succeeded"), FOUND));
    assert_eq!(cached(&job["result"]), FOUND);

    let (input, output) = (folder.path().join("batch.jsonl"), folder.path().join("results.jsonl"));
    let line = |n: usize| {
        let body = request(0, json!({}));
        json!({"custom_id": format!("line-{n}"), "method": "POST", "url": "/v1/completions", "body": body})
    };
    std::fs::write(&input, (0..3).map(|n| format!("{}\n", line(n))).collect::<String>()).unwrap();
    let mut command = penstock();
    command.args(["batch", "submit"]).arg(&input).arg("--wait").arg("-o").arg(&output);
    command.env("PENSTOCK_SERVER", &server.address).env("PENSTOCK_API_KEY", acme);
    let submitted = command.output().unwrap();
    assert!(submitted.status.success(), "{}", String::from_utf8_lossy(&submitted.stderr));
    for line in std::fs::read_to_string(&output).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(cached(&line["response"]["body"]), FOUND);
    }
    let batch = get(&client, acme, "/v1/batches").await["data"][0].clone();
    assert_eq!(batch["usage"]["input_tokens_details"]["cached_tokens"], 3 * FOUND, "{batch}");

    let used = get(&client, acme, "/v1/usage").await;
    let sum = |name: &str| -> u64 {
        used["data"].as_array().unwrap().iter().map(|line| line["tokens"][name].as_u64().unwrap()).sum()
    };
    // Three calls, of which one found something, a stream, a job and three lines.
    assert_eq!((sum("prompt_tokens"), sum("cached_tokens")), (8 * 100, 6 * FOUND), "{used}");

    // Two prompts of acme and one of beta, six full blocks each.
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let worker = get(&client, operator, "/v1/stats").await["workers"][0].clone();
        if worker["cached_blocks"] == 18 && worker["used_blocks"] == 0 {
            break;
        }
        assert!(Instant::now() < patience, "{worker}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_of_a_group_find_one_anothers_and_nobody_elses() {
    let (_folder, data) = data_dir();
    let groups = Settings::default().with("PENSTOCK_ENGINE__SHARED_CACHE_GROUPS", r#"[["acme", "beta"]]"#);
    let server = serve(&data, groups);
    let client = server.client();
    let (_, [acme, beta, carl]) = &keys(&server, ["acme", "beta", "carl"]);
    let mut found = Vec::new();
    for tenant in [acme, beta, carl, carl] {
        found.push(cached(&complete(&client, tenant, 0).await));
    }
    assert_eq!(found, [0, FOUND, 0, FOUND]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_off_every_prompt_is_computed_as_a_whole() {
    let (_folder, data) = data_dir();
    let server = serve(&data, Settings::default().with("PENSTOCK_ENGINE__PREFIX_CACHE", false));
    let client = server.client();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let (status, answer) = client.post("/v1/completions", &request(0, json!({}))).await;
        assert_eq!((status.as_u16(), cached(&answer)), (200, 0));
        answers.push(answer["choices"].clone());
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_group_that_names_a_tenant_twice_is_refused_with_the_setting() {
    let mut command = penstock();
    command.arg("config").env("PENSTOCK_ENGINE__SHARED_CACHE_GROUPS", r#"[["acme", "acme"]]"#);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("engine.shared_cache_groups") && said.contains("`acme`"),
        "{said}"
    );
}
