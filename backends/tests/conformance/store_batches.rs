//! Files and batches.

use std::time::Duration;

use contract::batch::RECENT;
use contract::{
    BatchCancel, BatchEnd, BatchError, BatchId, BatchState, Class, Cursor, FileDeletion, FileFilter, FileId,
    IdempotencyKey, JobState, KeyReused, Kind, Line, LineCounts, LineId, LineSet, Made, NewBatch, NewFile, NewJob,
    Outcome, Purpose, RefusedLine, StoreError, StoredFile, TenantId, Timestamp,
};
use futures::future::join_all;
use serde_json::json;

use crate::help::*;

fn new_file() -> NewFile {
    NewFile {
        id: FileId::new(),
        tenant: tenant(),
        filename: "a \0 ü.jsonl".into(),
        purpose: Purpose::Batch,
        bytes: 200_000_000,
        expires_in: None,
        idempotency: None,
    }
}

fn new_batch() -> NewBatch {
    NewBatch {
        id: BatchId::new(),
        tenant: tenant(),
        endpoint: Kind::Completion,
        input: FileId::new(),
        window: secs(86_400),
        run_after: None,
        only: None,
        webhook: None,
        window_text: "24h".into(),
        metadata: [("k\0".to_owned(), "v".to_owned())].into(),
        output_life: Some(secs(3_600)),
        keep: None,
        idempotency: None,
    }
}

fn key(text: &str, body: u8) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { key: text.into(), body_hash: [body; 32] })
}

fn other() -> TenantId {
    TenantId::from("globex")
}

async fn add_file(t: &dyn StoreUnderTest, file: &NewFile) -> StoredFile {
    t.admin().add_file(file).await.unwrap().unwrap().into_inner()
}

/// A batch whose file has so many lines, all good.
async fn begun(t: &dyn StoreUnderTest, total: u32) -> BatchId {
    let batch = new_batch();
    assert!(matches!(t.admin().add_batch(&batch).await.unwrap(), Ok(Made::New(_))));
    assert!(t.admin().begin_batch(&batch.id, "small", total).await.unwrap());
    batch.id
}

fn line(batch: BatchId, line: u32) -> NewJob {
    let custom_id = Some(format!("c{line}\0"));
    NewJob { class: Class::Bulk, batch_line: Some((batch.0, line)), custom_id, ..job() }
}

fn at(line: u32) -> Cursor {
    Cursor { line, offset: u64::from(line) * 100 }
}

fn refused(line: u32) -> RefusedLine {
    RefusedLine { line, custom_id: format!("c{line}\0"), status: 400, body: json!({"error": {"message": "\0"}}) }
}

pub async fn a_file_is_kept_as_it_was_given(t: &mut dyn StoreUnderTest) {
    let new = NewFile { expires_in: Some(secs(3_600)), ..new_file() };
    let kept = add_file(t, &new).await;
    assert_eq!((kept.id, &kept.tenant, &kept.filename), (new.id, &new.tenant, &new.filename));
    assert_eq!((kept.purpose, kept.bytes, kept.created_at), (new.purpose, new.bytes, kept.now));
    assert_eq!(kept.expires_at, Some(Timestamp(kept.now.0 + 3_600_000)));
    t.reopen().await;
    assert_eq!(t.admin().file(&tenant(), &new.id).await.unwrap(), Some(kept));
    assert_eq!(t.admin().file(&other(), &new.id).await.unwrap(), None, "another tenant's");
}

pub async fn files_are_paged_in_both_orders(t: &mut dyn StoreUnderTest) {
    let mut ids = Vec::new();
    for nth in 0..5 {
        let purpose = if nth == 2 { Purpose::BatchOutput } else { Purpose::Batch };
        ids.push(add_file(t, &NewFile { purpose, ..new_file() }).await.id);
    }
    add_file(t, &NewFile { tenant: other(), ..new_file() }).await;
    let page = async |filter: FileFilter| {
        let (files, has_more) = t.admin().files(&tenant(), &filter).await.unwrap();
        (files.iter().map(|file| file.id).collect::<Vec<_>>(), has_more)
    };
    let all = FileFilter::default();
    assert_eq!(page(all.clone()).await, (ids.iter().rev().copied().collect(), false));
    let first = FileFilter { limit: 2, ..all.clone() };
    assert_eq!(page(first.clone()).await, (vec![ids[4], ids[3]], true));
    assert_eq!(page(FileFilter { after: Some(ids[3]), ..first }).await, (vec![ids[2], ids[1]], true));
    let ascending = FileFilter { ascending: true, limit: 2, after: Some(ids[2]), ..all.clone() };
    assert_eq!(page(ascending).await, (vec![ids[3], ids[4]], false));
    assert_eq!(page(FileFilter { purpose: Some(Purpose::BatchOutput), ..all }).await, (vec![ids[2]], false));
}

