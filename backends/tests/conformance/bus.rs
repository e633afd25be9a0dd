//! What every bus does. Time is paused where the bus is in the process; elsewhere it runs, in smaller portions.

use std::sync::Arc;
use std::time::Duration;

use contract::{
    Bus, Class, Fingerprint, Gone, JobEvent, JobEventBody, JobId, JobState, QueueId, Signal, TokenEvent, WorkerId,
    WorkerInfo,
};
use futures::StreamExt;
use futures::future::join_all;

/// A bus in the hands of a test.
pub struct BusUnderTest {
    /// The bus, with nothing on it.
    pub bus: Arc<dyn Bus>,
    /// Events of a job that it keeps at least; it drops some of 1,000 more.
    pub keeps: u32,
    /// How long it keeps them.
    pub keep: Duration,
    /// As long as a worker may need for a beat, or an event on its way.
    pub moment: Duration,
}

impl BusUnderTest {
    /// The bus of embedded mode. Time must be paused.
    pub fn in_process() -> Self {
        Self {
            bus: Arc::new(backends::InProcessBus::default()),
            keeps: 4096,
            keep: Duration::from_secs(15 * 60),
            moment: Duration::from_secs(1),
        }
    }

    /// Whether nothing comes for a moment.
    pub async fn is_quiet<T>(&self, stream: &mut (impl futures::Stream<Item = T> + Unpin)) -> bool {
        tokio::time::timeout(self.moment, stream.next()).await.is_err()
    }
}

impl std::ops::Deref for BusUnderTest {
    type Target = dyn Bus;

    fn deref(&self) -> &Self::Target {
        &*self.bus
    }
}

pub fn token(job: JobId, attempt: u32, position: u32) -> JobEvent {
    let (id, text) = (position + 100, format!("t{position}"));
    let body = JobEventBody::Token(TokenEvent { position, id, choice: 0, text, logprob: None });
    JobEvent { job, attempt, body }
}

pub fn tokens(job: JobId, attempt: u32, positions: std::ops::RangeInclusive<u32>) -> Vec<JobEvent> {
    positions.map(|position| token(job, attempt, position)).collect()
}

pub fn started(job: JobId, attempt: u32) -> JobEvent {
    JobEvent { job, attempt, body: JobEventBody::Started }
}

pub fn ended(job: JobId, attempt: u32) -> JobEvent {
    JobEvent { job, attempt, body: JobEventBody::Ended { state: JobState::Succeeded } }
}

pub fn worker(name: &str, steps: u64) -> WorkerInfo {
    WorkerInfo {
        id: WorkerId::from(name),
        release: Fingerprint("ab".into()),
        model: "small".into(),
        ready: true,
        draining: false,
        running: 1,
        capacity: 16,
        used_blocks: 2,
        cached_blocks: 3,
        total_blocks: 64,
        steps,
        preemptions: 0,
    }
}

/// All events until the stream ends.
async fn read(bus: &BusUnderTest, job: JobId, after: u32) -> Vec<Result<JobEvent, Gone>> {
    bus.events(&job, after).await.unwrap().collect().await
}

pub async fn kept_and_live_events_are_gapless(bus: &BusUnderTest) {
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

pub async fn a_reader_skips_what_it_has(bus: &BusUnderTest) {
    let job = JobId::new();
    bus.append(&[tokens(job, 1, 1..=9), vec![ended(job, 1)]].concat()).await.unwrap();
    assert_eq!(read(bus, job, 7).await, [Ok(token(job, 1, 8)), Ok(token(job, 1, 9)), Ok(ended(job, 1))]);
    assert_eq!(read(bus, job, 99).await, [Ok(ended(job, 1))]);
}

pub async fn a_stream_waits_for_the_first_event(bus: &BusUnderTest) {
    let job = JobId::new();
    let mut stream = bus.events(&job, 0).await.unwrap();
    assert!(bus.is_quiet(&mut stream).await);
    bus.append(&[started(job, 1)]).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(started(job, 1))));
    assert!(bus.is_quiet(&mut stream).await);
}

