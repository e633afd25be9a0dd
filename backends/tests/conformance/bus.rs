//! What every bus does. Time is paused.

use std::time::Duration;

use contract::{
    Bus, Class, Fingerprint, Gone, JobEvent, JobEventBody, JobId, JobState, QueueId, Signal, TokenEvent, WorkerId,
    WorkerInfo,
};
use futures::StreamExt;
use futures::future::join_all;

fn token(job: JobId, attempt: u32, position: u32) -> JobEvent {
    let body =
        JobEventBody::Token(TokenEvent { position, id: position + 100, text: format!("t{position}"), logprob: None });
    JobEvent { job, attempt, body }
}

fn tokens(job: JobId, attempt: u32, positions: std::ops::RangeInclusive<u32>) -> Vec<JobEvent> {
    positions.map(|position| token(job, attempt, position)).collect()
}

fn started(job: JobId, attempt: u32) -> JobEvent {
    JobEvent { job, attempt, body: JobEventBody::Started }
}

fn ended(job: JobId, attempt: u32) -> JobEvent {
    JobEvent { job, attempt, body: JobEventBody::Ended { state: JobState::Succeeded } }
}

/// All events until the stream ends.
async fn read(bus: &dyn Bus, job: JobId, after: u32) -> Vec<Result<JobEvent, Gone>> {
    bus.events(&job, after).await.unwrap().collect().await
}

/// Whether nothing comes for a second.
async fn is_quiet<T>(stream: &mut (impl futures::Stream<Item = T> + Unpin)) -> bool {
    tokio::time::timeout(Duration::from_secs(1), stream.next()).await.is_err()
}

pub async fn kept_and_live_events_are_gapless(bus: &dyn Bus) {
    let job = JobId::new();
    bus.append(&[vec![started(job, 1)], tokens(job, 1, 1..=3)].concat()).await.unwrap();
    let mut stream = bus.events(&job, 0).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(started(job, 1))));
    for position in 1..=3 {
        assert_eq!(stream.next().await, Some(Ok(token(job, 1, position))));
    }
    let rest = tokio::join!(stream.collect::<Vec<_>>(), async {
        for position in 4..=200 {
            bus.append(&[token(job, 1, position)]).await.unwrap();
            if position % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        bus.append(&[ended(job, 1)]).await.unwrap();
    })
    .0;
    let mut expected: Vec<_> = tokens(job, 1, 4..=200).into_iter().map(Ok).collect();
    expected.push(Ok(ended(job, 1)));
    assert_eq!(rest, expected);
}

pub async fn a_reader_skips_what_it_has(bus: &dyn Bus) {
    let job = JobId::new();
    bus.append(&[tokens(job, 1, 1..=9), vec![ended(job, 1)]].concat()).await.unwrap();
    assert_eq!(read(bus, job, 7).await, [Ok(token(job, 1, 8)), Ok(token(job, 1, 9)), Ok(ended(job, 1))]);
    assert_eq!(read(bus, job, 99).await, [Ok(ended(job, 1))]);
}

pub async fn a_stream_waits_for_the_first_event(bus: &dyn Bus) {
    let job = JobId::new();
    let mut stream = bus.events(&job, 0).await.unwrap();
    assert!(is_quiet(&mut stream).await);
    bus.append(&[started(job, 1)]).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(started(job, 1))));
    assert!(is_quiet(&mut stream).await);
}

pub async fn a_stream_ends_with_the_job(bus: &dyn Bus) {
    let job = JobId::new();
    bus.append(&[token(job, 1, 1), ended(job, 1), token(job, 1, 2)]).await.unwrap();
    assert_eq!(read(bus, job, 0).await, [Ok(token(job, 1, 1)), Ok(ended(job, 1))]);
}

pub async fn a_new_attempt_replaces_the_old_one(bus: &dyn Bus) {
    let job = JobId::new();
    bus.append(&tokens(job, 1, 1..=5)).await.unwrap();
    let mut early = bus.events(&job, 0).await.unwrap();
    assert_eq!(early.next().await, Some(Ok(token(job, 1, 1))));
    bus.append(&[vec![started(job, 2)], tokens(job, 2, 1..=2), vec![ended(job, 2)]].concat()).await.unwrap();
    let second = [Ok(started(job, 2)), Ok(token(job, 2, 1)), Ok(token(job, 2, 2)), Ok(ended(job, 2))];
    assert_eq!(early.collect::<Vec<_>>().await, second);
    assert_eq!(read(bus, job, 0).await, second);
}