pub async fn a_deleted_file_is_gone(t: &mut dyn StoreUnderTest) {
    let file = add_file(t, &new_file()).await;
    let batch = NewBatch { input: file.id, ..new_batch() };
    t.admin().add_batch(&batch).await.unwrap().unwrap();
    let delete = async |tenant: TenantId| t.admin().delete_file(&tenant, &file.id).await.unwrap();
    assert_eq!(delete(other()).await, FileDeletion::NotFound);
    assert_eq!(delete(tenant()).await, FileDeletion::InUse);
    assert!(t.admin().fail_batch(&batch.id, &[]).await.unwrap());
    assert_eq!(delete(tenant()).await, FileDeletion::Deleted);
    assert_eq!(delete(tenant()).await, FileDeletion::NotFound);
    assert_eq!(t.admin().file(&tenant(), &file.id).await.unwrap(), None);
}

pub async fn expired_files_are_told_until_they_are_empty(t: &mut dyn StoreUnderTest) {
    let lives = [Some(20), None, Some(10)];
    let mut ids = Vec::new();
    for life in lives {
        ids.push(add_file(t, &NewFile { expires_in: life.map(secs), ..new_file() }).await.id);
    }
    assert_eq!(t.admin().expired_files(10).await.unwrap(), []);
    t.advance(secs(20)).await;
    assert_eq!(t.admin().expired_files(1).await.unwrap(), [ids[2]]);
    assert_eq!(t.admin().expired_files(10).await.unwrap(), [ids[2], ids[0]]);
    t.admin().files_emptied(&[ids[2]]).await.unwrap();
    assert_eq!(t.admin().expired_files(10).await.unwrap(), [ids[0]]);
    // What there is to know of it stays.
    assert!(t.admin().file(&tenant(), &ids[2]).await.unwrap().unwrap().has_expired());
}

pub async fn one_key_makes_one_file_and_one_batch(t: &mut dyn StoreUnderTest) {
    let file = NewFile { idempotency: key("k", 1), ..new_file() };
    let first = add_file(t, &file).await;
    let repeat = NewFile { id: FileId::new(), ..file.clone() };
    assert_eq!(t.admin().add_file(&repeat).await.unwrap(), Ok(Made::Replayed(first)));
    let differs = NewFile { id: FileId::new(), idempotency: key("k", 2), ..file.clone() };
    assert_eq!(t.admin().add_file(&differs).await.unwrap(), Err(KeyReused));
    assert_eq!(t.admin().file(&tenant(), &differs.id).await.unwrap(), None);

    // One name space for all that keys make.
    let batch = NewBatch { idempotency: key("k", 3), ..new_batch() };
    assert_eq!(t.admin().add_batch(&batch).await.unwrap(), Err(KeyReused));
    assert_eq!(t.store().accept(&[with_key("k", 9)]).await.unwrap(), [Err(contract::Refused::KeyReused)]);
    let batch = NewBatch { idempotency: key("b", 3), ..new_batch() };
    let made = t.admin().add_batch(&batch).await.unwrap().unwrap().into_inner();
    let repeat = NewBatch { id: BatchId::new(), ..batch };
    assert_eq!(t.admin().add_batch(&repeat).await.unwrap(), Ok(Made::Replayed(made)));
    // Another tenant's is another key, and a day later it is forgotten.
    let theirs = NewFile { id: FileId::new(), tenant: other(), ..file.clone() };
    assert!(matches!(t.admin().add_file(&theirs).await.unwrap(), Ok(Made::New(_))));
    t.advance(secs(24 * 3_600)).await;
    let later = NewFile { id: FileId::new(), idempotency: key("k", 2), ..file };
    assert!(matches!(t.admin().add_file(&later).await.unwrap(), Ok(Made::New(_))));
}