pub async fn a_stream_ends_with_the_job(bus: &BusUnderTest) {
    let job = JobId::new();
    bus.append(&[token(job, 1, 1), ended(job, 1), token(job, 1, 2)]).await.unwrap();
    assert_eq!(read(bus, job, 0).await, [Ok(token(job, 1, 1)), Ok(ended(job, 1))]);
}

pub async fn a_new_attempt_replaces_the_old_one(bus: &BusUnderTest) {
    let job = JobId::new();
    bus.append(&tokens(job, 1, 1..=5)).await.unwrap();
    let mut early = bus.events(&job, 0).await.unwrap();
    assert_eq!(early.next().await, Some(Ok(token(job, 1, 1))));
    bus.append(&[vec![started(job, 2)], tokens(job, 2, 1..=2), vec![ended(job, 2)]].concat()).await.unwrap();
    let second = [Ok(started(job, 2)), Ok(token(job, 2, 1)), Ok(token(job, 2, 2)), Ok(ended(job, 2))];
    let rest: Vec<_> = early.collect().await;
    // What was on its way may still come, in order.
    let old = rest.iter().position(|event| *event == second[0]).unwrap();
    assert!((2..).zip(&rest[..old]).all(|(position, event)| *event == Ok(token(job, 1, position))), "{rest:?}");
    assert_eq!(rest[old..], second);
    assert_eq!(read(bus, job, 0).await, second);
}

pub async fn events_of_an_old_attempt_are_dropped(bus: &BusUnderTest) {
    let job = JobId::new();
    bus.append(&[token(job, 2, 1), token(job, 1, 9), ended(job, 1), ended(job, 2)]).await.unwrap();
    assert_eq!(read(bus, job, 0).await, [Ok(token(job, 2, 1)), Ok(ended(job, 2))]);
}

pub async fn dropped_events_are_gone(bus: &BusUnderTest) {
    let job = JobId::new();
    let last = bus.keeps + 1_000;
    bus.append(&[tokens(job, 1, 1..=last), vec![ended(job, 1)]].concat()).await.unwrap();
    assert!(bus.events(&job, 0).await.is_err());
    assert!(bus.events(&job, 500).await.is_err());
    // The end is one of the events that are kept.
    for after in [last - bus.keeps + 1, last - 10] {
        let rest = read(bus, job, after).await;
        assert_eq!((rest.len(), &rest[0]), ((last - after) as usize + 1, &Ok(token(job, 1, after + 1))));
    }
}

pub async fn a_slow_reader_is_cut(bus: &BusUnderTest) {
    let job = JobId::new();
    let mut stream = bus.events(&job, 0).await.unwrap();
    bus.append(&[token(job, 1, 1)]).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(token(job, 1, 1))));
    bus.append(&tokens(job, 1, 2..=2 + bus.keeps + 1_000)).await.unwrap();
    assert_eq!(stream.next().await, Some(Err(Gone)));
    assert_eq!(stream.next().await, None);
}

