//! Payloads that are kept for a time: when they go, what stays, and what goes with them.

use contract::ports::SEGMENT_GRACE;
use contract::{
    BatchEnd, BatchId, BatchState, Class, Cursor, ErrorCode, ExpiredJob, FileId, Filter, JobError, JobId, JobState,
    JobStore, Kind, NewBatch, NewJob, Outcome, RecordLocation, SegmentPlace, Timestamp, TrajectoryMode,
};

use crate::help::*;

/// A word that is nowhere else.
const SECRET: &str = "xylographer";

fn place(key: &str, nth: u64) -> SegmentPlace {
    SegmentPlace { key: format!("trajectories/{key}.jsonl.zst"), offset: nth * 10, length: 10 }
}

fn kept(seconds: u64) -> NewJob {
    NewJob { keep: Some(secs(seconds)), ..job() }
}

/// Accepts a job, runs it, and ends it well with this record.
async fn ended(store: &dyn JobStore, job: NewJob, record: RecordLocation) -> JobId {
    let id = accept(store, job).await.job;
    let lease = lease(store, id, 0, "w").await.unwrap().lease;
    let outcome = Outcome::Succeeded { record, usage: usage(5), first_token_ms: Some(40) };
    assert!(finish(store, lease, outcome).await);
    id
}

fn inline() -> RecordLocation {
    RecordLocation::Inline(SECRET.as_bytes().to_vec())
}

async fn expired(t: &dyn StoreUnderTest) -> Vec<ExpiredJob> {
    t.admin().expired_jobs(100).await.unwrap()
}

fn row(job: JobId, attempts: u32, staged: Option<&str>) -> ExpiredJob {
    ExpiredJob { job, attempts, staged: staged.map(str::to_owned) }
}

pub async fn a_payload_is_kept_exactly_for_its_time(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let new = NewJob { metadata: [("who".to_owned(), SECRET.to_owned())].into(), ..kept(60) };
    let waiting = accept(&*store, new.clone()).await.job;
    let before = get(&*store, waiting).await;
    assert_eq!((before.keep, before.result_expires_at), (Some(secs(60)), None), "its time begins with its end");
    let lease = lease(&*store, waiting, 0, "w").await.unwrap().lease;
    let outcome = Outcome::Succeeded { record: inline(), usage: usage(5), first_token_ms: Some(40) };
    assert!(finish(&*store, lease, outcome).await);
    let whole = get(&*store, waiting).await;
    assert_eq!(whole.result_expires_at, Some(Timestamp(whole.finished_at.unwrap().0 + 60_000)));
    t.advance(std::time::Duration::from_millis(59_999)).await;
    assert_eq!(expired(t).await, []);
    assert!(!get(&*store, waiting).await.is_gone());
    assert_eq!(admin.empty_jobs(&[waiting]).await.unwrap(), 0, "not before its time, whoever asks");
    assert!(get(&*store, waiting).await.record.is_some());
    t.advance(std::time::Duration::from_millis(1)).await;
    assert_eq!(expired(t).await, [row(waiting, 1, None)]);
    let now = get(&*store, waiting).await;
    assert!(now.is_gone() && now.emptied_at.is_none() && now.record.is_some());
    assert_eq!(admin.empty_jobs(&[waiting, JobId::new(), waiting]).await.unwrap(), 1);
    assert_eq!(admin.empty_jobs(&[waiting]).await.unwrap(), 0, "once");
    assert_eq!(expired(t).await, []);
    let left = get(&*store, waiting).await;
    assert_eq!((left.emptied_at, left.record.as_ref(), left.metadata.len()), (Some(now.now), None, 0));
    assert_eq!((left.state, left.usage, left.attempt), (JobState::Succeeded, usage(5), 1));
    let times = |job: &contract::Job| (job.accepted_at, job.started_at, job.first_token_at, job.finished_at);
    assert_eq!(times(&left), times(&whole));
    let page = store.list(&tenant(), &Filter { limit: 10, ..Filter::default() }).await.unwrap();
    assert_eq!(page.jobs[0].emptied_at, Some(now.now));
    assert_eq!(t.events(waiting).await.len(), 3, "accepted, leased, succeeded: events stay");
    drop((store, admin));
    t.reopen().await;
    assert_eq!(get(&*t.store(), waiting).await.emptied_at, Some(now.now));
}

