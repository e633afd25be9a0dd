//! Many callers of two processes' stores do everything at once: nobody sees a deadlock, and the counters are exact.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{Class, ErrorCode, JobError, JobId, JobStore, Lease, NewJob, OnFailure, Outcome, Refused, Wake};
use futures::future::join_all;
use sqlx::Row;
use uuid::Uuid;

use super::{Postgres, connect};
use crate::help::*;

const CALLERS: u64 = 32;
const TURNS: usize = 60;
const BOUND: u64 = 200;

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

fn some_job(random: &mut Random) -> NewJob {
    let new = NewJob {
        bound: BOUND,
        class: [Class::Interactive, Class::Standard, Class::Bulk][random.below(3)],
        deadline_in: secs(5 + random.below(60) as u64),
        ..job_of(["a", "b", "c"][random.below(3)])
    };
    match random.below(8) {
        0 => NewJob {
            sequence_key: Some(random.below(4).to_string()),
            on_failure: OnFailure::ALL[random.below(2)],
            ..new
        },
        1 => NewJob {
            batch_line: Some((Uuid::from_u128(7), u32::try_from(random.below(500)).unwrap())),
            tenant: "a".into(),
            ..new
        },
        2 => NewJob { idempotency: with_key(&random.below(50).to_string(), 1).idempotency, ..new },
        _ => new,
    }
}

/// One caller: random operations on what the others left, too.
async fn call(t: Arc<Postgres>, store: Arc<dyn JobStore>, seed: u64) {
    let mut random = Random(seed);
    let mut known: Vec<NewJob> = Vec::new();
    let mut leases: Vec<Lease> = Vec::new();
    let name = format!("w{}", seed % 7);
    for _ in 0..TURNS {
        match random.below(13) {
            0..=2 => {
                let mut jobs: Vec<NewJob> = (0..=random.below(8)).map(|_| some_job(&mut random)).collect();
                // What somebody does who did not get an answer.
                jobs.extend(known.last().cloned());
                let answers = store.accept(&jobs).await.unwrap();
                for (job, answer) in jobs.into_iter().zip(answers) {
                    match answer {
                        Ok(_) => known.push(job),
                        Err(refused) => assert!(matches!(refused, Refused::QueueFull { .. }), "{refused}"),
                    }
                }
            }
            3 | 4 => {
                for class in Class::ALL {
                    let wakes = store.due(&contract::QueueId { class, ..queue() }, 5).await.unwrap();
                    leases.extend(take(&*store, &wakes, &name).await);
                }
            }
            5 => {
                let wakes: Vec<Wake> = known.iter().rev().take(6).map(|job| Wake { job: job.id, attempt: 0 }).collect();
                leases.extend(take(&*store, &wakes, &name).await);
            }
            6 | 7 => {
                let mut outcome = || match random.below(4) {
                    0 => Outcome::Failed { error: JobError::new(ErrorCode::NotFinite, "x"), usage: usage(1) },
                    _ => success(),
                };
                let ended: Vec<(Lease, Outcome)> =
                    leases.drain(..leases.len() / 2).map(|lease| (lease, outcome())).rev().collect();
                store.finish(&ended).await.unwrap();
            }
            8 => {
                store.hand_back(&leases.split_off(leases.len() / 2), secs(0)).await.unwrap();
                if let Some(lease) = leases.pop() {
                    let _ = store.retry(&lease, &JobError::new(ErrorCode::EngineFailed, "x")).await.unwrap();
                }
            }
            9 => {
                if !known.is_empty() {
                    let job = &known[random.below(known.len())];
                    store.cancel(&job.tenant, &job.id).await.unwrap();
                }
                let jobs: Vec<JobId> = known.iter().take(5).map(|job| job.id).collect();
                store.wake_now(&jobs).await.unwrap();
            }
            10 => {
                leases.reverse();
                store.renew(&leases, TTL).await.unwrap();
                if let Some(lease) = leases.first() {
                    store.usage(lease, usage(1)).await.unwrap();
                }
            }
            11 => {
                let tenant = ["a", "b", "c"][random.below(3)].into();
                store.resume_sequence(&tenant, &random.below(4).to_string()).await.unwrap();
            }
            _ => {
                t.advance(secs(1)).await;
                store.reap(50).await.unwrap();
            }
        }
    }
}

async fn take(store: &dyn JobStore, wakes: &[Wake], name: &str) -> Vec<Lease> {
    let leased = store.lease(wakes, &worker(name), TTL).await.unwrap();
    leased.into_iter().flatten().map(|leased| leased.lease).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_at_once_keep_the_counters_exact() {
    let t = Arc::new(Postgres::fresh().await);
    let stores: [Arc<dyn JobStore>; 2] = [t.store(), t.another().await];
    let callers = (0..CALLERS).map(|n| tokio::spawn(call(t.clone(), stores[usize::from(n % 2 == 0)].clone(), n)));
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    // Counted from the rows, in SQL of its own.
    let mut conn = connect(&t.database.url).await;
    let rows = sqlx::query(
        "SELECT name, count(*) FROM (
             SELECT 'lines:' || tenant AS name FROM jobs WHERE batch IS NOT NULL AND finished_at IS NULL
             UNION ALL SELECT 'tenant:' || tenant FROM jobs WHERE batch IS NULL AND finished_at IS NULL
             UNION ALL SELECT 'queue:' || release || ':' || class FROM jobs WHERE batch IS NULL AND finished_at IS NULL
         ) AS names GROUP BY name",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    let counted: BTreeMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(t.counters().await, counted);
    assert!(counted.iter().filter(|(name, _)| name.starts_with("queue:")).all(|(_, n)| *n <= BOUND.cast_signed()));
    // Each job has one event more than it has had leases, failures and ends; and no sequence is stuck.
    let odd: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM jobs WHERE attempt <> (SELECT count(*) FROM events WHERE job = id AND kind = 'leased')
            OR (finished_at IS NOT NULL)::int <> (SELECT count(*) FROM events WHERE job = id AND state IN ('succeeded', 'failed', 'cancelled', 'expired'))",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(odd, 0);
    let stuck: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT DISTINCT ON (tenant, sequence_key) tenant, sequence_key, held FROM jobs
         WHERE sequence_key IS NOT NULL AND finished_at IS NULL ORDER BY tenant, sequence_key, seq) AS first
         WHERE held AND (tenant, sequence_key) NOT IN (SELECT tenant, sequence_key FROM blocked_sequences)",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(stuck, 0);
    let blocked_by_others: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM blocked_sequences AS blocked LEFT JOIN jobs ON jobs.id = blocked.job
         WHERE (jobs.tenant, jobs.sequence_key) IS DISTINCT FROM (blocked.tenant, blocked.sequence_key)
            OR jobs.on_failure <> 'block' OR jobs.state NOT IN ('failed', 'expired') OR jobs.finished_at <> blocked.at",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(blocked_by_others, 0);
    let running_beside: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE sequence_key IS NOT NULL AND finished_at IS NULL AND NOT held
         GROUP BY tenant, sequence_key HAVING count(*) > 1) AS double",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(running_beside, 0);
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&mut conn)
            .await
            .unwrap();
    assert_eq!(deadlocks, 0, "the order of locks holds");
}
