//! The loops over SQLite in a temporary folder and the in-process queue and bus.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use backends::{InProcessBus, InProcessQueue, SqliteOptions, SqliteStore};
use contract::{
    Bus, Class, Delivery, Fingerprint, Input, Job, JobId, JobState, JobStore, Message, NewJob, Published, Queue,
    QueueError, QueueId, Request, Role, Sampling, Signal, TenantId, Wake, WorkerId,
};
use futures::StreamExt;
use scheduler::{ArchiveConfig, Deps, SchedulerError, run};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LIMIT: usize = 8;
const TTL: Duration = Duration::from_secs(15);

/// A queue whose publishes can be made to fail, and are counted.
struct Breakable {
    inner: InProcessQueue,
    answers: AtomicBool,
    reachable: AtomicBool,
    asked: AtomicUsize,
}

#[async_trait]
impl Queue for Breakable {
    async fn publish(&self, wakes: &[(QueueId, Wake)]) -> Vec<Published> {
        if self.answers.load(Ordering::SeqCst) {
            self.inner.publish(wakes).await
        } else {
            vec![Published::Unknown; wakes.len()]
        }
    }

    async fn take(&self, queue: &QueueId, max: usize) -> Result<Vec<Delivery>, QueueError> {
        self.inner.take(queue, max).await
    }

    async fn ack(&self, delivery: Delivery) {
        self.inner.ack(delivery).await;
    }

    async fn put_back(&self, delivery: Delivery) {
        self.inner.put_back(delivery).await;
    }

    async fn arrived(&self) {
        self.inner.arrived().await;
    }

    async fn rest(&self) {
        self.inner.rest().await;
    }

    async fn ready(&self, queue: &QueueId) -> Result<u64, QueueError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if !self.reachable.load(Ordering::SeqCst) {
            return Err(QueueError::Unreachable("cut".into()));
        }
        self.inner.ready(queue).await
    }

    fn is_reachable(&self) -> bool {
        self.reachable.load(Ordering::SeqCst)
    }

    fn limit(&self) -> u64 {
        self.inner.limit()
    }
}

/// One store, queue and bus, and the schedulers over them.
struct World {
    store: Arc<SqliteStore>,
    queue: Arc<Breakable>,
    bus: Arc<InProcessBus>,
    /// Added to the store's clock, in milliseconds.
    ahead: Arc<AtomicI64>,
    folder: TempDir,
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
        Self::with_limit(LIMIT).await
    }

    async fn with_limit(limit: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("jobs.db"));
        let (system, ahead) = (options.clock.clone(), Arc::new(AtomicI64::new(0)));
        let shift = ahead.clone();
        let clock = Arc::new(move || system() + shift.load(Ordering::SeqCst));
        let store = SqliteStore::open_with(SqliteOptions { clock, ..options }).await.unwrap();
        let queue = Breakable {
            inner: InProcessQueue::new(limit),
            answers: true.into(),
            reachable: true.into(),
            asked: 0.into(),
        };
        Self { store: Arc::new(store), queue: Arc::new(queue), bus: Arc::default(), ahead, folder }
    }

    fn start(&self, holder: &str) -> Running {
        let deps = Deps {
            store: self.store.clone(),
            admin: self.store.clone(),
            trajectories: contract::Trajectories::default(),
            guard: contract::guard::Guard::default(),
            progress_every: Duration::from_secs(30),
            queue: self.queue.clone(),
            bus: self.bus.clone(),
            objects: Arc::new(backends::local_objects(&self.folder.path().join("objects")).unwrap()),
            archive: ArchiveConfig::default(),
            holder: WorkerId::from(holder),
        };
        let (stop, stopped) = oneshot::channel();
        Running { stop, task: tokio::spawn(run(deps, stopped)) }
    }

    fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    async fn accept(&self, n: usize) -> Vec<JobId> {
        let jobs: Vec<NewJob> = (0..n).map(|_| job()).collect();
        assert!(self.store.accept(&jobs).await.unwrap().iter().all(Result::is_ok));
        self.bus.tell(Signal::Due { queue: queue() }).await;
        jobs.into_iter().map(|job| job.id).collect()
    }

    async fn ready(&self) -> u64 {
        self.queue.inner.ready(&queue()).await.unwrap()
    }

    async fn take(&self, max: usize) -> Vec<Delivery> {
        self.queue.take(&queue(), max).await.unwrap()
    }

    async fn get(&self, id: JobId) -> Job {
        self.store.get(&TenantId::local(), &id).await.unwrap().unwrap()
    }

    /// Waits until `n` wake-ups are in the queue.
    async fn fed(&self, n: u64) {
        within(Duration::from_secs(5), async || self.ready().await == n).await;
    }
}

