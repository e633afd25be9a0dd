//! Leases.

use contract::{Class, JobState, Lease, NewJob, Wake};
use futures::future::join_all;

use crate::help::*;

pub async fn live_lease_is_exclusive(t: &mut dyn StoreUnderTest) {
    let id = accept(&*t.store(), job()).await.job;
    let tries = (0..16).map(|n| {
        let store = t.store();
        tokio::spawn(async move { lease(&*store, id, 0, &format!("w{n}")).await })
    });
    let won = join_all(tries).await.into_iter().filter(|answer| answer.as_ref().unwrap().is_some()).count();
    assert_eq!(won, 1);
    assert!(lease(&*t.store(), id, 1, "late").await.is_none());
    let shown = get(&*t.store(), id).await;
    assert_eq!((shown.state, shown.attempt), (JobState::Running, 1));
    assert_eq!(shown.started_at, Some(shown.now));
}

pub async fn a_lease_needs_the_right_attempt(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    assert!(lease(&*store, id, 1, "w").await.is_none());
    let held = lease(&*store, id, 0, "w").await.unwrap().lease;
    store.hand_back(&[held], secs(0)).await.unwrap();
    // The message of the first attempt comes a second time.
    assert!(lease(&*store, id, 0, "w").await.is_none());
    assert_eq!(lease(&*store, id, 1, "w").await.unwrap().lease, Lease { job: id, attempt: 2 });
}

pub async fn a_lease_carries_the_job(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let new = NewJob { class: Class::Interactive, traceparent: Some("00-aa-bb-01".into()), ..job() };
    accept(&*store, new.clone()).await;
    t.advance(secs(600)).await;
    let leased = lease(&*store, new.id, 0, "w").await.unwrap();
    assert_eq!((leased.tenant, leased.class, leased.request), (new.tenant, new.class, new.request));
    assert_eq!((leased.seed, leased.losses, leased.traceparent), (7, 0, new.traceparent));
    assert_eq!(leased.deadline_in, secs(3_000));
}

pub async fn no_lease_past_the_deadline(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    t.advance(DEADLINE).await;
    assert!(lease(&*store, id, 0, "w").await.is_none());
}

pub async fn no_lease_of_a_held_job(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    accept(&*store, in_sequence("s")).await;
    let second = accept(&*store, in_sequence("s")).await;
    assert!(lease(&*store, second.job, 0, "w").await.is_none());
}

pub async fn no_lease_of_an_unknown_job(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let known = accept(&*store, job()).await.job;
    let wakes = [Wake { job: job().id, attempt: 0 }, Wake { job: known, attempt: 0 }];
    let answers = store.lease(&wakes, &worker("w"), TTL).await.unwrap();
    assert!(answers[0].is_none() && answers[1].is_some());
}

pub async fn renewing_returns_the_lost_ones(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (kept, cancelled) = (running(&*store, "w").await, running(&*store, "w").await);
    store.cancel(&tenant(), &cancelled.job).await.unwrap();
    let stale = Lease { job: kept.job, attempt: 7 };
    let unknown = Lease { job: job().id, attempt: 1 };
    let lost = store.renew(&[stale, kept, cancelled, unknown], TTL).await.unwrap();
    assert_eq!(lost, [stale, cancelled, unknown]);
}

pub async fn renewing_keeps_the_reaper_away(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    for _ in 0..5 {
        t.advance(secs(10)).await;
        assert!(store.renew(&[held], TTL).await.unwrap().is_empty());
        assert!(store.reap(10).await.unwrap().requeued.is_empty());
    }
    assert_eq!(state(&*store, held.job).await, JobState::Running);
}

pub async fn handing_back_spends_nothing(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    for attempt in 0..5 {
        let held = lease(&*store, id, attempt, "w").await.unwrap().lease;
        store.hand_back(&[held, held], secs(0)).await.unwrap();
    }
    let shown = get(&*store, id).await;
    assert_eq!((shown.state, shown.attempt), (JobState::Queued, 5));
    assert_eq!((shown.errors, shown.losses, shown.error), (0, 0, None));
    assert_eq!(shown.history.len(), 5);
    assert_eq!(shown.history[4]["why"], "handed_back");
    assert_eq!(shown.history[4]["attempt"], 5);
    assert_eq!(shown.history[4]["worker"], "w");
}

pub async fn hand_back_waits_its_delay(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    store.hand_back(&[held], secs(3)).await.unwrap();
    assert!(store.due(&queue(), 10).await.unwrap().is_empty());
    t.advance(secs(3)).await;
    assert_eq!(store.due(&queue(), 10).await.unwrap(), [Wake { job: held.job, attempt: 1 }]);
}
