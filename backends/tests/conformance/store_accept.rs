//! Accepting: bounds, keys, batch lines, sequences.

use contract::{
    Class, Embedding, ErrorCode, Fingerprint, Input, Job, JobError, JobId, JobState, Kind, NewJob, Outcome, Pooling,
    Prompt, Refused, Request, VectorFormat,
};
use futures::future::join_all;
use uuid::Uuid;

use crate::help::*;

pub async fn an_accepted_job_is_shown_as_submitted(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let new = NewJob {
        metadata: [("run".to_owned(), "7 \"x\"".to_owned())].into(),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..job()
    };
    let accepted = accept(&*store, new.clone()).await;
    assert_eq!((accepted.job, accepted.replayed, accepted.held), (new.id, false, false));
    let shown = get(&*store, new.id).await;
    assert_eq!(shown.state, JobState::Queued);
    assert_eq!((shown.attempt, shown.errors, shown.losses), (0, 0, 0));
    assert_eq!((&shown.release, &shown.route, shown.class), (&new.release, &new.route, new.class));
    assert_eq!((shown.kind, shown.seed, &shown.metadata), (new.request.kind(), new.seed, &new.metadata));
    assert_eq!(shown.deadline.millis_since(shown.accepted_at), 3_600_000);
    assert_eq!(shown.accepted_at, shown.now);
    assert_eq!((shown.started_at, shown.finished_at, shown.error, shown.record), (None, None, None, None));
}

/// An API answers a submit without reading the row again.
pub async fn an_accepted_job_is_known_without_a_look(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let line = NewJob { batch_line: Some((Uuid::now_v7(), 3)), ..job() };
    for new in [job(), with_key("k", 1), line, in_sequence("s"), in_sequence("s")] {
        let accepted = accept(&*store, new.clone()).await;
        let known = Job::just_accepted(new.clone(), accepted.at.unwrap());
        assert_eq!(known, Job { now: known.now, ..get(&*store, new.id).await });
        assert_eq!(accept(&*store, new).await.at, None, "a replay has a row to read");
    }
}

pub async fn every_seed_survives(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for seed in [0, 1, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX] {
        let id = accept(&*store, NewJob { seed, ..job() }).await.job;
        assert_eq!(get(&*store, id).await.seed, seed);
        assert_eq!(lease(&*store, id, 0, "w").await.unwrap().seed, seed);
    }
}

pub async fn every_kind_of_job_survives(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let vectors = Embedding {
        inputs: vec![Prompt::Text("Grüße".into()), Prompt::Tokens(vec![1, 2])],
        pooling: Pooling::Mean,
        normalize: true,
        dimensions: Some(8),
        format: VectorFormat::Base64,
    };
    let chat = job().request;
    let completion = Request {
        input: Input::Completion(Prompt::Tokens(vec![7])),
        echo: true,
        prompt_logprobs: Some(3),
        ..chat.clone()
    };
    let embedding = Request { input: Input::Embedding(vectors), max_tokens: Some(0), ..chat.clone() };
    for (request, kind) in [chat, completion, embedding].into_iter().zip(Kind::ALL) {
        let id = accept(&*store, NewJob { request: request.clone(), ..job() }).await.job;
        assert_eq!(get(&*store, id).await.kind, kind);
        assert_eq!(lease(&*store, id, 0, "w").await.unwrap().request, request);
    }
}

pub async fn bound_is_exact_under_concurrent_accepts(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let submits = (0..64).map(|_| {
        let store = t.store();
        tokio::spawn(async move { store.accept(&[NewJob { bound: 37, ..job() }]).await.unwrap().remove(0) })
    });
    let answers: Vec<_> = join_all(submits).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 37);
    let full = Refused::QueueFull { queue: queue(), bound: 37 };
    assert!(answers.iter().filter_map(|answer| answer.as_ref().err()).all(|refused| *refused == full));
    assert_eq!(store.queued(&queue()).await.unwrap(), 37);
    let counters = t.counters().await;
    assert_eq!(counters[&format!("queue:{}:standard", release())], 37);
    assert_eq!(counters["tenant:acme"], 37);
}

pub async fn a_refused_job_leaves_nothing(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (first, second) = (job(), NewJob { bound: 1, ..with_key("k", 1) });
    let answers = store.accept(&[first.clone(), second.clone(), NewJob { bound: 1, ..job() }]).await.unwrap();
    assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_err());
    assert!(store.get(&tenant(), &second.id).await.unwrap().is_none());
    assert!(t.events(second.id).await.is_empty());
    assert_eq!(t.counters().await["tenant:acme"], 1);
}

