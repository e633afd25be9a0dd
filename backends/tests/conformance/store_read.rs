//! Reading jobs, one tenant's at a time.

use contract::{Class, Filter, Job, JobId, JobState, JobStore, NewJob, TenantId};
use uuid::Uuid;

use crate::help::*;

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

async fn list(store: &dyn JobStore, filter: Filter) -> Vec<JobId> {
    ids(&store.list(&tenant(), &Filter { limit: 100, ..filter }).await.unwrap().jobs)
}

pub async fn tenants_see_only_their_own(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let mine = accept(&*store, job()).await.job;
    let theirs = accept(&*store, job_of("other")).await.job;
    assert!(store.get(&tenant(), &theirs).await.unwrap().is_none());
    assert!(store.get(&TenantId::from("other"), &theirs).await.unwrap().is_some());
    assert_eq!(list(&*store, Filter::default()).await, [mine]);
    assert_eq!(list(&*store, Filter { after: Some(job().id), ..Filter::default() }).await, [mine]);
}

pub async fn lists_are_newest_first_and_paged(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let jobs: Vec<NewJob> = (0..7).map(|_| job()).collect();
    store.accept(&jobs).await.unwrap();
    let newest: Vec<JobId> = jobs.iter().rev().map(|job| job.id).collect();
    let mut seen = Vec::new();
    let mut filter = Filter { limit: 3, ..Filter::default() };
    for (size, has_more) in [(3, true), (3, true), (1, false)] {
        let page = store.list(&tenant(), &filter).await.unwrap();
        assert_eq!((page.jobs.len(), page.has_more), (size, has_more));
        filter.after = page.jobs.last().map(|job| job.id);
        seen.extend(ids(&page.jobs));
        // New ones do not disturb the pages that follow.
        accept(&*store, job()).await;
    }
    assert_eq!(seen, newest);
    let exact = store.list(&tenant(), &Filter { limit: 10, ..Filter::default() }).await.unwrap();
    assert_eq!((exact.jobs.len(), exact.has_more), (10, false));
}

pub async fn filters_narrow_a_list(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let batch = Uuid::now_v7();
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let a = NewJob { metadata: pairs(&[("run", "1"), ("who", "x'y\"z")]), ..job() };
    let b = NewJob { metadata: pairs(&[("run", "1")]), class: Class::Bulk, batch_line: Some((batch, 0)), ..job() };
    let c = NewJob { metadata: pairs(&[("run", "2")]), ..job() };
    let (a_id, b_id, c_id) = (a.id, b.id, c.id);
    store.accept(&[a, b, c]).await.unwrap();
    let held = lease(&*store, a_id, 0, "w").await.unwrap().lease;
    assert!(finish(&*store, held, success()).await);
    store.cancel(&tenant(), &c_id).await.unwrap();

    let with = |pairs| Filter { metadata: pairs, ..Filter::default() };
    assert_eq!(list(&*store, with(pairs(&[("run", "1")]))).await, [b_id, a_id]);
    assert_eq!(list(&*store, with(pairs(&[("run", "1"), ("who", "x'y\"z")]))).await, [a_id]);
    assert!(list(&*store, with(pairs(&[("run", "3")]))).await.is_empty());
    assert_eq!(list(&*store, Filter { class: Some(Class::Bulk), ..Filter::default() }).await, [b_id]);
    assert_eq!(list(&*store, Filter { batch: Some(batch), ..Filter::default() }).await, [b_id]);
    let states = |states: &[JobState]| Filter { states: states.to_vec(), ..Filter::default() };
    assert_eq!(list(&*store, states(&[JobState::Succeeded])).await, [a_id]);
    assert_eq!(list(&*store, states(&[JobState::Queued, JobState::Cancelled])).await, [c_id, b_id]);
    let both = Filter { metadata: pairs(&[("run", "1")]), ..states(&[JobState::Queued]) };
    assert_eq!(list(&*store, both).await, [b_id]);
}

pub async fn a_list_leaves_records_out(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    assert!(finish(&*store, held, success()).await);
    let page = store.list(&tenant(), &Filter { limit: 1, ..Filter::default() }).await.unwrap();
    assert_eq!((page.jobs[0].state, &page.jobs[0].record), (JobState::Succeeded, &None));
}

pub async fn restart_keeps_everything(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let done = running(&*store, "w").await;
    assert!(finish(&*store, done, success()).await);
    let live = running(&*store, "w").await;
    accept(&*store, with_key("k", 1)).await;
    accept(&*store, in_sequence("s")).await;
    accept(&*store, in_sequence("s")).await;
    let (before, counters) =
        (store.list(&tenant(), &Filter { limit: 10, ..Filter::default() }).await.unwrap(), t.counters().await);
    let record = get(&*store, done.job).await.record;
    drop(store);
    t.reopen().await;
    let store = t.store();
    assert_eq!(store.list(&tenant(), &Filter { limit: 10, ..Filter::default() }).await.unwrap(), before);
    assert_eq!((t.counters().await, get(&*store, done.job).await.record), (counters, record));
    assert!(accept(&*store, with_key("k", 1)).await.replayed);
    assert!(finish(&*store, live, success()).await, "the lease outlives the store's process");
}