pub async fn concurrent_adds_of_one_key_make_one_batch(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    let made = join_all((0..16).map(|_| {
        let admin = admin.clone();
        async move { admin.add_batch(&NewBatch { idempotency: key("k", 1), ..new_batch() }).await.unwrap().unwrap() }
    }))
    .await;
    assert_eq!(made.iter().filter(|made| matches!(made, Made::New(_))).count(), 1);
    let (batches, has_more) = admin.batches(&tenant(), None, 100).await.unwrap();
    assert_eq!((batches.len(), has_more), (1, false));
    assert!(made.into_iter().all(|made| made.into_inner().id == batches[0].id));
}

pub async fn a_batch_is_shown_as_it_was_accepted(t: &mut dyn StoreUnderTest) {
    let new = new_batch();
    let kept = t.admin().add_batch(&new).await.unwrap().unwrap().into_inner();
    assert_eq!((kept.state, kept.total, kept.cursor), (BatchState::Validating, 0, Cursor::default()));
    assert_eq!((kept.endpoint, kept.input, &kept.metadata), (new.endpoint, new.input, &new.metadata));
    assert_eq!((&kept.window_text, kept.output_life), (&new.window_text, new.output_life));
    assert_eq!((kept.created_at, kept.expires_at), (kept.now, Timestamp(kept.now.0 + 86_400_000)));
    t.reopen().await;
    assert_eq!(t.admin().batch(&tenant(), &new.id).await.unwrap(), Some(kept.clone()));
    assert_eq!(t.admin().batch(&other(), &new.id).await.unwrap(), None);
    assert_eq!(t.admin().open_batches(10).await.unwrap(), [kept]);
}

pub async fn a_wrong_file_fails_its_batch_once(t: &mut dyn StoreUnderTest) {
    let batch = new_batch();
    t.admin().add_batch(&batch).await.unwrap().unwrap();
    let error = BatchError { code: "invalid_json_line".into(), message: "\0".into(), param: None, line: Some(3) };
    assert!(t.admin().fail_batch(&batch.id, std::slice::from_ref(&error)).await.unwrap());
    assert!(!t.admin().fail_batch(&batch.id, &[]).await.unwrap());
    assert!(!t.admin().begin_batch(&batch.id, "small", 1).await.unwrap());
    let failed = t.admin().batch(&tenant(), &batch.id).await.unwrap().unwrap();
    assert_eq!((failed.state, failed.errors, failed.failed_at), (BatchState::Failed, vec![error], Some(failed.now)));
    assert_eq!(t.admin().open_batches(10).await.unwrap(), []);
}