pub async fn a_bound_of_zero_refuses_all(t: &mut dyn StoreUnderTest) {
    let answers = t.store().accept(&[NewJob { bound: 0, ..job() }]).await.unwrap();
    assert!(answers[0].is_err());
    assert!(t.counters().await.is_empty());
}

pub async fn a_full_queue_still_answers_for_what_it_has_and_takes_what_fits_again(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let bounded = |job: NewJob| NewJob { bound: 3, ..job };
    let keyed = accept(&*store, bounded(with_key("k", 1))).await;
    let plain = bounded(job());
    accept(&*store, plain.clone()).await;
    let third = accept(&*store, bounded(job())).await;
    for _ in 0..3 {
        assert!(store.accept(&[bounded(job())]).await.unwrap()[0].is_err());
    }
    let again = accept(&*store, bounded(with_key("k", 1))).await;
    assert_eq!((again.job, again.replayed), (keyed.job, true));
    let again = accept(&*store, plain.clone()).await;
    assert_eq!((again.job, again.replayed), (plain.id, true));
    // A call is answered job by job: one of it is known, one is of another queue, one has no room.
    let other = bounded(NewJob { class: Class::Interactive, ..job() });
    let answers = store.accept(&[plain, other, bounded(job())]).await.unwrap();
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false]);

    let lease = lease(&*store, third.job, 0, "w").await.unwrap().lease;
    assert!(finish(&*store, lease, success()).await);
    assert!(!accept(&*store, bounded(job())).await.replayed);
    assert!(store.accept(&[bounded(job())]).await.unwrap()[0].is_err());
    assert_eq!(t.counters().await[&format!("queue:{}:standard", release())], 3);
}

pub async fn bounds_are_per_release_and_class(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let one = || NewJob { bound: 1, ..job() };
    accept(&*store, one()).await;
    accept(&*store, NewJob { class: Class::Interactive, ..one() }).await;
    accept(&*store, NewJob { release: Fingerprint("cd".repeat(32)), ..one() }).await;
    assert!(store.accept(&[one()]).await.unwrap()[0].is_err());
}

pub async fn batch_lines_count_on_their_own(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let batch = Uuid::now_v7();
    let lines: Vec<NewJob> = (0..5).map(|line| NewJob { batch_line: Some((batch, line)), bound: 2, ..job() }).collect();
    assert!(store.accept(&lines).await.unwrap().iter().all(Result::is_ok));
    assert_eq!(t.counters().await, [("lines:acme".to_owned(), 5)].into());
    let lease = lease(&*store, lines[3].id, 0, "w").await.unwrap().lease;
    assert!(finish(&*store, lease, success()).await);
    assert_eq!(t.counters().await, [("lines:acme".to_owned(), 4)].into());
    assert_eq!(get(&*store, lines[3].id).await.batch_line, Some((batch, 3)));
}

pub async fn a_batch_line_is_accepted_once(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let batch = Uuid::now_v7();
    let line = |line| NewJob { batch_line: Some((batch, line)), ..job() };
    let first = accept(&*store, line(0)).await;
    let answers = store.accept(&[line(0), line(1), line(1)]).await.unwrap();
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!((answers[0].job, answers[0].replayed), (first.job, true));
    assert!(!answers[1].replayed);
    assert_eq!((answers[2].job, answers[2].replayed), (answers[1].job, true));
    assert_eq!(t.counters().await["lines:acme"], 2);
}

pub async fn the_same_key_and_body_is_the_same_job(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, with_key("k", 1)).await;
    let again = accept(&*store, with_key("k", 1)).await;
    assert_eq!((again.job, again.replayed), (first.job, true));
    // Also when the job has ended, and when its queue is full.
    let lease = lease(&*store, first.job, 0, "w").await.unwrap().lease;
    assert!(finish(&*store, lease, success()).await);
    let again = accept(&*store, NewJob { bound: 0, ..with_key("k", 1) }).await;
    assert_eq!((again.job, again.replayed), (first.job, true));
    assert!(t.counters().await.is_empty());
}

pub async fn the_same_key_with_another_body_is_refused(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    accept(&*store, with_key("k", 1)).await;
    assert_eq!(store.accept(&[with_key("k", 2)]).await.unwrap(), [Err(Refused::KeyReused)]);
    assert_eq!(t.counters().await["tenant:acme"], 1);
}

pub async fn keys_are_per_tenant(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, with_key("k", 1)).await;
    let other = accept(&*store, NewJob { tenant: "other".into(), ..with_key("k", 2) }).await;
    assert!(first.job != other.job && !other.replayed);
}

pub async fn a_key_of_a_refused_job_is_free(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    assert!(store.accept(&[NewJob { bound: 0, ..with_key("k", 1) }]).await.unwrap()[0].is_err());
    assert!(!accept(&*store, with_key("k", 2)).await.replayed);
}

