//! What every queue does. Deliveries may come a moment after they were published, and an adapter may fetch a few ahead;
//! what a case says about numbers and order allows for that, and for the in-process queue it is exact.

use std::collections::HashSet;
use std::time::Duration;

use contract::{Class, Delivery, Fingerprint, JobId, Published, Queue, QueueId, Wake};
use tokio::time::{Instant, timeout};

/// Of the queues under test.
pub const LIMIT: usize = 8;
/// What takes longer did not happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A queue in the hands of a case.
#[derive(Clone, Copy)]
pub struct UnderTest<'q> {
    pub queue: &'q dyn Queue,
    /// Most wake-ups that are fetched ahead.
    pub ahead: usize,
    /// Most wake-ups above its limit.
    pub overshoot: usize,
}

impl<'q> UnderTest<'q> {
    /// One without slack.
    pub fn exact(queue: &'q dyn Queue) -> Self {
        Self { queue, ahead: 0, overshoot: 0 }
    }
}

pub fn named(name: &str) -> QueueId {
    QueueId { release: Fingerprint(name.repeat(32)), class: Class::Standard }
}

pub fn wakes(queue: &QueueId, n: usize) -> Vec<(QueueId, Wake)> {
    let wake = |attempt| (queue.clone(), Wake { job: JobId::new(), attempt });
    (0..).take(n).map(wake).collect()
}