pub async fn expanding_twice_gives_the_same_lines(t: &mut dyn StoreUnderTest) {
    let batch = begun(t, 5).await;
    let store = t.store();
    for _ in 0..2 {
        // The second time as after a kill between the jobs and the cursor.
        store.accept(&[line(batch, 0), line(batch, 2)]).await.unwrap();
    }
    assert!(t.admin().batch_expanded(&batch, &[refused(1)], at(0), at(3)).await.unwrap());
    assert!(!t.admin().batch_expanded(&batch, &[refused(3)], at(0), at(4)).await.unwrap(), "it stands elsewhere");
    store.accept(&[line(batch, 4)]).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[refused(3)], at(3), at(5)).await.unwrap());
    let shown = t.admin().batch(&tenant(), &batch).await.unwrap().unwrap();
    assert_eq!(shown.cursor, at(5));
    assert_eq!(shown.counts, LineCounts { failed: 2, unfinished: 3, ..LineCounts::default() });

    let lines = t.admin().lines(&batch, 0, 100).await.unwrap();
    assert_eq!(lines.iter().map(Line::number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(lines[1], Line::Refused(refused(1)));
    assert!(matches!(&lines[2], Line::Job { custom_id, job, .. }
        if custom_id == "c2\0" && job.batch_line == Some((batch.0, 2))));
    let page = t.admin().lines(&batch, 1, 3).await.unwrap();
    assert_eq!(page.iter().map(Line::number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(t.admin().lines(&batch, 5, 3).await.unwrap(), []);
    assert_eq!(t.admin().unfinished_lines(&batch, 2).await.unwrap().len(), 2);
}

/// Leases and ends all lines of a batch, each with the outcome of its number.
async fn end_lines(t: &dyn StoreUnderTest, batch: BatchId, outcome: impl Fn(u32) -> Outcome) {
    let store = t.store();
    for found in t.admin().lines(&batch, 0, 1_000).await.unwrap() {
        if let Line::Job { line, job, .. } = found
            && !job.state.is_terminal()
        {
            let leased = lease(&*store, job.id, job.attempt, "w").await.unwrap();
            assert!(finish(&*store, leased.lease, outcome(line)).await);
        }
    }
}

pub async fn a_batch_completes_when_all_its_lines_have_ended(t: &mut dyn StoreUnderTest) {
    let batch = begun(t, 3).await;
    t.store().accept(&[line(batch, 0), line(batch, 1)]).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[], at(0), at(2)).await.unwrap());
    end_lines(t, batch, |_| success()).await;
    assert!(!t.admin().finalize_batch(&batch).await.unwrap(), "a line is not expanded");
    t.store().accept(&[line(batch, 2)]).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[], at(2), at(3)).await.unwrap());
    assert!(!t.admin().finalize_batch(&batch).await.unwrap(), "a line has not ended");
    assert_eq!(t.admin().open_batches(10).await.unwrap(), [], "it waits for its jobs");
    end_lines(t, batch, |_| success()).await;
    t.advance(secs(5)).await;
    assert!(t.admin().finalize_batch(&batch).await.unwrap());
    assert!(!t.admin().finalize_batch(&batch).await.unwrap());
    assert_eq!(t.admin().open_batches(10).await.unwrap()[0].state, BatchState::Finalizing);

    let output = NewFile { purpose: Purpose::BatchOutput, ..new_file() };
    let wrong = BatchEnd { state: BatchState::Completed, output: Some((output.clone(), 2)), errors: None };
    assert!(matches!(t.admin().end_batch(&batch, &wrong).await, Err(StoreError::Corrupt(_))), "a line is in no file");
    assert_eq!(t.admin().file(&tenant(), &output.id).await.unwrap(), None);
    let end = BatchEnd { output: Some((output.clone(), 3)), ..wrong };
    let ended = t.admin().end_batch(&batch, &end).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.output, ended.error_file), (BatchState::Completed, Some(output.id), None));
    assert_eq!((ended.completed_at, ended.finalizing_at), (Some(ended.now), Some(ended.now)));
    assert_eq!((ended.counts.succeeded, ended.usage.prompt_tokens, ended.usage.output_tokens), (3, 30, 15));
    assert!(t.admin().file(&tenant(), &output.id).await.unwrap().is_some());
    assert_eq!(t.admin().end_batch(&batch, &end).await.unwrap(), None, "it has ended");
    assert_eq!(t.admin().batch(&tenant(), &batch).await.unwrap(), Some(ended));
    assert_eq!(t.admin().open_batches(10).await.unwrap(), []);
}

pub async fn a_cancelled_batch_keeps_what_has_ended(t: &mut dyn StoreUnderTest) {
    let batch = begun(t, 4).await;
    t.store().accept(&[line(batch, 0), line(batch, 1)]).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[], at(0), at(2)).await.unwrap());
    let first = t.admin().unfinished_lines(&batch, 1).await.unwrap()[0];
    let leased = lease(&*t.store(), first, 0, "w").await.unwrap();
    assert!(finish(&*t.store(), leased.lease, success()).await);

    assert_eq!(t.admin().cancel_batch(&other(), &batch).await.unwrap(), BatchCancel::NotFound);
    for _ in 0..2 {
        let answer = t.admin().cancel_batch(&tenant(), &batch).await.unwrap();
        assert!(matches!(answer, BatchCancel::Cancelling(batch) if batch.state == BatchState::Cancelling));
    }
    assert!(!t.admin().batch_expanded(&batch, &[], at(2), at(4)).await.unwrap(), "nothing more is made of it");
    assert!(!t.admin().finalize_batch(&batch).await.unwrap());
    let errors = NewFile { purpose: Purpose::BatchOutput, ..new_file() };
    let output = NewFile { purpose: Purpose::BatchOutput, ..new_file() };
    let end = BatchEnd { state: BatchState::Cancelled, output: Some((output, 1)), errors: Some((errors.clone(), 3)) };
    assert_eq!(t.admin().end_batch(&batch, &end).await.unwrap(), None, "a job of it runs or waits");
    for job in t.admin().unfinished_lines(&batch, 10).await.unwrap() {
        t.store().cancel(&tenant(), &job).await.unwrap();
    }
    let ended = t.admin().end_batch(&batch, &end).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.cancelled_at), (BatchState::Cancelled, Some(ended.now)));
    assert_eq!((ended.counts.succeeded, ended.counts.cancelled, ended.error_file), (1, 1, Some(errors.id)));
    let answer = t.admin().cancel_batch(&tenant(), &batch).await.unwrap();
    assert!(matches!(answer, BatchCancel::Cancelling(batch) if batch.state == BatchState::Cancelled));
}

