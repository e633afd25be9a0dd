//! The archiver over SQLite and local files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod faults;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore, local_objects};
use contract::record::AttemptTimings;
use contract::{
    ChoiceRecord, Class, Fingerprint, FinishReason, Input, Job, JobId, JobStore, Kind, NewJob, Outcome, Prompt, Record,
    RecordLocation, Request, Sampling, SegmentPlace, TenantId, Trajectory, TrajectoryMode, Usage, Wake, WorkerId,
};
use faults::{Objects, Unanswering};
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use scheduler::{ArchiveConfig, Deps, SchedulerError, run};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const AGE: Duration = Duration::from_secs(60);
const SMALL: ArchiveConfig = ArchiveConfig { segment_bytes: 2_000, segment_age: AGE };

struct World {
    store: Arc<SqliteStore>,
    objects: Arc<Objects>,
    /// Added to the store's clock, in milliseconds.
    ahead: Arc<AtomicI64>,
    _folder: TempDir,
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), SchedulerError>>,
}

impl Running {
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }

    /// Ends it wherever it is.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("jobs.db"));
        let (system, ahead) = (options.clock.clone(), Arc::new(AtomicI64::new(0)));
        let shift = ahead.clone();
        let clock = Arc::new(move || system() + shift.load(Ordering::SeqCst));
        let store = SqliteStore::open_with(SqliteOptions { clock, ..options }).await.unwrap();
        let objects = Arc::new(Objects::new(local_objects(&folder.path().join("objects")).unwrap()));
        Self { store: Arc::new(store), objects, ahead, _folder: folder }
    }

    fn start(&self, holder: &str, archive: ArchiveConfig) -> Running {
        self.start_over(self.store.clone(), holder, archive)
    }

    fn start_over(&self, store: Arc<dyn JobStore>, holder: &str, archive: ArchiveConfig) -> Running {
        let deps = Deps {
            store,
            admin: self.store.clone(),
            trajectories: contract::Trajectories::default(),
            guard: contract::guard::Guard::default(),
            progress_every: Duration::from_secs(30),
            queue: Arc::new(InProcessQueue::new(8)),
            bus: Arc::new(InProcessBus::default()),
            objects: self.objects.clone(),
            archive,
            holder: WorkerId::from(holder),
        };
        let (stop, stopped) = oneshot::channel();
        Running { stop, task: tokio::spawn(run(deps, stopped)) }
    }

    fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// A job that succeeded, with its record in the row, or staged.
    async fn ended(&self, trajectory: TrajectoryMode, staged: bool) -> Record {
        self.ended_of("ab", trajectory, staged).await
    }

    async fn ended_of(&self, release: &str, trajectory: TrajectoryMode, staged: bool) -> Record {
        let release = Fingerprint(release.repeat(32));
        let job = NewJob { trajectory, release: release.clone(), ..job() };
        self.store.accept(std::slice::from_ref(&job)).await.unwrap().remove(0).unwrap();
        let wake = Wake { job: job.id, attempt: 0 };
        let ttl = Duration::from_secs(15);
        let leased = self.store.lease(&[wake], &WorkerId::from("w"), ttl).await.unwrap().remove(0).unwrap();
        let record = record(&job, release);
        let encoded = record.encode().unwrap();
        let location = if staged {
            let key = format!("records/{}/1.json.zst", job.id);
            self.objects.put(&key.as_str().into(), encoded.into()).await.unwrap();
            RecordLocation::Staged(key)
        } else {
            RecordLocation::Inline(encoded)
        };
        let outcome = Outcome::Succeeded { record: location, usage: record.usage, first_token_ms: None };
        self.store.finish(&[(leased.lease, outcome)]).await.unwrap().remove(0).unwrap();
        record
    }

    async fn get(&self, id: JobId) -> Job {
        self.store.get(&TenantId::local(), &id).await.unwrap().unwrap()
    }

    async fn waiting(&self) -> usize {
        self.store.unarchived(10_000).await.unwrap().len()
    }

    /// Waits until no record waits to be archived.
    async fn archived(&self) {
        within(async || self.waiting().await == 0).await;
    }

    /// Keys under a prefix.
    async fn keys(&self, prefix: &str) -> Vec<String> {
        let listed: Vec<_> = self.objects.list(Some(&prefix.into())).try_collect().await.unwrap();
        let mut keys: Vec<String> = listed.into_iter().map(|object| object.location.to_string()).collect();
        keys.sort();
        keys
    }

    /// A segment, read as anybody reads a `.jsonl.zst` file.
    async fn lines(&self, key: &str) -> Vec<Trajectory> {
        let bytes = self.objects.get(&key.into()).await.unwrap().bytes().await.unwrap();
        let text = String::from_utf8(zstd::stream::decode_all(&*bytes).unwrap()).unwrap();
        assert!(text.ends_with('\n'));
        text.lines().map(|line| Trajectory::from_json(line.as_bytes()).unwrap()).collect()
    }

    async fn frame(&self, place: &SegmentPlace) -> Vec<u8> {
        let range = place.offset..place.offset + u64::from(place.length);
        self.objects.get_range(&place.key.as_str().into(), range).await.unwrap().to_vec()
    }

    /// The record as a reader of results gets it, after archiving.
    async fn read_archived(&self, id: JobId) -> Record {
        let job = self.get(id).await;
        let Some(RecordLocation::Archived(place)) = &job.record else { panic!("not archived: {:?}", job.record) };
        assert_eq!(job.segment.as_ref(), Some(place));
        Record::decode(&self.frame(place).await).unwrap()
    }
}

