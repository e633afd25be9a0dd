//! Keys, as an operator and two tenants see them: by the command line, over real services.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tests::cluster::{Cluster, tiny_model};
use tests::server::data_dir;
use tests::{Server, Settings, penstock};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must succeed; its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A command against a server, with a key or without.
fn client(address: &str, key: Option<&str>, arguments: &[&str]) -> Command {
    let mut command = penstock();
    command.args(arguments).env("PENSTOCK_SERVER", address).env_remove("PENSTOCK_API_KEY");
    command.envs(key.map(|key| ("PENSTOCK_API_KEY", key)));
    command
}

#[test]
fn the_first_key_closes_a_server_to_everybody_else() {
    let (_folder, data) = data_dir();
    let server = Server::start(&data, &Settings { model: Some(tiny_model()), ..Settings::default() });
    let at = server.address.as_str();
    run(&mut client(at, None, &["list"]));
    let operator = run(&mut client(at, None, &["keys", "create", "--scope", "admin", "--name", "me"]));
    let operator = operator.trim();

    let refused = client(at, None, &["list"]).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("PENSTOCK_API_KEY"), "{}", said(&refused));
    // An operator's key runs the installation, and shows nobody's jobs.
    let refused = client(at, Some(operator), &["list"]).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("`read`"), "{}", said(&refused));

    let make = |arguments: &[&str]| {
        let made = run(&mut client(at, Some(operator), &[&["keys", "create", "--json"], arguments].concat()));
        serde_json::from_str::<Value>(&made).unwrap()
    };
    let (acme, globex) = (make(&["--tenant", "acme"]), make(&["--tenant", "globex", "--expires-days", "30"]));
    let text = |key: &Value| key["key"].as_str().unwrap().to_owned();
    let job = run(&mut client(
        at,
        Some(&text(&acme)),
        &["submit", "--model", "tiny", "--prompt", "Hello", "--max-tokens", "5"],
    ));
    let job = job.trim();
    run(&mut client(at, Some(&text(&acme)), &["wait", job]));
    let foreign = client(at, Some(&text(&globex)), &["get", job]).output().unwrap();
    assert!(!foreign.status.success() && said(&foreign).contains("404"), "{}", said(&foreign));

    let listed = run(&mut client(at, Some(operator), &["keys", "list"]));
    assert_eq!(listed.lines().count(), 4, "{listed}");
    assert!([&text(&acme), operator].iter().all(|key| !listed.contains(*key)), "{listed}");
    run(&mut client(at, Some(operator), &["keys", "revoke", acme["id"].as_str().unwrap()]));
    let refused = client(at, Some(&text(&acme)), &["get", job]).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("revoked"), "{}", said(&refused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_hold_for_every_process_and_the_first_can_be_made_without_one() {
    let cluster = Cluster::new().await.with("PENSTOCK_AUTH__REQUIRED", true);
    let _worker = cluster.worker();
    let _scheduler = cluster.scheduler();
    let (first, second) = (cluster.api(), cluster.api());
    assert_eq!(first.client.get("/v1/models").await.0, 401);
    assert_eq!(first.client.post("/v1/keys", &json!({"scopes": ["admin"]})).await.0, 401);

    let operator = run(&mut cluster.command(&["keys", "create", "--direct", "--scope", "admin"]));
    let operator = operator.trim();
    let made = run(&mut client(&first.address, Some(operator), &["keys", "create", "--tenant", "acme", "--json"]));
    let made: Value = serde_json::from_str(&made).unwrap();
    let key = made["key"].as_str().unwrap();
    let call = async |address: &str| {
        let call = first.client.http.post(format!("{address}/v1/completions")).bearer_auth(key);
        let call = call.json(&json!({"model": "tiny", "prompt": "Hello", "max_tokens": 5}));
        call.send().await.unwrap().status().as_u16()
    };
    // The API reads the models on offer every two seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((call(&first.address).await, call(&second.address).await), (200, 200));
    run(&mut client(&first.address, Some(operator), &["keys", "revoke", made["id"].as_str().unwrap()]));
    assert_eq!(call(&first.address).await, 401);
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(call(&second.address).await, 401);
}