pub async fn a_batch_that_has_ended_is_too_late_to_cancel(t: &mut dyn StoreUnderTest) {
    let batch = begun(t, 0).await;
    assert!(t.admin().finalize_batch(&batch).await.unwrap());
    let answer = t.admin().cancel_batch(&tenant(), &batch).await.unwrap();
    assert!(matches!(answer, BatchCancel::TooLate(batch) if batch.state == BatchState::Finalizing));
    let end = BatchEnd { state: BatchState::Completed, output: None, errors: None };
    t.admin().end_batch(&batch, &end).await.unwrap().unwrap();
    let answer = t.admin().cancel_batch(&tenant(), &batch).await.unwrap();
    assert!(matches!(answer, BatchCancel::TooLate(batch) if batch.state == BatchState::Completed));
}

pub async fn lines_are_counted_by_their_ends(t: &mut dyn StoreUnderTest) {
    let batch = begun(t, 6).await;
    let jobs: Vec<NewJob> =
        (0..5).map(|n| NewJob { deadline_in: if n == 3 { secs(10) } else { DEADLINE }, ..line(batch, n) }).collect();
    t.store().accept(&jobs).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[refused(5)], at(0), at(6)).await.unwrap());
    let lease_of = async |n: usize| lease(&*t.store(), jobs[n].id, 0, "w").await.unwrap().lease;
    assert!(finish(&*t.store(), lease_of(0).await, success()).await);
    let error = contract::JobError::new(contract::ErrorCode::InvalidRequest, "no");
    assert!(finish(&*t.store(), lease_of(1).await, Outcome::Failed { error, usage: usage(2) }).await);
    t.store().cancel(&tenant(), &jobs[2].id).await.unwrap();
    t.advance(Duration::from_secs(11)).await;
    t.store().reap(100).await.unwrap();
    assert_eq!(state(&*t.store(), jobs[3].id).await, JobState::Expired);
    let shown = t.admin().batch(&tenant(), &batch).await.unwrap().unwrap();
    assert_eq!(shown.counts, LineCounts { succeeded: 1, failed: 2, cancelled: 1, expired: 1, unfinished: 1 });
    assert_eq!(shown.usage.output_tokens, 7);
    let (listed, _) = t.admin().batches(&tenant(), None, 10).await.unwrap();
    assert_eq!(listed, [shown]);
}

pub async fn batches_are_listed_newest_first_and_paged(t: &mut dyn StoreUnderTest) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(t.admin().add_batch(&new_batch()).await.unwrap().unwrap().into_inner().id);
    }
    t.admin().add_batch(&NewBatch { tenant: other(), ..new_batch() }).await.unwrap().unwrap();
    let page = async |after, limit| {
        let (batches, has_more) = t.admin().batches(&tenant(), after, limit).await.unwrap();
        (batches.iter().map(|batch| batch.id).collect::<Vec<_>>(), has_more)
    };
    assert_eq!(page(None, 2).await, (vec![ids[2], ids[1]], true));
    assert_eq!(page(Some(ids[1]), 2).await, (vec![ids[0]], false));
    assert_eq!(t.admin().open_batches(10).await.unwrap().len(), 4, "those of all tenants");
}

