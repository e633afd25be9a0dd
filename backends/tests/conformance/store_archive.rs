//! Records on their way into segments, and models on offer.

use contract::release::Manifest;
use contract::{
    ErrorCode, JobError, JobId, JobStore, Lease, NewJob, Outcome, RecordLocation, SegmentPlace, ServedModel,
    TrajectoryMode, Unarchived,
};

use crate::help::*;

fn place(n: u64) -> SegmentPlace {
    SegmentPlace { key: format!("trajectories/abab/2026/11/29/{n}.jsonl.zst"), offset: n * 1_000, length: 7 }
}

/// A job that keeps so much of itself and succeeded, with this record.
async fn ended(store: &dyn JobStore, trajectory: TrajectoryMode, record: RecordLocation) -> JobId {
    let lease = leased(store, trajectory).await;
    let outcome = Outcome::Succeeded { record, usage: usage(1), first_token_ms: None };
    assert!(finish(store, lease, outcome).await);
    lease.job
}

async fn leased(store: &dyn JobStore, trajectory: TrajectoryMode) -> Lease {
    let id = accept(store, NewJob { trajectory, ..job() }).await.job;
    lease(store, id, 0, "w").await.unwrap().lease
}

fn inline() -> RecordLocation {
    RecordLocation::Inline(vec![1, 2, 3])
}

fn staged() -> RecordLocation {
    RecordLocation::Staged("records/x/1.json.zst".into())
}

async fn waiting(store: &dyn JobStore) -> Vec<JobId> {
    store.unarchived(100).await.unwrap().into_iter().map(|row| row.job).collect()
}

pub async fn a_succeeded_job_waits_to_be_archived(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = ended(&*store, TrajectoryMode::Full, inline()).await;
    t.advance(secs(2)).await;
    let second = ended(&*store, TrajectoryMode::Redacted, staged()).await;
    t.advance(secs(3)).await;
    let row = |job, trajectory, record, seconds| Unarchived {
        job,
        tenant: tenant(),
        release: release(),
        trajectory,
        record,
        ended_for: secs(seconds),
    };
    let expected = [row(first, TrajectoryMode::Full, inline(), 5), row(second, TrajectoryMode::Redacted, staged(), 3)];
    assert_eq!(store.unarchived(100).await.unwrap(), expected);
    assert_eq!(store.unarchived(1).await.unwrap(), expected[..1], "first ended first");
    let shown = get(&*store, second).await;
    assert_eq!((shown.trajectory, shown.segment), (TrajectoryMode::Redacted, None));
}

pub async fn what_did_not_succeed_or_keeps_nothing_never_waits(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    ended(&*store, TrajectoryMode::Off, inline()).await;
    accept(&*store, job()).await;
    let running = leased(&*store, TrajectoryMode::Full).await;
    let failed = leased(&*store, TrajectoryMode::Full).await;
    let error = JobError::new(ErrorCode::NotFinite, "nan");
    assert!(finish(&*store, failed, Outcome::Failed { error, usage: usage(0) }).await);
    let cancelled = leased(&*store, TrajectoryMode::Full).await;
    store.cancel(&tenant(), &cancelled.job).await.unwrap();
    assert!(waiting(&*store).await.is_empty());
    // Nor can they be switched.
    let all = [running, failed, cancelled].map(|lease| (lease.job, place(1)));
    assert_eq!(store.archived(&all).await.unwrap(), [false; 3]);
    assert_eq!(get(&*store, running.job).await.segment, None);
    assert!(finish(&*store, running, success()).await, "the lease is untouched");
}

pub async fn a_full_trajectory_takes_the_records_place(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let jobs =
        [ended(&*store, TrajectoryMode::Full, inline()).await, ended(&*store, TrajectoryMode::Full, staged()).await];
    let before = [get(&*store, jobs[0]).await, get(&*store, jobs[1]).await];
    let places = [(jobs[0], place(1)), (jobs[1], place(2))];
    assert_eq!(store.archived(&places).await.unwrap(), [true, true]);
    assert!(waiting(&*store).await.is_empty());
    for ((job, place), mut before) in places.into_iter().zip(before) {
        before.record = Some(RecordLocation::Archived(place.clone()));
        before.segment = Some(place);
        assert_eq!(get(&*store, job).await, before, "nothing else changes");
    }
}