async fn within(holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(20), "does not hold after 20 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn job() -> NewJob {
    NewJob {
        id: JobId::new(),
        tenant: TenantId::local(),
        release: Fingerprint("ab".repeat(32)),
        route: "small".into(),
        class: Class::Standard,
        bound: 10_000,
        tenant_bound: None,
        delay: Duration::ZERO,
        deadline_in: Duration::from_secs(36_000),
        seed: 1,
        request: Request {
            model: "small".into(),
            input: Input::Completion(Prompt::Text("secret".into())),
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
        on_failure: contract::OnFailure::Skip,
        traceparent: None,
        idempotency: None,
        published_by_caller: true,
        trajectory: TrajectoryMode::Full,
        keep: None,
    }
}

fn record(job: &NewJob, release: Fingerprint) -> Record {
    Record {
        v: 1,
        job: job.id,
        attempt: 1,
        release,
        kind: Kind::Completion,
        request: job.request.clone(),
        seed: 1,
        prompt_text: "secret".into(),
        prompt_ids: vec![5, 6],
        choices: vec![ChoiceRecord {
            output_ids: vec![7, 8],
            text: "told you".into(),
            ends: vec![4, 8],
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
async fn young_records_wait_and_old_ones_go_together() {
    let world = World::new().await;
    let mut records = Vec::new();
    for staged in [false, true, false] {
        records.push(world.ended(TrajectoryMode::Full, staged).await);
    }
    let archiver = world.start("a", ArchiveConfig::default());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((world.waiting().await, world.keys("trajectories").await.len()), (3, 0));
    archiver.stop().await;
    world.advance(AGE);
    let archiver = world.start("b", ArchiveConfig::default());
    world.archived().await;
    let keys = world.keys("trajectories").await;
    assert_eq!(keys.len(), 1);
    assert!(keys[0].starts_with("trajectories/abababababab/20") && keys[0].ends_with(".jsonl.zst"), "{}", keys[0]);
    let lines = world.lines(&keys[0]).await;
    for (record, line) in records.iter().zip(lines) {
        assert_eq!(line, Trajectory::Full(Box::new(record.clone())), "first ended first");
        assert_eq!(&world.read_archived(record.job).await, record);
    }
    within(async || world.keys("records").await.is_empty()).await;
    archiver.stop().await;
}

#[tokio::test]
async fn a_full_frame_is_the_record_byte_for_byte() {
    let world = World::new().await;
    let record = world.ended(TrajectoryMode::Full, false).await;
    world.advance(AGE);
    let archiver = world.start("a", SMALL);
    world.archived().await;
    let place = world.get(record.job).await.segment.unwrap();
    assert_eq!(world.frame(&place).await, record.encode().unwrap());
    archiver.stop().await;
}

#[tokio::test]
async fn many_records_are_cut_by_size_and_the_rest_waits_for_its_age() {
    let world = World::new().await;
    let mut records = Vec::new();
    for n in 0..40 {
        records.push(world.ended(TrajectoryMode::Full, n % 7 == 0).await);
    }
    let one = records[0].encode().unwrap().len();
    let per_segment = SMALL.segment_bytes.div_ceil(one);
    let whole = 40 / per_segment;
    assert!(whole >= 2 && !40usize.is_multiple_of(per_segment), "{per_segment} records of {one} bytes");
    let archiver = world.start("a", SMALL);
    within(async || world.waiting().await <= 40 % per_segment + per_segment / 2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for key in world.keys("trajectories").await {
        let size = world.objects.head(&key.as_str().into()).await.unwrap().size as usize;
        assert!((SMALL.segment_bytes..SMALL.segment_bytes + 2 * one).contains(&size), "{size} bytes");
    }
    assert!(world.waiting().await > 0, "the rest makes no whole segment");
    archiver.stop().await;
    world.advance(AGE);
    let archiver = world.start("b", SMALL);
    world.archived().await;
    let mut seen = Vec::new();
    for key in world.keys("trajectories").await {
        seen.extend(world.lines(&key).await.iter().map(Trajectory::job));
    }
    assert_eq!(seen, records.iter().map(|record| record.job).collect::<Vec<_>>(), "each once, in order");
    for record in &records {
        assert_eq!(&world.read_archived(record.job).await, record);
    }
    archiver.stop().await;
}

#[tokio::test]
async fn a_redacted_line_says_nothing_and_the_result_stays() {
    let world = World::new().await;
    let (inline, staged) =
        (world.ended(TrajectoryMode::Redacted, false).await, world.ended(TrajectoryMode::Redacted, true).await);
    let before = [world.get(inline.job).await.record, world.get(staged.job).await.record];
    world.advance(AGE);
    let archiver = world.start("a", SMALL);
    world.archived().await;
    archiver.stop().await;
    for (record, before) in [&inline, &staged].into_iter().zip(before) {
        let job = world.get(record.job).await;
        assert_eq!(job.record, before);
        let line = zstd::stream::decode_all(&*world.frame(&job.segment.unwrap()).await).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(!line.contains("secret") && !line.contains("told") && !line.contains("_ids\":["), "{line}");
        assert!(matches!(Trajectory::from_json(line.as_bytes()).unwrap(), Trajectory::Redacted(_)));
    }
    assert_eq!(world.keys("records").await.len(), 1, "the result is still read there");
}

#[tokio::test]
async fn what_keeps_no_trajectory_is_left_alone_and_releases_are_apart() {
    let world = World::new().await;
    let off = world.ended(TrajectoryMode::Off, true).await;
    world.ended_of("ab", TrajectoryMode::Full, false).await;
    world.ended_of("cd", TrajectoryMode::Full, false).await;
    world.advance(AGE);
    let archiver = world.start("a", SMALL);
    world.archived().await;
    archiver.stop().await;
    let job = world.get(off.job).await;
    assert_eq!((job.segment, matches!(job.record, Some(RecordLocation::Staged(_)))), (None, true));
    let keys = world.keys("trajectories").await;
    assert_eq!(keys.len(), 2);
    assert!(keys[0].starts_with("trajectories/abababababab/") && keys[1].starts_with("trajectories/cdcdcdcdcdcd/"));
    assert_eq!(world.keys("records").await.len(), 1);
}

#[tokio::test]
async fn an_object_store_that_is_away_costs_time_and_nothing_else() {
    let world = World::new().await;
    let records = [world.ended(TrajectoryMode::Full, true).await, world.ended(TrajectoryMode::Full, false).await];
    world.advance(AGE);
    world.objects.is_up.store(false, Ordering::SeqCst);
    let archiver = world.start("a", SMALL);
    within(async || world.objects.refused.load(Ordering::SeqCst) >= 2).await;
    assert_eq!(world.waiting().await, 2);
    world.objects.is_up.store(true, Ordering::SeqCst);
    world.archived().await;
    archiver.stop().await;
    for record in &records {
        assert_eq!(&world.read_archived(record.job).await, record);
    }
}

#[tokio::test]
async fn killed_between_put_and_switch_the_records_are_archived_again() {
    let world = World::new().await;
    let record = world.ended(TrajectoryMode::Full, true).await;
    world.advance(AGE);
    let held = world.objects.hold_after_put();
    let killed = world.start("a", SMALL);
    within(async || world.objects.is_holding.load(Ordering::SeqCst)).await;
    killed.kill().await;
    drop(held);
    let orphan = world.keys("trajectories").await.remove(0);
    assert_eq!(world.waiting().await, 1);
    // The lead of the killed one runs out.
    world.advance(Duration::from_secs(5));
    let archiver = world.start("b", SMALL);
    world.archived().await;
    archiver.stop().await;
    assert_eq!(world.read_archived(record.job).await, record);
    let segment = world.get(record.job).await.segment.unwrap();
    assert_ne!(segment.key, orphan, "the row tells which line counts");
    assert_eq!(world.lines(&orphan).await, world.lines(&segment.key).await, "both say the same");
    world.advance(contract::ports::SEGMENT_GRACE);
    let archiver = world.start("c", SMALL);
    within(async || world.keys("trajectories").await == [segment.key.clone()]).await;
    archiver.stop().await;
    assert_eq!(world.read_archived(record.job).await, record);
}

#[tokio::test]
async fn of_two_archivers_one_has_each_record_and_the_other_removes_its_segment() {
    let world = World::new().await;
    let records = [world.ended(TrajectoryMode::Full, true).await, world.ended(TrajectoryMode::Full, false).await];
    world.advance(AGE);
    let held = world.objects.hold_after_put();
    let slow = world.start("slow", SMALL);
    within(async || world.objects.is_holding.load(Ordering::SeqCst)).await;
    let of_slow = world.keys("trajectories").await.remove(0);
    // It is paused for so long that another one has the lead.
    world.advance(Duration::from_secs(5));
    let quick = world.start("quick", SMALL);
    world.archived().await;
    drop(held);
    within(async || !world.keys("trajectories").await.contains(&of_slow)).await;
    for record in &records {
        assert_eq!(&world.read_archived(record.job).await, record);
    }
    slow.stop().await;
    quick.stop().await;
}

#[tokio::test]
async fn a_slow_object_store_costs_no_lead() {
    let world = World::new().await;
    let record = world.ended(TrajectoryMode::Full, true).await;
    world.advance(AGE);
    let held = world.objects.hold_after_put();
    let archiver = world.start("a", SMALL);
    within(async || world.objects.is_holding.load(Ordering::SeqCst)).await;
    // Longer than a lead is good, renewed meanwhile.
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        world.advance(Duration::from_millis(2_000));
        let other = world.store.lead("archiver", &WorkerId::from("b"), AGE).await.unwrap();
        assert!(!other, "the lead ran out while the segment was on its way");
    }
    drop(held);
    world.archived().await;
    archiver.stop().await;
    assert_eq!(world.read_archived(record.job).await, record);
    assert_eq!(world.keys("trajectories").await.len(), 1);
}

#[tokio::test]
async fn a_switch_that_was_not_answered_keeps_its_segment() {
    let world = World::new().await;
    let record = world.ended(TrajectoryMode::Full, true).await;
    world.advance(AGE);
    let store = Arc::new(Unanswering::new(world.store.clone()));
    let archiver = world.start_over(store.clone(), "a", SMALL);
    // The write happened, the answer did not come, and the next try switches nothing.
    within(async || store.asked.load(Ordering::SeqCst) >= 2).await;
    within(async || world.keys("records").await.is_empty()).await;
    archiver.stop().await;
    assert_eq!(world.read_archived(record.job).await, record);
    assert_eq!(world.keys("trajectories").await.len(), 1);
}

#[tokio::test]
async fn damaged_and_lost_records_are_set_aside_and_the_others_go_on() {
    let world = World::new().await;
    let damaged = world.ended(TrajectoryMode::Full, true).await;
    let lost = world.ended(TrajectoryMode::Full, true).await;
    let key = |record: &Record| object_store::path::Path::from(format!("records/{}/1.json.zst", record.job));
    world.objects.put(&key(&damaged), "not a record".into()).await.unwrap();
    world.objects.delete(&key(&lost)).await.unwrap();
    let good = world.ended(TrajectoryMode::Full, true).await;
    world.advance(AGE);
    let archiver = world.start("a", SMALL);
    // The rows are switched first, then what was staged is removed.
    within(async || world.waiting().await == 2 && world.keys("records").await.len() == 1).await;
    archiver.stop().await;
    assert_eq!(world.read_archived(good.job).await, good);
    assert_eq!(world.keys("records").await, [key(&damaged).to_string()], "what cannot be read is not thrown away");
}
