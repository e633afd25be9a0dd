//! Postgres when the server, the tables or a row are not as they should be.

use std::time::{Duration, Instant};

use backends::postgres::{PostgresOpenError, PostgresStore, migrate};
use contract::{ErrorCode, JobError, JobState, JobStore, NewJob, StoreError};
use futures::future::join_all;

use super::{Database, Postgres, connect};
use crate::help::*;

#[tokio::test]
async fn a_database_without_tables_is_refused_by_name() {
    let database = Database::empty().await;
    let err = PostgresStore::connect(&database.url).await.err().unwrap();
    assert!(matches!(err, PostgresOpenError::NotMigrated { .. }), "{err:?}");
    assert!(err.to_string().contains("penstock migrate"), "{err}");
}

#[tokio::test]
async fn of_two_migrations_at_once_one_waits() {
    let database = Database::empty().await;
    let (a, b) = tokio::join!(migrate(&database.url), migrate(&database.url));
    let applied: Vec<i64> = [a.unwrap(), b.unwrap()].concat();
    assert!(applied.contains(&1), "{applied:?}");
    assert_eq!(migrate(&database.url).await.unwrap(), Vec::<i64>::new());
    accept(&PostgresStore::connect(&database.url).await.unwrap(), job()).await;
}

#[tokio::test]
async fn tables_of_a_newer_build_are_refused() {
    let t = Postgres::fresh().await;
    t.execute("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', true, '', 0)").await;
    let err = PostgresStore::connect(&t.database.url).await.err().unwrap();
    assert!(matches!(err, PostgresOpenError::Newer { version: 9999 }), "{err:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_in_seconds() {
    let began = Instant::now();
    let err = PostgresStore::connect("postgres://penstock:secret@127.0.0.1:1/penstock").await.err().unwrap();
    assert!(matches!(err, PostgresOpenError::Connect(_) | PostgresOpenError::Slow), "{err:?}");
    assert!(began.elapsed() < Duration::from_secs(6) && !format!("{err:?}").contains("secret"), "{err:?}");
    let err = PostgresStore::connect("mysql://u:secret@h/d").await.err().unwrap();
    assert!(matches!(err, PostgresOpenError::Url(_)) && !err.to_string().contains("secret"), "{err:?}");
}

#[tokio::test]
async fn one_bad_operation_does_not_harm_its_neighbours() {
    let t = Postgres::fresh().await;
    t.execute(
        "CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'boom'; END $$;
         CREATE TRIGGER boom BEFORE INSERT ON jobs FOR EACH ROW WHEN (new.route = 'boom') EXECUTE FUNCTION boom()",
    )
    .await;
    let submits = (0..64).map(|n| {
        let store = t.store();
        let route = if n % 10 == 3 { "boom" } else { "fine" };
        tokio::spawn(async move { store.accept(&[NewJob { route: route.into(), ..job() }]).await })
    });
    let answers: Vec<_> = join_all(submits).await.into_iter().map(Result::unwrap).collect();
    let bad: Vec<usize> = (0..64).filter(|n| answers[*n].is_err()).collect();
    assert_eq!(bad, [3, 13, 23, 33, 43, 53, 63]);
    assert!(matches!(answers[3], Err(StoreError::Corrupt(_))), "{:?}", answers[3]);
    assert!(answers.iter().flatten().all(|answer| answer[0].is_ok()));
    assert_eq!(t.counters().await["tenant:acme"], 57);
    assert_eq!(t.store.queued(&queue()).await.unwrap(), 57);
}

#[tokio::test]
async fn a_damaged_row_is_an_error_of_its_own() {
    let t = Postgres::fresh().await;
    let store = t.store();
    let bad = accept(&*store, job_of("bad")).await.job;
    let good = accept(&*store, job()).await.job;
    t.execute("UPDATE jobs SET request = '{}', metadata = '[1]', error = '[]' WHERE tenant = 'bad'").await;
    let err = store.get(&"bad".into(), &bad).await.unwrap_err();
    let StoreError::Corrupt(what) = &err else { panic!("{err:?}") };
    assert!(what.contains(&bad.to_string()) && what.contains("metadata"), "{what}");
    // Its neighbour in the same call is leased; it stays queued itself, and its deadline ends it.
    let wakes = [bad, good].map(|job| contract::Wake { job, attempt: 0 });
    let leased = store.lease(&wakes, &worker("w"), TTL).await.unwrap();
    assert!(leased[0].is_none() && leased[1].is_some());
    assert_eq!(t.events(bad).await.len(), 1);
    assert_eq!(store.queued(&queue()).await.unwrap(), 1);
    t.advance(DEADLINE).await;
    assert_eq!(store.reap(10).await.unwrap().ended.len(), 2);
}

#[tokio::test]
async fn a_damaged_history_does_not_stop_the_reaper() {
    let t = Postgres::fresh().await;
    let (bad, good) = (running(&*t.store, "a").await, running(&*t.store, "b").await);
    t.execute("UPDATE jobs SET history = '5' WHERE worker = 'a'").await;
    assert!(finish(&*t.store, bad, success()).await);
    let bad = running(&*t.store, "a").await;
    t.execute("UPDATE jobs SET history = '5' WHERE worker = 'a'").await;
    t.advance(TTL).await;
    assert_eq!(t.store.reap(10).await.unwrap().requeued, [(good.job, queue())]);
    let err = t.store.retry(&bad, &JobError::new(ErrorCode::EngineFailed, "x")).await;
    assert!(matches!(err, Err(StoreError::Corrupt(_))), "{err:?}");
}

#[tokio::test]
async fn cut_sessions_are_opened_anew() {
    let t = Postgres::fresh().await;
    let store = t.store();
    let mut ends = 0;
    for _ in 0..5 {
        // What a restart of the server does to sessions that idle.
        t.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").await;
        let job = accept(&*store, job()).await.job;
        assert_eq!(state(&*store, job).await, JobState::Queued);
        // A statement that commits by itself may be unanswered once.
        if let Some(leased) = store
            .lease(&[contract::Wake { job, attempt: 0 }], &worker("w"), TTL)
            .await
            .ok()
            .and_then(|mut l| l.remove(0))
        {
            assert!(finish(&*store, leased.lease, success()).await);
            ends += 1;
        }
    }
    assert!(ends > 0);
    let queued: i64 = t.counters().await.get("tenant:acme").copied().unwrap_or(0);
    assert_eq!(queued, 5 - ends);
}

#[tokio::test]
async fn deleting_a_job_deletes_what_belongs_to_it() {
    let t = Postgres::fresh().await;
    let id = accept(&*t.store, with_key("k", 1)).await.job;
    let held = lease(&*t.store, id, 0, "w").await.unwrap().lease;
    t.store.cancel(&tenant(), &id).await.unwrap();
    t.store.usage(&held, usage(3)).await.unwrap();
    t.execute("DELETE FROM jobs").await;
    let mut conn = connect(&t.database.url).await;
    let left: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM idempotency) + (SELECT count(*) FROM attempt_usage)",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(left, 0);
}
