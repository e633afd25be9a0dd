//! `penstock usage` and `penstock audit`, as an operator types them, against a real server, sound and damaged.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tests::cluster::tiny_model;
use tests::server::data_dir;
use tests::{Cluster, Server, Settings, penstock};

const SUBMIT: [&str; 8] = ["submit", "--model", "tiny", "--prompt", "Hello", "--max-tokens", "5", "--wait"];

fn penstock_at(address: &str, arguments: &[&str]) -> Command {
    let mut command = penstock();
    command.args(arguments).env("PENSTOCK_SERVER", address).env_remove("PENSTOCK_API_KEY");
    command
}

/// Runs a command that ends with this status.
fn run(address: &str, arguments: &[&str], status: i32) -> Output {
    let output = penstock_at(address, arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    output
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_operator_sees_what_was_used_and_that_it_adds_up_until_it_does_not() {
    let (_folder, data) = data_dir();
    let server = Server::start(&data, &Settings { model: Some(tiny_model()), ..Settings::default() });
    let at = server.address.as_str();
    for _ in 0..2 {
        run(at, &SUBMIT, 0);
    }
    let usage = json_of(&run(at, &["usage", "--json"], 0));
    let sum = |pointer: &str| -> u64 {
        usage["data"].as_array().unwrap().iter().map(|line| line.pointer(pointer).unwrap().as_u64().unwrap()).sum()
    };
    assert_eq!((sum("/jobs/accepted"), sum("/jobs/succeeded"), sum("/jobs/failed")), (2, 2, 0), "{usage}");
    assert!((1..=10).contains(&sum("/tokens/output_tokens")), "{usage}");
    let shown = run(at, &["usage"], 0);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("DAY") && shown.contains(" tiny "), "{shown}");

    let audit = json_of(&run(at, &["audit", "--json"], 0));
    assert_eq!((&audit["holds"], &audit["breaches"]), (&json!(true), &json!([])));
    let shown = run(at, &["audit"], 0);
    assert!(String::from_utf8(shown.stdout).unwrap().starts_with("DAY"));
    assert!(String::from_utf8(shown.stderr).unwrap().contains("2 jobs accepted; all are accounted for"));

    // Behind the server's back, a job's end is forgotten.
    let job: String = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let file = SqliteConnectOptions::new().filename(data.join("jobs.db"));
        let mut conn = file.busy_timeout(Duration::from_secs(5)).connect().await.unwrap();
        let forget = "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events WHERE kind = 'succeeded') \
                      RETURNING lower(hex(job))";
        let job = sqlx::query_scalar(forget).fetch_one(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        job
    });
    let audit = json_of(&run(at, &["audit", "--json"], 1));
    let breach = &audit["breaches"][0];
    assert_eq!((&audit["holds"], &breach["kind"]), (&json!(false), &json!("end_not_told")), "{audit}");
    assert!(breach["subject"].as_str().unwrap().replace('-', "").ends_with(&job), "{audit} {job}");
    let shown = run(at, &["audit"], 1);
    let (table, words) = (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
    assert!(table.contains("end_not_told") && words.contains("not all adds up"), "{table}{words}");
    run(at, &["audit", "--tenant", "nobody", "--from", "2026-01-01", "--to", "2026-01-03"], 0);
    run(at, &["audit", "--from", "2026-01-03", "--to", "2026-01-01"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_processes_used_is_counted_at_once_and_summed_up_later() {
    let cluster = Cluster::new().await;
    let _worker = cluster.worker();
    let _scheduler = cluster.scheduler();
    let api = cluster.api();
    let at = api.address.as_str();
    let counted = || {
        let usage = json_of(&run(at, &["usage", "--json"], 0));
        let lines = usage["data"].as_array().unwrap().clone();
        let sum = |name: &str| lines.iter().map(|line| line["jobs"][name].as_u64().unwrap()).sum::<u64>();
        (sum("accepted"), sum("succeeded"))
    };
    for n in 1..=3 {
        run(at, &SUBMIT, 0);
        assert_eq!(counted(), (n, n));
    }
    // The scheduler looks every second.
    let mut conn = PgConnection::connect(&cluster.database).await.unwrap();
    let since = Instant::now();
    loop {
        let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM usage_changes").fetch_one(&mut conn).await.unwrap();
        if waiting == 0 {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{waiting} changes of the ledger still wait");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(counted(), (3, 3));
    run(at, &["audit"], 0);
}