pub async fn what_is_kept_for_ever_and_what_has_not_ended_stays(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let for_ever = ended(&*store, job(), inline()).await;
    let queued = accept(&*store, NewJob { deadline_in: secs(600_000), ..kept(60) }).await.job;
    let running = accept(&*store, NewJob { deadline_in: secs(600_000), ..kept(60) }).await.job;
    lease(&*store, running, 0, "w").await.unwrap();
    t.advance(secs(500_000)).await;
    assert_eq!(expired(t).await, []);
    assert_eq!(admin.empty_jobs(&[for_ever, queued, running]).await.unwrap(), 0);
    assert!(get(&*store, for_ever).await.record.is_some());
    let leased = lease(&*store, queued, 0, "w").await.unwrap();
    assert_eq!(leased.request, job().request, "a request is there for whoever runs it");
}

pub async fn every_end_is_emptied_and_errors_stay(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let failed = accept(&*store, kept(60)).await.job;
    let lease_of_failed = lease(&*store, failed, 0, "w").await.unwrap().lease;
    let error = JobError::new(ErrorCode::NotFinite, "nan");
    assert!(finish(&*store, lease_of_failed, Outcome::Failed { error: error.clone(), usage: usage(1) }).await);
    let cancelled = accept(&*store, kept(60)).await.job;
    store.cancel(&tenant(), &cancelled).await.unwrap();
    let late = accept(&*store, NewJob { deadline_in: secs(1), ..kept(60) }).await.job;
    t.advance(secs(1)).await;
    store.reap(100).await.unwrap();
    let staged = ended(&*store, kept(60), RecordLocation::Staged("records/x".into())).await;
    t.advance(secs(60)).await;
    let found = expired(t).await;
    assert_eq!(found.len(), 4);
    for row in [row(failed, 1, None), row(cancelled, 0, None), row(late, 0, None), row(staged, 1, Some("records/x"))] {
        assert!(found.contains(&row), "{row:?} is not in {found:?}");
    }
    assert_eq!(admin.expired_jobs(2).await.unwrap().len(), 2);
    let jobs: Vec<JobId> = found.iter().map(|row| row.job).collect();
    assert_eq!(admin.empty_jobs(&jobs).await.unwrap(), 4);
    assert_eq!(get(&*store, failed).await.error, Some(error));
    for (job, state) in [
        (failed, JobState::Failed),
        (cancelled, JobState::Cancelled),
        (late, JobState::Expired),
        (staged, JobState::Succeeded),
    ] {
        let left = get(&*store, job).await;
        assert_eq!((left.state, left.record.is_none(), left.emptied_at.is_some()), (state, true, true));
    }
    assert!(t.counters().await.is_empty(), "room was given back once");
}

pub async fn nothing_of_a_payload_is_left(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let mut new = NewJob {
        metadata: [(SECRET.to_owned(), SECRET.to_owned())].into(),
        sequence_key: Some(SECRET.into()),
        webhook: Some(contract::Hook { url: format!("https://example.com/{SECRET}"), events: vec![] }),
        ..kept(60)
    };
    // A webhook's deliveries have a time of their own.
    new.webhook.as_mut().unwrap().events = vec![contract::WebhookEvent::BatchCompleted];
    new.request.stop = vec![SECRET.into()];
    new.request.input = contract::Input::Completion(contract::Prompt::Text(SECRET.into()));
    let job = ended(&*store, new, inline()).await;
    let is_there = async |t: &dyn StoreUnderTest| {
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        let dump = t.dump().await.to_lowercase();
        (dump.contains(SECRET), dump.contains(&hex))
    };
    assert_eq!(is_there(t).await, (true, true), "as text, and as bytes of the record");
    t.advance(secs(60)).await;
    assert_eq!(admin.empty_jobs(&[job]).await.unwrap(), 1);
    assert_eq!(is_there(t).await, (false, false));
    assert!(t.dump().await.contains("succeeded"), "the dump is of something");
}

async fn batch_of(t: &dyn StoreUnderTest, keep: Option<std::time::Duration>) -> BatchId {
    let new = NewBatch {
        id: BatchId::new(),
        tenant: tenant(),
        endpoint: Kind::Completion,
        input: FileId::new(),
        window: secs(86_400),
        run_after: None,
        only: None,
        webhook: None,
        window_text: "24h".into(),
        metadata: Default::default(),
        output_life: None,
        keep,
        idempotency: None,
    };
    let made = t.admin().add_batch(&new).await.unwrap().unwrap().into_inner();
    assert_eq!(made.keep, keep);
    assert!(t.admin().begin_batch(&new.id, "small", 2).await.unwrap());
    let listed = t.admin().batches(&tenant(), None, 10).await.unwrap().0;
    assert_eq!(listed.iter().find(|batch| batch.id == new.id).unwrap().keep, keep);
    let open = t.admin().open_batches(10).await.unwrap();
    assert_eq!(open.iter().find(|batch| batch.id == new.id).unwrap().keep, keep);
    new.id
}

