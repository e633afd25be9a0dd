//! The plans of the hot queries: each by the index that was made for it, on an empty table, on one of some ten thousand
//! jobs that has no statistics yet, and with statistics.

use backends::postgres::SESSION_SETTINGS;
use contract::{JobStore, NewJob, Wake};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::{Postgres, connect};
use crate::help::*;

macro_rules! query {
    ($name:literal, [$($parameter:literal),*], [$($index:literal),+]) => {
        Query {
            name: $name,
            sql: include_str!(concat!("../../../src/postgres/sql/", $name, ".sql")),
            parameters: &[$($parameter),*],
            indexes: &[$($index),+],
        }
    };
}

/// A statement, what it is called with (as SQL), and the only indexes that it may use.
struct Query {
    name: &'static str,
    sql: &'static str,
    parameters: &'static [&'static str],
    indexes: &'static [&'static str],
}

#[rustfmt::skip]
const QUERIES: [Query; 39] = [
    query!("pick_due", ["NULL", "'RELEASE'", "'standard'", "256", "1"],
        ["jobs_waiting", "turns_pkey", "shares_pkey", "tenants_pkey"]),
    query!("take_due", ["NULL", "'IDS'", "60000", "'RELEASE'", "'standard'", "7", "'queued'", "'{acme}'", "'{9}'"],
        ["jobs_pkey"]),
    query!("get_tenant", ["'acme'"], ["tenants_pkey"]),
    query!("wake_now", ["NULL", "'IDS'", "'queued'"], ["jobs_pkey"]),
    query!("lease", ["NULL", "'IDS'", "'{0,0}'", "'{w,w}'", "'{1,1}'", "'queued'"], ["jobs_pkey"]),
    query!("renew", ["NULL", "'IDS'", "'{0,0}'", "'{1,1}'", "'running'"], ["jobs_pkey"]),
    query!("lock_jobs", ["NULL", "'IDS'", "false"], ["jobs_pkey"]),
    query!("lock_free_jobs", ["NULL", "'IDS'", "false"], ["jobs_pkey"]),
    query!("change", ["NULL", "'IDS'", "'{1,1}'", "'{running,running}'", "'{failed,failed}'", "'{0,0}'", "'{0,0}'",
        "'{NULL,NULL}'", "'{NULL,NULL}'", "'{NULL,NULL}'", "'{NULL,NULL}'", "'{NULL,NULL}'", "'{0,0}'", "'{0,0}'",
        "'{0,0}'", "'{NULL,NULL}'", "'{NULL,NULL}'", "'{failed,failed}'", "'{w,w}'", "'{tenant:acme}'", "'{-1}'",
        "'{0,0}'", "'{0,0}'", "'{0,0}'"],
        ["jobs_pkey", "counters_pkey"]),
    query!("wake_successors", ["NULL", "'{acme}'", "'{s}'"], ["jobs_sequence", "jobs_pkey", "blocked_sequences_pkey"]),
    query!("blocked_sequences", ["'acme'", "''", "20"], ["blocked_sequences_pkey", "jobs_sequence"]),
    query!("get_sequence", ["'acme'", "'s'"], ["blocked_sequences_pkey", "jobs_sequence"]),
    query!("unblock_sequence", ["'acme'", "'s'"], ["blocked_sequences_pkey"]),
    query!("take_room", ["'{tenant:acme}'", "'{1}'", "'{9}'"], ["counters_pkey"]),
    query!("count", ["'{tenant:acme}'", "'{1}'"], ["counters_pkey"]),
    query!("glance", ["'{tenant:acme}'", "'IDS'"], ["counters_pkey", "jobs_pkey"]),
    query!("find_existing", ["'IDS'", "'{}'", "'{}'"], ["jobs_pkey", "jobs_line"]),
    query!("find_keys", ["NULL", "'{acme}'", "'{k}'", "86400000"], ["idempotency_pkey"]),
    query!("busy_sequences", ["'{acme}'", "'{s}'"], ["jobs_sequence", "blocked_sequences_pkey"]),
    query!("past_deadline", ["NULL", "100"], ["jobs_deadline"]),
    query!("dead_workers", ["NULL"], ["jobs_worker"]),
    query!("dead_leases", ["NULL", "'{w}'"], ["jobs_worker", "events_lost"]),
    query!("purge_keys", ["NULL", "86400000", "100"], ["idempotency_age", "idempotency_pkey"]),
    query!("queued", ["'RELEASE'", "'standard'"], ["jobs_waiting"]),
    query!("queues", [], ["jobs_unfinished"]),
    query!("get", ["NULL", "'acme'", "'ID'"], ["jobs_pkey", "jobs_tenant"]),
    query!("list", ["NULL", "'acme'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "NULL", "NULL", "NULL", "NULL", "20"],
        ["jobs_tenant"]),
    query!("unarchived", ["NULL", "100"], ["jobs_unarchived"]),
    query!("archived", ["'IDS'", "'{a#0+1,b#0+1}'", "'succeeded'"], ["jobs_pkey", "segments_pkey"]),
    query!("due_schedules", ["NULL", "100"], ["schedules_due"]),
    query!("lock_due_schedule", ["NULL", "'ID'", "now()"], ["schedules_pkey"]),
    query!("look_at_schedule", ["'ID'", "NULL", "'ID'", "'acme'"],
        ["batches_schedule_open", "batches_schedule_due", "files_pkey", "files_tenant"]),
    query!("schedule_runs", ["NULL", "'ID'", "NULL", "20"], ["batches_schedule"]),
    query!("list_schedules", ["NULL", "'acme'", "NULL", "20"], ["schedules_tenant"]),
    query!("expired_jobs", ["NULL", "500"], ["jobs_expiring", "jobs_expiring_lines", "batches_pkey"]),
    query!("lock_expired_jobs", ["'IDS'"], ["jobs_pkey"]),
    query!("empty_jobs", ["NULL", "'IDS'"], ["jobs_pkey", "batches_pkey", "batches_open", "segments_pkey"]),
    query!("unkept_segments", ["100"], ["segments_unkept"]),
    query!("unswitched_segments", ["NULL", "3600000", "100"], ["segments_announced"]),
];

async fn check(conn: &mut PgConnection, query: &Query, jobs: &[NewJob], when: &str) {
    let ids: Vec<String> = jobs.iter().take(2).map(|job| job.id.0.to_string()).collect();
    let parameters = query
        .parameters
        .join(", ")
        .replace("RELEASE", release().as_str())
        .replace("IDS", &format!("{{{}}}", ids.join(",")))
        .replace("ID", &ids[0]);
    let call = if parameters.is_empty() { String::new() } else { format!("({parameters})") };
    let name = query.name;
    let script = format!("PREPARE asked AS {}; EXPLAIN EXECUTE asked{call}; DEALLOCATE asked", query.sql);
    let rows = sqlx::raw_sql(AssertSqlSafe(script)).fetch_all(conn).await.unwrap_or_else(|err| panic!("{name}: {err}"));
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    // A hashed subplan reads its whole index.
    let walks = plan.iter().any(|line| line.contains("Seq Scan") || line.contains("hashed SubPlan"));
    let used = plan.iter().filter_map(|line| line.split(" using ").nth(1)).filter_map(|rest| rest.split(' ').next());
    let wrong: Vec<&str> = used.filter(|index| !query.indexes.contains(index)).collect();
    assert!(!walks && wrong.is_empty(), "{name}, {when}, {wrong:?}:\n{}", plan.join("\n"));
}

#[tokio::test]
async fn hot_queries_use_the_index_made_for_them() {
    let t = Postgres::fresh().await;
    let mut conn = connect(&t.database.url).await;
    for (setting, value) in SESSION_SETTINGS {
        sqlx::raw_sql(AssertSqlSafe(format!("SET {setting} = '{value}'"))).execute(&mut conn).await.unwrap();
    }
    let jobs: Vec<NewJob> = (0..20_000).map(|n| job_of(&format!("tenant-{}", n % 50))).collect();
    for query in &QUERIES {
        check(&mut conn, query, &jobs, "empty").await;
    }
    for slice in jobs.chunks(5_000) {
        assert!(
            t.store
                .accept(&slice.iter().map(|job| NewJob { bound: 50_000, ..job.clone() }).collect::<Vec<_>>())
                .await
                .unwrap()
                .iter()
                .all(Result::is_ok)
        );
    }
    // Two thirds have ended, some run, the rest waits.
    for slice in jobs[..14_000].chunks(2_000) {
        let wakes: Vec<Wake> = slice.iter().map(|job| Wake { job: job.id, attempt: 0 }).collect();
        let leased = t.store.lease(&wakes, &worker("w"), TTL).await.unwrap();
        let ended: Vec<_> = leased.into_iter().take(1_900).map(|leased| (leased.unwrap().lease, success())).collect();
        assert!(t.store.finish(&ended).await.unwrap().iter().all(Result::is_ok));
    }
    for query in &QUERIES {
        check(&mut conn, query, &jobs, "without statistics").await;
    }
    t.execute("ANALYZE jobs, counters, events, idempotency, turns, shares, tenants, blocked_sequences").await;
    for query in &QUERIES {
        check(&mut conn, query, &jobs, "with statistics").await;
    }
}