/// Leases a job and ends it well.
async fn succeed(t: &dyn StoreUnderTest, job: &NewJob) {
    let leased = lease(&*t.store(), job.id, 0, "w").await.unwrap();
    assert!(finish(&*t.store(), leased.lease, success()).await);
}

pub async fn ended_lines_come_in_the_order_of_their_ends(t: &mut dyn StoreUnderTest) {
    let batch = begun(t, 6).await;
    let jobs: Vec<NewJob> = (0..5).map(|n| line(batch, n)).collect();
    t.store().accept(&jobs).await.unwrap();
    let ended = async |after, limit| {
        let found = t.admin().ended_lines(&batch, after, limit).await.unwrap();
        found.map(|(lines, has_more)| (lines.iter().map(Line::number).collect::<Vec<_>>(), has_more))
    };
    assert_eq!(ended(None, 10).await, Some((vec![], false)));
    succeed(t, &jobs[3]).await;
    assert!(t.admin().batch_expanded(&batch, &[refused(5)], at(0), at(6)).await.unwrap());
    t.store().cancel(&tenant(), &jobs[1].id).await.unwrap();
    // What others write at the same time, here other cases, may hold the newest lines back for a moment.
    let becomes = async |after, expected: Vec<u32>| {
        let begin = std::time::Instant::now();
        loop {
            match ended(after, 10).await {
                Some((lines, false)) if lines == expected => return,
                found => assert!(begin.elapsed() < secs(10), "{found:?}, and not {expected:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    becomes(None, vec![3, 5, 1]).await;
    assert_eq!(ended(None, 2).await, Some((vec![3, 5], true)));
    let of = |n: usize| Some(LineId::Job(jobs[n].id));
    assert_eq!(ended(of(3), 1).await, Some((vec![5], true)));
    assert_eq!(ended(Some(LineId::Refused(5)), 1).await, Some((vec![1], false)));
    assert_eq!(ended(of(1), 10).await, Some((vec![], false)));
    succeed(t, &jobs[0]).await;
    becomes(of(1), vec![0]).await;
    // What has not ended, and what is no line of this batch, has no place.
    assert_eq!(ended(of(2), 10).await, None);
    assert_eq!(ended(Some(LineId::Refused(4)), 10).await, None);
    let stranger = begun(t, 1).await;
    let theirs = line(stranger, 0);
    t.store().accept(std::slice::from_ref(&theirs)).await.unwrap();
    succeed(t, &theirs).await;
    assert_eq!(ended(Some(LineId::Job(theirs.id)), 10).await, None);
    let (lines, _) = t.admin().ended_lines(&batch, None, 1).await.unwrap().unwrap();
    assert!(matches!(&lines[0], Line::Job { custom_id, job, .. } if custom_id == "c3\0" && job.record.is_some()));
}

pub async fn who_reads_on_misses_no_line(t: &mut dyn StoreUnderTest) {
    const LINES: u32 = 120;
    let batch = begun(t, LINES).await;
    let jobs: Vec<NewJob> = (0..LINES).map(|n| line(batch, n)).collect();
    t.store().accept(&jobs).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[], at(0), at(LINES)).await.unwrap());
    // Eight writers, each with its own lines; transactions of one and of several.
    let (store, admin) = (t.store(), t.admin());
    let writers = (0..8).map(|writer| {
        let (store, jobs) = (store.clone(), &jobs);
        async move {
            let mine: Vec<&NewJob> = jobs.iter().skip(writer).step_by(8).collect();
            for group in mine.chunks(1 + writer % 3) {
                let mut outcomes = Vec::new();
                for job in group {
                    outcomes.push((lease(&*store, job.id, 0, "w").await.unwrap().lease, success()));
                }
                store.finish(&outcomes).await.unwrap();
            }
        }
    });
    let reader = async {
        let (mut seen, mut after) = (Vec::new(), None);
        while seen.len() < LINES as usize {
            let (lines, _) = admin.ended_lines(&batch, after, 7).await.unwrap().unwrap();
            if let Some(Line::Job { job, .. }) = lines.last() {
                after = Some(LineId::Job(job.id));
            }
            seen.extend(lines.iter().map(Line::number));
            tokio::task::yield_now().await;
        }
        seen
    };
    let both = async { tokio::join!(reader, join_all(writers)) };
    let (mut seen, _) = tokio::time::timeout(secs(60), both).await.expect("a line was passed over");
    seen.sort_unstable();
    assert_eq!(seen, (0..LINES).collect::<Vec<_>>());
}

pub async fn lines_with_a_result_are_those_that_succeeded(t: &mut dyn StoreUnderTest) {
    let only: LineSet = [3, 9].into_iter().collect();
    let new = NewBatch { only: Some(only.clone()), ..new_batch() };
    t.admin().add_batch(&new).await.unwrap().unwrap();
    t.reopen().await;
    assert_eq!(t.admin().batch_lines(&new.id).await.unwrap(), Some(only));
    let batch = begun(t, 5).await;
    assert_eq!(t.admin().batch_lines(&batch).await.unwrap(), None);
    let jobs: Vec<NewJob> = (0..3).map(|n| line(batch, n)).collect();
    t.store().accept(&jobs).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[refused(3)], at(0), at(4)).await.unwrap());
    succeed(t, &jobs[1]).await;
    t.store().cancel(&tenant(), &jobs[2].id).await.unwrap();
    assert_eq!(t.admin().lines_with_result(&batch).await.unwrap(), [1]);
}

