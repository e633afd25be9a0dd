//! How jobs end.

use contract::{CancelAnswer, ErrorCode, JobError, JobState, NewJob, Outcome, RecordLocation, Usage, Wake};

use crate::help::*;

fn broken() -> JobError {
    JobError::new(ErrorCode::EngineFailed, "a step failed")
}

fn failed() -> Outcome {
    Outcome::Failed {
        error: JobError::new(ErrorCode::ContextLengthExceeded, "too long").with_param("messages"),
        usage: usage(0),
    }
}

pub async fn a_result_is_kept(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    t.advance(secs(2)).await;
    assert!(finish(&*store, held, success()).await);
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.state, shown.attempt), (JobState::Succeeded, 1));
    assert_eq!(shown.record, Some(RecordLocation::Inline(vec![1, 2, 3])));
    assert_eq!(shown.usage, usage(5));
    let started = shown.started_at.unwrap();
    assert_eq!(shown.finished_at.unwrap().millis_since(started), 2_000);
    assert_eq!(shown.first_token_at.unwrap().millis_since(started), 40);
    assert_eq!((shown.error, shown.history.len()), (None, 0));
}

pub async fn a_staged_result_is_kept(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    let record = RecordLocation::Staged("records/x/1".into());
    let outcome = Outcome::Succeeded { record: record.clone(), usage: usage(1), first_token_ms: None };
    assert!(finish(&*store, held, outcome).await);
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.record, shown.first_token_at), (Some(record), None));
}

pub async fn late_finish_is_refused(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = running(&*store, "dead").await;
    t.advance(TTL).await;
    assert_eq!(store.reap(10).await.unwrap().requeued.len(), 1);
    assert!(!finish(&*store, first, success()).await);
    let second = lease(&*store, first.job, 1, "alive").await.unwrap().lease;
    // The zombie comes back while the second attempt runs, and after it.
    assert!(!finish(&*store, first, failed()).await);
    assert!(finish(&*store, second, success()).await);
    assert!(!finish(&*store, first, failed()).await);
    let shown = get(&*store, first.job).await;
    assert_eq!((shown.state, shown.attempt), (JobState::Succeeded, 2));
}

pub async fn terminal_is_immutable(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    assert!(finish(&*store, held, success()).await);
    let before = get(&*store, held.job).await;
    assert!(!finish(&*store, held, failed()).await);
    assert!(store.retry(&held, &broken()).await.unwrap().is_err());
    store.hand_back(&[held], secs(0)).await.unwrap();
    store.wake_now(&[held.job]).await.unwrap();
    assert_eq!(store.renew(&[held], TTL).await.unwrap(), [held]);
    assert_eq!(store.cancel(&tenant(), &held.job).await.unwrap(), CancelAnswer::AlreadyEnded(JobState::Succeeded));
    assert!(lease(&*store, held.job, 1, "w").await.is_none());
    assert_eq!(store.reap(10).await.unwrap(), contract::Reaped::default());
    assert_eq!(get(&*store, held.job).await, before);
    assert_eq!(t.events(held.job).await.len(), 3);
}

pub async fn no_result_after_the_deadline(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    t.advance(DEADLINE).await;
    assert!(!finish(&*store, held, success()).await);
    assert_eq!(store.reap(10).await.unwrap().ended, [(held.job, JobState::Expired)]);
    assert_eq!(get(&*store, held.job).await.record, None);
}

pub async fn a_permanent_error_fails_at_once(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    assert!(finish(&*store, held, failed()).await);
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.state, shown.errors), (JobState::Failed, 0));
    let error = shown.error.unwrap();
    assert_eq!((error.code, error.param.as_deref()), (ErrorCode::ContextLengthExceeded, Some("messages")));
    assert_eq!(shown.history[0]["why"], "context_length_exceeded: too long");
}

pub async fn an_expired_outcome_expires(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    assert!(finish(&*store, held, Outcome::Expired { usage: usage(3) }).await);
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.state, shown.usage), (JobState::Expired, usage(3)));
}

