//! How fast the broker's queue is: confirmed publishes a second by slice, the way of one wake-up through an idle
//! broker, what asking costs, and how far a burst overshoots the limit.
//!
//! `PENSTOCK_TEST_QUEUE=amqp://… cargo run --release -p backends --example queue_rate`. It makes queues of a name of its
//! own, and deletes them.

use std::time::{Duration, Instant};

use backends::rabbitmq::{RabbitOptions, RabbitQueue};
use contract::{Class, Fingerprint, JobId, Published, Queue, QueueId, Wake};
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::{Connection, ConnectionProperties};

type Failure = Box<dyn std::error::Error>;

const PER_SLICE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2_000;
const BURST: usize = 10_000;
const SMALL_LIMIT: u64 = 256;

fn id(digits: &str) -> QueueId {
    QueueId { release: Fingerprint(digits.repeat(32)), class: Class::Standard }
}

fn wakes(id: &QueueId, n_wakes: usize) -> Vec<(QueueId, Wake)> {
    (0..n_wakes).map(|_| (id.clone(), Wake { job: JobId::new(), attempt: 0 })).collect()
}

fn confirmed(answers: &[Published]) -> usize {
    answers.iter().filter(|answer| **answer == Published::Confirmed).count()
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or_default()
}

fn print_percentiles(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let [p50, p99] = [0.50, 0.99].map(|share| percentile(&times, share));
    println!("{what}: p50 {p50:?}, p99 {p99:?}, {} times", times.len());
}

/// One caller with slices of `size`, or several that share the pipeline.
async fn publish_rate(queue: &RabbitQueue, size: usize, n_callers: usize) {
    let id = id("aa");
    let until = Instant::now() + PER_SLICE;
    let caller = async || {
        let mut n_confirmed = 0;
        while Instant::now() < until {
            n_confirmed += confirmed(&queue.publish(&wakes(&id, size)).await);
        }
        n_confirmed
    };
    let since = Instant::now();
    let n_confirmed: usize = futures::future::join_all((0..n_callers).map(|_| caller())).await.into_iter().sum();
    let rate = n_confirmed as f64 / since.elapsed().as_secs_f64();
    println!("publish, slices of {size}, {n_callers} at once: {rate:.0} confirmed/s");
}

async fn take_one(queue: &RabbitQueue, id: &QueueId) -> Result<contract::Delivery, Failure> {
    loop {
        if let Some(delivery) = queue.take(id, 1).await?.pop() {
            return Ok(delivery);
        }
        // A signal that was for nothing, or none: the next look finds it.
        let _signalled = tokio::time::timeout(Duration::from_millis(200), queue.arrived()).await.is_ok();
    }
}

async fn round_trips(queue: &RabbitQueue) -> Result<(), Failure> {
    let id = id("bb");
    let (mut published, mut taken, mut acked) = (Vec::new(), Vec::new(), Vec::new());
    queue.publish(&wakes(&id, 1)).await;
    let warm_up = take_one(queue, &id).await?;
    queue.ack(warm_up).await;
    for _ in 0..ROUNDS {
        let since = Instant::now();
        let slice = wakes(&id, 1);
        let publishing = async {
            let answers = queue.publish(&slice).await;
            (answers, since.elapsed())
        };
        let taking = async {
            let delivery = take_one(queue, &id).await;
            (delivery, since.elapsed())
        };
        let ((answers, publish_time), (delivery, take_time)) = tokio::join!(publishing, taking);
        if answers != [Published::Confirmed] {
            return Err(format!("{answers:?} on an idle broker").into());
        }
        queue.ack(delivery?).await;
        published.push(publish_time);
        taken.push(take_time);
        acked.push(since.elapsed());
    }
    print_percentiles("publish to confirm", published);
    print_percentiles("publish to taken", taken);
    print_percentiles("publish to confirmed, taken and acknowledged", acked);
    Ok(())
}

async fn drain_rate(queue: &RabbitQueue, prefetch: u16) -> Result<(), Failure> {
    let id = id("aa");
    let (since, mut n_taken) = (Instant::now(), 0);
    while since.elapsed() < PER_SLICE {
        queue.ack(take_one(queue, &id).await?).await;
        n_taken += 1;
    }
    let rate = f64::from(n_taken) / since.elapsed().as_secs_f64();
    println!("take and acknowledge, prefetch {prefetch}: {rate:.0}/s");
    queue.rest().await;
    Ok(())
}

async fn ask(queue: &RabbitQueue) -> Result<(), Failure> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let since = Instant::now();
        queue.ready(&id("aa")).await?;
        times.push(since.elapsed());
    }
    print_percentiles("ready", times);
    Ok(())
}

async fn overshoot(queue: &RabbitQueue) -> Result<(), Failure> {
    for digits in ["cc", "dd", "ee"] {
        let answers = queue.publish(&wakes(&id(digits), BURST)).await;
        let n_unknown = answers.iter().filter(|answer| **answer == Published::Unknown).count();
        let ready = queue.ready(&id(digits)).await?;
        let n_confirmed = confirmed(&answers);
        println!("{BURST} at once, limit {SMALL_LIMIT}: {n_confirmed} confirmed, {n_unknown} unknown, {ready} ready");
    }
    // One after the other, as the feeder's slices come.
    let mut n_confirmed = 0;
    for _ in 0..64 {
        n_confirmed += confirmed(&queue.publish(&wakes(&id("ff"), 16)).await);
    }
    println!("64 slices of 16, limit {SMALL_LIMIT}: {n_confirmed} confirmed");
    Ok(())
}

async fn delete(url: &str, prefix: &str) -> Result<(), Failure> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    for digits in ["aa", "bb", "cc", "dd", "ee", "ff"] {
        let name = format!("{prefix}.{}.standard", digits.repeat(6));
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
    }
    channel.queue_delete(format!("{prefix}.dead").into(), QueueDeleteOptions::default()).await?;
    channel.exchange_delete(format!("{prefix}.dead").into(), ExchangeDeleteOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("PENSTOCK_TEST_QUEUE")
        .map_err(|_| "PENSTOCK_TEST_QUEUE is not set: deploy/services up and eval \"$(deploy/services env)\"")?;
    let prefix = format!("rate-{}", JobId::new());
    let options =
        |limit, prefetch| RabbitOptions { limit, prefetch, prefix: prefix.clone(), ..RabbitOptions::new(&url) };
    let small = RabbitQueue::connect(options(SMALL_LIMIT, 4)).await?;
    overshoot(&small).await?;
    let queue = RabbitQueue::connect(options(10_000_000, 4)).await?;
    round_trips(&queue).await?;
    for size in [1, 16, 64, 256] {
        publish_rate(&queue, size, 1).await;
    }
    publish_rate(&queue, 1, 64).await;
    ask(&queue).await?;
    for prefetch in [4, 16, 64] {
        let taker = RabbitQueue::connect(options(10_000_000, prefetch)).await?;
        drain_rate(&taker, prefetch).await?;
    }
    println!("{:?}", queue.counts());
    drop((small, queue));
    delete(&url, &prefix).await
}
