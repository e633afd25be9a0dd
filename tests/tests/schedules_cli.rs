//! `penstock schedules`, as a person types it, against a real server.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Output;

use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::server::data_dir;
use tests::{Server, Settings, penstock};

fn penstock_at(address: &str, arguments: &[&str]) -> Output {
    let mut command = penstock();
    command.args(arguments).env("PENSTOCK_SERVER", address).env_remove("PENSTOCK_API_KEY");
    command.output().unwrap()
}

/// Runs a command that succeeds; its standard output without the last line end.
fn run(address: &str, arguments: &[&str]) -> String {
    let output = penstock_at(address, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// What a command says that fails.
fn fails(address: &str, arguments: &[&str]) -> String {
    let output = penstock_at(address, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_schedule_is_made_run_and_deleted_by_the_command_line() {
    let (folder, data) = data_dir();
    let server = Server::start(&data, &Settings { model: Some(tiny_model()), ..Settings::default() });
    let address = server.address.as_str();
    let input = folder.path().join("questions.jsonl");
    let body = json!({"model": "tiny", "prompt": "1 + 1 =", "max_tokens": 2, "temperature": 0});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body});
    std::fs::write(&input, format!("{line}\n")).unwrap();
    let file = input.to_str().unwrap();

    let wrong = fails(address, &["schedules", "create", "--cron", "0 0 3 * * *", "--file", file]);
    assert!(wrong.contains("no field for seconds"), "{wrong}");
    // Not while this test runs: the 29th of February at three.
    let cron = ["--cron", "0 3 29 2 *", "--timezone", "Europe/Berlin"];
    let id = run(address, &[&["schedules", "create"][..], &cron, &["--file", file, "--metadata", "a=b"]].concat());
    let shown: Value = serde_json::from_str(&run(address, &["schedules", "show", &id, "--json"])).unwrap();
    assert_eq!(
        (&shown["name"], &shown["enabled"], &shown["overlap"]),
        (&json!("questions"), &json!(true), &json!("skip"))
    );
    assert_eq!(shown["batch"]["metadata"], json!({"a": "b"}));
    assert!(shown["next_at"].as_str().unwrap().ends_with("-02-29T02:00:00Z"), "{shown}");
    let uploaded = shown["batch"]["input_file_id"].as_str().unwrap();
    let needs_route = fails(address, &[&["schedules", "create"][..], &cron, &["--file", uploaded]].concat());
    assert!(needs_route.contains("--endpoint"), "{needs_route}");
    let more = ["--file", uploaded, "--endpoint", "/v1/completions", "--disabled", "--name", "other", "--json"];
    let second: Value =
        serde_json::from_str(&run(address, &[&["schedules", "create"][..], &cron, &more].concat())).unwrap();
    assert_eq!((&second["batch"]["input_file_id"], &second["next_at"]), (&json!(uploaded), &Value::Null));

    let batch = run(address, &["schedules", "run", &id]);
    run(address, &["batch", "status", &batch, "--watch"]);
    let result: Value = serde_json::from_str(&run(address, &["batch", "results", &batch])).unwrap();
    assert_eq!((&result["custom_id"], &result["response"]["status_code"]), (&json!("a"), &json!(200)));
    let runs = run(address, &["schedules", "runs", &id]);
    assert!(runs.lines().nth(1).unwrap().starts_with(&batch) && runs.contains("completed"), "{runs}");
    let listed = run(address, &["schedules", "list"]);
    assert!(listed.contains("disabled") && listed.contains("enabled") && listed.contains("questions"), "{listed}");

    run(address, &["schedules", "disable", &id]);
    assert!(run(address, &["schedules", "show", &id]).contains("enabled     no"));
    run(address, &["schedules", "enable", &id]);
    assert!(run(address, &["schedules", "show", &id]).contains("runs        1, 0 passed over"));
    run(address, &["schedules", "delete", &id, second["id"].as_str().unwrap()]);
    let gone = fails(address, &["schedules", "show", &id]);
    assert!(gone.contains("schedule_not_found") && gone.contains("`penstock schedules list`"), "{gone}");
}
