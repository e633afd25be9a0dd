//! Deadlines and dead workers.

use contract::{ErrorCode, JobId, JobState, JobStore, Lease, NewJob, Reaped, Wake};

use crate::help::*;

pub async fn passed_deadlines_expire(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let queued = accept(&*store, NewJob { deadline_in: secs(5), ..job() }).await.job;
    let leased = accept(&*store, NewJob { deadline_in: secs(6), ..job() }).await.job;
    lease(&*store, leased, 0, "w").await.unwrap();
    let later = accept(&*store, job()).await.job;
    assert_eq!(store.reap(10).await.unwrap(), Reaped::default());
    t.advance(secs(6)).await;
    let reaped = store.reap(10).await.unwrap();
    assert_eq!(reaped.ended, [(queued, JobState::Expired), (leased, JobState::Expired)]);
    assert_eq!(state(&*store, later).await, JobState::Queued);
    let shown = get(&*store, leased).await;
    assert_eq!((shown.state, shown.history[0]["why"].as_str()), (JobState::Expired, Some("expired")));
    assert!(get(&*store, queued).await.history.is_empty());
}

pub async fn expired_lease_is_rescued(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "dead").await;
    t.advance(TTL).await;
    assert_eq!(store.reap(10).await.unwrap(), Reaped { requeued: vec![(held.job, queue())], ended: vec![] });
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.state, shown.attempt, shown.losses, shown.errors), (JobState::Queued, 1, 1, 0));
    assert_eq!(store.due(&queue(), 10).await.unwrap(), [Wake { job: held.job, attempt: 1 }]);
    assert_eq!(lease(&*store, held.job, 1, "alive").await.unwrap().losses, 1);
}

pub async fn a_live_lease_is_left_alone(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    t.advance(TTL - secs(1)).await;
    assert_eq!(store.reap(10).await.unwrap(), Reaped::default());
    assert!(finish(&*store, held, success()).await);
}

/// Leases the jobs for one worker at the attempt each is at, and lets the worker die.
async fn die(t: &dyn StoreUnderTest, name: &str, jobs: &[JobId]) -> Reaped {
    let store = t.store();
    for id in jobs {
        let attempt = get(&*store, *id).await.attempt;
        lease(&*store, *id, attempt, name).await.unwrap();
    }
    t.advance(TTL).await;
    store.reap(100).await.unwrap()
}

pub async fn three_losses_alone_quarantine(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    for name in ["a", "b"] {
        assert_eq!(die(t, name, &[id]).await.requeued.len(), 1);
    }
    assert_eq!(die(t, "c", &[id]).await.ended, [(id, JobState::Failed)]);
    let shown = get(&*store, id).await;
    assert_eq!(shown.error.unwrap().code, ErrorCode::Quarantined);
    assert_eq!((shown.losses, shown.history.len()), (3, 3));
    assert!(shown.history.iter().all(|entry| entry["why"] == "worker_lost"));
    assert!(t.counters().await.is_empty());
}

pub async fn losses_among_others_are_not_proof(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (poison, neighbour) = (accept(&*store, job()).await.job, accept(&*store, job()).await.job);
    for n in 0..4 {
        assert_eq!(die(t, &format!("w{n}"), &[poison, neighbour]).await.requeued.len(), 2, "{n}");
    }
    for id in [poison, neighbour] {
        assert_eq!(get(&*store, id).await.losses, 2);
    }
    // Only the one that is alone when it happens again is to blame.
    assert_eq!(die(t, "last", &[poison]).await.ended, [(poison, JobState::Failed)]);
    let attempt = get(&*store, neighbour).await.attempt;
    let held = lease(&*store, neighbour, attempt, "w").await.unwrap().lease;
    assert!(finish(&*store, held, success()).await);
}

pub async fn leases_that_ran_out_at_different_times_are_no_proof(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (early, late) = (accept(&*store, job()).await.job, accept(&*store, job()).await.job);
    for name in ["a", "b"] {
        die(t, name, &[late]).await;
    }
    lease(&*store, early, 0, "w").await.unwrap();
    t.advance(secs(5)).await;
    lease(&*store, late, 2, "w").await.unwrap();
    t.advance(secs(10)).await;
    assert_eq!(store.reap(10).await.unwrap().requeued, [(early, queue())]);
    t.advance(secs(5)).await;
    assert_eq!(store.reap(10).await.unwrap().requeued, [(late, queue())], "two were there when the worker died");
}

pub async fn a_late_and_lost_job_expires(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (late, other) =
        (accept(&*store, NewJob { deadline_in: secs(10), ..job() }).await.job, accept(&*store, job()).await.job);
    for id in [late, other] {
        lease(&*store, id, 0, "w").await.unwrap();
    }
    t.advance(TTL).await;
    let reaped = store.reap(10).await.unwrap();
    assert_eq!(reaped, Reaped { requeued: vec![(other, queue())], ended: vec![(late, JobState::Expired)] });
}

async fn expired(store: &dyn JobStore, limit: u32) -> usize {
    store.reap(limit).await.unwrap().ended.len()
}

pub async fn the_limit_holds_for_deadlines(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let jobs: Vec<NewJob> = (0..10).map(|_| job()).collect();
    store.accept(&jobs).await.unwrap();
    t.advance(DEADLINE).await;
    assert_eq!(
        [expired(&*store, 4).await, expired(&*store, 4).await, expired(&*store, 4).await, expired(&*store, 4).await],
        [4, 4, 2, 0]
    );
}

pub async fn a_lost_predecessor_keeps_its_sequence(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, in_sequence("s")).await.job;
    let second = accept(&*store, in_sequence("s")).await.job;
    lease(&*store, first, 0, "dead").await.unwrap();
    t.advance(TTL).await;
    store.reap(10).await.unwrap();
    assert!(lease(&*store, second, 0, "w").await.is_none());
    lease(&*store, first, 1, "w").await.unwrap();
    t.advance(DEADLINE - TTL).await;
    // Both are past their deadline; the first one's end wakes the second, whose own end follows.
    let ended: Vec<JobId> = store.reap(10).await.unwrap().ended.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ended, [first, second]);
    assert!(!finish(&*store, Lease { job: first, attempt: 2 }, success()).await);
}
