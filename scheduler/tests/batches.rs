//! Batches over SQLite and local files; the test is the client and the worker.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore, local_objects};
use contract::record::AttemptTimings;
use contract::release::Manifest;
use contract::{
    AdminStore, Batch, BatchCancel, BatchId, BatchState, ChoiceRecord, Class, ErrorCode, FileId, FinishReason,
    JobError, JobStore, Kind, LineCounts, LineSet, NewBatch, NewFile, NewJob, Outcome, Purpose, Queue, QueueId, Record,
    RecordLocation, ServedModel, TenantId, Timestamp, Trajectories, Usage, WorkerId,
};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use scheduler::{ArchiveConfig, Deps, SchedulerError, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

struct World {
    store: Arc<SqliteStore>,
    objects: Arc<dyn ObjectStore>,
    queue: Arc<InProcessQueue>,
    /// Added to the store's clock, in milliseconds.
    ahead: Arc<AtomicI64>,
    /// Whether records are put beside their rows, as those that are too large for one.
    stages: AtomicBool,
    _folder: TempDir,
}

type Running = JoinHandle<Result<(), SchedulerError>>;

fn model() -> ServedModel {
    let manifest = Manifest {
        model_sha256: "00".into(),
        engine: "test".into(),
        numerics: "test".into(),
        reading: contract::Reading::default(),
    };
    ServedModel {
        name: "tiny".into(),
        release: manifest.fingerprint(),
        manifest,
        context_tokens: 1_000,
        longest_token_bytes: 16,
        has_chat_template: true,
        vocab_size: 100,
    }
}

fn queue() -> QueueId {
    QueueId { release: model().release, class: Class::Bulk }
}

fn line(custom_id: &str, body: &Value) -> String {
    format!("{}\n", json!({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}))
}

fn good(n: usize) -> String {
    (0..n).map(|nth| line(&format!("c{nth}"), &json!({"model": "tiny", "prompt": format!("p{nth}")}))).collect()
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("jobs.db"));
        let (system, ahead) = (options.clock.clone(), Arc::new(AtomicI64::new(0)));
        let shift = ahead.clone();
        let clock = Arc::new(move || system() + shift.load(Ordering::SeqCst));
        let store = SqliteStore::open_with(SqliteOptions { clock, ..options }).await.unwrap();
        store.offer(&model()).await.unwrap();
        let objects = Arc::new(local_objects(&folder.path().join("objects")).unwrap());
        Self {
            store: Arc::new(store),
            objects,
            queue: Arc::new(InProcessQueue::new(64)),
            ahead,
            stages: AtomicBool::new(false),
            _folder: folder,
        }
    }

    fn start(&self) -> Running {
        self.start_with(ArchiveConfig::default())
    }

    fn start_with(&self, archive: ArchiveConfig) -> Running {
        let deps = Deps {
            store: self.store.clone(),
            admin: self.store.clone(),
            queue: self.queue.clone(),
            bus: Arc::new(InProcessBus::default()),
            objects: self.objects.clone(),
            archive,
            trajectories: Trajectories::default(),
            guard: contract::guard::Guard::default(),
            progress_every: Duration::from_secs(30),
            holder: WorkerId::unique(),
        };
        tokio::spawn(run(deps, std::future::pending::<()>()))
    }

    fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    async fn submit(&self, file: &str) -> BatchId {
        self.submit_for(file, None).await
    }

    /// A batch that runs at a time of its own.
    async fn submit_for(&self, file: &str, run_after: Option<Timestamp>) -> BatchId {
        let id = FileId::new();
        self.objects.put(&Path::from(id.object_key()), file.to_owned().into()).await.unwrap();
        let new = NewFile {
            id,
            tenant: TenantId::from("acme"),
            filename: "in.jsonl".into(),
            purpose: Purpose::Batch,
            bytes: file.len() as u64,
            expires_in: None,
            idempotency: None,
        };
        self.store.add_file(&new).await.unwrap().unwrap();
        let batch = NewBatch {
            id: BatchId::new(),
            tenant: TenantId::from("acme"),
            endpoint: Kind::Completion,
            input: id,
            window: Duration::from_secs(3_600),
            run_after,
            only: None,
            webhook: None,
            window_text: "1h".into(),
            metadata: BTreeMap::new(),
            output_life: None,
            keep: None,
            idempotency: None,
        };
        self.store.add_batch(&batch).await.unwrap().unwrap();
        batch.id
    }

    async fn batch(&self, id: BatchId) -> Batch {
        self.store.batch(&TenantId::from("acme"), &id).await.unwrap().unwrap()
    }

    async fn until(&self, id: BatchId, holds: impl Fn(&Batch) -> bool) -> Batch {
        let begin = Instant::now();
        loop {
            let batch = self.batch(id).await;
            if holds(&batch) {
                return batch;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "it does not come to that: {batch:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn ended(&self, id: BatchId) -> Batch {
        self.until(id, |batch| batch.state.is_terminal()).await
    }

    /// Runs up to `n` waiting jobs as a worker does; `fails` says which by their prompts. Answers how many there were.
    async fn work(&self, n: u32, fails: impl Fn(&str) -> bool) -> usize {
        let mut wakes = Vec::new();
        for delivery in self.queue.take(&queue(), n as usize).await.unwrap() {
            wakes.push(delivery.wake);
            self.queue.ack(delivery).await;
        }
        if wakes.is_empty() {
            wakes = self.store.due(&queue(), n).await.unwrap();
        }
        let worker = WorkerId::from("w");
        let leased = self.store.lease(&wakes, &worker, Duration::from_secs(15)).await.unwrap();
        let mut done = 0;
        for leased in leased.into_iter().flatten() {
            let contract::Input::Completion(contract::Prompt::Text(prompt)) = &leased.request.input else { panic!() };
            let usage = Usage { prompt_tokens: 2, cached_tokens: 0, output_tokens: 1 };
            let outcome = if fails(prompt) {
                Outcome::Failed { error: JobError::new(ErrorCode::ContextLengthExceeded, "too long"), usage }
            } else {
                let record = Record {
                    v: 1,
                    job: leased.lease.job,
                    attempt: leased.lease.attempt,
                    release: model().release,
                    kind: Kind::Completion,
                    request: leased.request.clone(),
                    seed: leased.seed,
                    prompt_text: prompt.clone(),
                    prompt_ids: vec![1, 2],
                    choices: vec![ChoiceRecord {
                        output_ids: vec![3],
                        text: format!("re {prompt}"),
                        ends: vec![3],
                        logprobs: None,
                        finish_reason: FinishReason::Length,
                        stop_reason: None,
                    }],
                    usage,
                    timings: AttemptTimings::default(),
                    reading: contract::Reading::default(),
                };
                let encoded = record.encode().unwrap();
                let record = if self.stages.load(Ordering::SeqCst) {
                    let key = format!("records/{}/1.json.zst", leased.lease.job);
                    self.objects.put(&Path::from(key.as_str()), encoded.into()).await.unwrap();
                    RecordLocation::Staged(key)
                } else {
                    RecordLocation::Inline(encoded)
                };
                Outcome::Succeeded { record, usage, first_token_ms: Some(1) }
            };
            self.store.finish(&[(leased.lease, outcome)]).await.unwrap().remove(0).unwrap();
            done += 1;
        }
        done
    }

    /// Runs exactly so many jobs.
    async fn works(&self, n: usize) {
        let mut done = 0;
        while done < n {
            done += self.work(1, |_| false).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The lines of a file by their custom ids.
    async fn answers(&self, file: Option<FileId>) -> BTreeMap<String, Value> {
        let Some(file) = file else { return BTreeMap::new() };
        let object = self.objects.get(&Path::from(file.object_key())).await.unwrap().bytes().await.unwrap();
        let kept = self.store.file(&TenantId::from("acme"), &file).await.unwrap().unwrap();
        assert_eq!((kept.bytes, kept.purpose), (object.len() as u64, Purpose::BatchOutput));
        let text = String::from_utf8(object.to_vec()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let answers: Vec<_> = lines.map(|line| (line["custom_id"].as_str().unwrap().to_owned(), line)).collect();
        let n = answers.len();
        let by_id: BTreeMap<_, _> = answers.into_iter().collect();
        assert_eq!(by_id.len(), n, "a line is there twice");
        by_id
    }
}

#[tokio::test]
async fn every_line_is_in_one_of_the_files() {
    let world = World::new().await;
    let scheduler = world.start();
    // A blank line, a bad request, an unknown model, no break at the end.
    let mut file = good(700) + "\n" + &line("bad", &json!({"model": "tiny", "prompt": "x", "temperature": 9}));
    file.push_str(line("last", &json!({"model": "tiny", "prompt": "last"})).trim_end());
    let id = world.submit(&file).await;
    let batch = world.until(id, |batch| batch.cursor.line == batch.total && batch.total > 0).await;
    assert_eq!((batch.state, batch.total, batch.model.as_deref()), (BatchState::InProgress, 702, Some("tiny")));
    assert_eq!(batch.counts, LineCounts { failed: 1, unfinished: 701, ..LineCounts::default() });
    let mut done = 0;
    while done < 701 {
        done += world.work(64, |prompt| prompt == "p7").await;
    }
    let ended = world.ended(id).await;
    assert_eq!(ended.state, BatchState::Completed);
    assert_eq!(ended.counts, LineCounts { succeeded: 700, failed: 2, ..LineCounts::default() });
    assert_eq!((ended.usage.prompt_tokens, ended.usage.output_tokens), (1_402, 701));
    let (output, errors) = (world.answers(ended.output).await, world.answers(ended.error_file).await);
    assert_eq!((output.len(), errors.len()), (700, 2));
    let answer = &output["c8"];
    assert_eq!(answer["response"]["status_code"], 200);
    assert_eq!(answer["response"]["body"]["choices"][0]["text"], "re p8");
    assert_eq!((&answer["error"], &answer["response"]["request_id"]), (&Value::Null, &answer["id"]));
    let refused = &errors["bad"]["response"];
    assert_eq!((&refused["status_code"], &refused["body"]["error"]["param"]), (&json!(400), &json!("temperature")));
    let failed = &errors["c7"]["response"];
    assert_eq!(failed["body"]["error"]["code"], "context_length_exceeded");
    assert_eq!((&failed["status_code"], &errors["c7"]["error"]), (&json!(400), &Value::Null));
    scheduler.abort();
}

#[tokio::test]
async fn answers_are_found_wherever_their_records_are() {
    let world = World::new().await;
    let small = ArchiveConfig { segment_bytes: 4_096, segment_age: Duration::ZERO };
    let scheduler = world.start_with(small);
    let id = world.submit(&good(300)).await;
    world.until(id, |batch| batch.counts.unfinished == 300).await;
    world.works(200).await;
    let mut segments = BTreeSet::new();
    let begin = Instant::now();
    loop {
        let lines = world.store.lines(&id, 0, 300).await.unwrap();
        let places = lines.iter().filter_map(|line| match line.job()?.record.as_ref()? {
            RecordLocation::Archived(place) => Some(place.key.clone()),
            RecordLocation::Inline(_) | RecordLocation::Staged(_) => None,
        });
        let places: Vec<_> = places.collect();
        if places.len() == 200 {
            segments.extend(places);
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{} of 200 are archived", places.len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(segments.len() > 2, "{segments:?}");
    scheduler.abort();
    // From here on nothing is archived.
    let scheduler = world.start();
    world.works(50).await;
    world.stages.store(true, Ordering::SeqCst);
    world.works(50).await;
    let ended = world.ended(id).await;
    assert_eq!((ended.state, ended.counts.succeeded), (BatchState::Completed, 300));
    let output = world.answers(ended.output).await;
    for nth in 0..300 {
        let answer = &output[&format!("c{nth}")];
        assert_eq!(answer["response"]["body"]["choices"][0]["text"], format!("re p{nth}"));
    }
    scheduler.abort();
}

#[tokio::test]
async fn a_wrong_file_fails_its_batch_and_says_where() {
    let world = World::new().await;
    let scheduler = world.start();
    let other = line("d", &json!({"model": "other", "prompt": "x"}));
    let cases = [
        (String::new(), "empty_file", None),
        ("\n \n".to_owned(), "empty_file", None),
        (good(2) + "{\n", "invalid_json_line", Some(3)),
        (good(2) + "\n" + &good(1), "duplicate_custom_id", Some(4)),
        (good(1) + &other, "model_mismatch", Some(2)),
        (good(1) + &good(1).replace("completions", "chat/completions"), "url_mismatch", Some(2)),
        (good(1) + "{\"custom_id\": \"x\"}\n", "invalid_line", Some(2)),
        (good(50_001), "too_many_tasks", None),
    ];
    for (file, code, at) in cases {
        let failed = world.submit(&file).await;
        let failed = world.ended(failed).await;
        assert_eq!(failed.state, BatchState::Failed, "{code}");
        let error = failed.errors.last().unwrap();
        assert_eq!((error.code.as_str(), error.line), (code, at), "{error:?}");
        assert_eq!((failed.output, failed.error_file, failed.counts), (None, None, LineCounts::default()));
    }
    scheduler.abort();
}

#[tokio::test]
async fn all_lines_refused_is_a_batch_without_results() {
    let world = World::new().await;
    let scheduler = world.start();
    let id = world.submit(&line("a", &json!({"model": "nobody's", "prompt": "x"}))).await;
    let ended = world.ended(id).await;
    assert_eq!((ended.state, ended.output), (BatchState::Completed, None));
    let errors = world.answers(ended.error_file).await;
    assert_eq!(errors["a"]["response"]["body"]["error"]["code"], "model_not_found");
    scheduler.abort();
}

#[tokio::test]
async fn a_batch_whose_time_is_over_keeps_what_is_done() {
    let world = World::new().await;
    let scheduler = world.start();
    let id = world.submit(&good(5)).await;
    world.until(id, |batch| batch.counts.unfinished == 5).await;
    world.works(2).await;
    world.advance(Duration::from_secs(3_601));
    let ended = world.ended(id).await;
    assert_eq!((ended.state, ended.counts.succeeded), (BatchState::Expired, 2));
    let (output, errors) = (world.answers(ended.output).await, world.answers(ended.error_file).await);
    assert_eq!((output.len(), errors.len()), (2, 3));
    assert!(errors.values().all(|line| line["error"]["code"] == "batch_expired" && line["response"].is_null()));
    scheduler.abort();
}

#[tokio::test]
async fn only_the_lines_that_are_named_run() {
    let world = World::new().await;
    // A blank line between them has no number.
    let id = world
        .submit(&(good(2) + "\n" + &good(1_203).lines().skip(2).map(|line| line.to_owned() + "\n").collect::<String>()))
        .await;
    let first = world.batch(id).await;
    let only: LineSet = (0..1_203).filter(|line| line % 2 == 1).collect();
    let named = NewBatch {
        id: BatchId::new(),
        tenant: first.tenant.clone(),
        endpoint: first.endpoint,
        input: first.input,
        window: first.window(),
        window_text: first.window_text.clone(),
        metadata: BTreeMap::new(),
        output_life: None,
        keep: None,
        run_after: None,
        only: Some(only),
        webhook: None,
        idempotency: None,
    };
    world.store.cancel_batch(&first.tenant, &id).await.unwrap();
    world.store.add_batch(&named).await.unwrap().unwrap();
    // A chunk is 500 lines: killed between two of them, the next one goes on at the right line.
    let mut n_starts = 0;
    let mut done = 0;
    while !world.batch(named.id).await.state.is_terminal() {
        let scheduler = world.start();
        n_starts += 1;
        let cursor = world.batch(named.id).await.cursor;
        let begin = Instant::now();
        while world.batch(named.id).await.cursor == cursor && begin.elapsed() < Duration::from_secs(1) {
            done += world.work(64, |_| false).await;
        }
        scheduler.abort();
        drop(scheduler.await);
        world.advance(Duration::from_secs(5));
        assert!(n_starts < 100);
    }
    let ended = world.batch(named.id).await;
    assert_eq!((ended.state, ended.total, done), (BatchState::Completed, 601, 601));
    let output = world.answers(ended.output).await;
    let expected: BTreeSet<String> = (0..1_203).filter(|line| line % 2 == 1).map(|line| format!("c{line}")).collect();
    assert_eq!(output.keys().cloned().collect::<BTreeSet<_>>(), expected);
}

#[tokio::test]
async fn a_batch_for_later_is_checked_now_and_runs_then() {
    let world = World::new().await;
    let scheduler = world.start();
    let now = world.batch(world.submit(&good(1)).await).await.now;
    let wrong = world.submit_for("{", Some(Timestamp(now.0 + 3_600_000))).await;
    assert_eq!(world.ended(wrong).await.state, BatchState::Failed);
    let id = world.submit_for(&good(2), Some(Timestamp(now.0 + 3_600_000))).await;
    let batch = world.until(id, |batch| batch.state == BatchState::InProgress).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!((world.batch(id).await.cursor.line, batch.window()), (0, Duration::from_secs(3_600)));
    world.advance(Duration::from_secs(3_600));
    world.until(id, |batch| batch.counts.unfinished == 2).await;
    scheduler.abort();
}

#[tokio::test]
async fn a_cancelled_batch_says_so_of_each_line() {
    let world = World::new().await;
    // Not expanded yet: nobody schedules.
    let id = world.submit(&good(3)).await;
    let cancel = async || world.store.cancel_batch(&TenantId::from("acme"), &id).await.unwrap();
    assert!(matches!(cancel().await, BatchCancel::Cancelling(_)));
    let scheduler = world.start();
    let ended = world.ended(id).await;
    // Its file was never read.
    assert_eq!((ended.state, ended.total, ended.error_file), (BatchState::Cancelled, 0, None));

    let id = world.submit(&good(3)).await;
    world.until(id, |batch| batch.counts.unfinished == 3).await;
    world.works(1).await;
    world.store.cancel_batch(&TenantId::from("acme"), &id).await.unwrap();
    let ended = world.ended(id).await;
    let expected = LineCounts { succeeded: 1, cancelled: 2, ..LineCounts::default() };
    assert_eq!((ended.state, ended.counts), (BatchState::Cancelled, expected));
    let errors = world.answers(ended.error_file).await;
    assert!(errors.values().all(|line| line["error"]["code"] == "batch_cancelled"));
    assert_eq!((errors.len(), world.answers(ended.output).await.len()), (2, 1));
    scheduler.abort();
}

#[tokio::test]
async fn lines_that_are_jobs_before_the_cursor_moves_count_once() {
    let world = World::new().await;
    let scheduler = world.start();
    let now = world.batch(world.submit(&good(1)).await).await.now;
    let id = world.submit_for(&good(2), Some(Timestamp(now.0 + 3_600_000))).await;
    world.until(id, |batch| batch.state == BatchState::InProgress).await;
    // As when it is cancelled between its jobs and its cursor.
    world.store.accept(&[job_of(id, 0)]).await.unwrap();
    world.store.cancel_batch(&TenantId::from("acme"), &id).await.unwrap();
    let ended = world.ended(id).await;
    assert_eq!((ended.state, ended.cursor.line, ended.counts.cancelled), (BatchState::Cancelled, 0, 1));
    let shown = contract::openai::batches::BatchObject::of(&ended).request_counts;
    assert_eq!((shown.total, shown.completed, shown.failed), (2, 0, 2));
    assert_eq!(world.answers(ended.error_file).await.len(), 2);
    scheduler.abort();
}

#[tokio::test]
async fn a_chunk_that_a_cancel_overtakes_is_whole_in_the_files() {
    let world = World::new().await;
    let file =
        good(1) + &line("bad", &json!({"model": "tiny", "prompt": "x", "temperature": 9})) + &good(3)[good(1).len()..];
    let scheduler = world.start();
    let now = world.batch(world.submit(&good(1)).await).await.now;
    let id = world.submit_for(&file, Some(Timestamp(now.0 + 3_600_000))).await;
    world.until(id, |batch| batch.state == BatchState::InProgress).await;
    // The good lines of the chunk are jobs, and its refusal was never kept, since the cancel came before the cursor moved.
    let jobs: Vec<NewJob> = [0, 2, 3].into_iter().map(|nth| job_of(id, nth)).collect();
    world.store.accept(&jobs).await.unwrap();
    world.store.cancel_batch(&TenantId::from("acme"), &id).await.unwrap();
    let ended = world.ended(id).await;
    assert_eq!((ended.state, ended.total), (BatchState::Cancelled, 4));
    let errors = world.answers(ended.error_file).await;
    assert_eq!(errors.keys().map(String::as_str).collect::<Vec<_>>(), ["bad", "c0", "c1", "c2"]);
    assert!(errors.values().all(|line| line["error"]["code"] == "batch_cancelled"));
    scheduler.abort();
}

#[tokio::test]
async fn batches_that_wait_for_their_jobs_are_in_nobodys_way() {
    let world = World::new().await;
    let scheduler = world.start();
    let mut waiting = Vec::new();
    for _ in 0..12 {
        waiting.push(world.submit(&good(2)).await);
    }
    for id in &waiting {
        world.until(*id, |batch| batch.counts.unfinished == 2).await;
    }
    let refused = world.submit(&line("a", &json!({"model": "nobody's", "prompt": "x"}))).await;
    assert_eq!(world.ended(refused).await.state, BatchState::Completed);
    world.store.cancel_batch(&TenantId::from("acme"), &waiting[7]).await.unwrap();
    assert_eq!(world.ended(waiting[7]).await.state, BatchState::Cancelled);
    scheduler.abort();
}

#[tokio::test]
async fn large_lines_become_jobs_in_smaller_chunks() {
    let world = World::new().await;
    let scheduler = world.start();
    let large = |nth: usize| line(&format!("c{nth}"), &json!({"model": "tiny", "prompt": "x".repeat(900_000)}));
    let id = world.submit(&(0..12).map(large).collect::<String>()).await;
    let batch = world.until(id, |batch| batch.total > 0 && batch.cursor.line == batch.total).await;
    assert_eq!(batch.counts.unfinished, 12);
    scheduler.abort();
}

/// A job as the scheduler makes it of a line.
fn job_of(batch: BatchId, line: u32) -> NewJob {
    let work = contract::openai::parse_completion(&json!({"model": "tiny", "prompt": "p"})).unwrap();
    NewJob {
        id: contract::JobId::new(),
        tenant: TenantId::from("acme"),
        release: model().release,
        route: "tiny".into(),
        class: Class::Bulk,
        bound: u64::MAX,
        tenant_bound: None,
        delay: Duration::ZERO,
        deadline_in: Duration::from_secs(60),
        seed: 1,
        request: work.request,
        metadata: BTreeMap::new(),
        batch_line: Some((batch.0, line)),
        custom_id: Some(format!("c{}", if line == 0 { 0 } else { line - 1 })),
        webhook: None,
        sequence_key: None,
        on_failure: contract::OnFailure::Skip,
        traceparent: None,
        idempotency: None,
        published_by_caller: false,
        trajectory: contract::TrajectoryMode::Full,
        keep: None,
    }
}

#[tokio::test]
async fn schedulers_that_die_on_the_way_double_and_lose_nothing() {
    let world = World::new().await;
    let id = world.submit(&good(3_000)).await;
    let mut done = 0;
    // Killed at many moments: in the middle of reading, expanding, writing.
    for round in 0.. {
        let scheduler = world.start();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(60 + 35 * (round % 9)) {
            done += world.work(256, |_| false).await;
            tokio::task::yield_now().await;
        }
        scheduler.abort();
        drop(scheduler.await);
        // Its lead runs out.
        world.advance(Duration::from_secs(5));
        if world.batch(id).await.state.is_terminal() {
            break;
        }
        assert!(round < 300, "no end in sight: {:?}", world.batch(id).await);
    }
    let ended = world.batch(id).await;
    assert_eq!((ended.state, ended.counts.succeeded, done), (BatchState::Completed, 3_000, 3_000));
    let output = world.answers(ended.output).await;
    assert_eq!((output.len(), ended.error_file), (3_000, None));
    for nth in 0..3_000 {
        assert_eq!(output[&format!("c{nth}")]["response"]["body"]["choices"][0]["text"], format!("re p{nth}"));
    }
}
