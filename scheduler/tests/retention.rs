//! Payloads that go once their time is over, over SQLite and local files: rows, staged records, segments.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[allow(dead_code, reason = "shared with the archiver's tests, which use all of it")]
mod faults;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore, local_objects};
use contract::ports::{SEGMENT_GRACE, SegmentStore};
use contract::record::AttemptTimings;
use contract::retention::record_key;
use contract::{
    AdminStore, ChoiceRecord, Class, Fingerprint, FinishReason, Input, Job, JobId, JobStore, Kind, NewJob, Outcome,
    Prompt, Record, RecordLocation, Request, Sampling, TenantId, TrajectoryMode, Usage, Wake, WorkerId,
};
use faults::Objects;
use object_store::ObjectStoreExt;
use scheduler::{ArchiveConfig, Deps, SchedulerError, run};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A word that is nowhere else.
const SECRET: &str = "xylographer";
const KEEP: Duration = Duration::from_secs(600);
/// A record is archived as soon as it is there.
const AT_ONCE: ArchiveConfig = ArchiveConfig { segment_bytes: 1, segment_age: Duration::ZERO };

struct World {
    store: Arc<SqliteStore>,
    objects: Arc<Objects>,
    /// Added to the store's clock, in milliseconds.
    ahead: Arc<AtomicI64>,
    folder: TempDir,
}

type Running = JoinHandle<Result<(), SchedulerError>>;

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("jobs.db"));
        let (system, ahead) = (options.clock.clone(), Arc::new(AtomicI64::new(0)));
        let shift = ahead.clone();
        let clock = Arc::new(move || system() + shift.load(Ordering::SeqCst));
        let store = SqliteStore::open_with(SqliteOptions { clock, ..options }).await.unwrap();
        let objects = Arc::new(Objects::new(local_objects(&folder.path().join("objects")).unwrap()));
        Self { store: Arc::new(store), objects, ahead, folder }
    }

    fn start(&self, archive: ArchiveConfig) -> Running {
        let deps = Deps {
            store: self.store.clone(),
            admin: self.store.clone(),
            trajectories: contract::Trajectories::default(),
            guard: contract::guard::Guard::default(),
            progress_every: Duration::from_secs(30),
            queue: Arc::new(InProcessQueue::new(8)),
            bus: Arc::new(InProcessBus::default()),
            objects: self.objects.clone(),
            archive,
            holder: WorkerId::unique(),
        };
        tokio::spawn(run(deps, std::future::pending::<()>()))
    }

    fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// A job that succeeded.
    async fn ended(&self, trajectory: TrajectoryMode, staged: bool, keep: Option<Duration>) -> JobId {
        let job = job(trajectory, keep);
        self.store.accept(std::slice::from_ref(&job)).await.unwrap().remove(0).unwrap();
        let wake = Wake { job: job.id, attempt: 0 };
        let ttl = Duration::from_secs(15);
        let leased = self.store.lease(&[wake], &WorkerId::from("w"), ttl).await.unwrap().remove(0).unwrap();
        let record = record(&job);
        let location =
            if staged { self.stage(job.id, 1).await } else { RecordLocation::Inline(record.encode().unwrap()) };
        let outcome = Outcome::Succeeded { record: location, usage: record.usage, first_token_ms: None };
        self.store.finish(&[(leased.lease, outcome)]).await.unwrap().remove(0).unwrap();
        job.id
    }

    async fn stage(&self, id: JobId, attempt: u32) -> RecordLocation {
        let key = record_key(&id, attempt);
        let encoded = record(&NewJob { id, ..job(TrajectoryMode::Full, None) }).encode().unwrap();
        self.objects.put(&key.as_str().into(), encoded.into()).await.unwrap();
        RecordLocation::Staged(key)
    }

    async fn get(&self, id: JobId) -> Job {
        self.store.get(&TenantId::local(), &id).await.unwrap().unwrap()
    }

    async fn is_emptied(&self, id: JobId) -> bool {
        self.get(id).await.emptied_at.is_some()
    }

    /// Files below the folder of the objects that hold the word, compressed or not; and how many files there are.
    fn objects_with_secret(&self) -> (usize, usize) {
        let mut files = Vec::new();
        files_below(&self.folder.path().join("objects"), &mut files);
        let holds = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        let with = files.iter().filter(|bytes| {
            let text = zstd::stream::decode_all(bytes.as_slice());
            holds(bytes) || text.is_ok_and(|text| holds(&text))
        });
        (with.count(), files.len())
    }
}

