//! One idempotency key from many clients at once, through several API processes on one Postgres.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};
use tests::Client;
use tests::cluster::Cluster;
use tokio::task::JoinSet;

const SUBMITS: usize = 200;

/// Submits with the key; answers status, whether it was told that this was a repeat, and the body.
async fn submit(client: Client, body: Value) -> (u16, bool, Value) {
    let post = client.http.post(client.url("/v1/jobs")).header("Idempotency-Key", "one-and-only").json(&body);
    let answer = post.send().await.unwrap();
    let (status, replayed) = (answer.status().as_u16(), answer.headers().contains_key("idempotency-replayed"));
    (status, replayed, answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_submits_of_one_key_are_one_job() {
    let cluster = Cluster::new().await;
    let _worker = cluster.worker();
    let apis = [cluster.api(), cluster.api()];
    let body = json!({"type": "completion", "request": {"model": "tiny", "prompt": "x", "max_tokens": 2}});

    let mut submits = JoinSet::new();
    for n in 0..SUBMITS {
        submits.spawn(submit(apis[n % apis.len()].client.clone(), body.clone()));
    }
    let answers = submits.join_all().await;
    assert!(answers.iter().all(|(status, _, _)| *status == 202), "{answers:?}");
    let ids: BTreeSet<&str> = answers.iter().map(|(_, _, job)| job["id"].as_str().unwrap()).collect();
    assert_eq!((answers.len(), ids.len()), (SUBMITS, 1), "{ids:?}");
    let n_first = answers.iter().filter(|(_, replayed, _)| !replayed).count();
    assert_eq!(n_first, 1, "one submit made it, and all others repeat it");

    let mut conn = PgConnection::connect(&cluster.database).await.unwrap();
    let row = sqlx::query("SELECT count(*) AS n FROM jobs").fetch_one(&mut conn).await.unwrap();
    assert_eq!(row.get::<i64, _>("n"), 1);
    let other = json!({"type": "completion", "request": {"model": "tiny", "prompt": "y", "max_tokens": 2}});
    for api in &apis {
        let (status, _, refused) = submit(api.client.clone(), other.clone()).await;
        assert_eq!((status, &refused["error"]["code"]), (422, &json!("idempotency_key_reused")), "{refused}");
    }
}
