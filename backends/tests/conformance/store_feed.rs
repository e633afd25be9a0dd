//! Which rows want a message, and who feeds.

use contract::{Class, Fingerprint, JobId, JobStore, NewJob, QueueId, Wake};

use crate::help::*;

async fn due(store: &dyn JobStore, limit: u32) -> Vec<JobId> {
    store.due(&queue(), limit).await.unwrap().into_iter().map(|wake| wake.job).collect()
}

pub async fn due_rows_are_due_once(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    assert_eq!(store.due(&queue(), 10).await.unwrap(), [Wake { job: id, attempt: 0 }]);
    assert!(due(&*store, 10).await.is_empty());
    // It is still queued, and its message still good.
    assert_eq!(store.queued(&queue()).await.unwrap(), 1);
    assert!(lease(&*store, id, 0, "w").await.is_some());
}

pub async fn an_unused_message_is_due_again_after_a_minute(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    assert_eq!(due(&*store, 10).await, [id]);
    t.advance(secs(59)).await;
    assert!(due(&*store, 10).await.is_empty());
    t.advance(secs(1)).await;
    assert_eq!(due(&*store, 10).await, [id]);
}

pub async fn a_job_published_by_its_caller_is_not_due(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, NewJob { published_by_caller: true, ..job() }).await.job;
    assert!(due(&*store, 10).await.is_empty());
    t.advance(secs(60)).await;
    assert_eq!(due(&*store, 10).await, [id]);
}

pub async fn wake_now_makes_due_at_once(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, NewJob { published_by_caller: true, ..in_sequence("s") }).await.job;
    let held = accept(&*store, in_sequence("s")).await.job;
    let leased = running(&*store, "w").await.job;
    store.wake_now(&[id, held, leased, job().id]).await.unwrap();
    assert_eq!(due(&*store, 10).await, [id]);
}

pub async fn due_takes_tenants_in_turn(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let big: Vec<NewJob> = (0..20).map(|_| job_of("big")).collect();
    let small: Vec<NewJob> = (0..2).map(|_| job_of("small")).collect();
    store.accept(&big).await.unwrap();
    store.accept(&small).await.unwrap();
    let expected = [big[0].id, small[0].id, big[1].id, small[1].id, big[2].id, big[3].id];
    assert_eq!(due(&*store, 6).await, expected);
    let rest: Vec<JobId> = big[4..].iter().map(|job| job.id).collect();
    assert_eq!(due(&*store, 100).await, rest);
}

pub async fn turns_go_on_from_call_to_call(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let big: Vec<NewJob> = (0..50).map(|_| job_of("big")).collect();
    store.accept(&big).await.unwrap();
    assert_eq!(due(&*store, 1).await.len(), 1);
    let small = [job_of("a"), job_of("z")];
    store.accept(&small).await.unwrap();
    // Fed one at a time, everybody's turn comes within a round.
    let mut served = Vec::new();
    for _ in 0..3 {
        served.extend(due(&*store, 1).await);
    }
    assert!(served.contains(&small[0].id) && served.contains(&small[1].id), "{served:?}");
}

pub async fn due_is_oldest_first_within_a_tenant(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, job()).await.job;
    let held = lease(&*store, first, 0, "w").await.unwrap().lease;
    t.advance(secs(1)).await;
    let second = accept(&*store, job()).await.job;
    t.advance(secs(1)).await;
    store.hand_back(&[held], secs(0)).await.unwrap();
    assert_eq!(due(&*store, 10).await, [first, second], "a job that comes back does not lose its place");
}

pub async fn due_respects_queue_and_limit(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let jobs: Vec<NewJob> = (0..5).map(|_| job()).collect();
    store.accept(&jobs).await.unwrap();
    accept(&*store, NewJob { class: Class::Bulk, ..job() }).await;
    accept(&*store, NewJob { release: Fingerprint("cd".repeat(32)), ..job() }).await;
    assert_eq!(due(&*store, 3).await, [jobs[0].id, jobs[1].id, jobs[2].id]);
    assert_eq!(due(&*store, 0).await, []);
    assert_eq!(due(&*store, 3).await, [jobs[3].id, jobs[4].id]);
}

pub async fn queued_leaves_out_held_and_running(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    accept(&*store, in_sequence("s")).await;
    accept(&*store, in_sequence("s")).await;
    accept(&*store, NewJob { class: Class::Bulk, ..job() }).await;
    running(&*store, "w").await;
    assert_eq!(store.queued(&queue()).await.unwrap(), 1);
}

pub async fn queues_are_those_with_unfinished_jobs(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    assert!(store.queues().await.unwrap().is_empty());
    let other = Fingerprint("cd".repeat(32));
    let bulk = NewJob { class: Class::Bulk, batch_line: Some((uuid::Uuid::now_v7(), 0)), ..job() };
    store.accept(&[job(), job(), bulk, NewJob { release: other.clone(), ..job() }]).await.unwrap();
    let ended = running(&*store, "w").await;
    let mut expected = vec![
        queue(),
        QueueId { release: release(), class: Class::Bulk },
        QueueId { release: other.clone(), class: Class::Standard },
    ];
    expected.sort();
    let mut queues = store.queues().await.unwrap();
    queues.sort();
    assert_eq!(queues, expected);
    assert!(finish(&*store, ended, success()).await);
    assert_eq!(store.queues().await.unwrap().len(), 3);
}

pub async fn the_lead_has_one_holder(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (a, b) = (worker("a"), worker("b"));
    assert!(store.lead("feeder", &a, secs(5)).await.unwrap());
    assert!(!store.lead("feeder", &b, secs(5)).await.unwrap());
    assert!(store.lead("reaper", &b, secs(5)).await.unwrap(), "another lead");
    t.advance(secs(4)).await;
    assert!(store.lead("feeder", &a, secs(5)).await.unwrap(), "kept");
    t.advance(secs(4)).await;
    assert!(!store.lead("feeder", &b, secs(5)).await.unwrap());
    t.advance(secs(1)).await;
    assert!(store.lead("feeder", &b, secs(5)).await.unwrap(), "taken over");
    assert!(!store.lead("feeder", &a, secs(5)).await.unwrap());
    // Given back by whoever has it, and by nobody else.
    assert!(!store.lead("feeder", &a, secs(0)).await.unwrap());
    assert!(!store.lead("feeder", &a, secs(5)).await.unwrap());
    store.lead("feeder", &b, secs(0)).await.unwrap();
    assert!(store.lead("feeder", &a, secs(5)).await.unwrap(), "given back");
    store.lead("archiver", &a, secs(0)).await.unwrap();
    assert!(store.lead("archiver", &b, secs(5)).await.unwrap(), "never held");
}