/// Waits until something holds; how long it took.
async fn within(limit: Duration, holds: impl AsyncFn() -> bool) -> Duration {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < limit, "does not hold after {limit:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    began.elapsed()
}

fn queue() -> QueueId {
    QueueId { release: Fingerprint("ab".repeat(32)), class: Class::Standard }
}

fn job() -> NewJob {
    NewJob {
        id: JobId::new(),
        tenant: TenantId::local(),
        release: queue().release,
        route: "small".into(),
        class: Class::Standard,
        bound: 10_000,
        tenant_bound: None,
        delay: Duration::ZERO,
        deadline_in: Duration::from_secs(3_600),
        seed: 1,
        request: Request {
            model: "small".into(),
            input: Input::Chat(vec![Message::of(Role::User, "hello")]),
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
        published_by_caller: false,
        trajectory: contract::TrajectoryMode::Full,
        keep: None,
    }
}

#[tokio::test]
async fn a_due_job_is_published_at_the_signal() {
    let world = World::new().await;
    let scheduler = world.start("a");
    world.accept(1).await;
    world.fed(1).await;
    world.take(1).await;
    let mut signals = world.bus.signals().await;
    let ids = world.accept(1).await;
    let took = within(Duration::from_secs(5), async || world.ready().await == 1).await;
    assert!(took < Duration::from_millis(100), "{took:?}: the poll found it, not the signal");
    assert_eq!(world.take(1).await[0].wake, Wake { job: ids[0], attempt: 0 });
    let told = [signals.next().await.unwrap(), signals.next().await.unwrap()];
    assert_eq!(told, [Signal::Due { queue: queue() }, Signal::Ready { queue: queue() }]);
    scheduler.stop().await;
}

#[tokio::test]
async fn a_lost_signal_costs_a_poll() {
    let world = World::new().await;
    let scheduler = world.start("a");
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.store.accept(&[job()]).await.unwrap();
    let took = within(Duration::from_secs(5), async || world.ready().await == 1).await;
    assert!(took < Duration::from_millis(500), "{took:?}");
    scheduler.stop().await;
}

#[tokio::test]
async fn there_are_never_more_messages_than_the_limit_and_all_come() {
    let world = World::new().await;
    let scheduler = world.start("a");
    let ids = world.accept(50).await;
    let mut seen = Vec::new();
    while seen.len() < 50 {
        within(Duration::from_secs(5), async || world.ready().await > 0).await;
        assert!(world.ready().await <= LIMIT as u64);
        for delivery in world.take(3).await {
            let leased = world.store.lease(&[delivery.wake], &WorkerId::from("w"), TTL).await.unwrap().remove(0);
            seen.push(leased.unwrap().lease.job);
            world.queue.ack(delivery).await;
        }
        world.bus.tell(Signal::Due { queue: queue() }).await;
    }
    assert_eq!(seen, ids);
    scheduler.stop().await;
}

#[tokio::test]
async fn a_queue_that_nobody_knows_is_given_thirty_two() {
    let world = World::with_limit(256).await;
    let scheduler = world.start("a");
    world.accept(200).await;
    world.fed(32).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(world.ready().await, 32, "nobody took any");
    // Whoever stands there asks for it four times a second, and not more often.
    let asked = world.queue.asked.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        world.queue.asked.load(Ordering::SeqCst) - asked <= 5,
        "a queue that stands still is looked at all the time"
    );
    scheduler.stop().await;
}

