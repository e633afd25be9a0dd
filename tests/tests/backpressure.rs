//! A full queue that is offered five times what it drains: refusals are quick and say when to come back, the bound holds,
//! memory stays where it is, and every job that was accepted ends well.
//!
//! `PENSTOCK_BACKPRESSURE_SECONDS` says how long (10 without it); `-- --nocapture` shows the figures.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};
use tests::Client;
use tests::cluster::Cluster;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Most unfinished jobs.
const BOUND: u64 = 200;
/// Jobs that run together.
const SEQUENCES: u64 = 8;
/// Jobs offered per job drained.
const OVERLOAD: f64 = 5.0;
/// The flood before memory is looked at: buffers and pools get the size that it needs.
const WARM_UP: Duration = Duration::from_secs(4);
/// Longest time for a full queue to drain.
const PATIENCE: Duration = Duration::from_secs(180);
/// The longest refusal that a busy machine is forgiven; what it was is printed.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// Growth of memory that is forgiven: a part of what it was, and so many KiB for a short look at small processes.
const GROWTH: f64 = 0.10;
const GROWTH_KIB: f64 = 4.0 * 1024.0;

/// What a client was told.
enum Answer {
    Accepted(String),
    Refused(Duration),
    /// Neither a job nor a refusal as it is documented.
    Strange(String),
}

/// A job whose work is its prompt, so that few tokens are on their way to readers, whose buffers would be seen in the
/// memory. Each has its own length: jobs that started together do not end together.
fn job(n: u64) -> Value {
    let prompt = "x".repeat(1_400 + n as usize * 37 % 400);
    let request = json!({"model": "tiny", "prompt": prompt, "max_tokens": 100, "ignore_eos": true});
    json!({"type": "completion", "class": "standard", "request": request})
}

async fn offer(client: Client, n: u64) -> Answer {
    let begin = Instant::now();
    let answer = match client.http.post(client.url("/v1/jobs")).json(&job(n)).send().await {
        Ok(answer) => answer,
        Err(err) => return Answer::Strange(format!("{err:?}")),
    };
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get("retry-after").map(|seconds| seconds.to_str().unwrap().to_owned());
    let text = answer.text().await.unwrap();
    let took = begin.elapsed();
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    if status == 202 {
        return Answer::Accepted(body["id"].as_str().unwrap().to_owned());
    }
    let seconds = retry_after.as_ref().and_then(|seconds| seconds.parse::<u64>().ok());
    let message = body["error"]["message"].as_str().unwrap_or_default();
    let envelope =
        json!({"error": {"message": message, "type": "rate_limit_error", "param": null, "code": "queue_full"}});
    if status == 429 && seconds.is_some_and(|seconds| seconds >= 1) && !message.is_empty() && body == envelope {
        Answer::Refused(took)
    } else {
        Answer::Strange(format!("{status}, Retry-After {retry_after:?}: {text}"))
    }
}

async fn count(conn: &mut PgConnection, states: &[&str]) -> u64 {
    let query = sqlx::query("SELECT count(*) AS n FROM jobs WHERE state = ANY ($1)").bind(states);
    query.fetch_one(conn).await.unwrap().get::<i64, _>("n").unsigned_abs()
}

/// What is looked at all the time.
#[derive(Default)]
struct Seen {
    most_unfinished: u64,
    /// Resident memory in KiB, of each process in the order given; since it was asked for.
    memory: Vec<Vec<f64>>,
}

/// Looks at the unfinished jobs 20 times a second, and while `watching` says so at the processes' memory twice a second.
fn watch_all(database: String, pids: Vec<u32>, watching: watch::Receiver<bool>) -> JoinHandle<Seen> {
    tokio::spawn(async move {
        let mut conn = PgConnection::connect(&database).await.unwrap();
        let mut seen = Seen { memory: vec![Vec::new(); pids.len()], ..Seen::default() };
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        for n in 0_u64.. {
            ticks.tick().await;
            // Nobody can ask for more.
            if watching.has_changed().is_err() {
                break;
            }
            seen.most_unfinished = seen.most_unfinished.max(count(&mut conn, &["queued", "running"]).await);
            if *watching.borrow() && n.is_multiple_of(10) {
                for (pid, samples) in pids.iter().zip(&mut seen.memory) {
                    samples.push(resident_kib(*pid));
                }
            }
        }
        seen
    })
}

fn resident_kib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Of sorted values, the one below which a share of them lies.
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1].as_secs_f64() * 1e3
}

/// Jobs per second that end while there are always more, once the worker has warmed up.
async fn drain_rate(conn: &mut PgConnection) -> f64 {
    let (before, begin) = ended(conn, BOUND / 4).await;
    let (after, end) = ended(conn, BOUND * 5 / 8).await;
    (after - before) as f64 / (end - begin).as_secs_f64()
}

