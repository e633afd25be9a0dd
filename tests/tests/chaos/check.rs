//! The ledger and the invariants against the database and the API.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;
use sqlx::{Connection, PgConnection, Row};
use tests::Client;
use tests::cluster::Cluster;

use crate::clients::Ledger;

/// How long everything may take to end once all is well again: backoffs, leases, and what waits.
const QUIET: Duration = Duration::from_secs(180);
/// Trajectories that are run again.
const REPLAYED: usize = 100;

/// Samples of the most unfinished jobs in one class.
pub struct Watch {
    stopping: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Watch {
    pub async fn stop(self) -> u64 {
        self.stopping.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

pub fn watch_bounds(database: String) -> Watch {
    let (stopping, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let task = tokio::spawn({
        let (stopping, most) = (Arc::clone(&stopping), Arc::clone(&most));
        async move {
            while !stopping.load(Ordering::Relaxed) {
                // Straight there, past the proxies; a restart of the server only interrupts the sampling.
                if let Ok(mut conn) = PgConnection::connect(&database).await {
                    while let Ok(n) = unfinished(&mut conn).await {
                        most.fetch_max(n, Ordering::Relaxed);
                        if stopping.load(Ordering::Relaxed) {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    });
    Watch { stopping, most, task }
}

/// The most unfinished jobs of any release and class.
async fn unfinished(conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let counted = sqlx::query(
        "SELECT coalesce(max(n), 0) AS n FROM (SELECT count(*) AS n FROM jobs \
         WHERE state IN ('queued', 'running') GROUP BY release, class) AS classes",
    );
    Ok(counted.fetch_one(conn).await?.get::<i64, _>("n").unsigned_abs())
}

/// Rows that a query finds, as text; for what must find none.
async fn found(conn: &mut PgConnection, query: &'static str) -> Vec<String> {
    let rows = sqlx::query(query).fetch_all(conn).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("what")).collect()
}

pub async fn all(cluster: &Cluster, ledger: &Ledger, addresses: &[String]) {
    let mut conn = PgConnection::connect(&cluster.database).await.unwrap();
    let begin = Instant::now();
    loop {
        let left = unfinished(&mut conn).await.unwrap();
        if left == 0 {
            break;
        }
        assert!(begin.elapsed() < QUIET, "{left} jobs have not ended {QUIET:?} after all was well again");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("chaos: all ended {:.1} s after all was well again", begin.elapsed().as_secs_f64());

    let strange = ledger.strange.lock().unwrap().clone();
    assert!(strange.is_empty(), "answers that no fault explains: {strange:#?}");
    let client = Client::new(&addresses[0]);
    let accepted: BTreeSet<String> = ledger.accepted.lock().unwrap().values().cloned().collect();
    let cancelled: BTreeSet<String> = ledger.cancelled.lock().unwrap().iter().cloned().collect();
    let answers = ledger.answers.lock().unwrap().clone();
    each(&accepted, async |id: &String| {
        let job = client.job(id).await;
        assert!(!matches!(job["status"].as_str(), Some("queued" | "running")), "{job}");
        assert_eq!(job["status"] == "succeeded", !job["result"].is_null(), "{job}");
        if cancelled.contains(id) {
            assert_eq!(job["status"], "cancelled", "{id}: its cancel was acknowledged");
        }
    })
    .await;
    each(&answers, async |(id, text): &(String, String)| {
        let job = client.job(id).await;
        assert_eq!(
            job["result"]["choices"][0]["text"], *text,
            "{id}: its reader was given another answer than is kept"
        );
    })
    .await;
    println!("chaos: {:.1} s: the clients' ledger is held against the jobs", begin.elapsed().as_secs_f64());
    invariants(&mut conn).await;
    trajectories(cluster, &mut conn, &client).await;
    let (_, stats) = client.get("/v1/stats").await;
    for worker in stats["workers"].as_array().unwrap() {
        assert_eq!((&worker["used_blocks"], &worker["running"]), (&0.into(), &0.into()), "{worker}");
    }
    println!(
        "chaos: {} accepted jobs, {} cancelled ones and {} answers are as the clients were told",
        accepted.len(),
        cancelled.len(),
        answers.len()
    );
}

/// Sixteen at a time.
async fn each<T>(items: impl IntoIterator<Item = T>, check: impl AsyncFn(T)) {
    let check = &check;
    futures::stream::iter(items).for_each_concurrent(16, |item| async move { check(item).await }).await;
}

async fn invariants(conn: &mut PgConnection) {
    let none = [
        (
            "more or less than one end",
            "SELECT jobs.id::text || ' ' || count(events.seq) AS what FROM jobs LEFT JOIN events \
             ON events.job = jobs.id AND events.state IN ('succeeded', 'failed', 'cancelled', 'expired') \
             GROUP BY jobs.id HAVING count(events.seq) <> 1",
        ),
        (
            "an end that is not the last event",
            "SELECT job::text AS what FROM events AS ended WHERE state IN ('succeeded', 'failed', 'cancelled', 'expired') \
             AND EXISTS (SELECT 1 FROM events AS later WHERE later.job = ended.job AND later.seq > ended.seq)",
        ),
        (
            "two live leases: one began before the other had ended",
            "SELECT job::text || ' ' || attempt AS what FROM (SELECT job, attempt, state, \
             lag(state) OVER (PARTITION BY job ORDER BY seq) AS before FROM events) AS steps \
             WHERE state = 'running' AND before <> 'queued'",
        ),
        (
            "an attempt leased twice",
            "SELECT job::text || ' ' || attempt AS what FROM events WHERE kind = 'leased' \
             GROUP BY job, attempt HAVING count(*) > 1",
        ),
        ("counters that are not zero", "SELECT name || ' ' || value AS what FROM counters WHERE value <> 0"),
        (
            "results without a record, or records without a result",
            "SELECT id::text AS what FROM jobs WHERE (state = 'succeeded') <> (record IS NOT NULL OR record_ref IS NOT NULL)",
        ),
    ];
    for (name, query) in none {
        let rows = found(conn, query).await;
        assert!(rows.is_empty(), "{name}: {} rows, among them {:?}", rows.len(), &rows[..rows.len().min(5)]);
    }
    for (what, query) in [
        ("ends", "SELECT state || ' ' || count(*) AS what FROM jobs GROUP BY state ORDER BY state"),
        ("events", "SELECT kind || ' ' || count(*) AS what FROM events GROUP BY kind ORDER BY kind"),
        (
            "errors",
            "SELECT (error->>'code') || ' ' || count(*) AS what FROM jobs WHERE state = 'failed' GROUP BY error->>'code'",
        ),
    ] {
        println!("chaos: {what}: {}", found(conn, query).await.join(", "));
    }
}

/// Every job that succeeded has one trajectory, of the same words as its result; a hundred are run again.
async fn trajectories(cluster: &Cluster, conn: &mut PgConnection, client: &Client) {
    let begin = Instant::now();
    let succeeded = found(conn, "SELECT id::text AS what FROM jobs WHERE state = 'succeeded' ORDER BY id").await;
    let ids: Vec<String> = succeeded.iter().map(|id| format!("job_{}", id.replace('-', ""))).collect();
    each(&ids, async |id: &String| {
        let (status, trajectory) = client.get(&format!("/v1/jobs/{id}/trajectory")).await;
        assert_eq!(status, 200, "{trajectory}");
        let job = client.job(id).await;
        let choice = &trajectory["record"]["choices"][0];
        assert_eq!(choice["text"], job["result"]["choices"][0]["text"], "{id}");
        let n_ids = choice["output_ids"].as_array().unwrap().len();
        assert_eq!(job["usage"]["completion_tokens"], n_ids, "{id}");
    })
    .await;
    let step = (ids.len() / REPLAYED).max(1);
    let some: Vec<&str> = ids.iter().step_by(step).take(REPLAYED).map(String::as_str).collect();
    let model = tests::cluster::tiny_model();
    let address = client.url("");
    let mut arguments = vec!["replay", "--server", &address, "--model", &model, "--json"];
    arguments.extend(&some);
    let replayed = cluster.command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&replayed.stderr);
    let report: Value = serde_json::from_slice(&replayed.stdout).unwrap_or_else(|err| panic!("{err}: {said}"));
    assert!(replayed.status.success(), "{report:#}");
    assert_eq!(report["bit_equal"], some.len(), "{report:#}");
    println!(
        "chaos: {:.1} s: {} trajectories are those of their results; {} run again, all bit-equal",
        begin.elapsed().as_secs_f64(),
        ids.len(),
        some.len()
    );
}