pub async fn progress_says_what_runs_and_what_is_ahead(t: &mut dyn StoreUnderTest) {
    // Another's job, and one of the same tenant in another class: neither is ahead.
    let before = NewJob { class: Class::Bulk, ..job() };
    let theirs = NewJob { tenant: other(), ..before.clone() };
    let theirs = NewJob { id: contract::JobId::new(), ..theirs };
    t.store().accept(&[before, theirs, job()]).await.unwrap();
    let batch = begun(t, 4).await;
    let jobs: Vec<NewJob> = (0..4).map(|n| line(batch, n)).collect();
    t.store().accept(&jobs).await.unwrap();
    assert!(t.admin().batch_expanded(&batch, &[], at(0), at(4)).await.unwrap());
    succeed(t, &jobs[0]).await;
    t.advance(RECENT + secs(1)).await;
    succeed(t, &jobs[1]).await;
    lease(&*t.store(), jobs[2].id, 0, "w").await.unwrap();
    let progress = t.admin().batch_progress(&tenant(), &batch).await.unwrap().unwrap();
    assert_eq!((progress.running, progress.recent, progress.jobs_ahead), (1, 1, Some(1)));
    assert_eq!((progress.batch.counts.succeeded, progress.batch.counts.unfinished), (2, 2));
    lease(&*t.store(), jobs[3].id, 0, "w").await.unwrap();
    let progress = t.admin().batch_progress(&tenant(), &batch).await.unwrap().unwrap();
    assert_eq!((progress.running, progress.jobs_ahead), (2, None));
    assert_eq!(t.admin().batch_progress(&other(), &batch).await.unwrap(), None);
}

pub async fn a_batch_for_later_is_open_until_it_is_checked_and_then_at_its_time(t: &mut dyn StoreUnderTest) {
    let now = t.admin().add_batch(&new_batch()).await.unwrap().unwrap().into_inner().now;
    let later = NewBatch { run_after: Some(Timestamp(now.0 + 50_000)), ..new_batch() };
    let kept = t.admin().add_batch(&later).await.unwrap().unwrap().into_inner();
    assert_eq!((kept.run_after, kept.expires_at), (later.run_after, Timestamp(now.0 + 50_000 + 86_400_000)));
    assert_eq!(kept.window(), secs(86_400));
    let past = NewBatch { run_after: Some(Timestamp(now.0 - 50_000)), ..new_batch() };
    let past = t.admin().add_batch(&past).await.unwrap().unwrap().into_inner();
    assert_eq!(past.window(), secs(86_400));
    let is_open = async || {
        let open = t.admin().open_batches(10).await.unwrap();
        open.iter().any(|batch| batch.id == later.id)
    };
    assert!(is_open().await, "its file is checked at once");
    assert!(t.admin().begin_batch(&later.id, "small", 1).await.unwrap());
    assert!(!is_open().await);
    t.advance(secs(50)).await;
    assert!(is_open().await);
}
