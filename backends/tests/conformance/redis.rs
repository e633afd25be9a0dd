//! The bus on Redis: what the shared cases run on, and what only a bus beyond the process can do wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::redis_bus::{RedisBus, RedisOpenError, RedisOptions};
use contract::{Bus, BusError, Gone, JobEvent, JobId, Signal};
use futures::StreamExt;
use futures::future::join_all;

use crate::bus::{BusUnderTest, ended, started, token, tokens, worker};
use crate::instance::{Instance, variable};

/// As long as anything may take here before the test says that it never came.
const SOON: Duration = Duration::from_secs(10);

/// Options of an installation of its own.
fn options(url: String) -> RedisOptions {
    let prefix = format!("test-{}", JobId::new());
    RedisOptions { prefix, keep: Duration::from_secs(2), ..RedisOptions::new(url) }
}

pub async fn fresh() -> BusUnderTest {
    let options = options(variable("PENSTOCK_TEST_BUS"));
    let keep = options.keep;
    let bus = Arc::new(RedisBus::connect(options).await.unwrap());
    BusUnderTest { bus, keeps: 8192, keep, moment: Duration::from_millis(200) }
}

/// A connection beside the bus.
async fn client(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("something that should come soon did not come")
}

/// Tries until it works, as callers of the bus do.
async fn append(bus: &RedisBus, events: &[JobEvent]) {
    soon(async {
        while bus.append(events).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_hole_ends_a_reader() {
    let bus = fresh().await;
    let job = JobId::new();
    let live = bus.events(&job, 0).await.unwrap();
    bus.append(&tokens(job, 1, 1..=3)).await.unwrap();
    bus.append(&tokens(job, 1, 5..=6)).await.unwrap();
    let seen = live.collect::<Vec<_>>().await;
    assert_eq!(seen, [Ok(token(job, 1, 1)), Ok(token(job, 1, 2)), Ok(token(job, 1, 3)), Err(Gone)]);
    assert!(bus.events(&job, 3).await.is_err());
    assert_eq!(bus.events(&job, 4).await.unwrap().next().await, Some(Ok(token(job, 1, 5))));
}

#[tokio::test]
async fn what_comes_twice_is_read_once() {
    let bus = fresh().await;
    let job = JobId::new();
    let live = bus.events(&job, 0).await.unwrap();
    let step = [vec![started(job, 1)], tokens(job, 1, 1..=3)].concat();
    for _ in 0..2 {
        bus.append(&step).await.unwrap();
    }
    bus.append(&[ended(job, 1)]).await.unwrap();
    let mut expected: Vec<_> = step.into_iter().map(Ok).collect();
    expected.push(Ok(ended(job, 1)));
    assert_eq!(live.collect::<Vec<_>>().await, expected);
    assert_eq!(bus.events(&job, 0).await.unwrap().collect::<Vec<_>>().await, expected);
}

#[tokio::test]
async fn two_processes_share_a_bus_and_two_installations_do_not() {
    let options = options(variable("PENSTOCK_TEST_BUS"));
    let [worker, api] = [RedisBus::connect(options.clone()).await.unwrap(), RedisBus::connect(options).await.unwrap()];
    let other = fresh().await;
    let job = JobId::new();
    let (mut here, mut elsewhere) = (api.events(&job, 0).await.unwrap(), other.events(&job, 0).await.unwrap());
    let (mut heard, mut unheard) = (api.signals().await, other.signals().await);
    worker.append(&[started(job, 1), token(job, 1, 1)]).await.unwrap();
    worker.tell(Signal::Cancelled { job }).await;
    assert_eq!(soon(here.next()).await, Some(Ok(started(job, 1))));
    assert_eq!(soon(here.next()).await, Some(Ok(token(job, 1, 1))));
    assert_eq!(soon(heard.next()).await, Some(Signal::Cancelled { job }));
    assert!(other.is_quiet(&mut elsewhere).await && other.is_quiet(&mut unheard).await);
}

#[tokio::test]
async fn a_flush_costs_a_late_reader_what_it_took() {
    let redis = Instance::start("redis", "flush");
    let bus = RedisBus::connect(options(redis.url("PENSTOCK_TEST_BUS"))).await.unwrap();
    let [job, ends] = [JobId::new(), JobId::new()];
    bus.append(&[tokens(job, 1, 1..=3), tokens(ends, 1, 1..=3)].concat()).await.unwrap();
    let mut early = bus.events(&job, 0).await.unwrap();
    for position in 1..=3 {
        assert_eq!(soon(early.next()).await, Some(Ok(token(job, 1, position))));
    }
    let () = redis::cmd("FLUSHALL").query_async(&mut client(&redis.url("PENSTOCK_TEST_BUS")).await).await.unwrap();
    // Who has the tokens before the flush misses nothing.
    bus.append(&[token(job, 1, 4)]).await.unwrap();
    assert_eq!(soon(early.next()).await, Some(Ok(token(job, 1, 4))));
    assert!(bus.events(&job, 0).await.is_err() && bus.events(&job, 2).await.is_err());
    assert_eq!(soon(bus.events(&job, 3).await.unwrap().next()).await, Some(Ok(token(job, 1, 4))));
    // A stream that was flushed and never written again looks like that of a job without events.
    let unseen = bus.events(&ends, 3).await.unwrap();
    bus.append(&[ended(ends, 1)]).await.unwrap();
    assert_eq!(soon(unseen.collect::<Vec<_>>()).await, [Ok(ended(ends, 1))]);
}

#[tokio::test]
async fn a_restart_ends_readers_that_lost_something_and_no_others() {
    let mut redis = Instance::start("redis", "restart");
    let options = options(redis.url("PENSTOCK_TEST_BUS"));
    let [worker, api] = [RedisBus::connect(options.clone()).await.unwrap(), RedisBus::connect(options).await.unwrap()];
    let (lost, waits) = (JobId::new(), JobId::new());
    let mut signals = api.signals().await;
    let mut reader = api.events(&lost, 0).await.unwrap();
    let mut waiting = api.events(&waits, 0).await.unwrap();
    append(&worker, &tokens(lost, 1, 1..=2)).await;
    for position in 1..=2 {
        assert_eq!(soon(reader.next()).await, Some(Ok(token(lost, 1, position))));
    }

    redis.kill();
    let began = Instant::now();
    let refused = worker.append(&[token(lost, 1, 3)]).await;
    assert!(matches!(refused, Err(BusError::Unreachable(_))));
    assert!(api.workers().await.is_err());
    api.tell(Signal::Cancelled { job: lost }).await;
    assert!(api.events(&lost, 2).await.is_err());
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());

    redis.up();
    // Tokens 1 to 3 are gone, so the reader of 1 and 2 must not see 4.
    append(&worker, &[token(lost, 1, 4), started(waits, 1)]).await;
    assert_eq!(soon(reader.next()).await, Some(Err(Gone)));
    assert_eq!(soon(reader.next()).await, None);
    assert_eq!(soon(waiting.next()).await, Some(Ok(started(waits, 1))));
    let mut again = soon(async {
        loop {
            match api.events(&lost, 3).await {
                Ok(stream) => return stream,
                Err(Gone) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    assert_eq!(soon(again.next()).await, Some(Ok(token(lost, 1, 4))));
    append(&worker, &[token(waits, 1, 1)]).await;
    assert_eq!(soon(waiting.next()).await, Some(Ok(token(waits, 1, 1))));
    // The listener went on by itself; what was told meanwhile is lost.
    soon(async {
        let heard = async { while signals.next().await != Some(Signal::Cancelled { job: waits }) {} };
        let tells = async {
            loop {
                worker.tell(Signal::Cancelled { job: waits }).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! { () = heard => {}, () = tells => {} }
    })
    .await;
}

#[tokio::test]
async fn a_cut_connection_costs_a_reader_nothing() {
    let redis = Instance::start("redis", "cut");
    let options = options(redis.url("PENSTOCK_TEST_BUS"));
    let [worker, api] = [RedisBus::connect(options.clone()).await.unwrap(), RedisBus::connect(options).await.unwrap()];
    let job = JobId::new();
    let reader = api.events(&job, 0).await.unwrap();
    let mut admin = client(&redis.url("PENSTOCK_TEST_BUS")).await;
    let write = async {
        for position in 1..=200 {
            append(&worker, &[token(job, 1, position)]).await;
            if position % 50 == 0 {
                for kind in ["normal", "pubsub"] {
                    let mut cut = redis::cmd("CLIENT");
                    let _: u32 = cut.arg("KILL").arg("TYPE").arg(kind).query_async(&mut admin).await.unwrap();
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        append(&worker, &[ended(job, 1)]).await;
    };
    let (seen, ()) = soon(async { tokio::join!(reader.collect::<Vec<_>>(), write) }).await;
    let mut expected: Vec<_> = tokens(job, 1, 1..=200).into_iter().map(Ok).collect();
    expected.push(Ok(ended(job, 1)));
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_frozen_redis_is_away_until_it_goes_on() {
    let redis = Instance::start("redis", "frozen");
    let options = RedisOptions { keep: Duration::from_secs(60), ..options(redis.url("PENSTOCK_TEST_BUS")) };
    let bus = RedisBus::connect(options).await.unwrap();
    let job = JobId::new();
    let reader = bus.events(&job, 0).await.unwrap();
    append(&bus, &[token(job, 1, 1)]).await;
    redis.freeze(true);
    let began = Instant::now();
    assert!(matches!(bus.append(&[token(job, 1, 2)]).await, Err(BusError::Unreachable(_))));
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    // Once it is known to be away, nobody waits for it.
    soon(async {
        loop {
            let began = Instant::now();
            assert!(bus.workers().await.is_err());
            if began.elapsed() < Duration::from_millis(100) {
                break;
            }
        }
    })
    .await;
    redis.freeze(false);
    // The second token was sent before, and its answer lost.
    append(&bus, &[token(job, 1, 2), token(job, 1, 3), ended(job, 1)]).await;
    let expected = [Ok(token(job, 1, 1)), Ok(token(job, 1, 2)), Ok(token(job, 1, 3)), Ok(ended(job, 1))];
    assert_eq!(soon(reader.collect::<Vec<_>>()).await, expected);
}

#[tokio::test]
async fn thousands_of_readers_share_two_connections() {
    let redis = Instance::start("redis", "many");
    let url = redis.url("PENSTOCK_TEST_BUS");
    let bus = RedisBus::connect(options(url.clone())).await.unwrap();
    let jobs: Vec<JobId> = (0..100).map(|_| JobId::new()).collect();
    let opened = join_all((0..3_000).map(|nth| bus.events(&jobs[nth % jobs.len()], 0))).await;
    let mut admin = client(&url).await;
    let clients: String = redis::cmd("INFO").arg("clients").query_async(&mut admin).await.unwrap();
    assert!(clients.contains("connected_clients:3\r\n"), "two of the bus, one of this test: {clients}");
    for position in 1..=3 {
        let step: Vec<JobEvent> = jobs.iter().map(|job| token(*job, 1, position)).collect();
        bus.append(&step).await.unwrap();
    }
    let ends: Vec<JobEvent> = jobs.iter().map(|job| ended(*job, 1)).collect();
    bus.append(&ends).await.unwrap();
    let seen = soon(join_all(opened.into_iter().map(|stream| stream.unwrap().collect::<Vec<_>>()))).await;
    for (nth, events) in seen.into_iter().enumerate() {
        let job = jobs[nth % jobs.len()];
        let mut expected: Vec<_> = tokens(job, 1, 1..=3).into_iter().map(Ok).collect();
        expected.push(Ok(ended(job, 1)));
        assert_eq!(events, expected);
    }
    // Nobody reads any more: nothing stays subscribed.
    soon(async {
        loop {
            let left: Vec<String> = redis::cmd("PUBSUB").arg("CHANNELS").query_async(&mut admin).await.unwrap();
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_key_expires_and_is_under_the_prefix() {
    let redis = Instance::start("redis", "keys");
    let url = redis.url("PENSTOCK_TEST_BUS");
    let options = RedisOptions { prefix: "mine".into(), ..RedisOptions::new(url.clone()) };
    let bus = RedisBus::connect(options).await.unwrap();
    bus.append(&[started(JobId::new(), 1), token(JobId::new(), 1, 1)]).await.unwrap();
    let info = crate::bus::worker("a", 1);
    bus.beat(info, Duration::from_secs(10)).await.unwrap();
    let mut admin = client(&url).await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
    assert_eq!(keys.len(), 4, "{keys:?}");
    for key in keys {
        let ttl: i64 = redis::cmd("TTL").arg(&key).query_async(&mut admin).await.unwrap();
        let most = if key.starts_with("mine:events:{") { 15 * 60 } else { 24 * 3600 };
        assert!(key.starts_with("mine:") && (1..=most).contains(&ttl), "{key} {ttl}");
    }
}

#[tokio::test]
async fn nobody_in_the_registry_proves_nothing_right_after_a_restart() {
    let mut redis = Instance::start("redis", "registry");
    let bus = RedisBus::connect(options(redis.url("PENSTOCK_TEST_BUS"))).await.unwrap();
    assert_eq!(bus.workers().await.unwrap(), [], "at the first start there is nobody");
    redis.kill();
    soon(async { while bus.workers().await.is_ok() {} }).await;
    redis.up();
    let began = Instant::now();
    soon(async {
        while bus.workers().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Since it was back, which was up to a second before or after its start was told.
    assert!(began.elapsed() > Duration::from_millis(2_500), "{:?}", began.elapsed());
    bus.beat(worker("a", 1), Duration::from_secs(5)).await.unwrap();
    assert_eq!(bus.workers().await.unwrap(), [worker("a", 1)]);
}

#[tokio::test]
async fn a_redis_that_is_away_at_the_start_is_found_later() {
    let mut redis = Instance::start("redis", "late");
    redis.kill();
    let began = Instant::now();
    let bus = RedisBus::connect(options(redis.url("PENSTOCK_TEST_BUS"))).await.unwrap();
    let job = JobId::new();
    assert!(matches!(bus.append(&[started(job, 1)]).await, Err(BusError::Unreachable(_))));
    let mut signals = bus.signals().await;
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    redis.up();
    append(&bus, &[started(job, 1)]).await;
    let mut reader = bus.events(&job, 0).await.unwrap();
    assert_eq!(soon(reader.next()).await, Some(Ok(started(job, 1))));
    bus.tell(Signal::Cancelled { job }).await;
    assert_eq!(soon(signals.next()).await, Some(Signal::Cancelled { job }));
}

#[tokio::test]
async fn a_redis_that_stays_silent_is_away() {
    // Takes connections and never answers, as behind a cut that nobody told of.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let began = Instant::now();
    let bus = RedisBus::connect(options(url)).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    assert!(bus.workers().await.is_err() && bus.events(&JobId::new(), 0).await.is_err());
    assert!(began.elapsed() < Duration::from_millis(1600), "known to be away: no waiting, {:?}", began.elapsed());
}

#[tokio::test]
async fn a_wrong_password_or_url_is_refused_without_showing_it() {
    let url = variable("PENSTOCK_TEST_BUS");
    let (_, place) = url.rsplit_once('@').unwrap();
    let wrong = RedisBus::connect(options(format!("redis://default:s3cret@{place}"))).await.unwrap_err();
    assert!(matches!(wrong, RedisOpenError::Credentials(_)), "{wrong:?}");
    let none = RedisBus::connect(options(format!("redis://{place}"))).await.unwrap_err();
    assert!(matches!(none, RedisOpenError::Credentials(_)), "{none:?}");
    let other = RedisBus::connect(options("http://user:s3cret@127.0.0.1".into())).await.unwrap_err();
    assert!(matches!(other, RedisOpenError::Url(_)), "{other:?}");
    for error in [wrong, other] {
        assert!(!format!("{error:?} {error}").contains("s3cret"));
    }
}
