//! Tenants' limits, as an operator sets them by the command line and a client meets them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Output;

use serde_json::{Value, json};
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