pub async fn counters_return_to_zero(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    assert!(finish(&*store, running(&*store, "w").await, success()).await);
    assert!(finish(&*store, running(&*store, "w").await, failed()).await);
    assert!(finish(&*store, running(&*store, "w").await, Outcome::Expired { usage: usage(0) }).await);
    store.cancel(&tenant(), &running(&*store, "w").await.job).await.unwrap();
    store.cancel(&tenant(), &accept(&*store, job()).await.job).await.unwrap();
    accept(&*store, NewJob { batch_line: Some((uuid::Uuid::now_v7(), 0)), ..job() }).await;
    accept(&*store, job()).await;
    assert!(!t.counters().await.is_empty());
    t.advance(DEADLINE).await;
    assert_eq!(store.reap(10).await.unwrap().ended.len(), 2);
    assert!(t.counters().await.is_empty());
    assert!(store.queues().await.unwrap().is_empty());
}

pub async fn a_finish_makes_room(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let one = || NewJob { bound: 1, ..job() };
    let id = accept(&*store, one()).await.job;
    let held = lease(&*store, id, 0, "w").await.unwrap().lease;
    assert!(store.accept(&[one()]).await.unwrap()[0].is_err(), "a running job takes room");
    assert!(finish(&*store, held, success()).await);
    accept(&*store, one()).await;
}

pub async fn transient_errors_back_off_and_run_out(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let mut held = running(&*store, "w").await;
    for (errors, longest) in [(1, secs(1)), (2, secs(2))] {
        store.retry(&held, &broken()).await.unwrap().unwrap();
        let shown = get(&*store, held.job).await;
        assert_eq!((shown.state, shown.errors), (JobState::Queued, errors));
        assert_eq!(shown.error.unwrap().code, ErrorCode::EngineFailed);
        t.advance(longest).await;
        assert_eq!(store.due(&queue(), 10).await.unwrap(), [Wake { job: held.job, attempt: errors }]);
        held = lease(&*store, held.job, errors, "w").await.unwrap().lease;
    }
    store.retry(&held, &broken()).await.unwrap().unwrap();
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.state, shown.errors, shown.attempt), (JobState::Failed, 3, 3));
    assert_eq!(shown.error, Some(broken()));
    assert_eq!(shown.history.len(), 3);
    assert!(t.counters().await.is_empty());
}

pub async fn a_stale_retry_is_refused(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    store.hand_back(&[held], secs(0)).await.unwrap();
    assert!(store.retry(&held, &broken()).await.unwrap().is_err());
    assert_eq!(get(&*store, held.job).await.errors, 0);
}

pub async fn cancel_is_idempotent(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let queued = accept(&*store, job()).await.job;
    let answer = |was_running| CancelAnswer::Cancelled { was_running };
    assert_eq!(store.cancel(&tenant(), &queued).await.unwrap(), answer(false));
    assert_eq!(store.cancel(&tenant(), &queued).await.unwrap(), answer(false));
    let running = running(&*store, "w").await.job;
    assert_eq!(store.cancel(&tenant(), &running).await.unwrap(), answer(true));
    assert_eq!(store.cancel(&tenant(), &running).await.unwrap(), answer(false));
    assert_eq!(t.events(running).await.len(), 3);
    assert_eq!(store.cancel(&tenant(), &job().id).await.unwrap(), CancelAnswer::NotFound);
}

pub async fn cancel_beats_finish(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    store.cancel(&tenant(), &held.job).await.unwrap();
    assert!(!finish(&*store, held, success()).await);
    let shown = get(&*store, held.job).await;
    assert_eq!((shown.state, shown.record), (JobState::Cancelled, None));
}

pub async fn finish_beats_cancel(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for (outcome, state) in [(success(), JobState::Succeeded), (failed(), JobState::Failed)] {
        let held = running(&*store, "w").await;
        assert!(finish(&*store, held, outcome).await);
        assert_eq!(store.cancel(&tenant(), &held.job).await.unwrap(), CancelAnswer::AlreadyEnded(state));
    }
}

pub async fn cancel_of_another_tenant_is_not_found(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let id = accept(&*store, job()).await.job;
    assert_eq!(store.cancel(&"other".into(), &id).await.unwrap(), CancelAnswer::NotFound);
    assert_eq!(state(&*store, id).await, JobState::Queued);
}