fn files_below(folder: &Path, files: &mut Vec<Vec<u8>>) {
    // What is deleted meanwhile is not there.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_below(&path, files);
        } else if let Ok(bytes) = std::fs::read(&path) {
            files.push(bytes);
        }
    }
}

async fn within(holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(30), "does not hold after 30 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn job(trajectory: TrajectoryMode, keep: Option<Duration>) -> NewJob {
    NewJob {
        tenant_bound: None,
        on_failure: contract::OnFailure::Skip,
        id: JobId::new(),
        tenant: TenantId::local(),
        release: Fingerprint("ab".repeat(32)),
        route: "small".into(),
        class: Class::Standard,
        bound: 10_000,
        delay: Duration::ZERO,
        deadline_in: Duration::from_secs(36_000),
        seed: 1,
        request: Request {
            model: "small".into(),
            input: Input::Completion(Prompt::Text(SECRET.into())),
            sampling: Sampling::default(),
            max_tokens: Some(4),
            min_tokens: 0,
            ignore_eos: false,
            stop: vec![],
            include_stop: false,
            stop_token_ids: vec![],
            logprobs: None,
            constraint: None,
            tools: None,
        },
        metadata: BTreeMap::new(),
        batch_line: None,
        custom_id: None,
        webhook: None,
        sequence_key: None,
        traceparent: None,
        idempotency: None,
        published_by_caller: true,
        trajectory,
        keep,
    }
}

fn record(job: &NewJob) -> Record {
    Record {
        v: 1,
        job: job.id,
        attempt: 1,
        release: job.release.clone(),
        kind: Kind::Completion,
        request: job.request.clone(),
        seed: 1,
        prompt_text: SECRET.into(),
        prompt_ids: vec![5, 6],
        choices: vec![ChoiceRecord {
            output_ids: vec![7, 8],
            text: SECRET.into(),
            ends: vec![4, 11],
            logprobs: None,
            finish_reason: FinishReason::Stop,
            stop_reason: None,
        }],
        usage: Usage { prompt_tokens: 2, cached_tokens: 0, output_tokens: 2 },
        timings: AttemptTimings::default(),
        reading: contract::Reading::default(),
    }
}

#[tokio::test]
async fn after_its_time_nothing_of_a_payload_is_anywhere() {
    let world = World::new().await;
    let scheduler = world.start(AT_ONCE);
    let mut jobs = Vec::new();
    for staged in [false, true] {
        for trajectory in [TrajectoryMode::Full, TrajectoryMode::Redacted, TrajectoryMode::Off] {
            jobs.push(world.ended(trajectory, staged, Some(KEEP)).await);
        }
    }
    within(async || world.store.unarchived(100).await.unwrap().is_empty()).await;
    let (with, before) = world.objects_with_secret();
    assert!(with >= 3 && before > with, "full segments and staged records have it, redacted ones do not: {with}");
    // Objects of attempts that gave no result are nobody's, and have it too.
    world.stage(jobs[0], 1).await;
    world.advance(KEEP);
    for job in &jobs {
        within(async || world.is_emptied(*job).await).await;
    }
    within(async || world.objects_with_secret() == (0, 0)).await;
    for job in jobs {
        let left = world.get(job).await;
        assert_eq!((left.record, left.segment, left.usage.output_tokens), (None, None, 2));
    }
    // First the objects, then the note of them.
    within(async || world.store.unkept_segments(10).await.unwrap().is_empty()).await;
    scheduler.abort();
}