fn file() -> contract::NewFile {
    contract::NewFile {
        id: FileId::new(),
        tenant: tenant(),
        filename: "out".into(),
        purpose: contract::Purpose::BatchOutput,
        bytes: 1,
        expires_in: None,
        idempotency: None,
    }
}

pub async fn open_batches_hide_nobody(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let line = |batch: BatchId, n, seconds| NewJob {
        class: Class::Bulk,
        batch_line: Some((batch.0, n)),
        custom_id: Some(format!("c{n}")),
        ..kept(seconds)
    };
    let (mut batches, mut jobs) = (Vec::new(), Vec::new());
    for nth in 0..4 {
        let batch = batch_of(t, None).await;
        jobs.push(ended(&*store, line(batch, 0, 60), inline()).await);
        t.advance(secs(1)).await;
        jobs.push(ended(&*store, line(batch, 1, if nth == 3 { 600 } else { 60 }), inline()).await);
        t.advance(secs(1)).await;
        let (from, to) = (Cursor::default(), Cursor { line: 2, offset: 9 });
        assert!(admin.batch_expanded(&batch, &[], from, to).await.unwrap());
        batches.push(batch);
    }
    let alone = ended(&*store, kept(53), inline()).await;
    t.advance(secs(100)).await;
    assert_eq!(expired(t).await, [row(alone, 1, None)], "all the others are of open batches");
    // The second one's lines expired before those of the fourth, and it ends after it.
    for nth in [3, 1] {
        let end = BatchEnd { state: BatchState::Completed, output: Some((file(), 2)), errors: None };
        assert!(admin.end_batch(&batches[nth], &end).await.unwrap().is_some());
    }
    // The lines ended one second after the other, from 0 s on; the job alone at 8 s, and it is kept 7 s less.
    let [first, second, third] = [jobs[2], jobs[3], jobs[6]].map(|job| row(job, 1, None));
    let alone = row(alone, 1, None);
    assert_eq!(expired(t).await, [alone.clone(), first.clone(), second.clone(), third.clone()]);
    assert_eq!(admin.expired_jobs(3).await.unwrap(), [alone.clone(), first.clone(), second]);
    assert_eq!(admin.expired_jobs(2).await.unwrap(), [alone.clone(), first.clone()]);
    assert_eq!(admin.expired_jobs(0).await.unwrap(), []);
    assert_eq!(admin.empty_jobs(&jobs).await.unwrap(), 3, "neither of open batches nor what is kept longer");
    assert_eq!(expired(t).await, [alone]);
    t.advance(secs(600)).await;
    assert_eq!(expired(t).await.len(), 2);
}

pub async fn lines_wait_for_their_batch(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let batch = batch_of(t, Some(secs(60))).await;
    let line =
        |n| NewJob { class: Class::Bulk, batch_line: Some((batch.0, n)), custom_id: Some(format!("c{n}")), ..kept(60) };
    let first = ended(&*store, line(0), inline()).await;
    let second = accept(&*store, line(1)).await.job;
    let (from, to) = (Cursor::default(), Cursor { line: 2, offset: 9 });
    assert!(admin.batch_expanded(&batch, &[], from, to).await.unwrap());
    t.advance(secs(100)).await;
    assert!(get(&*store, first).await.is_gone(), "for whoever asks for it alone");
    assert_eq!(expired(t).await, []);
    assert_eq!(admin.empty_jobs(&[first]).await.unwrap(), 0);
    assert!(admin.lines(&batch, 0, 10).await.unwrap()[0].job().unwrap().record.is_some(), "its file needs it");
    store.cancel(&tenant(), &second).await.unwrap();
    assert!(admin.cancel_batch(&tenant(), &batch).await.is_ok());
    assert_eq!(expired(t).await, [], "cancelling: its files are being written");
    let end = BatchEnd { state: BatchState::Cancelled, output: Some((file(), 1)), errors: Some((file(), 1)) };
    assert!(admin.end_batch(&batch, &end).await.unwrap().is_some());
    assert_eq!(expired(t).await, [row(first, 1, None)]);
    assert_eq!(admin.empty_jobs(&[first, second]).await.unwrap(), 1, "the second one's time is not over");
    let (lines, _) = admin.ended_lines(&batch, None, 10).await.unwrap().unwrap();
    let shown = lines[0].job().unwrap();
    assert_eq!((shown.id, shown.record.is_none(), shown.emptied_at.is_some()), (first, true, true));
    assert_eq!(admin.lines_with_result(&batch).await.unwrap(), [0], "it had one: it is not run again");
}