#[tokio::test]
async fn a_queue_that_is_emptied_is_filled_again_before_the_poll() {
    let world = World::with_limit(64).await;
    let scheduler = world.start("a");
    let ids = world.accept(3_000).await;
    let began = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < ids.len() {
        assert!(began.elapsed() < Duration::from_secs(6), "{} were taken", taken.len());
        taken.extend(world.take(256).await.into_iter().map(|delivery| delivery.wake.job));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // By the poll alone these are 47 times 250 ms.
    assert_eq!(taken, ids);
    scheduler.stop().await;
}

#[tokio::test]
async fn another_tenants_job_waits_behind_a_moments_messages() {
    let world = World::with_limit(256).await;
    let scheduler = world.start("a");
    world.accept(1_000).await;
    world.fed(32).await;
    // At most a hundred a second, of which 50 ms are 5.
    let next = async || {
        within(Duration::from_secs(5), async || world.ready().await > 0).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.take(1).await.remove(0).wake.job
    };
    for _ in 0..100 {
        next().await;
    }
    let other = NewJob { tenant: TenantId::from("other"), ..job() };
    assert!(world.store.accept(std::slice::from_ref(&other)).await.unwrap()[0].is_ok());
    world.bus.tell(Signal::Due { queue: queue() }).await;
    let mut before = 0;
    while next().await != other.id {
        before += 1;
    }
    // A busy machine may have found the queue empty, and then gives it twice as much.
    assert!(before <= 16, "{before} messages came before it");
    scheduler.stop().await;
}

#[tokio::test]
async fn waiting_messages_are_not_doubled() {
    let world = World::new().await;
    let scheduler = world.start("a");
    world.accept(3).await;
    world.fed(3).await;
    // The rows are due again, but their messages still wait.
    world.advance(Duration::from_secs(61));
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(world.ready().await, 3);
    scheduler.stop().await;
}

#[tokio::test]
async fn a_wiped_queue_is_filled_again() {
    let world = World::new().await;
    let scheduler = world.start("a");
    let ids = world.accept(5).await;
    world.fed(5).await;
    drop(world.take(100).await);
    world.advance(Duration::from_secs(60));
    world.fed(5).await;
    let again: Vec<JobId> = world.take(100).await.iter().map(|delivery| delivery.wake.job).collect();
    assert_eq!(again, ids);
    scheduler.stop().await;
}

#[tokio::test]
async fn an_unconfirmed_publish_is_due_at_once() {
    let world = World::new().await;
    world.queue.answers.store(false, Ordering::SeqCst);
    let scheduler = world.start("a");
    world.accept(2).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(world.ready().await, 0);
    world.queue.answers.store(true, Ordering::SeqCst);
    let took = within(Duration::from_secs(5), async || world.ready().await == 2).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    scheduler.stop().await;
}

#[tokio::test]
async fn an_unreachable_queue_is_outlived_without_hammering() {
    let world = World::new().await;
    world.queue.reachable.store(false, Ordering::SeqCst);
    let scheduler = world.start("a");
    world.accept(2).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let asked = world.queue.asked.load(Ordering::SeqCst);
    assert!((2..=5).contains(&asked), "{asked} tries in 1.5 s");
    world.queue.reachable.store(true, Ordering::SeqCst);
    world.fed(2).await;
    scheduler.stop().await;
}

#[tokio::test]
async fn a_passed_deadline_expires_within_a_second() {
    let world = World::new().await;
    let scheduler = world.start("a");
    let late = NewJob { deadline_in: Duration::from_millis(600), published_by_caller: true, ..job() };
    let (id, deadline) = (late.id, late.deadline_in);
    let mut signals = world.bus.signals().await;
    world.store.accept(&[late]).await.unwrap();
    world.store.lease(&[Wake { job: id, attempt: 0 }], &WorkerId::from("w"), TTL).await.unwrap();
    tokio::time::sleep(deadline).await;
    within(Duration::from_secs(1), async || world.get(id).await.state == JobState::Expired).await;
    let told = [signals.next().await.unwrap(), signals.next().await.unwrap()];
    assert_eq!(told, [Signal::Cancelled { job: id }, Signal::Ended { job: id, state: JobState::Expired }]);
    scheduler.stop().await;
}

#[tokio::test]
async fn a_dead_workers_job_is_published_again() {
    let world = World::new().await;
    let scheduler = world.start("a");
    let ids = world.accept(1).await;
    world.fed(1).await;
    let wake = world.take(1).await[0].wake;
    assert!(world.store.lease(&[wake], &WorkerId::from("dead"), TTL).await.unwrap()[0].is_some());
    world.advance(TTL);
    within(Duration::from_secs(2), async || world.ready().await == 1).await;
    assert_eq!(world.take(1).await[0].wake, Wake { job: ids[0], attempt: 1 });
    scheduler.stop().await;
}

#[tokio::test]
async fn two_schedulers_have_one_leader_and_the_other_takes_over() {
    let world = World::new().await;
    let first = world.start("a");
    world.accept(1).await;
    world.fed(1).await;
    let second = world.start("b");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let lead = async |holder: &str| world.store.lead("feeder", &WorkerId::from(holder), TTL).await.unwrap();
    assert!(!lead("b").await, "the first has it");
    world.take(1).await;
    first.kill().await;
    world.accept(1).await;
    // Not before the lead of the first one has run out.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.ready().await, 0);
    world.advance(Duration::from_secs(5));
    world.fed(1).await;
    assert!(!lead("a").await, "the second has it");
    second.stop().await;
}

#[tokio::test]
async fn a_scheduler_that_stops_gives_its_leads_back() {
    let world = World::new().await;
    let first = world.start("a");
    world.accept(1).await;
    world.fed(1).await;
    first.stop().await;
    for work in ["feeder", "reaper", "archiver"] {
        assert!(world.store.lead(work, &WorkerId::from("b"), TTL).await.unwrap(), "{work}");
    }
}
