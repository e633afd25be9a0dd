//! Tenants: what is said of them, and the bound of their unfinished jobs.

use std::collections::BTreeMap;

use contract::{Class, LimitChange, NewJob, Refused, TenantChange, TenantId, TenantLimits, TenantPolicy, Timestamp};

use crate::help::*;

fn limited(tenant: &str, bound: u64) -> NewJob {
    NewJob { tenant_bound: Some(bound), ..job_of(tenant) }
}

fn full(bound: u64) -> Refused {
    Refused::TenantFull { bound }
}

pub async fn a_tenant_is_kept_as_it_was_set(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    assert_eq!(admin.tenant(&tenant()).await.unwrap(), None);
    let change = TenantChange {
        requests_per_minute: LimitChange::Set(60),
        tokens_per_minute: LimitChange::Set(1_000_000_000),
        concurrent_requests: LimitChange::Set(1),
        queued_jobs: LimitChange::Set(5),
        weight: Some(1_000),
    };
    let set = admin.set_tenant(&tenant(), &change).await.unwrap();
    let limits = TenantLimits {
        requests_per_minute: Some(60),
        tokens_per_minute: Some(1_000_000_000),
        concurrent_requests: Some(1),
        queued_jobs: Some(5),
    };
    assert_eq!((&set.id, set.policy), (&tenant(), TenantPolicy { limits, weight: 1_000 }));
    assert_eq!(set.created_at, set.changed_at);
    t.reopen().await;
    assert_eq!(t.admin().tenant(&tenant()).await.unwrap(), Some(set));
    assert_eq!(t.admin().tenant(&TenantId::from("globex")).await.unwrap(), None);
}

pub async fn what_is_not_changed_of_a_tenant_stays(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    let first = TenantChange {
        requests_per_minute: LimitChange::Set(60),
        tokens_per_minute: LimitChange::Set(600),
        ..TenantChange::default()
    };
    let first = admin.set_tenant(&tenant(), &first).await.unwrap();
    assert_eq!(first.policy.weight, 1, "what is not said is the default");
    t.advance(secs(5)).await;
    let second = TenantChange {
        requests_per_minute: LimitChange::Clear,
        queued_jobs: LimitChange::Set(3),
        weight: Some(4),
        ..TenantChange::default()
    };
    let second = admin.set_tenant(&tenant(), &second).await.unwrap();
    let limits = TenantLimits { tokens_per_minute: Some(600), queued_jobs: Some(3), ..TenantLimits::default() };
    assert_eq!(second.policy, TenantPolicy { limits, weight: 4 });
    assert_eq!((second.created_at, second.changed_at), (first.created_at, Timestamp(first.created_at.0 + 5_000)));
    let third = admin.set_tenant(&tenant(), &TenantChange::default()).await.unwrap();
    assert_eq!(third.policy, second.policy);
}

pub async fn a_deleted_tenant_is_back_at_its_defaults(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    let change = TenantChange { queued_jobs: LimitChange::Set(1), ..TenantChange::default() };
    admin.set_tenant(&tenant(), &change).await.unwrap();
    assert!(admin.delete_tenant(&tenant()).await.unwrap());
    assert_eq!(admin.tenant(&tenant()).await.unwrap(), None);
    assert!(!admin.delete_tenant(&tenant()).await.unwrap());
}

pub async fn tenants_are_listed_by_name(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    assert_eq!(admin.tenants().await.unwrap(), []);
    for name in ["b", "a.b", "Z", "a-b"] {
        admin.set_tenant(&TenantId::from(name), &TenantChange::default()).await.unwrap();
    }
    let names: Vec<String> = admin.tenants().await.unwrap().into_iter().map(|tenant| tenant.id.0).collect();
    assert_eq!(names, ["Z", "a-b", "a.b", "b"], "by bytes, as both stores can");
}