pub async fn an_announced_segment_that_nobody_switched_goes_after_an_hour(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let [lost, late, switched] = ["lost", "late", "switched"].map(|key| place(key, 0));
    let milli = std::time::Duration::from_millis(1);
    let first = ended(&*store, kept(60), inline()).await;
    for place in [&lost, &switched] {
        admin.announce_segment(&place.key).await.unwrap();
    }
    assert_eq!(store.archived(&[(first, switched.clone())]).await.unwrap(), [true]);
    assert_eq!(admin.unkept_segments(10).await.unwrap(), [""; 0], "one is not yet written, one has a job");
    t.advance(secs(60)).await;
    assert_eq!(admin.empty_jobs(&[first]).await.unwrap(), 1);
    assert_eq!(admin.unkept_segments(10).await.unwrap(), std::slice::from_ref(&switched.key), "at once");
    // Again: the first time counts.
    for place in [&lost, &late] {
        admin.announce_segment(&place.key).await.unwrap();
    }
    t.advance(SEGMENT_GRACE - secs(60) - milli).await;
    assert_eq!(admin.unswitched_segments(10).await.unwrap(), [""; 0]);
    t.advance(milli).await;
    assert_eq!(admin.unswitched_segments(10).await.unwrap(), std::slice::from_ref(&lost.key));
    assert_eq!(admin.unswitched_segments(0).await.unwrap(), [""; 0]);
    let second = ended(&*store, kept(60), inline()).await;
    assert_eq!(store.archived(&[(second, late.clone())]).await.unwrap(), [true]);
    t.advance(secs(60)).await;
    assert_eq!(admin.unkept_segments(10).await.unwrap(), std::slice::from_ref(&switched.key));
    drop((store, admin));
    t.reopen().await;
    let admin = t.admin();
    assert_eq!(
        admin.unswitched_segments(10).await.unwrap(),
        std::slice::from_ref(&lost.key),
        "the other one was switched in time"
    );
    admin.forget_segments(&[lost.key, late.key.clone(), switched.key]).await.unwrap();
    assert_eq!(admin.unswitched_segments(10).await.unwrap(), [""; 0]);
    assert_eq!(admin.unkept_segments(10).await.unwrap(), [""; 0]);
    assert_eq!(admin.empty_jobs(&[second]).await.unwrap(), 1);
    assert_eq!(admin.unkept_segments(10).await.unwrap(), [late.key], "one that has a job is not forgotten");
}

pub async fn a_segment_is_kept_as_long_as_one_of_its_jobs(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let redacted = NewJob { trajectory: TrajectoryMode::Redacted, ..kept(60) };
    let jobs = [
        ended(&*store, kept(60), inline()).await,
        ended(&*store, redacted, inline()).await,
        ended(&*store, kept(120), inline()).await,
        ended(&*store, kept(60), inline()).await,
        ended(&*store, job(), inline()).await,
    ];
    let [full, redacted, longer, alone, for_ever] = jobs;
    let places = [(full, place("a", 0)), (redacted, place("a", 1)), (longer, place("a", 2))];
    assert_eq!(store.archived(&places).await.unwrap(), [true; 3]);
    // Again, as after an answer that got lost: nothing is counted twice.
    assert_eq!(store.archived(&places).await.unwrap(), [false; 3]);
    let others = [(alone, place("b", 0)), (for_ever, place("c", 0))];
    assert_eq!(store.archived(&others).await.unwrap(), [true; 2]);
    let unkept = async || admin.unkept_segments(100).await.unwrap();
    assert!(unkept().await.is_empty());
    t.advance(secs(60)).await;
    assert_eq!(admin.empty_jobs(&jobs).await.unwrap(), 3);
    assert_eq!(unkept().await, [place("b", 0).key]);
    admin.forget_segments(&[place("a", 0).key, place("b", 0).key]).await.unwrap();
    assert!(unkept().await.is_empty());
    t.advance(secs(60)).await;
    assert_eq!(admin.empty_jobs(&jobs).await.unwrap(), 1);
    assert_eq!(unkept().await, [place("a", 0).key], "one that is kept is not forgotten");
    assert_eq!(admin.unkept_segments(0).await.unwrap(), [""; 0]);
    let kept = get(&*store, for_ever).await;
    assert_eq!(kept.segment, Some(place("c", 0)));
}