/// Publishes until everything is in its queue: a broker also refuses what reaches a queue that is just being made.
pub async fn put(queue: &dyn Queue, wakes: &[(QueueId, Wake)]) {
    let until = Instant::now() + PATIENCE;
    let mut left = wakes.to_vec();
    loop {
        let answers = queue.publish(&left).await;
        assert!(!answers.contains(&Published::Unknown), "the queue is away");
        let mut answers = answers.into_iter();
        left.retain(|_| answers.next() != Some(Published::Confirmed));
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{} are not let in", left.len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes until there are `n`, and acknowledges each.
pub async fn drain(queue: &dyn Queue, id: &QueueId, n: usize) -> Vec<Wake> {
    let mut drained = Vec::new();
    while drained.len() < n {
        let delivery = next(queue, id).await;
        assert_eq!(&delivery.queue, id);
        drained.push(delivery.wake);
        queue.ack(delivery).await;
    }
    drained
}

/// What can be had now. A busy broker that leaves a call unanswered for 2 s costs a queue its connection; that it goes on
/// with the next one by itself is what its users are promised, and what waits with patience sees.
pub async fn take(queue: &dyn Queue, id: &QueueId, max: usize) -> Vec<Delivery> {
    queue.take(id, max).await.unwrap_or_default()
}

/// The next delivery, which is on its way.
pub async fn next(queue: &dyn Queue, id: &QueueId) -> Delivery {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(delivery) = take(queue, id, 1).await.pop() {
            return delivery;
        }
        assert!(Instant::now() < until, "no wake-up came");
        // Without a signal the next look finds it.
        let _came = timeout(Duration::from_millis(20), queue.arrived()).await.is_ok();
    }
}

/// How many wake-ups the queue counts, asked until it answers.
pub async fn ready(queue: &dyn Queue, id: &QueueId) -> u64 {
    let until = Instant::now() + PATIENCE;
    loop {
        match queue.ready(id).await {
            Ok(ready) => return ready,
            Err(err) => assert!(Instant::now() < until, "the queue is away: {err:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the queue counts `expected` wake-ups.
pub async fn ready_becomes(queue: &dyn Queue, id: &QueueId, expected: u64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let ready = ready(queue, id).await;
        if ready == expected {
            return;
        }
        assert!(Instant::now() < until, "{ready} are ready, not {expected}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Nothing comes although there was time.
async fn stays_empty(queue: &dyn Queue, id: &QueueId) {
    for _ in 0..10 {
        assert!(take(queue, id, 10).await.is_empty());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn of(wakes: &[(QueueId, Wake)]) -> Vec<Wake> {
    wakes.iter().map(|(_, wake)| *wake).collect()
}

pub async fn wakes_come_out_in_order(UnderTest { queue, .. }: UnderTest<'_>) {
    let wakes = wakes(&named("aa"), 7);
    assert_eq!(queue.publish(&wakes).await, [Published::Confirmed; 7]);
    ready_becomes(queue, &named("aa"), 7).await;
    assert_eq!(drain(queue, &named("aa"), 7).await, of(&wakes));
    ready_becomes(queue, &named("aa"), 0).await;
}

pub async fn a_full_queue_says_so(UnderTest { queue, overshoot, .. }: UnderTest<'_>) {
    assert_eq!(queue.limit(), LIMIT as u64);
    let mut answers = Vec::new();
    while answers.last() != Some(&Published::Full) {
        assert!(answers.len() <= LIMIT + overshoot, "it never gets full");
        answers.extend(queue.publish(&wakes(&named("aa"), 1)).await);
    }
    let n_confirmed = answers.len() - 1;
    assert_eq!(answers[..n_confirmed], vec![Published::Confirmed; n_confirmed]);
    assert!(n_confirmed >= LIMIT, "{n_confirmed}");
    // It stays full, and there is room again as soon as enough are taken.
    assert_eq!(queue.publish(&wakes(&named("aa"), 2)).await, [Published::Full; 2]);
    drain(queue, &named("aa"), n_confirmed).await;
    ready_becomes(queue, &named("aa"), 0).await;
    assert_eq!(queue.publish(&wakes(&named("aa"), 1)).await, [Published::Confirmed]);
}

pub async fn a_slice_above_the_limit_is_confirmed_in_part(UnderTest { queue, overshoot, .. }: UnderTest<'_>) {
    let n_wakes = 4 * (LIMIT + overshoot);
    let wakes = wakes(&named("aa"), n_wakes);
    let answers = queue.publish(&wakes).await;
    assert_eq!(answers.len(), n_wakes);
    assert!(!answers.contains(&Published::Unknown), "{answers:?}");
    let confirmed: Vec<Wake> = wakes
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| **answer == Published::Confirmed)
        .map(|((_, wake), _)| *wake)
        .collect();
    assert!((LIMIT..=LIMIT + overshoot).contains(&confirmed.len()), "{}", confirmed.len());
    assert_eq!(drain(queue, &named("aa"), confirmed.len()).await, confirmed);
    stays_empty(queue, &named("aa")).await;
}

pub async fn answers_stand_at_their_places(UnderTest { queue, .. }: UnderTest<'_>) {
    while queue.publish(&wakes(&named("aa"), 1)).await != [Published::Full] {}
    let mixed: Vec<_> = ["aa", "bb", "aa", "bb"].into_iter().flat_map(|name| wakes(&named(name), 1)).collect();
    let answers = queue.publish(&mixed).await;
    assert_eq!(answers, [Published::Full, Published::Confirmed, Published::Full, Published::Confirmed]);
    assert_eq!(drain(queue, &named("bb"), 2).await, [mixed[1].1, mixed[3].1]);
}

pub async fn publishing_nothing_answers_nothing(UnderTest { queue, .. }: UnderTest<'_>) {
    assert_eq!(queue.publish(&[]).await, []);
}

pub async fn publishers_do_not_mix(UnderTest { queue, .. }: UnderTest<'_>) {
    let publish = async |idx: usize| {
        let slice = wakes(&named(&format!("{idx:02}")), idx + 1);
        assert_eq!(queue.publish(&slice).await, vec![Published::Confirmed; idx + 1]);
        slice
    };
    let slices = futures::future::join_all((0..LIMIT).map(publish)).await;
    for slice in slices {
        assert_eq!(drain(queue, &slice[0].0, slice.len()).await, of(&slice));
    }
}

pub async fn queues_are_apart(UnderTest { queue, .. }: UnderTest<'_>) {
    put(queue, &wakes(&named("aa"), LIMIT)).await;
    assert_eq!(queue.publish(&wakes(&named("bb"), 1)).await, [Published::Confirmed]);
    let bulk = QueueId { class: Class::Bulk, ..named("aa") };
    assert_eq!(ready(queue, &bulk).await, 0);
    drain(queue, &named("bb"), 1).await;
    stays_empty(queue, &named("bb")).await;
    stays_empty(queue, &bulk).await;
    ready_becomes(queue, &named("aa"), LIMIT as u64).await;
}

pub async fn put_back_comes_before_what_nobody_fetched(UnderTest { queue, ahead, .. }: UnderTest<'_>) {
    let wakes = wakes(&named("aa"), LIMIT);
    put(queue, &wakes).await;
    let first = next(queue, &named("aa")).await;
    assert_eq!(first.wake, wakes[0].1);
    // Its place was taken meanwhile; it is not lost for that.
    put(queue, &[(named("aa"), Wake { job: JobId::new(), attempt: 3 })]).await;
    queue.put_back(first).await;
    let drained = drain(queue, &named("aa"), LIMIT).await;
    let place = drained.iter().position(|wake| *wake == wakes[0].1).unwrap();
    assert!(place <= ahead, "{place}");
}

pub async fn returns_never_use_a_wake_up(UnderTest { queue, .. }: UnderTest<'_>) {
    let wakes = wakes(&named("aa"), 1);
    put(queue, &wakes).await;
    // Brokers have limits of 20 for what is delivered and not acknowledged.
    for _ in 0..50 {
        let delivery = next(queue, &named("aa")).await;
        assert_eq!(delivery.wake, wakes[0].1);
        queue.put_back(delivery).await;
    }
    assert_eq!(drain(queue, &named("aa"), 1).await, of(&wakes));
}

pub async fn an_acknowledged_wake_is_gone(UnderTest { queue, .. }: UnderTest<'_>) {
    put(queue, &wakes(&named("aa"), 1)).await;
    drain(queue, &named("aa"), 1).await;
    stays_empty(queue, &named("aa")).await;
    queue.rest().await;
    stays_empty(queue, &named("aa")).await;
    ready_becomes(queue, &named("aa"), 0).await;
}

pub async fn taking_never_waits(UnderTest { queue, .. }: UnderTest<'_>) {
    let take = async |max| timeout(Duration::from_millis(100), take(queue, &named("aa"), max)).await.unwrap();
    assert!(take(10).await.is_empty());
    put(queue, &wakes(&named("aa"), 2)).await;
    assert!(take(0).await.is_empty());
    drain(queue, &named("aa"), 2).await;
    assert!(take(10).await.is_empty());
}

pub async fn take_gives_no_more_than_asked(UnderTest { queue, .. }: UnderTest<'_>) {
    put(queue, &wakes(&named("aa"), 4)).await;
    let mut n_taken = 0;
    while n_taken < 4 {
        let taken = take(queue, &named("aa"), 2).await;
        assert!(taken.len() <= 2);
        n_taken += taken.len();
        for delivery in taken {
            queue.ack(delivery).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn tags_are_distinct(UnderTest { queue, .. }: UnderTest<'_>) {
    let mut tags = HashSet::new();
    for name in ["aa", "bb"] {
        put(queue, &wakes(&named(name), 4)).await;
        for _ in 0..4 {
            tags.insert(next(queue, &named(name)).await.tag);
        }
    }
    assert_eq!(tags.len(), 8);
}

pub async fn rest_gives_back_what_was_fetched(UnderTest { queue, .. }: UnderTest<'_>) {
    let wakes = wakes(&named("aa"), 6);
    put(queue, &wakes).await;
    let held = next(queue, &named("aa")).await;
    queue.rest().await;
    ready_becomes(queue, &named("aa"), 5).await;
    // Resting twice is resting.
    queue.rest().await;
    assert_eq!(ready(queue, &named("aa")).await, 5);
    // What was taken before is still the caller's to give back.
    queue.put_back(held).await;
    ready_becomes(queue, &named("aa"), 6).await;
    let drained: HashSet<Wake> = drain(queue, &named("aa"), 6).await.into_iter().collect();
    assert_eq!(drained, of(&wakes).into_iter().collect());
    stays_empty(queue, &named("aa")).await;
}

pub async fn resting_and_taking_lose_nothing(UnderTest { queue, .. }: UnderTest<'_>) {
    let wakes = wakes(&named("aa"), LIMIT);
    put(queue, &wakes).await;
    let mut seen = HashSet::new();
    for _ in 0..2 * LIMIT {
        // Whatever is there at this moment, which may be nothing.
        for delivery in take(queue, &named("aa"), 1).await {
            assert!(seen.insert(delivery.wake), "it came twice");
            queue.ack(delivery).await;
        }
        queue.rest().await;
    }
    let rest = drain(queue, &named("aa"), LIMIT - seen.len()).await;
    assert!(rest.iter().all(|wake| seen.insert(*wake)), "it came twice");
    assert_eq!(seen, of(&wakes).into_iter().collect());
}