pub async fn usage_after_the_end_counts_once(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    store.cancel(&tenant(), &held.job).await.unwrap();
    for _ in 0..3 {
        store.usage(&held, usage(4)).await.unwrap();
    }
    assert_eq!(get(&*store, held.job).await.usage, usage(4));
    // Attempts that never were, and jobs that never were.
    for attempt in [0, 2] {
        store.usage(&contract::Lease { attempt, ..held }, usage(4)).await.unwrap();
    }
    store.usage(&contract::Lease { job: job().id, attempt: 1 }, usage(4)).await.unwrap();
    assert_eq!(get(&*store, held.job).await.usage, usage(4));
    assert_eq!(state(&*store, held.job).await, JobState::Cancelled);
}

pub async fn usage_of_several_attempts_adds_up(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = running(&*store, "w").await;
    store.hand_back(&[first], secs(0)).await.unwrap();
    store.usage(&first, usage(4)).await.unwrap();
    let second = lease(&*store, first.job, 1, "w").await.unwrap().lease;
    let error = JobError::new(ErrorCode::NotFinite, "nan");
    assert!(finish(&*store, second, Outcome::Failed { error, usage: usage(2) }).await);
    store.usage(&second, usage(9)).await.unwrap();
    let both = Usage { prompt_tokens: 20, cached_tokens: 0, output_tokens: 6 };
    assert_eq!(get(&*store, first.job).await.usage, both);
}

pub async fn a_result_shows_its_own_usage(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = running(&*store, "w").await;
    store.hand_back(&[first], secs(0)).await.unwrap();
    store.usage(&first, usage(4)).await.unwrap();
    let second = lease(&*store, first.job, 1, "w").await.unwrap().lease;
    assert!(finish(&*store, second, success()).await);
    store.usage(&first, usage(4)).await.unwrap();
    store.usage(&second, usage(4)).await.unwrap();
    assert_eq!(get(&*store, first.job).await.usage, usage(5));
}

pub async fn a_sequence_runs_in_order(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(accept(&*store, in_sequence("s")).await.job);
    }
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(store.due(&queue(), 10).await.unwrap(), [Wake { job: *id, attempt: 0 }], "{n}");
        let held = lease(&*store, *id, 0, "w").await.unwrap().lease;
        assert!(store.due(&queue(), 10).await.unwrap().is_empty());
        match n {
            0 => assert!(finish(&*store, held, success()).await),
            1 => assert!(finish(&*store, held, failed()).await),
            _ => assert!(matches!(store.cancel(&tenant(), id).await.unwrap(), CancelAnswer::Cancelled { .. })),
        }
    }
    assert!(!accept(&*store, in_sequence("s")).await.held);
}

pub async fn cancelling_a_held_job_keeps_the_order(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (a, b, c) = (in_sequence("s"), in_sequence("s"), in_sequence("s"));
    let ids = [a.id, b.id, c.id];
    store.accept(&[a, b, c]).await.unwrap();
    let held = lease(&*store, ids[0], 0, "w").await.unwrap().lease;
    store.cancel(&tenant(), &ids[1]).await.unwrap();
    assert!(store.due(&queue(), 10).await.unwrap().is_empty(), "the first still runs");
    assert!(finish(&*store, held, success()).await);
    assert_eq!(store.due(&queue(), 10).await.unwrap(), [Wake { job: ids[2], attempt: 0 }]);
}

pub async fn every_transition_leaves_an_event(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = running(&*store, "a").await;
    store.hand_back(&[first], secs(0)).await.unwrap();
    let second = lease(&*store, first.job, 1, "b").await.unwrap().lease;
    store.retry(&second, &broken()).await.unwrap().unwrap();
    lease(&*store, first.job, 2, "c").await.unwrap();
    t.advance(TTL).await;
    store.reap(10).await.unwrap();
    let fourth = lease(&*store, first.job, 3, "d").await.unwrap().lease;
    assert!(finish(&*store, fourth, success()).await);
    let events = t.events(first.job).await;
    let events: Vec<(&str, &str, u32)> =
        events.iter().map(|(kind, state, n)| (kind.as_str(), state.as_str(), *n)).collect();
    assert_eq!(
        events,
        [
            ("accepted", "queued", 0),
            ("leased", "running", 1),
            ("handed_back", "queued", 1),
            ("leased", "running", 2),
            ("retried", "queued", 2),
            ("leased", "running", 3),
            ("lost", "queued", 3),
            ("leased", "running", 4),
            ("succeeded", "succeeded", 4),
        ]
    );
}