pub async fn events_of_an_old_attempt_are_dropped(bus: &dyn Bus) {
    let job = JobId::new();
    bus.append(&[token(job, 2, 1), token(job, 1, 9), ended(job, 1), ended(job, 2)]).await.unwrap();
    assert_eq!(read(bus, job, 0).await, [Ok(token(job, 2, 1)), Ok(ended(job, 2))]);
}

pub async fn dropped_events_are_gone(bus: &dyn Bus) {
    let job = JobId::new();
    bus.append(&[tokens(job, 1, 1..=5_000), vec![ended(job, 1)]].concat()).await.unwrap();
    assert!(bus.events(&job, 0).await.is_err());
    assert!(bus.events(&job, 500).await.is_err());
    let rest = read(bus, job, 4_990).await;
    assert_eq!((rest.len(), &rest[0]), (11, &Ok(token(job, 1, 4_991))));
}

pub async fn a_slow_reader_is_cut(bus: &dyn Bus) {
    let job = JobId::new();
    let mut stream = bus.events(&job, 0).await.unwrap();
    bus.append(&[token(job, 1, 1)]).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(token(job, 1, 1))));
    bus.append(&tokens(job, 1, 2..=9_000)).await.unwrap();
    assert_eq!(stream.next().await, Some(Err(Gone)));
    assert_eq!(stream.next().await, None);
}

pub async fn jobs_do_not_mix(bus: &dyn Bus) {
    let jobs: Vec<JobId> = (0..5).map(|_| JobId::new()).collect();
    let streams: Vec<_> = join_all(jobs.iter().map(|job| bus.events(job, 0))).await;
    for position in 1..=3 {
        let step: Vec<JobEvent> = jobs.iter().map(|job| token(*job, 1, position)).collect();
        bus.append(&step).await.unwrap();
    }
    let ends: Vec<JobEvent> = jobs.iter().map(|job| ended(*job, 1)).collect();
    bus.append(&ends).await.unwrap();
    for (job, stream) in jobs.iter().zip(streams) {
        let mut expected: Vec<_> = tokens(*job, 1, 1..=3).into_iter().map(Ok).collect();
        expected.push(Ok(ended(*job, 1)));
        assert_eq!(stream.unwrap().collect::<Vec<_>>().await, expected);
    }
}

pub async fn old_events_go(bus: &dyn Bus) {
    let (old, new) = (JobId::new(), JobId::new());
    bus.append(&[token(old, 1, 1)]).await.unwrap();
    let mut reader = bus.events(&old, 1).await.unwrap();
    tokio::time::advance(Duration::from_secs(14 * 60)).await;
    bus.append(&[token(new, 1, 1)]).await.unwrap();
    assert!(is_quiet(&mut reader).await, "kept for a quarter of an hour");
    tokio::time::advance(Duration::from_secs(2 * 60)).await;
    bus.append(&[token(new, 1, 2)]).await.unwrap();
    assert_eq!(reader.next().await, Some(Err(Gone)));
    assert!(is_quiet(&mut bus.events(&old, 0).await.unwrap()).await);
}

pub async fn signals_reach_all_listeners(bus: &dyn Bus) {
    let job = JobId::new();
    bus.tell(Signal::Cancelled { job: JobId::new() }).await;
    let listeners = [bus.signals().await, bus.signals().await];
    let queue = QueueId { release: Fingerprint("ab".into()), class: Class::Bulk };
    let told = [Signal::Due { queue: queue.clone() }, Signal::Ready { queue }, Signal::Cancelled { job }];
    for signal in told.clone() {
        bus.tell(signal).await;
    }
    for listener in listeners {
        assert_eq!(listener.take(3).collect::<Vec<_>>().await, told);
    }
}

pub async fn workers_live_as_long_as_they_beat(bus: &dyn Bus) {
    let info = |name: &str, steps| WorkerInfo {
        id: WorkerId::from(name),
        release: Fingerprint("ab".into()),
        model: "small".into(),
        ready: true,
        draining: false,
        running: 1,
        capacity: 16,
        used_blocks: 2,
        total_blocks: 64,
        steps,
        preemptions: 0,
    };
    let ttl = Duration::from_secs(10);
    bus.beat(info("a", 1), ttl).await.unwrap();
    bus.beat(info("b", 1), ttl).await.unwrap();
    assert_eq!(bus.workers().await.unwrap().len(), 2);
    tokio::time::advance(Duration::from_secs(6)).await;
    bus.beat(info("b", 2), ttl).await.unwrap();
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(bus.workers().await.unwrap(), [info("b", 2)]);
    tokio::time::advance(Duration::from_secs(6)).await;
    assert!(bus.workers().await.unwrap().is_empty());
}