pub async fn an_emptied_job_is_archived_by_nobody(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    let job = ended(&*store, kept(60), inline()).await;
    assert_eq!(store.unarchived(10).await.unwrap().len(), 1);
    t.advance(secs(60)).await;
    assert!(store.unarchived(10).await.unwrap().is_empty(), "what is about to go is not written to a segment");
    assert_eq!(admin.empty_jobs(&[job]).await.unwrap(), 1);
    assert!(store.unarchived(10).await.unwrap().is_empty());
    assert_eq!(store.archived(&[(job, place("a", 0))]).await.unwrap(), [false]);
    let left = get(&*store, job).await;
    assert_eq!((left.segment, left.record), (None, None));
    assert!(admin.unkept_segments(10).await.unwrap().is_empty(), "no segment was counted");
}

pub async fn archiving_beside_emptying_loses_no_segment(t: &mut dyn StoreUnderTest) {
    let (store, admin) = (t.store(), t.admin());
    for round in 0..10 {
        let mut jobs = Vec::new();
        for _ in 0..20 {
            jobs.push(ended(&*store, kept(60), inline()).await);
        }
        t.advance(secs(60)).await;
        let key = format!("round{round}");
        let places: Vec<_> = (0..).zip(&jobs).map(|(nth, job)| (*job, place(&key, nth))).collect();
        let (switched, emptied) = tokio::join!(store.archived(&places), admin.empty_jobs(&jobs));
        assert_eq!(emptied.unwrap(), 20);
        // Whoever was first: the segment has no job any more, and if it ever had one it is named.
        let was_counted = switched.unwrap().contains(&true);
        let expected: Vec<String> = was_counted.then(|| place(&key, 0).key).into_iter().collect();
        assert_eq!(admin.unkept_segments(10).await.unwrap(), expected, "round {round}");
        admin.forget_segments(&expected).await.unwrap();
        for job in jobs {
            assert_eq!(get(&*store, job).await.segment, None);
        }
    }
}

/// Three jobs in two segments, as before their jobs were counted; `recount` is what the migration does.
async fn segments_of_before_are_counted(t: &impl StoreUnderTest, recount: impl AsyncFn()) {
    let (store, admin) = (t.store(), t.admin());
    let jobs = [
        ended(&*store, kept(60), inline()).await,
        ended(&*store, kept(60), inline()).await,
        ended(&*store, kept(120), inline()).await,
    ];
    let places = [(jobs[0], place("a", 0)), (jobs[1], place("b", 0)), (jobs[2], place("b", 1))];
    assert_eq!(store.archived(&places).await.unwrap(), [true; 3]);
    recount().await;
    t.advance(secs(60)).await;
    assert_eq!(admin.empty_jobs(&jobs).await.unwrap(), 2);
    assert_eq!(admin.unkept_segments(10).await.unwrap(), [place("a", 0).key]);
    t.advance(secs(60)).await;
    assert_eq!(admin.empty_jobs(&jobs).await.unwrap(), 1);
    assert_eq!(admin.unkept_segments(10).await.unwrap(), [place("a", 0).key, place("b", 0).key]);
}

/// The statement of a migration that counts.
fn counting(migration: &'static str) -> &'static str {
    &migration[migration.find("INSERT INTO segments").unwrap()..]
}

#[tokio::test]
async fn segments_of_before_are_counted_in_sqlite() {
    let t = crate::sqlite::Sqlite::fresh().await;
    segments_of_before_are_counted(&t, async || {
        t.execute("DELETE FROM segments").await;
        t.execute(counting(include_str!("../../../migrations/sqlite/0010_retention.sql"))).await;
    })
    .await;
}

#[tokio::test]
async fn segments_of_before_are_counted_in_postgres() {
    let t = crate::postgres::Postgres::fresh().await;
    segments_of_before_are_counted(&t, async || {
        t.execute("DELETE FROM segments").await;
        t.execute(counting(include_str!("../../../migrations/postgres/0009_retention.sql"))).await;
    })
    .await;
}