pub async fn a_tenants_bound_is_exact_under_concurrent_accepts(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let calls = (0..64).map(|n| {
        let store = t.store();
        let class = [Class::Standard, Class::Bulk][n % 2];
        // In two queues, and beside somebody else's.
        let jobs = [NewJob { class, ..limited("acme", 37) }, job_of("globex")];
        tokio::spawn(async move { store.accept(&jobs).await.unwrap() })
    });
    let mut accepted = 0;
    for call in calls.collect::<Vec<_>>() {
        let answers = call.await.unwrap();
        match &answers[0] {
            Ok(_) => accepted += 1,
            Err(refused) => assert_eq!(*refused, full(37)),
        }
        assert!(answers[1].is_ok());
    }
    assert_eq!(accepted, 37);
    assert_eq!(t.admin().unfinished_jobs(&tenant()).await.unwrap(), 37);
    assert_eq!(store.accept(&[limited("acme", 38)]).await.unwrap().remove(0).map(|accepted| accepted.held), Ok(false));
}

pub async fn a_full_tenant_is_refused_and_leaves_nothing(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, limited("acme", 2)).await.job;
    accept(&*store, NewJob { class: Class::Interactive, ..limited("acme", 2) }).await;
    let before = t.counters().await;
    // More than once: after the first refusal it may be told in a shorter way.
    for _ in 0..3 {
        assert_eq!(store.accept(&[limited("acme", 2)]).await.unwrap(), [Err(full(2))]);
        assert_eq!(
            store.accept(&[limited("acme", 2), limited("acme", 2)]).await.unwrap(),
            [Err(full(2)), Err(full(2))]
        );
    }
    assert_eq!(t.counters().await, before, "no room of the queue is kept either");
    // Others have room, and so has it where it is not limited.
    accept(&*store, limited("globex", 2)).await;
    let lease = lease(&*store, first, 0, "w").await.unwrap().lease;
    assert_eq!(store.accept(&[limited("acme", 2)]).await.unwrap(), [Err(full(2))], "what runs is unfinished too");
    assert!(finish(&*store, lease, success()).await);
    accept(&*store, limited("acme", 2)).await;
    assert_eq!(store.accept(&[limited("acme", 2)]).await.unwrap(), [Err(full(2))]);
    accept(&*store, job_of("acme")).await;
    assert_eq!(t.admin().unfinished_jobs(&tenant()).await.unwrap(), 3);
    assert_eq!(t.admin().unfinished_jobs(&TenantId::from("nobody")).await.unwrap(), 0);
}

pub async fn of_a_call_a_tenant_gets_what_fits(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let jobs: Vec<NewJob> = (0..5).map(|_| limited("acme", 3)).collect();
    let answers = store.accept(&jobs).await.unwrap();
    let refused: Vec<bool> = answers.iter().map(Result::is_err).collect();
    assert_eq!(refused, [false, false, false, true, true]);
    // All or none.
    assert_eq!(store.accept_all(&[limited("globex", 9), limited("acme", 3)]).await.unwrap(), Err((1, full(3))));
    let queue = format!("queue:{}:standard", release());
    let expected = BTreeMap::from([(queue, 3), ("tenant:acme".to_owned(), 3)]);
    assert_eq!(t.counters().await, expected);
}

pub async fn batch_lines_are_not_a_tenants_queued_jobs(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let batch = uuid::Uuid::now_v7();
    let lines: Vec<NewJob> =
        (0..5).map(|line| NewJob { batch_line: Some((batch, line)), ..limited("acme", 1) }).collect();
    assert!(store.accept(&lines).await.unwrap().iter().all(Result::is_ok));
    assert_eq!(t.admin().unfinished_jobs(&tenant()).await.unwrap(), 0);
    accept(&*store, limited("acme", 1)).await;
}

pub async fn a_full_tenants_keys_still_find_their_jobs(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let keyed = NewJob { tenant_bound: Some(1), ..with_key("k", 1) };
    let first = accept(&*store, keyed.clone()).await;
    for _ in 0..2 {
        assert_eq!(store.accept(&[limited("acme", 1)]).await.unwrap(), [Err(full(1))]);
    }
    let again = accept(&*store, NewJob { id: contract::JobId::new(), ..keyed }).await;
    assert_eq!((again.job, again.replayed), (first.job, true));
}
