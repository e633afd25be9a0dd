//! Schedules over SQLite and local files, with the clock of the store in the test's hand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore, local_objects};
use contract::{
    AdminStore, Batch, BatchId, BatchState, BatchTemplate, CatchUp, FileId, Kind, NewFile, NewSchedule, Overlap,
    Purpose, Schedule, ScheduleChange, ScheduleId, ScheduleStore, TenantId, Timestamp, Trajectories, WorkerId,
};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use scheduler::{ArchiveConfig, Deps, SchedulerError, run};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const HOUR: Duration = Duration::from_secs(3_600);

struct World {
    store: Arc<SqliteStore>,
    objects: Arc<dyn ObjectStore>,
    clock: Arc<AtomicI64>,
    _folder: TempDir,
}

type Running = JoinHandle<Result<(), SchedulerError>>;

fn tenant() -> TenantId {
    TenantId::from("acme")
}

impl World {
    /// A world in which it is this time until it is moved.
    async fn at(start: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicI64::new(Timestamp::parse_rfc3339(start).unwrap().0));
        let given = clock.clone();
        let options = SqliteOptions::new(folder.path().join("jobs.db"));
        let options = SqliteOptions { clock: Arc::new(move || given.load(Ordering::SeqCst)), ..options };
        let store = Arc::new(SqliteStore::open_with(options).await.unwrap());
        let objects = Arc::new(local_objects(&folder.path().join("objects")).unwrap());
        Self { store, objects, clock, _folder: folder }
    }

    fn start(&self) -> Running {
        let deps = Deps {
            store: self.store.clone(),
            admin: self.store.clone(),
            queue: Arc::new(InProcessQueue::new(64)),
            bus: Arc::new(InProcessBus::default()),
            objects: self.objects.clone(),
            archive: ArchiveConfig::default(),
            trajectories: Trajectories::default(),
            guard: contract::guard::Guard::default(),
            progress_every: Duration::from_secs(30),
            holder: WorkerId::unique(),
        };
        tokio::spawn(run(deps, std::future::pending::<()>()))
    }

    fn advance(&self, by: Duration) {
        self.clock.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    async fn file(&self) -> FileId {
        let (id, bytes) = (FileId::new(), "not a request\n");
        self.objects.put(&Path::from(id.object_key()), bytes.into()).await.unwrap();
        let new = NewFile {
            id,
            tenant: tenant(),
            filename: "in.jsonl".into(),
            purpose: Purpose::Batch,
            bytes: bytes.len() as u64,
            expires_in: Some(30 * 24 * HOUR),
            idempotency: None,
        };
        self.store.add_file(&new).await.unwrap().unwrap();
        id
    }

    async fn schedule(&self, cron: &str, zone: &str) -> ScheduleId {
        let new = NewSchedule {
            id: ScheduleId::new(),
            tenant: tenant(),
            name: cron.into(),
            cron: cron.parse().unwrap(),
            zone: zone.parse().unwrap(),
            overlap: Overlap::Allow,
            catch_up: CatchUp::One,
            enabled: true,
            batch: BatchTemplate {
                input: self.file().await,
                endpoint: Kind::Completion,
                window: 30 * 24 * HOUR,
                window_text: "30d".into(),
                metadata: BTreeMap::new(),
                output_life: None,
                keep: None,
                webhook: None,
            },
            idempotency: None,
        };
        self.store.add_schedule(&new).await.unwrap().unwrap();
        new.id
    }

    async fn shown(&self, id: ScheduleId) -> Schedule {
        self.store.schedule(&tenant(), &id).await.unwrap().unwrap()
    }

    /// The batches of a schedule, oldest first.
    async fn runs(&self, id: ScheduleId) -> Vec<Batch> {
        let (mut runs, has_more) = self.store.schedule_runs(&tenant(), &id, None, 100).await.unwrap().unwrap();
        assert!(!has_more);
        runs.reverse();
        runs
    }

    async fn times(&self, id: ScheduleId) -> Vec<String> {
        self.runs(id).await.iter().map(|batch| batch.created_at.rfc3339()).collect()
    }

    async fn is_quiet(&self) -> bool {
        self.store.due_schedules(1).await.unwrap().is_empty()
    }

    /// Waits until nothing is due.
    async fn settled(&self) {
        let begin = Instant::now();
        while !self.is_quiet().await {
            assert!(begin.elapsed() < Duration::from_secs(30), "a time that has come is not run");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn schedules_run_at_their_times_day_by_day() {
    let world = World::at("2026-03-27T18:00:00Z").await;
    let scheduler = world.start();
    let quarterly = world.schedule("0 */6 * * *", "UTC").await;
    // The clock of Berlin is put forward on the 29th, at 01:00 UTC.
    let nightly = world.schedule("30 2 * * *", "Europe/Berlin").await;
    let weekly = world.schedule("0 12 * * SUN", "UTC").await;
    for _ in 0..6 * 24 {
        world.advance(HOUR / 2);
        world.settled().await;
    }
    let expected =
        ["28T00", "28T06", "28T12", "28T18", "29T00", "29T06", "29T12", "29T18", "30T00", "30T06", "30T12", "30T18"];
    assert_eq!(world.times(quarterly).await, expected.map(|time| format!("2026-03-{time}:00:00Z")));
    assert_eq!(world.times(nightly).await, ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    assert_eq!(world.times(weekly).await, ["2026-03-29T12:00:00Z"]);
    let shown = world.shown(quarterly).await;
    assert_eq!((shown.runs, shown.skipped, shown.next_at.unwrap().rfc3339()), (12, 0, "2026-03-31T00:00:00Z".into()));
    // They are batches like all others: the scheduler found that their file is no good.
    let begin = Instant::now();
    while world.runs(quarterly).await.iter().any(|batch| batch.state != BatchState::Failed) {
        assert!(begin.elapsed() < Duration::from_secs(30), "a batch of a schedule is not worked on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    scheduler.abort();
}

#[tokio::test]
async fn schedulers_that_die_at_any_moment_run_each_time_once() {
    let world = World::at("2026-01-01T00:30:00Z").await;
    let ids = [world.schedule("0 * * * *", "UTC").await, world.schedule("@hourly", "UTC").await];
    let mut deaths = 0_u64;
    for _ in 0..20 {
        // From half past to the full hour, at which both are due.
        world.advance(HOUR / 2);
        while !world.is_quiet().await {
            let running = [world.start(), world.start()];
            tokio::time::sleep(Duration::from_millis(deaths % 23)).await;
            for scheduler in running {
                scheduler.abort();
                drop(scheduler.await);
            }
            deaths += 1;
            // Their lead runs out.
            world.advance(Duration::from_secs(5));
        }
        // On to the next half hour.
        let past = world.clock.load(Ordering::SeqCst) % 3_600_000;
        assert!(past < 1_800_000, "no end in sight after {deaths} deaths");
        world.advance(HOUR / 2 - Duration::from_millis(past.unsigned_abs()));
    }
    assert!(deaths >= 20, "{deaths}");
    for id in ids {
        let hours: Vec<i64> = world.runs(id).await.iter().map(|batch| batch.created_at.0 / 3_600_000).collect();
        let first = Timestamp::parse_rfc3339("2026-01-01T01:00:00Z").unwrap().0 / 3_600_000;
        assert_eq!(hours, (first..first + 20).collect::<Vec<_>>());
        assert_eq!(world.shown(id).await.runs, 20);
    }
}

#[tokio::test]
async fn after_a_long_absence_there_is_one_run() {
    let world = World::at("2026-01-01T00:30:00Z").await;
    let id = world.schedule("0 3 * * *", "UTC").await;
    world.advance(10 * 24 * HOUR);
    let scheduler = world.start();
    world.settled().await;
    assert_eq!(world.times(id).await, ["2026-01-11T00:30:00Z"]);
    assert_eq!(world.shown(id).await.next_at.unwrap().rfc3339(), "2026-01-11T03:00:00Z");
    scheduler.abort();
}

#[tokio::test]
async fn the_file_of_an_enabled_schedule_outlives_its_own_end() {
    let world = World::at("2026-01-01T00:30:00Z").await;
    let id = world.schedule("0 3 * * *", "UTC").await;
    let used = world.shown(id).await.batch.input;
    let unused = world.file().await;
    world.advance(31 * 24 * HOUR);
    let scheduler = world.start();
    let is_there = async |file: FileId| world.objects.head(&Path::from(file.object_key())).await.is_ok();
    let until_gone = async |file: FileId| {
        let begin = Instant::now();
        while is_there(file).await {
            assert!(begin.elapsed() < Duration::from_secs(30), "a file whose time is over stays");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    until_gone(unused).await;
    assert!(is_there(used).await);
    world.settled().await;
    let run: Vec<BatchId> = world.runs(id).await.iter().map(|batch| batch.id).collect();
    assert_eq!((run.len(), world.shown(id).await.last_batch), (1, run.first().copied()));
    // From here on it is a file like others, once its last batch has ended.
    let disabled = ScheduleChange { enabled: Some(false), ..ScheduleChange::default() };
    world.store.change_schedule(&tenant(), &id, &disabled).await.unwrap().unwrap();
    until_gone(used).await;
    scheduler.abort();
}