pub async fn jobs_do_not_mix(bus: &BusUnderTest) {
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

pub async fn a_reader_that_fell_behind_catches_up(bus: &BusUnderTest) {
    let job = JobId::new();
    let mut stream = bus.events(&job, 0).await.unwrap();
    bus.append(&[started(job, 1)]).await.unwrap();
    assert_eq!(stream.next().await, Some(Ok(started(job, 1))));
    for position in 1..=700 {
        bus.append(&[token(job, 1, position)]).await.unwrap();
    }
    bus.append(&[ended(job, 1)]).await.unwrap();
    let mut expected: Vec<_> = tokens(job, 1, 1..=700).into_iter().map(Ok).collect();
    expected.push(Ok(ended(job, 1)));
    assert_eq!(stream.collect::<Vec<_>>().await, expected);
}

pub async fn readers_come_and_go(bus: &BusUnderTest) {
    let job = JobId::new();
    let mut stays = bus.events(&job, 0).await.unwrap();
    for position in 1..=50 {
        let leaves = bus.events(&job, position).await.unwrap();
        bus.append(&[token(job, 1, position)]).await.unwrap();
        drop(leaves);
        if position % 10 == 0 {
            // The only reader leaves while another comes.
            drop(stays);
            stays = bus.events(&job, position - 10).await.unwrap();
            for seen in position - 9..=position {
                assert_eq!(stays.next().await, Some(Ok(token(job, 1, seen))));
            }
        }
    }
    bus.append(&[ended(job, 1)]).await.unwrap();
    assert_eq!(stays.collect::<Vec<_>>().await, [Ok(ended(job, 1))]);
}

pub async fn events_come_out_as_they_went_in(bus: &BusUnderTest) {
    let job = JobId::new();
    let logprob = r#"{"token": "é", "bytes": null, "logprob": -0.12345679,
        "top": [{"token": "\ufffd", "bytes": [255, 0], "logprob": -9999.0}]}"#;
    let logprob = serde_json::from_str(logprob).unwrap();
    let event = |position: u32, text: &str, logprob| {
        // Of three answers, in turn.
        let choice = (position - 1) % 3;
        let body = JobEventBody::Token(TokenEvent { position, id: u32::MAX, choice, text: text.into(), logprob });
        JobEvent { job, attempt: u32::MAX, body }
    };
    let events = [
        started(job, u32::MAX),
        event(1, "", None),
        event(2, "quotes \" ' \\ \n \0 \u{1f980} and 1-2 [[", Some(logprob)),
        event(3, " ", None),
        JobEvent { job, attempt: u32::MAX, body: JobEventBody::Ended { state: JobState::Cancelled } },
    ];
    let live = bus.events(&job, 0).await.unwrap();
    bus.append(&events).await.unwrap();
    let expected = events.map(Ok);
    assert_eq!(live.collect::<Vec<_>>().await, expected);
    assert_eq!(read(bus, job, 0).await, expected);
}

pub async fn old_events_go(bus: &BusUnderTest) {
    let (old, new) = (JobId::new(), JobId::new());
    bus.append(&[token(old, 1, 1)]).await.unwrap();
    let mut reader = bus.events(&old, 1).await.unwrap();
    tokio::time::sleep(bus.keep / 2).await;
    bus.append(&[token(new, 1, 1)]).await.unwrap();
    assert!(bus.is_quiet(&mut reader).await, "kept for all that time");
    tokio::time::sleep(bus.keep).await;
    bus.append(&[token(new, 1, 2)]).await.unwrap();
    assert_eq!(reader.next().await, Some(Err(Gone)));
    assert_eq!(reader.next().await, None);
    assert!(bus.is_quiet(&mut bus.events(&old, 0).await.unwrap()).await);
}

pub async fn signals_reach_all_listeners(bus: &BusUnderTest) {
    let (before, job) = (Signal::Cancelled { job: JobId::new() }, JobId::new());
    bus.tell(before.clone()).await;
    let listeners = [bus.signals().await, bus.signals().await];
    let queue = QueueId { release: Fingerprint("ab".into()), class: Class::Bulk };
    let ended = Signal::Ended { job, state: JobState::Expired };
    let told = [Signal::Due { queue: queue.clone() }, Signal::Ready { queue }, Signal::Cancelled { job }, ended];
    for signal in told.clone() {
        bus.tell(signal).await;
    }
    for listener in listeners {
        // What was told just before may still be on its way.
        let heard = listener.filter(|signal| std::future::ready(*signal != before));
        assert_eq!(heard.take(4).collect::<Vec<_>>().await, told);
    }
}

pub async fn workers_live_as_long_as_they_beat(bus: &BusUnderTest) {
    let ttl = bus.moment * 10;
    bus.beat(worker("a", 1), ttl).await.unwrap();
    bus.beat(worker("b", 1), ttl).await.unwrap();
    assert_eq!(bus.workers().await.unwrap().len(), 2);
    tokio::time::sleep(bus.moment * 6).await;
    bus.beat(worker("b", 2), ttl).await.unwrap();
    tokio::time::sleep(bus.moment * 6).await;
    assert_eq!(bus.workers().await.unwrap(), [worker("b", 2)]);
    tokio::time::sleep(bus.moment * 6).await;
    assert!(bus.workers().await.unwrap().is_empty());
    // One that leaves says so.
    bus.beat(worker("a", 3), ttl).await.unwrap();
    bus.beat(worker("a", 4), Duration::ZERO).await.unwrap();
    assert!(bus.workers().await.unwrap().is_empty());
}