/// Waits until so many have ended; answers how many then have, and when.
async fn ended(conn: &mut PgConnection, n_jobs: u64) -> (u64, Instant) {
    let begin = Instant::now();
    loop {
        let n_ended = count(conn, &["succeeded"]).await;
        if n_ended >= n_jobs {
            return (n_ended, Instant::now());
        }
        assert!(begin.elapsed() < PATIENCE, "only {n_ended} jobs have ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Offers jobs at a rate, whatever becomes of those before, until `end`.
async fn flood(client: &Client, rate: f64, end: Instant) -> JoinSet<Answer> {
    let mut offers = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    for n in BOUND.. {
        ticks.tick().await;
        if Instant::now() >= end {
            break;
        }
        offers.spawn(offer(client.clone(), n));
    }
    offers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_at_once_keeps_its_bound_and_its_memory_and_loses_nothing() {
    let seconds = std::env::var("PENSTOCK_BACKPRESSURE_SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let cluster = Cluster::new()
        .await
        .with("PENSTOCK_LIMITS__STANDARD", BOUND)
        .with("PENSTOCK_ENGINE__MAX_SEQUENCES", SEQUENCES)
        // The rest is for the API, the services and the clients, which is where the engine of a card leaves them.
        .with("PENSTOCK_ENGINE__THREADS", 1)
        // The prefix cache fills all of the KV cache, and touches its memory, before it gives a block up: full by the warm-up.
        .with("PENSTOCK_ENGINE__KV_CACHE_MIB", 16)
        // So that records are archived from the warm-up on, and not from some moment of the measurement.
        .with("PENSTOCK_TRAJECTORIES__SEGMENT_SECONDS", 1);
    let worker = cluster.worker();
    let scheduler = cluster.scheduler();
    let api = cluster.api();
    let mut conn = PgConnection::connect(&cluster.database).await.unwrap();
    let mut accepted = BTreeSet::new();

    let (status, filled) = api.client.post("/v1/jobs:batch", &(0..BOUND).map(job).collect()).await;
    assert_eq!((status.as_u16(), &filled["accepted"]), (202, &json!(BOUND)), "{filled}");
    accepted.extend(filled["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()));
    let drain = drain_rate(&mut conn).await;
    let rate = drain * OVERLOAD;

    let pids = vec![api.process.pid(), scheduler.pid(), worker.pid()];
    let (watch_memory, watching) = watch::channel(false);
    let seen = watch_all(cluster.database.clone(), pids, watching);
    let ended_before = count(&mut conn, &["succeeded"]).await;
    let begin = Instant::now();
    let warm = begin + WARM_UP;
    let end = warm + Duration::from_secs(seconds);
    let offering = tokio::spawn({
        let client = api.client.clone();
        async move { flood(&client, rate, end).await.join_all().await }
    });
    tokio::time::sleep_until(warm.into()).await;
    watch_memory.send_replace(true);
    let answers = offering.await.unwrap();
    let n_ended = count(&mut conn, &["succeeded"]).await - ended_before;
    let flooded = begin.elapsed().as_secs_f64();
    drop(watch_memory);
    let seen = seen.await.unwrap();

    let (mut refused, mut strange) = (Vec::new(), Vec::new());
    let n_offered = answers.len();
    for answer in answers {
        match answer {
            Answer::Accepted(id) => assert!(accepted.insert(id), "an id was given twice"),
            Answer::Refused(took) => refused.push(took),
            Answer::Strange(what) => strange.push(what),
        }
    }
    refused.sort();
    println!(
        "drained {drain:.1} jobs/s before and {:.1} during {flooded:.1} s of {rate:.1} jobs/s offered: {n_offered} offered, {} \
         refused in p50 {:.2} ms, p99 {:.2} ms, at most {:.2} ms; at most {} of {BOUND} unfinished",
        n_ended as f64 / flooded,
        refused.len(),
        quantile(&refused, 0.5),
        quantile(&refused, 0.99),
        quantile(&refused, 1.0),
        seen.most_unfinished,
    );
    assert!(strange.is_empty(), "{} answers, such as {}", strange.len(), strange[0]);
    assert!(refused.len() > n_offered / 2, "the queue was not full: {} of {n_offered} refused", refused.len());
    assert!(refused.last().is_some_and(|longest| *longest < REFUSED_WITHIN), "a refusal took {:?}", refused.last());
    assert!(seen.most_unfinished <= BOUND, "{} unfinished jobs", seen.most_unfinished);
    let (_, stats) = api.client.get("/v1/stats").await;
    assert_eq!(stats["http"]["refused"], refused.len(), "{stats}");

    for (process, samples) in ["api", "scheduler", "worker"].into_iter().zip(&seen.memory) {
        let third = samples.len() / 3;
        let (first, last) = (mean(&samples[..third]), mean(&samples[samples.len() - third..]));
        let mib = |kib: f64| kib / 1024.0;
        println!(
            "memory of the {process} in MiB: first {:.1}, last {:.1}, least {:.1}, most {:.1}; first third {:.1}, last third \
             {:.1} ({:+.1} %)",
            mib(samples[0]),
            mib(samples[samples.len() - 1]),
            mib(samples.iter().copied().fold(f64::MAX, f64::min)),
            mib(samples.iter().copied().fold(0.0, f64::max)),
            mib(first),
            mib(last),
            (last / first - 1.0) * 100.0,
        );
        assert!(last <= first * (1.0 + GROWTH) + GROWTH_KIB, "the {process} grows: {samples:?}");
    }

    let begin = Instant::now();
    stream::iter(&accepted)
        .for_each_concurrent(8, |id| {
            let client = api.client.clone();
            async move {
                let ended = client.finished(id, PATIENCE).await;
                assert_eq!((&ended["status"], &ended["attempt"]), (&json!("succeeded"), &json!(1)), "{ended}");
            }
        })
        .await;
    println!("all {} accepted jobs had succeeded {:.1} s later", accepted.len(), begin.elapsed().as_secs_f64());
    let every = ["queued", "running", "succeeded", "failed", "cancelled", "expired"];
    assert_eq!(count(&mut conn, &every).await, accepted.len() as u64, "refused jobs leave nothing");
}
