//! Tenants: their limits, as an operator sets them by the command line and a client meets them; and their shares.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Output;

use serde_json::{Value, json};
use tests::client::unix_ms;
use tests::cluster::tiny_model;
use tests::server::data_dir;
use tests::{Server, Settings, penstock};

fn tenants(address: &str, arguments: &[&str]) -> Output {
    let mut command = penstock();
    command.arg("tenants").args(arguments).env("PENSTOCK_SERVER", address);
    command.output().unwrap()
}

/// The standard output of a command that must succeed.
fn run(address: &str, arguments: &[&str]) -> String {
    let output = tenants(address, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_limits_a_tenant_by_the_command_line() {
    let (_folder, data) = data_dir();
    let server = Server::start(&data, &Settings { model: Some(tiny_model()), ..Settings::default() });
    let (at, client) = (server.address.as_str(), server.client());
    let body = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 5});
    assert_eq!(client.post("/v1/completions", &body).await.0, 200);

    run(at, &["set", "local", "--requests-per-minute", "2", "--tokens-per-minute", "200000", "--weight", "4"]);
    run(at, &["set", "local", "--tokens-per-minute", "none", "--queued-jobs", "5000"]);
    let shown: Value = serde_json::from_str(&run(at, &["show", "local", "--json"])).unwrap();
    let fields = ["requests_per_minute", "tokens_per_minute", "concurrent_requests", "queued_jobs", "weight"];
    assert_eq!(fields.map(|field| shown[field].clone()), [json!(2), json!(null), json!(null), json!(5_000), json!(4)]);
    let listed = run(at, &["list"]);
    assert!(listed.lines().count() == 2 && listed.contains("local") && listed.contains("5000"), "{listed}");

    let statuses = [
        client.post("/v1/completions", &body).await.0,
        client.post("/v1/completions", &body).await.0,
        client.post("/v1/completions", &body).await.0,
    ];
    assert_eq!(statuses, [200, 200, 429]);
    let nothing = tenants(at, &["set", "local"]);
    assert!(!nothing.status.success() && String::from_utf8_lossy(&nothing.stderr).contains("nothing to set"));
    let wrong = tenants(at, &["show", "a b"]);
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("1 to 64 letters"));
    run(at, &["reset", "local"]);
    assert_eq!(client.post("/v1/completions", &body).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_interactive_job_does_not_wait_for_another_tenants_flood() {
    const FLOOD: usize = 300;
    let (_folder, data) = data_dir();
    let settings = Settings { model: Some(tiny_model()), ..Settings::default() };
    // One job at a time, so that the others wait.
    let settings = settings.with("PENSTOCK_ENGINE__MAX_SEQUENCES", 1).with("PENSTOCK_LIMITS__INTERACTIVE", 1_000);
    let server = Server::start(&data, &settings);
    let (client, at) = (server.client(), server.address.as_str());
    let make_key = |arguments: &[&str], operator: Option<&str>| {
        let mut command = penstock();
        command.args(["keys", "create"]).args(arguments).env("PENSTOCK_SERVER", at).env_remove("PENSTOCK_API_KEY");
        let output = command.envs(operator.map(|key| ("PENSTOCK_API_KEY", key))).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let operator = make_key(&["--scope", "admin"], None);
    let [many, one] = ["many", "one"].map(|tenant| make_key(&["--tenant", tenant], Some(&operator)));
    let post = async |key: &str, path: &str, body: &Value| {
        let call = client.http.post(client.url(path)).bearer_auth(key).json(body);
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status(), 202, "{}", answer.text().await.unwrap());
        answer.json::<Value>().await.unwrap()
    };
    let request = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 50, "ignore_eos": true});
    let job = json!({"type": "completion", "class": "interactive", "request": request});
    let flood = post(&many, "/v1/jobs:batch", &Value::from(vec![job.clone(); FLOOD])).await;
    assert_eq!(flood["accepted"], FLOOD, "{flood}");
    let submitted = post(&one, "/v1/jobs", &job).await;
    let get = async |key: &str, path: &str| {
        let answer = client.http.get(client.url(path)).bearer_auth(key).send().await.unwrap();
        answer.json::<Value>().await.unwrap()
    };
    let ended = get(&one, &format!("/v1/jobs/{}?wait=60", submitted["id"].as_str().unwrap())).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let at = |job: &Value, name: &str| job[name].as_str().map(unix_ms);
    let (accepted, started) = (at(&ended, "created_at").unwrap(), at(&ended, "started_at").unwrap());
    let mut before = 0;
    for item in flood["data"].as_array().unwrap() {
        let job = get(&many, &format!("/v1/jobs/{}", item["id"].as_str().unwrap())).await;
        before += usize::from(at(&job, "started_at").is_some_and(|at| (accepted..started).contains(&at)));
    }
    // A queue that the feeder does not know yet is given 32.
    assert!(before <= 50, "{before} of {FLOOD} jobs started before it");
}
