//! SQLite when the disk, the file or a row is not as it should be.

use backends::{SqliteOpenError, SqliteStore};
use contract::{JobState, JobStore, NewJob, StoreError};
use futures::future::join_all;

use crate::help::*;
use crate::sqlite::Sqlite;

#[tokio::test]
async fn a_full_disk_refuses_and_loses_nothing() {
    let mut t = Sqlite::fresh().await;
    let kept = accept(&*t.store, job()).await.job;
    t.reopen_with(Some(1)).await;
    let store = t.store();
    let big = || NewJob { route: "x".repeat(200_000), ..job() };
    for _ in 0..2 {
        let err = store.accept(&[big()]).await.unwrap_err();
        assert!(matches!(err, StoreError::Unreachable(_)) && err.surely_not_applied(), "{err:?}");
    }
    assert_eq!(get(&*store, kept).await.state, JobState::Queued);
    drop(store);
    t.reopen().await;
    assert_eq!(t.counters().await["tenant:acme"], 1);
    let held = lease(&*t.store, kept, 0, "w").await.unwrap().lease;
    assert!(finish(&*t.store, held, success()).await);
    accept(&*t.store, big()).await;
}

#[tokio::test]
async fn one_bad_operation_does_not_harm_its_neighbours() {
    let t = Sqlite::fresh().await;
    t.execute(
        "CREATE TRIGGER boom BEFORE INSERT ON jobs WHEN new.route = 'boom' BEGIN SELECT raise(ABORT, 'boom'); END",
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
    assert!(answers.iter().flatten().all(|answer| answer[0].is_ok()));
    assert_eq!(t.counters().await["tenant:acme"], 57);
    assert_eq!(t.store.queued(&queue()).await.unwrap(), 57);
}

#[tokio::test]
async fn a_damaged_row_is_an_error_of_its_own() {
    let t = Sqlite::fresh().await;
    let store = t.store();
    let bad = accept(&*store, job_of("bad")).await.job;
    let good = accept(&*store, job()).await.job;
    t.execute("UPDATE jobs SET request = '{', metadata = 'x', error = '[]' WHERE tenant = 'bad'").await;
    let err = store.get(&"bad".into(), &bad).await.unwrap_err();
    let StoreError::Corrupt(what) = &err else { panic!("{err:?}") };
    assert!(what.contains(&bad.to_string()) && what.contains("metadata"), "{what}");
    // Its neighbour in the same call is leased, and its deadline ends it.
    assert!(lease(&*store, bad, 0, "w").await.is_none());
    assert!(lease(&*store, good, 0, "w").await.is_some());
    t.advance(DEADLINE).await;
    assert_eq!(store.reap(10).await.unwrap().ended.len(), 2);
}

#[tokio::test]
async fn a_damaged_history_does_not_stop_the_reaper() {
    let t = Sqlite::fresh().await;
    let (bad, good) = (running(&*t.store, "a").await, running(&*t.store, "b").await);
    t.execute("UPDATE jobs SET history = 'x' WHERE worker = 'a'").await;
    assert!(matches!(t.store.finish(&[(bad, crate::help::success())]).await, Ok(ref answers) if answers[0].is_ok()));
    let bad = running(&*t.store, "a").await;
    t.execute("UPDATE jobs SET history = 'x' WHERE worker = 'a'").await;
    t.advance(TTL).await;
    assert_eq!(t.store.reap(10).await.unwrap().requeued, [(good.job, queue())]);
    assert!(matches!(
        t.store.retry(&bad, &contract::JobError::new(contract::ErrorCode::EngineFailed, "x")).await,
        Err(StoreError::Corrupt(_))
    ));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    std::fs::write(&path, "this is a letter, not a database; it goes on for a while".repeat(100)).unwrap();
    let err = SqliteStore::open(&path).await.err().unwrap();
    assert!(matches!(err, SqliteOpenError::Open { .. }) && err.to_string().contains("jobs.db"), "{err}");
    let err = SqliteStore::open(folder.path().join("missing/jobs.db")).await.err().unwrap();
    assert!(matches!(err, SqliteOpenError::Open { .. }), "{err}");
}

#[tokio::test]
async fn a_file_of_a_newer_build_is_refused() {
    let t = Sqlite::fresh().await;
    t.execute("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', 1, x'00', 0)").await;
    let err = SqliteStore::open(t.path()).await.err().unwrap();
    assert!(matches!(err, SqliteOpenError::Migrate { .. }), "{err}");
}

#[tokio::test]
async fn all_leases_end_at_an_embedded_start() {
    let t = Sqlite::fresh().await;
    let store = t.store();
    let (a, b) = (running(&*store, "w").await, running(&*store, "w").await);
    let reaped = t.store.end_leases().await.unwrap();
    assert_eq!(reaped.requeued.len(), 2);
    for held in [a, b] {
        let shown = get(&*store, held.job).await;
        assert_eq!((shown.state, shown.losses), (JobState::Queued, 1));
        assert!(!finish(&*store, held, success()).await);
    }
    assert_eq!(t.store.end_leases().await.unwrap(), contract::Reaped::default());
}
