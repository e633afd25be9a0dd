//! A broker that is away, silent, killed, blocked or wiped. What hurts the broker itself happens to one of the test's own.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backends::rabbitmq::{RabbitOptions, RabbitQueue};
use contract::{Published, Queue, QueueId, Wake};
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::proxy::Proxy;
use super::{Rabbit, becomes, url};
use crate::queue::{drain, named, next, wakes};

/// An answer without a broker comes within this.
const QUICK: Duration = Duration::from_millis(200);

async fn says_that_the_broker_is_away(queue: &RabbitQueue) {
    let since = Instant::now();
    assert_eq!(queue.publish(&wakes(&named("aa"), 3)).await, [Published::Unknown; 3]);
    assert!(queue.take(&named("aa"), 1).await.is_err());
    assert!(queue.ready(&named("aa")).await.is_err());
    queue.rest().await;
    let took = since.elapsed();
    assert!(took < QUICK, "{took:?}");
}

#[tokio::test]
async fn a_broker_that_comes_late_is_found() {
    let (proxy, url) = Proxy::before(&url()).await;
    proxy.cut();
    let rabbit = Rabbit::with(|options| options.url = url).await;
    says_that_the_broker_is_away(&rabbit.queue).await;
    // Asked for while away, taken when it is there.
    assert!(rabbit.queue.take(&named("aa"), 1).await.is_err());
    proxy.open();
    becomes("publishing", async || rabbit.queue.publish(&wakes(&named("aa"), 1)).await == [Published::Confirmed]).await;
    becomes("asking", async || rabbit.queue.ready(&named("aa")).await.is_ok()).await;
    drain(&rabbit.queue, &named("aa"), 1).await;
    rabbit.clean().await;
}

