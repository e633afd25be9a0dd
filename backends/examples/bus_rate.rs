//! How quick the bus on Redis is: `cargo run --release -p backends --example bus_rate [URL]` (default: the variable
//! PENSTOCK_TEST_BUS). The worker's and the API's side run in this one process, each with connections of its own. Everything
//! is written under a prefix of its own, and expires after a minute.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::redis_bus::{RedisBus, RedisOptions};
use contract::{Bus, JobEvent, JobEventBody, JobId, TokenEvent};
use futures::StreamExt;

type Failed = Box<dyn Error + Send + Sync>;

/// Steps of a latency run, and the pause between two: an engine's pace.
const STEPS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);
/// Steps of a run at full speed.
const FAST: u32 = 2_000;

fn step(jobs: &[JobId], position: u32) -> Vec<JobEvent> {
    let token = || TokenEvent { position, id: 10_000 + position, choice: 0, text: " word".into(), logprob: None };
    jobs.iter().map(|job| JobEvent { job: *job, attempt: 1, body: JobEventBody::Token(token()) }).collect()
}

fn jobs(count: usize) -> Vec<JobId> {
    (0..count).map(|_| JobId::new()).collect()
}

fn shown(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times.get(((times.len() - 1) as f64 * part) as usize).copied().unwrap_or_default();
    format!("p50 {:?}, p99 {:?}, most {:?}, of {}", at(0.5), at(0.99), at(1.0), times.len())
}

/// From before `append` until the reader has the token.
async fn latency(worker: &RedisBus, api: &RedisBus, count: usize) -> Result<(), Failed> {
    let (jobs, began) = (jobs(count), Instant::now());
    let sent: Arc<[std::sync::OnceLock<Duration>]> = (0..=STEPS).map(|_| std::sync::OnceLock::new()).collect();
    let mut readers = Vec::new();
    for job in &jobs {
        let mut stream = api.events(job, 0).await?;
        let sent = sent.clone();
        readers.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while let Some(Ok(JobEvent { body: JobEventBody::Token(token), .. })) = stream.next().await {
                let sent = sent.get(token.position as usize).and_then(|at| at.get()).copied().unwrap_or_default();
                times.push(began.elapsed().saturating_sub(sent));
                if token.position == STEPS {
                    break;
                }
            }
            times
        }));
    }
    let mut appends = Vec::new();
    for position in 1..=STEPS {
        tokio::time::sleep(PAUSE).await;
        let events = step(&jobs, position);
        let before = began.elapsed();
        if let Some(at) = sent.get(position as usize) {
            let _ = at.set(before);
        }
        worker.append(&events).await?;
        appends.push(began.elapsed() - before);
    }
    let mut times = Vec::new();
    for reader in readers {
        times.extend(reader.await?);
    }
    println!("{count:3} jobs, a step each {PAUSE:?}: append to reader {}", shown(times));
    println!("{count:3} jobs, a step each {PAUSE:?}: append answered  {}", shown(appends));
    Ok(())
}

/// Steps of 64 jobs, one after the other without a pause; half of the run somebody reads every job.
async fn rate(worker: &RedisBus, api: &RedisBus, are_read: bool) -> Result<Vec<JobId>, Failed> {
    let jobs = jobs(64);
    let mut readers = Vec::new();
    if are_read {
        for job in &jobs {
            let stream = api.events(job, 0).await?;
            readers.push(tokio::spawn(
                stream.take(FAST as usize).filter(|event| std::future::ready(event.is_ok())).count(),
            ));
        }
    }
    let steps: Vec<_> = (1..=FAST).map(|position| step(&jobs, position)).collect();
    let began = Instant::now();
    for events in &steps {
        worker.append(events).await?;
    }
    let appended = began.elapsed();
    let mut read = 0;
    for reader in readers {
        read += reader.await?;
    }
    let total = f64::from(FAST) * 64.0;
    print!("64 jobs, no pause: {:.0} tokens/s appended", total / appended.as_secs_f64());
    match are_read {
        true => println!(", {:.0} tokens/s read ({read})", read as f64 / began.elapsed().as_secs_f64()),
        false => println!(", nobody reads"),
    }
    Ok(jobs)
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("PENSTOCK_TEST_BUS").ok());
    let url = url.ok_or("give the URL of a Redis, or set PENSTOCK_TEST_BUS: eval \"$(deploy/services env)\"")?;
    let prefix = format!("bus-rate-{}", JobId::new());
    let options =
        RedisOptions { prefix: prefix.clone(), keep: Duration::from_secs(60), ..RedisOptions::new(url.clone()) };
    let worker = RedisBus::connect(options.clone()).await?;
    let api = RedisBus::connect(options).await?;
    for count in [1, 64] {
        latency(&worker, &api, count).await?;
    }
    rate(&worker, &api, true).await?;
    let jobs = rate(&worker, &api, false).await?;

    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut bytes = 0;
    for job in &jobs {
        let key = format!("{prefix}:events:{{{}}}", job.0.simple());
        let of_job: u64 =
            redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query_async(&mut redis).await?;
        bytes += of_job;
    }
    println!(
        "{:.1} bytes a token in Redis ({FAST} tokens a job, text of 5 bytes)",
        bytes as f64 / f64::from(FAST) / 64.0
    );
    Ok(())
}