pub async fn a_redacted_trajectory_leaves_the_record(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for (n, record) in [(1, inline()), (2, staged())] {
        let job = ended(&*store, TrajectoryMode::Redacted, record.clone()).await;
        assert_eq!(store.archived(&[(job, place(n))]).await.unwrap(), [true]);
        let shown = get(&*store, job).await;
        assert_eq!((shown.record, shown.segment), (Some(record), Some(place(n))));
    }
    assert!(waiting(&*store).await.is_empty());
}

pub async fn the_first_switch_counts(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let job = ended(&*store, TrajectoryMode::Full, inline()).await;
    let other = ended(&*store, TrajectoryMode::Full, inline()).await;
    assert_eq!(store.archived(&[(job, place(1))]).await.unwrap(), [true]);
    let again = [(job, place(2)), (other, place(3)), (self::job().id, place(4)), (job, place(1))];
    assert_eq!(store.archived(&again).await.unwrap(), [false, true, false, false], "item by item");
    assert_eq!(get(&*store, job).await.segment, Some(place(1)));
    assert_eq!(get(&*store, other).await.segment, Some(place(3)));
    assert_eq!(store.archived(&[]).await.unwrap(), [false; 0]);
}

pub async fn of_concurrent_switches_one_has_each_row(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let mut jobs = Vec::new();
    for _ in 0..20 {
        jobs.push(ended(&*store, TrajectoryMode::Full, inline()).await);
    }
    let places = |n: u64, jobs: &[JobId]| jobs.iter().map(|job| (*job, place(n))).collect::<Vec<_>>();
    let backwards: Vec<JobId> = jobs.iter().rev().copied().collect();
    let (one, two) = (places(1, &jobs), places(2, &backwards));
    let (first, second) = tokio::join!(store.archived(&one), store.archived(&two));
    let (first, second) = (first.unwrap(), second.unwrap());
    for (nth, job) in jobs.iter().enumerate() {
        let (by_first, by_second) = (first[nth], second[jobs.len() - 1 - nth]);
        assert!(by_first != by_second, "row {nth} was switched by {by_first} and {by_second}");
        assert_eq!(get(&*store, *job).await.segment, Some(place(if by_first { 1 } else { 2 })));
    }
}

pub async fn places_outlive_the_process(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let job = ended(&*store, TrajectoryMode::Full, staged()).await;
    assert_eq!(store.archived(&[(job, place(1))]).await.unwrap(), [true]);
    let before = get(&*store, job).await;
    drop(store);
    t.reopen().await;
    assert_eq!(get(&*t.store(), job).await, before);
    assert!(waiting(&*t.store()).await.is_empty());
}

fn model(name: &str, sha256: &str) -> ServedModel {
    let manifest = Manifest {
        model_sha256: sha256.into(),
        engine: "penstock 0.1.0".into(),
        numerics: "any".into(),
        reading: contract::Reading::default(),
    };
    ServedModel {
        name: name.into(),
        release: manifest.fingerprint(),
        manifest,
        context_tokens: 4_294_967_295,
        longest_token_bytes: 16,
        has_chat_template: false,
        vocab_size: 9,
    }
}

pub async fn a_name_means_the_newest_release_offered(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    assert!(store.offered().await.unwrap().is_empty());
    let (a, b, newer) = (model("a", "00"), model("b", "00"), model("a", "11"));
    for model in [&a, &b, &a] {
        store.offer(model).await.unwrap();
    }
    assert_eq!(store.offered().await.unwrap(), [a.clone(), b.clone()], "once each, first offered first");
    store.offer(&newer).await.unwrap();
    assert_eq!(store.offered().await.unwrap(), [newer.clone(), b.clone()]);
    drop(store);
    t.reopen().await;
    assert_eq!(t.store().offered().await.unwrap(), [newer, b]);
}