#[tokio::test]
async fn a_delivery_outlives_its_connection_without_harm() {
    let (proxy, url) = Proxy::before(&url()).await;
    let rabbit = Rabbit::with(|options| options.url = url).await;
    let queue = &rabbit.queue;
    let slice = wakes(&named("aa"), 3);
    assert_eq!(queue.publish(&slice).await, [Published::Confirmed; 3]);
    let (first, second) = (next(queue, &named("aa")).await, next(queue, &named("aa")).await);
    proxy.cut();
    becomes("the cut is seen", async || queue.ready(&named("aa")).await.is_err()).await;
    says_that_the_broker_is_away(queue).await;
    proxy.open();
    // All three are delivered again, and the answers to the old deliveries touch none of the new ones.
    let again = loop {
        if let Ok(mut taken) = queue.take(&named("aa"), 1).await
            && let Some(delivery) = taken.pop()
        {
            break delivery;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    queue.ack(first).await;
    queue.put_back(second).await;
    assert_eq!(queue.counts().stale_answers, 2);
    assert_eq!(queue.counts().lost_answers, 0);
    let mut seen = HashSet::from([again.wake]);
    queue.ack(again).await;
    seen.extend(drain(queue, &named("aa"), 2).await);
    assert_eq!(seen, slice.iter().map(|(_, wake)| *wake).collect());
    assert_eq!(queue.counts().connections, 2);
    rabbit.clean().await;
}

#[tokio::test]
async fn a_silent_broker_is_noticed() {
    let (proxy, url) = Proxy::before(&url()).await;
    let rabbit = Rabbit::with(|options| options.url = format!("{url}?heartbeat=1")).await;
    let queue = &rabbit.queue;
    assert_eq!(queue.publish(&wakes(&named("aa"), 1)).await, [Published::Confirmed]);
    proxy.silence();
    let since = Instant::now();
    // Several callers at once: each has its own two seconds, together.
    let slices = [wakes(&named("aa"), 1), wakes(&named("bb"), 2), wakes(&named("aa"), 30)];
    let answers = futures::future::join_all(slices.iter().map(|slice| queue.publish(slice))).await;
    let took = since.elapsed();
    assert!(took <= Duration::from_millis(2_100), "{took:?}");
    assert!(answers.iter().flatten().all(|answer| *answer == Published::Unknown));
    assert!(timeout(Duration::from_millis(2_500), queue.ready(&named("aa"))).await.unwrap().is_err());
    becomes("the heartbeat misses", async || {
        queue.counts().connections == 1 && queue.take(&named("aa"), 1).await.is_err()
    })
    .await;
    proxy.cut();
    proxy.open();
    becomes("publishing", async || queue.publish(&wakes(&named("aa"), 1)).await == [Published::Confirmed]).await;
    rabbit.clean().await;
}

/// A queue without a leader answers nothing, as here one that takes longer than a declaration may.
#[tokio::test]
async fn a_queue_that_answers_no_declaration_is_made_anew() {
    let (proxy, url) = Proxy::before(&url()).await;
    let rabbit = Rabbit::with(|options| {
        options.url = format!("{url}?heartbeat=30");
        options.leaderless = Duration::from_secs(1);
    })
    .await;
    let queue = &rabbit.queue;
    assert_eq!(queue.publish(&wakes(&named("aa"), 3)).await, [Published::Confirmed; 3]);
    proxy.slow(Duration::from_millis(1_200));
    becomes("unanswered", async || queue.ready(&named("aa")).await.is_err()).await;
    proxy.open();
    // One unanswered declaration is no reason.
    assert_eq!(queue.ready(&named("aa")).await.unwrap(), 3);
    proxy.slow(Duration::from_millis(1_200));
    becomes("unanswered for long", async || queue.ready(&named("aa")).await.is_err()).await;
    becomes("deleted", async || queue.ready(&named("aa")).await.is_err() && !rabbit.has_queue(&named("aa")).await)
        .await;
    proxy.open();
    assert_eq!(queue.ready(&named("aa")).await.unwrap(), 0);
    let wakes = wakes(&named("aa"), 1);
    becomes("publishing", async || queue.publish(&wakes).await == [Published::Confirmed]).await;
    assert_eq!(drain(queue, &named("aa"), 1).await, [wakes[0].1]);
    rabbit.clean().await;
}

/// A broker of the test's own, gone with it.
struct OwnBroker {
    folder: PathBuf,
}

impl OwnBroker {
    async fn start() -> Self {
        let broker = Self { folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join("services-rabbitmq-outages") };
        // One that a killed test run has left.
        broker.services("kill").await;
        broker.services("wipe").await;
        broker
    }

    fn script() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/services")
    }

    async fn services(&self, command: &str) {
        let mut services = Command::new(Self::script());
        services.args([command, "rabbitmq"]).env("PENSTOCK_SERVICES_DIR", &self.folder);
        let output = services.output().await.unwrap();
        assert!(output.status.success(), "services {command}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// `rabbitmqctl` on it.
    async fn control(&self, arguments: &[&str]) {
        let read = |path: &str| std::fs::read_to_string(self.folder.join(path)).unwrap();
        let state = read("state");
        let epmd = state.lines().find_map(|line| line.strip_prefix("rabbitmq_epmd_port=")).unwrap();
        let log = read("log/rabbitmq.log");
        let node = log.lines().rev().find_map(|line| line.split_once("node           : ")).unwrap().1;
        // Debian's command of that name runs as another user, who has another cookie.
        let mut control = Command::new("/usr/lib/rabbitmq/bin/rabbitmqctl");
        control.args(["--node", node.trim()]).args(arguments);
        control.env("HOME", self.folder.join("rabbitmq")).env("ERL_EPMD_PORT", epmd);
        let output = control.output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    async fn url(&self) -> String {
        let mut services = Command::new(Self::script());
        let output = services.arg("env").env("PENSTOCK_SERVICES_DIR", &self.folder).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| line.strip_prefix("export PENSTOCK_TEST_QUEUE=")).unwrap().to_owned()
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        // Also when the case failed. Going down after the kill ends what else was started for it.
        for command in ["kill", "down"] {
            let mut services = std::process::Command::new(Self::script());
            services.args([command, "rabbitmq"]).env("PENSTOCK_SERVICES_DIR", &self.folder);
            // Nothing to do about a failure here; the next start kills what is left.
            let _ended = services.output();
        }
    }
}

/// What one run under load saw.
#[derive(Default)]
struct Ledger {
    confirmed: HashSet<Wake>,
    n_unknown: usize,
    slowest_publish: Duration,
}

async fn publish_until(queue: &RabbitQueue, id: &QueueId, stop: &AtomicBool) -> Ledger {
    let mut ledger = Ledger::default();
    while !stop.load(Ordering::Relaxed) {
        let slice = wakes(id, 16);
        let since = Instant::now();
        let answers = queue.publish(&slice).await;
        ledger.slowest_publish = ledger.slowest_publish.max(since.elapsed());
        for ((_, wake), answer) in slice.iter().zip(answers) {
            match answer {
                Published::Confirmed => {
                    ledger.confirmed.insert(*wake);
                }
                Published::Unknown => ledger.n_unknown += 1,
                Published::Full => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    ledger
}

async fn take_until(queue: &RabbitQueue, id: &QueueId, stop: &AtomicBool) -> HashSet<Wake> {
    let mut taken = HashSet::new();
    while !stop.load(Ordering::Relaxed) {
        for delivery in queue.take(id, 16).await.unwrap_or_default() {
            taken.insert(delivery.wake);
            queue.ack(delivery).await;
        }
        let _came = timeout(Duration::from_millis(50), queue.arrived()).await.is_ok();
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_wiped_brokers_come_back_by_themselves() {
    let broker = OwnBroker::start().await;
    let options = RabbitOptions { limit: 1_000, ..RabbitOptions::new(broker.url().await) };
    let producer = RabbitQueue::connect(options.clone()).await.unwrap();
    let worker = RabbitQueue::connect(options).await.unwrap();
    let id = named("aa");
    let (stop_publishing, stop_taking) = (AtomicBool::new(false), AtomicBool::new(false));
    let publishing = publish_until(&producer, &id, &stop_publishing);
    let taking = take_until(&worker, &id, &stop_taking);
    let killing = async {
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        broker.services("kill").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        broker.services("up").await;
        becomes("publishing", async || producer.publish(&wakes(&named("bb"), 1)).await == [Published::Confirmed]).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        stop_publishing.store(true, Ordering::Relaxed);
        becomes("all taken", async || worker.ready(&id).await.is_ok_and(|ready| ready == 0)).await;
        // What was counted as taken is on its way.
        tokio::time::sleep(Duration::from_millis(500)).await;
        stop_taking.store(true, Ordering::Relaxed);
    };
    let (ledger, taken, ()) = tokio::join!(publishing, taking, killing);
    let lost = ledger.confirmed.difference(&taken).count();
    println!(
        "{} confirmed, {} unknown, {} taken, {lost} lost, slowest publish {:?}, {:?}, {:?}",
        ledger.confirmed.len(),
        ledger.n_unknown,
        taken.len(),
        ledger.slowest_publish,
        producer.counts(),
        worker.counts()
    );
    assert!(ledger.confirmed.len() > 100);
    assert_eq!(lost, 0);
    assert!(ledger.slowest_publish <= Duration::from_millis(2_200));
    // A broker that only just listens may close one that came too early.
    let connections = worker.counts().connections;
    assert!((2..=4).contains(&connections), "{connections}");

    // Out of memory: the broker reads no more from who publishes. Taking and acknowledging go on.
    let kept = wakes(&id, 5);
    assert_eq!(producer.publish(&kept).await, [Published::Confirmed; 5]);
    broker.control(&["set_vm_memory_high_watermark", "absolute", "1"]).await;
    becomes("blocked", async || {
        let since = Instant::now();
        let blocked = producer.publish(&wakes(&id, 1)).await == [Published::Unknown];
        assert!(since.elapsed() <= Duration::from_millis(2_200));
        blocked
    })
    .await;
    let since = Instant::now();
    assert_eq!(producer.publish(&wakes(&id, 3)).await, [Published::Unknown; 3]);
    let took = since.elapsed();
    assert!(took < QUICK, "{took:?}");
    assert!(drain(&worker, &id, 5).await.contains(&kept[0].1));
    broker.control(&["set_vm_memory_high_watermark", "absolute", "1GB"]).await;
    becomes("unblocked", async || producer.publish(&wakes(&id, 1)).await == [Published::Confirmed]).await;
    assert_eq!(worker.counts().connections, connections);

    // Wiped: no queue, no exchange, no message. Nobody is told, and publishing and taking go on.
    let before = wakes(&id, 5);
    assert_eq!(producer.publish(&before).await, [Published::Confirmed; 5]);
    broker.services("wipe").await;
    becomes("publishing", async || producer.publish(&wakes(&id, 1)).await == [Published::Confirmed]).await;
    becomes("taking", async || worker.take(&id, 16).await.is_ok_and(|taken| !taken.is_empty())).await;
    assert!(worker.ready(&id).await.is_ok());
}
