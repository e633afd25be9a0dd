//! Sequences that a failure blocks or skips.

use std::collections::BTreeSet;

use contract::{
    ErrorCode, JobError, JobId, JobState, JobStore, NewJob, OnFailure, Outcome, QueueId, SequenceBlock, SequenceState,
    TenantId,
};

use crate::help::*;

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Succeeds,
    Fails,
    WorkerSaysExpired,
    RunsOutOfRetries,
    ExpiresRunning,
    ExpiresWaiting,
    LosesItsWorkers,
    CancelledRunning,
    CancelledWaiting,
}

const WAYS: [Way; 9] = [
    Way::Succeeds,
    Way::Fails,
    Way::WorkerSaysExpired,
    Way::RunsOutOfRetries,
    Way::ExpiresRunning,
    Way::ExpiresWaiting,
    Way::LosesItsWorkers,
    Way::CancelledRunning,
    Way::CancelledWaiting,
];

fn failed() -> Outcome {
    Outcome::Failed { error: JobError::new(ErrorCode::NotFinite, "nan"), usage: usage(1) }
}

fn blocking(key: &str) -> NewJob {
    NewJob { on_failure: OnFailure::Block, ..in_sequence(key) }
}

/// Ends a job that waits for its first lease and expires in 5 s; answers its state.
async fn end(t: &dyn StoreUnderTest, job: JobId, way: Way) -> JobState {
    let store = t.store();
    let store = &*store;
    let run = async |attempt| lease(store, job, attempt, &format!("{way:?} {attempt}")).await.unwrap().lease;
    match way {
        Way::Succeeds => assert!(finish(store, run(0).await, success()).await),
        Way::Fails => assert!(finish(store, run(0).await, failed()).await),
        Way::WorkerSaysExpired => {
            assert!(finish(store, run(0).await, Outcome::Expired { usage: usage(1) }).await);
        }
        Way::RunsOutOfRetries => {
            for attempt in 0..3 {
                let error = JobError::new(ErrorCode::EngineFailed, "step");
                store.retry(&run(attempt).await, &error).await.unwrap().unwrap();
            }
        }
        Way::ExpiresRunning | Way::ExpiresWaiting => {
            if way == Way::ExpiresRunning {
                run(0).await;
            }
            t.advance(secs(5)).await;
            store.reap(10).await.unwrap();
        }
        Way::LosesItsWorkers => {
            for attempt in 0..3 {
                run(attempt).await;
                t.advance(TTL).await;
                store.reap(10).await.unwrap();
            }
        }
        Way::CancelledRunning | Way::CancelledWaiting => {
            if way == Way::CancelledRunning {
                run(0).await;
            }
            store.cancel(&tenant(), &job).await.unwrap();
        }
    }
    state(store, job).await
}

/// The due jobs of the queue.
async fn due(store: &dyn JobStore) -> Vec<JobId> {
    store.due(&queue(), 100).await.unwrap().into_iter().map(|wake| wake.job).collect()
}

async fn sequence(store: &dyn JobStore, key: &str) -> Option<contract::Sequence> {
    store.sequence(&tenant(), key).await.unwrap()
}

/// Which job blocks a sequence.
async fn blocker(store: &dyn JobStore, key: &str) -> Option<JobId> {
    sequence(store, key).await?.block.map(|block| block.job)
}

/// A sequence with a block by its first job, and as many that wait.
async fn blocked(store: &dyn JobStore, key: &str, waiting: usize) -> (JobId, Vec<JobId>) {
    let first = accept(store, blocking(key)).await.job;
    let mut ids = Vec::new();
    for _ in 0..waiting {
        ids.push(accept(store, in_sequence(key)).await.job);
    }
    let held = lease(store, first, 0, "w").await.unwrap().lease;
    assert!(finish(store, held, failed()).await);
    (first, ids)
}

async fn resume(store: &dyn JobStore, key: &str) -> Option<QueueId> {
    store.resume_sequence(&tenant(), key).await.unwrap().unwrap().due
}