pub async fn a_key_is_forgotten_after_a_day(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let first = accept(&*store, with_key("k", 1)).await;
    t.advance(secs(24 * 3_600 - 1)).await;
    store.reap(10).await.unwrap();
    assert_eq!(accept(&*store, with_key("k", 1)).await.job, first.job);
    t.advance(secs(2)).await;
    let second = accept(&*store, with_key("k", 2)).await;
    assert!(second.job != first.job && !second.replayed);
    store.reap(10).await.unwrap();
    assert_eq!(accept(&*store, with_key("k", 2)).await.job, second.job);
}

pub async fn concurrent_accepts_of_one_key_make_one_job(t: &mut dyn StoreUnderTest) {
    let submits = (0..20).map(|_| {
        let store = t.store();
        tokio::spawn(async move { accept(&*store, with_key("k", 1)).await })
    });
    let answers: Vec<_> = join_all(submits).await.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|answer| answer.job == answers[0].job));
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
    assert_eq!(t.counters().await["tenant:acme"], 1);
}

pub async fn a_repeated_id_is_a_replay(t: &mut dyn StoreUnderTest) {
    // What a caller does that never got its answer.
    let store = t.store();
    let new = job();
    accept(&*store, new.clone()).await;
    let again = accept(&*store, new.clone()).await;
    assert_eq!((again.job, again.replayed), (new.id, true));
    assert_eq!(t.counters().await["tenant:acme"], 1);
    assert_eq!(t.events(new.id).await.len(), 1);
}

pub async fn the_second_of_a_sequence_is_held(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let jobs =
        [in_sequence("s"), in_sequence("s"), in_sequence("other"), NewJob { tenant: "b".into(), ..in_sequence("s") }];
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let answers = store.accept(&jobs).await.unwrap();
    let held: Vec<bool> = answers.into_iter().map(|answer| answer.unwrap().held).collect();
    assert_eq!(held, [false, true, false, false]);
    let due: Vec<JobId> = store.due(&queue(), 10).await.unwrap().into_iter().map(|wake| wake.job).collect();
    assert_eq!(due.len(), 3);
    assert!(!due.contains(&ids[1]));
}

pub async fn null_characters_survive(t: &mut dyn StoreUnderTest) {
    // U+0000 is a character of JSON texts, and some databases keep it in none of theirs.
    let store = t.store();
    let mut new = NewJob {
        metadata: [("a\0".to_owned(), "\0b\u{f8ff}0".to_owned())].into(),
        sequence_key: Some("s\0".into()),
        ..with_key("k\0", 1)
    };
    new.request.stop = vec!["\0".into()];
    let next = NewJob { id: JobId::new(), idempotency: None, ..new.clone() };
    accept(&*store, new.clone()).await;
    assert!(accept(&*store, next.clone()).await.held);
    assert!(accept(&*store, NewJob { id: JobId::new(), ..new.clone() }).await.replayed);
    assert_eq!(get(&*store, new.id).await.metadata, new.metadata);
    let leased = lease(&*store, new.id, 0, "w").await.unwrap();
    assert_eq!(leased.request, new.request);
    let error = JobError::new(ErrorCode::NotFinite, "a\0b");
    assert!(finish(&*store, leased.lease, Outcome::Failed { error: error.clone(), usage: usage(0) }).await);
    assert_eq!(get(&*store, new.id).await.error, Some(error));
    assert!(lease(&*store, next.id, 0, "w").await.is_some());
}

pub async fn all_are_accepted_or_none(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let bounded = || NewJob { bound: 3, ..job() };
    let before = bounded();
    store.accept(std::slice::from_ref(&before)).await.unwrap();
    let three: Vec<NewJob> = (0..3).map(|_| bounded()).collect();
    let refused = store.accept_all(&three).await.unwrap().unwrap_err();
    assert!(matches!(refused, (2, Refused::QueueFull { bound: 3, .. })), "{refused:?}");
    for job in &three {
        assert_eq!(store.get(&tenant(), &job.id).await.unwrap(), None);
    }
    // What was written for the first two before the third was refused takes no room.
    let accepted = store.accept_all(&three[..2]).await.unwrap().unwrap();
    assert_eq!(accepted.iter().map(|accepted| accepted.job).collect::<Vec<_>>(), [three[0].id, three[1].id]);
    assert!(accepted.iter().all(|accepted| !accepted.replayed && accepted.at.is_some()));
    // Asked again, they are there, room or not.
    let again = store.accept_all(&three[..2]).await.unwrap().unwrap();
    assert!(again.iter().all(|accepted| accepted.replayed));
    assert!(matches!(store.accept_all(&[bounded()]).await.unwrap(), Err((0, Refused::QueueFull { .. }))));
}