#[tokio::test]
async fn a_segment_stays_with_the_last_of_its_jobs() {
    let world = World::new().await;
    let short = world.ended(TrajectoryMode::Full, false, Some(KEEP)).await;
    let long = world.ended(TrajectoryMode::Full, false, Some(KEEP * 2)).await;
    let together = ArchiveConfig { segment_bytes: 1 << 20, segment_age: Duration::from_secs(1) };
    world.advance(Duration::from_secs(1));
    let scheduler = world.start(together);
    within(async || world.get(long).await.segment.is_some()).await;
    let place = world.get(long).await.segment.unwrap();
    assert_eq!(world.get(short).await.segment.map(|place| place.key), Some(place.key.clone()));
    world.advance(KEEP);
    within(async || world.is_emptied(short).await).await;
    let range = place.offset..place.offset + u64::from(place.length);
    let key = object_store::path::Path::from(place.key.as_str());
    let frame = world.objects.get_range(&key, range).await.unwrap();
    assert_eq!(Record::decode(&frame).unwrap().job, long);
    world.advance(KEEP);
    within(async || world.objects_with_secret() == (0, 0)).await;
    scheduler.abort();
}

#[tokio::test]
async fn a_kill_between_the_steps_costs_another_look() {
    let world = World::new().await;
    let staged = world.ended(TrajectoryMode::Off, true, Some(KEEP)).await;
    let archived = world.ended(TrajectoryMode::Full, false, Some(KEEP)).await;
    let archiver = world.start(AT_ONCE);
    within(async || world.get(archived).await.segment.is_some()).await;
    archiver.abort();
    let _killed = archiver.await;
    world.advance(KEEP);
    // As far as it came: the staged object is gone, its row says nothing of it; a row is empty, its segment is there.
    world.objects.delete(&record_key(&staged, 1).as_str().into()).await.unwrap();
    world.store.empty_jobs(&[archived]).await.unwrap();
    assert_eq!(world.store.unkept_segments(10).await.unwrap().len(), 1);
    let again = world.start(AT_ONCE);
    within(async || world.is_emptied(staged).await).await;
    within(async || world.objects_with_secret() == (0, 0)).await;
    within(async || world.store.unkept_segments(10).await.unwrap().is_empty()).await;
    again.abort();
}

#[tokio::test]
async fn a_segment_that_no_row_was_switched_to_goes_too() {
    let world = World::new().await;
    let job = world.ended(TrajectoryMode::Full, false, Some(KEEP)).await;
    let held = world.objects.hold_after_put();
    let killed = world.start(AT_ONCE);
    within(async || world.objects.is_holding.load(Ordering::SeqCst)).await;
    killed.abort();
    let _killed = killed.await;
    drop(held);
    world.advance(KEEP);
    let again = world.start(AT_ONCE);
    within(async || world.is_emptied(job).await).await;
    assert_eq!(world.objects_with_secret(), (1, 1), "for all the store knows, its archiver is about to switch the row");
    world.advance(SEGMENT_GRACE);
    within(async || world.objects_with_secret() == (0, 0)).await;
    within(async || world.store.unswitched_segments(10).await.unwrap().is_empty()).await;
    again.abort();
}

#[tokio::test]
async fn an_object_that_cannot_be_deleted_keeps_its_row_and_no_other() {
    let world = World::new().await;
    let stuck = world.ended(TrajectoryMode::Off, false, Some(KEEP)).await;
    let free = world.ended(TrajectoryMode::Off, true, Some(KEEP)).await;
    // A folder where the object would be: no file system deletes it as a file.
    let folder = world.folder.path().join("objects").join(record_key(&stuck, 1)).join("x");
    std::fs::create_dir_all(&folder).unwrap();
    world.advance(KEEP);
    let scheduler = world.start(ArchiveConfig::default());
    within(async || world.is_emptied(free).await).await;
    assert!(!world.is_emptied(stuck).await);
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    within(async || world.is_emptied(stuck).await).await;
    scheduler.abort();
}