pub async fn each_end_blocks_or_skips_as_asked(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for way in WAYS {
        for on_failure in OnFailure::ALL {
            let case = format!("{way:?}, {on_failure:?}");
            let deadline_in = if matches!(way, Way::ExpiresRunning | Way::ExpiresWaiting) { secs(5) } else { DEADLINE };
            let first = accept(&*store, NewJob { on_failure, deadline_in, ..in_sequence(&case) }).await.job;
            let second = accept(&*store, in_sequence(&case)).await.job;
            let third = accept(&*store, in_sequence(&case)).await.job;
            assert_eq!(due(&*store).await, [first], "{case}");
            let ended = end(t, first, way).await;
            let expected = match way {
                Way::Succeeds => JobState::Succeeded,
                Way::Fails | Way::RunsOutOfRetries | Way::LosesItsWorkers => JobState::Failed,
                Way::WorkerSaysExpired | Way::ExpiresRunning | Way::ExpiresWaiting => JobState::Expired,
                Way::CancelledRunning | Way::CancelledWaiting => JobState::Cancelled,
            };
            assert_eq!(ended, expected, "{case}");
            let blocks = on_failure == OnFailure::Block && matches!(ended, JobState::Failed | JobState::Expired);
            let shown = sequence(&*store, &case).await.unwrap();
            let expected = if blocks { SequenceState::Blocked } else { SequenceState::Idle };
            assert_eq!((shown.state(), shown.unfinished), (expected, 2), "{case}");
            assert_eq!(shown.next, Some((second, JobState::Queued)), "{case}");
            let ended_at = get(&*store, first).await.finished_at.unwrap();
            let block = blocks.then_some(SequenceBlock { job: first, at: ended_at });
            assert_eq!(shown.block, block, "{case}");
            assert_eq!(due(&*store).await, if blocks { vec![] } else { vec![second] }, "{case}");
            assert_eq!(lease(&*store, second, 0, "w").await.is_none(), blocks, "{case}");
            for job in [second, third] {
                store.cancel(&tenant(), &job).await.unwrap();
            }
            assert!(due(&*store).await.is_empty(), "{case}");
        }
    }
}

pub async fn a_blocked_sequence_holds_what_is_accepted(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (first, _) = blocked(&*store, "s", 0).await;
    let shown = sequence(&*store, "s").await.unwrap();
    assert_eq!((shown.state(), shown.unfinished, shown.next), (SequenceState::Blocked, 0, None));
    let answers = store.accept(&[in_sequence("s"), in_sequence("s")]).await.unwrap();
    let held: Vec<JobId> =
        answers.into_iter().map(|answer| answer.unwrap()).filter(|a| a.held).map(|a| a.job).collect();
    assert_eq!(held.len(), 2);
    let by_caller = accept(&*store, NewJob { published_by_caller: true, ..in_sequence("s") }).await;
    assert!(by_caller.held);
    let all = store.accept_all(&[in_sequence("s")]).await.unwrap().unwrap();
    assert!(all[0].held);
    // Another key, and the same key of another tenant, are not concerned.
    let other = accept(&*store, in_sequence("t")).await;
    let foreign = accept(&*store, NewJob { tenant: TenantId::from("globex"), ..in_sequence("s") }).await;
    assert!(!other.held && !foreign.held);
    assert_eq!(BTreeSet::from_iter(due(&*store).await), [other.job, foreign.job].into());
    t.advance(secs(3_000)).await;
    assert_eq!(blocker(&*store, "s").await, Some(first));
    assert_eq!(sequence(&*store, "s").await.unwrap().unfinished, 4);
    assert_eq!(store.sequence(&"globex".into(), "s").await.unwrap().unwrap().block, None);
}

