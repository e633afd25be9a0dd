//! What each tenant gets of a queue: by weight, whatever the others have waiting.

use std::collections::BTreeMap;

use contract::{JobStore, NewJob, TenantChange, TenantId};

use crate::help::*;

async fn weigh(t: &dyn StoreUnderTest, tenant: &str, weight: u32) {
    let change = TenantChange { weight: Some(weight), ..TenantChange::default() };
    t.admin().set_tenant(&TenantId::from(tenant), &change).await.unwrap();
}

/// Accepts so many jobs of a tenant, and remembers whose they are.
async fn backlog(store: &dyn JobStore, whose: &mut BTreeMap<contract::JobId, String>, tenant: &str, n: usize) {
    let jobs: Vec<NewJob> = (0..n).map(|_| job_of(tenant)).collect();
    for chunk in jobs.chunks(500) {
        assert!(store.accept(chunk).await.unwrap().iter().all(Result::is_ok));
    }
    whose.extend(jobs.into_iter().map(|job| (job.id, tenant.to_owned())));
}

/// One call, as the names of whose jobs came.
async fn call<'w>(store: &dyn JobStore, whose: &'w BTreeMap<contract::JobId, String>, limit: u32) -> Vec<&'w str> {
    let wakes = store.due(&queue(), limit).await.unwrap();
    wakes.into_iter().map(|wake| whose[&wake.job].as_str()).collect()
}

fn count(given: &[&str], tenant: &str) -> usize {
    given.iter().filter(|name| **name == tenant).count()
}

pub async fn shares_follow_weights_over_many_small_calls(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    weigh(t, "b", 3).await;
    backlog(&*store, &mut whose, "a", 300).await;
    backlog(&*store, &mut whose, "b", 300).await;
    let mut given = Vec::new();
    for n in 0..80_u32 {
        let limit = n % 4 + 1;
        let called = call(&*store, &whose, limit).await;
        assert_eq!(called.len(), limit as usize);
        given.extend(called);
    }
    // 80 calls for 1, 2, 3 and 4 in turn: 200 jobs, of which 50 and 150.
    let (a, b) = (count(&given, "a"), count(&given, "b"));
    assert!(a.abs_diff(50) <= 1 && b.abs_diff(150) <= 1, "{a} and {b}");
    // And on the way: of any eight in a row two.
    for eight in given.windows(8) {
        assert!((1..=3).contains(&count(eight, "a")), "{eight:?}");
    }
}

pub async fn shares_follow_weights_within_one_big_call(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    weigh(t, "b", 3).await;
    weigh(t, "c", 6).await;
    for tenant in ["a", "b", "c"] {
        backlog(&*store, &mut whose, tenant, 300).await;
    }
    let given = call(&*store, &whose, 300).await;
    let counts = ["a", "b", "c"].map(|tenant| count(&given, tenant));
    assert_eq!(counts.iter().sum::<usize>(), 300);
    for (got, expected) in counts.into_iter().zip([30, 90, 180]) {
        assert!(usize::abs_diff(got, expected) <= 1, "{counts:?}");
    }
}

pub async fn what_a_tenant_leaves_goes_to_the_others(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    weigh(t, "heavy", 1_000).await;
    backlog(&*store, &mut whose, "heavy", 2).await;
    backlog(&*store, &mut whose, "light", 300).await;
    let given = call(&*store, &whose, 100).await;
    assert_eq!((given.len(), count(&given, "heavy")), (100, 2));
    assert_eq!(call(&*store, &whose, 1_000).await.len(), 202);
    assert!(call(&*store, &whose, 10).await.is_empty());
}

pub async fn an_idle_tenants_single_job_is_in_the_next_call(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    weigh(t, "a", 3).await;
    backlog(&*store, &mut whose, "small", 1).await;
    assert_eq!(call(&*store, &whose, 4).await, ["small"]);
    backlog(&*store, &mut whose, "a", 500).await;
    backlog(&*store, &mut whose, "b", 500).await;
    for _ in 0..60 {
        call(&*store, &whose, 4).await;
    }
    backlog(&*store, &mut whose, "small", 1).await;
    backlog(&*store, &mut whose, "z-new", 1).await;
    let given = call(&*store, &whose, 4).await;
    assert_eq!((count(&given, "small"), count(&given, "z-new")), (1, 1), "{given:?}");
}

pub async fn who_was_idle_saves_nothing_up(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    backlog(&*store, &mut whose, "late", 1).await;
    backlog(&*store, &mut whose, "busy", 400).await;
    assert_eq!(call(&*store, &whose, 200).await.len(), 200);
    backlog(&*store, &mut whose, "late", 100).await;
    let given: Vec<&str> = call(&*store, &whose, 40).await;
    assert!(count(&given, "late").abs_diff(20) <= 1, "{given:?}");
}

pub async fn the_least_weight_is_not_starved_by_the_greatest(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    weigh(t, "heavy", 1_000).await;
    backlog(&*store, &mut whose, "heavy", 2_600).await;
    backlog(&*store, &mut whose, "light", 10).await;
    let mut given = Vec::new();
    for _ in 0..13 {
        given.extend(call(&*store, &whose, 200).await);
    }
    // At the start, and after each thousand of the other.
    let light: Vec<usize> = given.iter().enumerate().filter(|(_, name)| **name == "light").map(|(n, _)| n).collect();
    assert_eq!(light.len(), 3, "{light:?}");
    assert!(light.windows(2).all(|two| (999..=1_003).contains(&(two[1] - two[0]))), "{light:?}");
}

pub async fn queues_have_turns_of_their_own(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    let bulk: Vec<NewJob> = (0..50).map(|_| NewJob { class: contract::Class::Bulk, ..job_of("a") }).collect();
    store.accept(&bulk).await.unwrap();
    let bulk_queue = contract::QueueId { class: contract::Class::Bulk, ..queue() };
    assert_eq!(store.due(&bulk_queue, 50).await.unwrap().len(), 50);
    backlog(&*store, &mut whose, "a", 10).await;
    backlog(&*store, &mut whose, "b", 10).await;
    assert_eq!(call(&*store, &whose, 4).await, ["a", "b", "a", "b"]);
}

pub async fn who_is_not_ahead_of_the_clock_is_forgotten_and_keeps_its_turn(t: &mut dyn StoreUnderTest) {
    let (store, mut whose) = (t.store(), BTreeMap::new());
    let bulk = NewJob { class: contract::Class::Bulk, ..job_of("a") };
    let bulk_queue = contract::QueueId { class: contract::Class::Bulk, ..queue() };
    store.accept(&[bulk]).await.unwrap();
    assert_eq!(store.due(&bulk_queue, 1).await.unwrap().len(), 1);
    for tenant in ["a", "b", "c"] {
        backlog(&*store, &mut whose, tenant, 10).await;
    }
    assert_eq!(call(&*store, &whose, 4).await, ["a", "b", "c", "a"]);
    // The clock is where the second job of `a` stood, as are `b` and `c`; `a` is a step ahead of it, as in the other queue,
    // whose clock has not moved.
    for (limit, forgotten) in [(1, 1), (10, 1), (10, 0)] {
        assert_eq!(t.admin().forget_shares(limit).await.unwrap(), forgotten);
    }
    assert_eq!(call(&*store, &whose, 6).await, ["b", "c", "a", "b", "c", "a"]);
}
