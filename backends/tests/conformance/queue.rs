//! What every queue does.

use contract::{Class, Fingerprint, JobId, Published, Queue, QueueId, Wake};

/// Of the queues under test.
pub const LIMIT: usize = 8;

fn named(name: &str) -> QueueId {
    QueueId { release: Fingerprint(name.repeat(32)), class: Class::Standard }
}

fn wakes(queue: &QueueId, n: usize) -> Vec<(QueueId, Wake)> {
    (0..n).map(|_| (queue.clone(), Wake { job: JobId::new(), attempt: 0 })).collect()
}

pub async fn wakes_come_out_in_order(queue: &dyn Queue) {
    let wakes = wakes(&named("aa"), 5);
    assert_eq!(queue.publish(&wakes).await, [Published::Confirmed; 5]);
    assert_eq!(queue.ready(&named("aa")).await.unwrap(), 5);
    let mut taken = queue.take(&named("aa"), 2).await.unwrap();
    taken.extend(queue.take(&named("aa"), 100).await.unwrap());
    let expected: Vec<Wake> = wakes.iter().map(|(_, wake)| *wake).collect();
    assert_eq!(taken.iter().map(|delivery| delivery.wake).collect::<Vec<_>>(), expected);
    assert!(taken.iter().all(|delivery| delivery.queue == named("aa")));
    assert_eq!(queue.ready(&named("aa")).await.unwrap(), 0);
}

pub async fn a_full_queue_says_so(queue: &dyn Queue) {
    assert_eq!(queue.limit(), LIMIT as u64);
    let answers = queue.publish(&wakes(&named("aa"), LIMIT + 2)).await;
    assert_eq!(answers.iter().filter(|answer| **answer == Published::Confirmed).count(), LIMIT);
    assert_eq!(answers[LIMIT..], [Published::Full, Published::Full]);
    assert_eq!(queue.take(&named("aa"), 1).await.unwrap().len(), 1);
    assert_eq!(queue.publish(&wakes(&named("aa"), 2)).await, [Published::Confirmed, Published::Full]);
}

pub async fn queues_are_apart(queue: &dyn Queue) {
    queue.publish(&wakes(&named("aa"), LIMIT)).await;
    assert_eq!(queue.publish(&wakes(&named("bb"), 1)).await, [Published::Confirmed]);
    let bulk = QueueId { class: Class::Bulk, ..named("aa") };
    assert_eq!(queue.ready(&bulk).await.unwrap(), 0);
    assert_eq!(queue.take(&named("bb"), 100).await.unwrap().len(), 1);
    assert_eq!(queue.ready(&named("aa")).await.unwrap(), LIMIT as u64);
}

pub async fn put_back_goes_to_the_front(queue: &dyn Queue) {
    let wakes = wakes(&named("aa"), LIMIT);
    queue.publish(&wakes).await;
    let first = queue.take(&named("aa"), 1).await.unwrap().remove(0);
    // Its place was taken meanwhile; it is not lost for that.
    queue.publish(&[(named("aa"), Wake { job: JobId::new(), attempt: 3 })]).await;
    queue.put_back(first).await;
    assert_eq!(queue.take(&named("aa"), 1).await.unwrap()[0].wake, wakes[0].1);
}

pub async fn an_acknowledged_wake_is_gone(queue: &dyn Queue) {
    queue.publish(&wakes(&named("aa"), 1)).await;
    let taken = queue.take(&named("aa"), 1).await.unwrap().remove(0);
    queue.ack(taken).await;
    assert!(queue.take(&named("aa"), 1).await.unwrap().is_empty());
}

pub async fn taking_never_waits(queue: &dyn Queue) {
    assert!(queue.take(&named("aa"), 10).await.unwrap().is_empty());
    queue.publish(&wakes(&named("aa"), 2)).await;
    assert!(queue.take(&named("aa"), 0).await.unwrap().is_empty());
    assert_eq!(queue.take(&named("aa"), 10).await.unwrap().len(), 2);
}

pub async fn tags_are_distinct(queue: &dyn Queue) {
    queue.publish(&wakes(&named("aa"), 4)).await;
    queue.publish(&wakes(&named("bb"), 4)).await;
    let mut tags: Vec<u64> = queue.take(&named("aa"), 4).await.unwrap().iter().map(|delivery| delivery.tag).collect();
    tags.extend(queue.take(&named("bb"), 4).await.unwrap().iter().map(|delivery| delivery.tag));
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), 8);
}