pub async fn resuming_wakes_the_first_and_only_that(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (_, waiting) = blocked(&*store, "s", 3).await;
    blocked(&*store, "t", 1).await;
    assert!(due(&*store).await.is_empty());
    let resumed = store.resume_sequence(&tenant(), "s").await.unwrap().unwrap();
    assert_eq!(resumed.due, Some(queue()));
    assert_eq!((resumed.sequence.state(), resumed.sequence.unfinished), (SequenceState::Idle, 3));
    assert_eq!(resumed.sequence.next, Some((waiting[0], JobState::Queued)));
    assert_eq!(due(&*store).await, [waiting[0]]);
    // Again: nothing more.
    let again = store.resume_sequence(&tenant(), "s").await.unwrap().unwrap();
    assert_eq!((again.due, again.sequence), (None, resumed.sequence));
    assert!(due(&*store).await.is_empty());
    for (nth, job) in waiting.iter().enumerate() {
        let held = lease(&*store, *job, 0, "w").await.unwrap().lease;
        assert_eq!(sequence(&*store, "s").await.unwrap().state(), SequenceState::Running);
        assert!(finish(&*store, held, failed()).await);
        assert_eq!(due(&*store).await.as_slice(), waiting.get(nth + 1).map_or(&[][..], std::slice::from_ref));
    }
    assert_eq!(sequence(&*store, "s").await, None);
    assert_eq!(sequence(&*store, "t").await.unwrap().state(), SequenceState::Blocked);
}

pub async fn of_two_resumes_at_once_one_wakes(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for n in 0..20 {
        let key = format!("s{n}");
        let (_, waiting) = blocked(&*store, &key, 2).await;
        let (a, b) = tokio::join!(resume(&*store, &key), resume(&*store, &key));
        assert_eq!(a.is_some() as u8 + b.is_some() as u8, 1, "{n}");
        assert_eq!(due(&*store).await, [waiting[0]]);
    }
}

pub async fn resuming_what_is_not_there_finds_nothing(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    assert_eq!(store.resume_sequence(&tenant(), "s").await.unwrap(), None);
    blocked(&*store, "s", 0).await;
    assert_eq!(store.resume_sequence(&"globex".into(), "s").await.unwrap(), None);
    assert!(blocker(&*store, "s").await.is_some());
    let last = store.resume_sequence(&tenant(), "s").await.unwrap().unwrap();
    assert_eq!((last.due, last.sequence.state(), last.sequence.unfinished), (None, SequenceState::Idle, 0));
    assert_eq!(store.resume_sequence(&tenant(), "s").await.unwrap(), None);
    assert_eq!(sequence(&*store, "s").await, None);
    // A sequence that was resumed can be blocked again.
    let (again, _) = blocked(&*store, "s", 1).await;
    assert_eq!(blocker(&*store, "s").await, Some(again));
    assert!(resume(&*store, "s").await.is_some());
}

pub async fn held_jobs_end_without_waking_others(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (first, waiting) = blocked(&*store, "s", 1).await;
    let late = accept(&*store, NewJob { deadline_in: secs(5), ..blocking("s") }).await.job;
    let last = accept(&*store, in_sequence("s")).await.job;
    store.cancel(&tenant(), &waiting[0]).await.unwrap();
    t.advance(secs(5)).await;
    assert_eq!(store.reap(10).await.unwrap().ended, [(late, JobState::Expired)]);
    assert!(due(&*store).await.is_empty());
    // The first block stays.
    assert_eq!(blocker(&*store, "s").await, Some(first));
    assert_eq!(sequence(&*store, "s").await.unwrap().next, Some((last, JobState::Queued)));
    assert_eq!(resume(&*store, "s").await, Some(queue()));
    assert_eq!(due(&*store).await, [last]);
}

pub async fn a_job_that_expires_behind_another_one_blocks_too(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, blocking("s")).await.job;
    let second = accept(&*store, in_sequence("s")).await.job;
    let late = accept(&*store, NewJob { deadline_in: secs(5), ..blocking("s") }).await.job;
    let held = lease(&*store, first, 0, "w").await.unwrap().lease;
    t.advance(secs(5)).await;
    store.reap(10).await.unwrap();
    assert_eq!(blocker(&*store, "s").await, Some(late));
    // Whose turn it was goes on, also after its worker gave it back.
    store.hand_back(&[held], secs(0)).await.unwrap();
    assert_eq!(due(&*store).await, [first]);
    let held = lease(&*store, first, 1, "w").await.unwrap().lease;
    assert!(finish(&*store, held, success()).await);
    assert!(due(&*store).await.is_empty());
    assert!(lease(&*store, second, 0, "w").await.is_none());
    resume(&*store, "s").await.unwrap();
    assert_eq!(due(&*store).await, [second]);
}

pub async fn of_ends_at_one_time_the_first_accepted_blocks(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for (key, first_blocks) in [("a", false), ("b", true)] {
        let late = |on_failure, seconds| NewJob { on_failure, deadline_in: secs(seconds), ..in_sequence(key) };
        let on_failure = if first_blocks { OnFailure::Block } else { OnFailure::Skip };
        let first = accept(&*store, late(on_failure, 6)).await.job;
        let second = accept(&*store, in_sequence(key)).await.job;
        let third = accept(&*store, late(OnFailure::Block, 5)).await.job;
        let fourth = accept(&*store, late(OnFailure::Block, 4)).await.job;
        lease(&*store, first, 0, "w").await.unwrap();
        t.advance(secs(6)).await;
        assert_eq!(store.reap(10).await.unwrap().ended.len(), 3, "{key}");
        assert_eq!(state(&*store, fourth).await, JobState::Expired, "{key}");
        // The one between them does not run, whoever of them was ended first.
        assert!(due(&*store).await.is_empty() && lease(&*store, second, 0, "w").await.is_none(), "{key}");
        assert_eq!(blocker(&*store, key).await, Some(if first_blocks { first } else { third }), "{key}");
    }
}

pub async fn blocked_sequences_are_listed_by_key_and_paged(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let keys = ["a", "a/b", "a b", "%61", "\u{e4}\u{1f600}", "\u{f8ff}0", "z", "'; --"];
    for key in keys {
        blocked(&*store, key, 1).await;
    }
    accept(&*store, in_sequence("not blocked")).await;
    assert_eq!(store.blocked_sequences(&"globex".into(), None, 100).await.unwrap(), (vec![], false));
    let (all, more) = store.blocked_sequences(&tenant(), None, 8).await.unwrap();
    assert!(!more);
    let mut paged = Vec::new();
    loop {
        let after = paged.last().map(|last: &contract::Sequence| last.key.clone());
        let (page, more) = store.blocked_sequences(&tenant(), after.as_deref(), 3).await.unwrap();
        assert!(page.len() == 3 || !more);
        paged.extend(page);
        if !more {
            break;
        }
    }
    assert_eq!(paged, all);
    let listed: BTreeSet<&str> = all.iter().map(|sequence| sequence.key.as_str()).collect();
    assert_eq!((listed, all.len()), (keys.into(), keys.len()));
    for listed in &all {
        assert_eq!((listed.state(), listed.unfinished), (SequenceState::Blocked, 1));
        assert_eq!(sequence(&*store, &listed.key).await.as_ref(), Some(listed));
    }
    assert_eq!(sequence(&*store, "a\0").await, None);
}

pub async fn a_block_outlives_the_process(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (first, waiting) = blocked(&*store, "s", 1).await;
    drop(store);
    t.reopen().await;
    let store = t.store();
    assert!(due(&*store).await.is_empty());
    assert_eq!(blocker(&*store, "s").await, Some(first));
    assert!(resume(&*store, "s").await.is_some());
    assert_eq!(due(&*store).await, waiting);
}

pub async fn a_job_shows_its_sequence(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, blocking("s \u{f8ff}")).await.job;
    let second = accept(&*store, in_sequence("s \u{f8ff}")).await.job;
    let alone = accept(&*store, job()).await.job;
    let key = Some("s \u{f8ff}".to_owned());
    for (id, expected) in
        [(first, (key.clone(), OnFailure::Block)), (second, (key, OnFailure::Skip)), (alone, (None, OnFailure::Skip))]
    {
        let shown = get(&*store, id).await;
        assert_eq!((shown.sequence_key, shown.on_failure), expected);
    }
}
