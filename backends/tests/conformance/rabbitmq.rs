//! RabbitMQ under the suites, and what only a broker can show.

use std::collections::HashSet;
use std::time::Duration;

use backends::rabbitmq::{RabbitOpenError, RabbitOptions, RabbitQueue};
use contract::{JobId, Published, Queue, QueueId, Wake};
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::time::{Instant, timeout};

use crate::queue::{LIMIT, UnderTest, drain, named, next, put, ready_becomes, take, wakes};

mod outages;
mod proxy;

/// Prefetch of the queues under test.
const AHEAD: u16 = 4;

pub fn url() -> String {
    std::env::var("PENSTOCK_TEST_QUEUE").expect(
        "PENSTOCK_TEST_QUEUE is not set: run tests/run, or deploy/services up and eval \"$(deploy/services env)\"",
    )
}

/// A queue with names of its own on the shared broker, and a plain client beside it.
pub struct Rabbit {
    pub queue: RabbitQueue,
    pub options: RabbitOptions,
    connection: Connection,
    pub client: Channel,
}

impl Rabbit {
    /// With the limit that the suite expects.
    pub async fn fresh() -> Self {
        Self::with(|options| options.limit = LIMIT as u64).await
    }

    pub async fn with(set: impl FnOnce(&mut RabbitOptions)) -> Self {
        let mut options = RabbitOptions::new(url());
        options.prefix = format!("test-{}", JobId::new());
        options.prefetch = AHEAD;
        set(&mut options);
        let queue = RabbitQueue::connect(options.clone()).await.unwrap();
        let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
        let client = connection.create_channel().await.unwrap();
        Self { queue, options, connection, client }
    }

    pub fn under_test(&self) -> UnderTest<'_> {
        // The broker tells its channels late that a queue is full; `queue_rate` measures by how much.
        UnderTest { queue: &self.queue, ahead: usize::from(AHEAD), overshoot: 512 }
    }

    pub fn name(&self, id: &QueueId) -> String {
        format!("{}.{}.{}", self.options.prefix, id.release.short(), id.class)
    }

    fn dead(&self) -> String {
        format!("{}.dead", self.options.prefix)
    }

    async fn publish_raw(&self, id: &QueueId, bytes: &[u8]) {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        self.client.basic_publish("".into(), self.name(id).into(), options, bytes, properties).await.unwrap();
    }

    /// Takes every ready message of a queue, and answers the ids of the messages.
    async fn take_all_raw(&self, id: &QueueId) -> HashSet<String> {
        let mut ids = HashSet::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(got) = self.client.basic_get(self.name(id).into(), options).await.unwrap() {
            ids.insert(got.delivery.properties.message_id().as_ref().unwrap().to_string());
        }
        ids
    }

    /// Whether the broker has the queue.
    async fn has_queue(&self, id: &QueueId) -> bool {
        // The broker closes the channel of one who asks for what is not there.
        let channel = self.connection.create_channel().await.unwrap();
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(self.name(id).into(), passive, FieldTable::default()).await.is_ok()
    }

    pub async fn delete_queue(&self, id: &QueueId) {
        self.client.queue_delete(self.name(id).into(), QueueDeleteOptions::default()).await.unwrap();
    }

    async fn dead_letters(&self) -> u32 {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.client.queue_declare(self.dead().into(), passive, FieldTable::default()).await.unwrap().message_count()
    }

    /// Leaves nothing on the broker. Names that a case did not use are no error.
    pub async fn clean(self) {
        drop(self.queue);
        let names = ["aa", "bb", "00", "01", "02", "03", "04", "05", "06", "07"];
        let ids = names.iter().flat_map(|name| contract::Class::ALL.map(|class| QueueId { class, ..named(name) }));
        let prefix = &self.options.prefix;
        let queues = ids.map(|id| format!("{prefix}.{}.{}", id.release.short(), id.class));
        for queue in queues.chain([format!("{prefix}.dead")]) {
            self.client.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        }
        self.client.exchange_delete(format!("{prefix}.dead").into(), ExchangeDeleteOptions::default()).await.unwrap();
        self.connection.close(200, "done".into()).await.unwrap();
    }
}

/// Until it says so; the broker needs a moment.
pub async fn becomes(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_message_says_what_the_design_says() {
    let rabbit = Rabbit::fresh().await;
    let wake = Wake { job: "job_0193f0c0d0e07000800000000000abcd".parse().unwrap(), attempt: 3 };
    assert_eq!(rabbit.queue.publish(&[(named("aa"), wake)]).await, [Published::Confirmed]);
    let name = format!("{}.{}.standard", rabbit.options.prefix, "aa".repeat(6));
    // Declaring again with the same arguments is allowed, with others it is not.
    let mut arguments = FieldTable::default();
    for (key, value) in
        [("x-queue-type", "quorum"), ("x-overflow", "reject-publish"), ("x-dead-letter-exchange", &rabbit.dead())]
    {
        arguments.insert(key.into(), AMQPValue::LongString(value.into()));
    }
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(8));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(2_000_000_000));
    rabbit.client.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let got = rabbit.client.basic_get(name.into(), BasicGetOptions { no_ack: true }).await.unwrap().unwrap();
    let text = String::from_utf8(got.delivery.data.clone()).unwrap();
    assert_eq!(text, r#"{"v":1,"job":"job_0193f0c0d0e07000800000000000abcd","attempt":3}"#);
    let properties = &got.delivery.properties;
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "job_0193f0c0d0e07000800000000000abcd:3");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(*properties.delivery_mode(), Some(2));
    rabbit.clean().await;
}

#[tokio::test]
async fn unreadable_messages_are_dead_lettered_at_first_sight() {
    let rabbit = Rabbit::fresh().await;
    let good = wakes(&named("aa"), 2);
    put(&rabbit.queue, &good[..1]).await;
    for bytes in [&b"not a wake-up"[..], br#"{"v":2,"job":"job_0193f0c0d0e07000800000000000abcd","attempt":0}"#, b""] {
        rabbit.publish_raw(&named("aa"), bytes).await;
    }
    put(&rabbit.queue, &good[1..]).await;
    assert_eq!(drain(&rabbit.queue, &named("aa"), 2).await, [good[0].1, good[1].1]);
    becomes("dead letters", async || rabbit.dead_letters().await == 3).await;
    assert_eq!(rabbit.queue.counts().unreadable, 3);
    ready_becomes(&rabbit.queue, &named("aa"), 0).await;
    rabbit.clean().await;
}

#[tokio::test]
async fn a_deleted_queue_is_declared_again() {
    let rabbit = Rabbit::fresh().await;
    let queue = &rabbit.queue;
    assert_eq!(queue.publish(&wakes(&named("aa"), 1)).await, [Published::Confirmed]);
    drain(queue, &named("aa"), 1).await;
    queue.rest().await;
    rabbit.delete_queue(&named("aa")).await;
    // It comes back to us, and whoever asks next finds the queue.
    assert_eq!(queue.publish(&wakes(&named("aa"), 1)).await, [Published::Unknown]);
    assert_eq!(queue.counts().returned, 1);
    let wakes = wakes(&named("aa"), 3);
    assert_eq!(queue.publish(&wakes).await, [Published::Confirmed; 3]);
    assert_eq!(drain(queue, &named("aa"), 1).await, [wakes[0].1]);
    // And under a consumer.
    rabbit.delete_queue(&named("aa")).await;
    becomes("reopened", async || queue.counts().reopened == 1).await;
    becomes("publishing", async || {
        queue.publish(&[(named("aa"), Wake { attempt: 9, ..wakes[0].1 })]).await == [Published::Confirmed]
    })
    .await;
    let found = timeout(Duration::from_secs(5), async { while drain(queue, &named("aa"), 1).await[0].attempt != 9 {} });
    found.await.unwrap();
    // Looking mends as well.
    queue.rest().await;
    rabbit.delete_queue(&named("aa")).await;
    assert_eq!(queue.ready(&named("aa")).await.unwrap(), 0);
    assert_eq!(queue.counts().connections, 1);
    rabbit.clean().await;
}

/// Lapin hands a returned message to whichever confirm it completes next; what is confirmed is in its queue all the same.
#[tokio::test]
async fn what_came_back_is_never_confirmed() {
    let rabbit = Rabbit::with(|options| options.limit = 100_000).await;
    let queue = &rabbit.queue;
    let names = [named("aa"), named("bb")];
    for name in &names {
        assert_eq!(queue.publish(&wakes(name, 1)).await, [Published::Confirmed]);
    }
    rabbit.delete_queue(&names[1]).await;
    // Every third has no queue until one of them has come back, and the rest may find it declared anew. Several callers
    // at once, so that a return may be carried by another's confirm.
    let slice = |n_wakes: usize| -> Vec<_> {
        (0..n_wakes).flat_map(|idx| wakes(&names[usize::from(idx % 3 == 0)], 1)).collect()
    };
    let slices: Vec<_> = [2_000, 1_000, 1, 500, 2, 1_500].into_iter().map(slice).collect();
    let answers = futures::future::join_all(slices.iter().map(|slice| queue.publish(slice))).await;
    assert!(queue.counts().returned > 0);
    let mut confirmed = [HashSet::new(), HashSet::new()];
    for ((id, wake), answer) in slices.iter().zip(&answers).flat_map(|(slice, answers)| slice.iter().zip(answers)) {
        match answer {
            Published::Confirmed => {
                confirmed[usize::from(*id == names[1])].insert(format!("{}:{}", wake.job, wake.attempt));
            }
            // The broker also refuses what reaches a queue that is just being made.
            Published::Unknown | Published::Full => {}
        }
    }
    assert!(confirmed[0].len() > 2_000, "{} of 3334 confirmed", confirmed[0].len());
    assert_eq!(queue.publish(&wakes(&names[1], 1)).await, [Published::Confirmed]);
    for (name, confirmed) in names.iter().zip(confirmed) {
        let there = rabbit.take_all_raw(name).await;
        let missing = confirmed.difference(&there).count();
        assert_eq!(missing, 0, "of {} confirmed for {name}, {missing} are not in the queue", confirmed.len());
    }
    rabbit.clean().await;
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_an_error_that_names_both() {
    let rabbit = Rabbit::fresh().await;
    let mut options = rabbit.options.clone();
    options.limit = 16;
    let other = RabbitQueue::connect(options).await.unwrap();
    assert_eq!(rabbit.queue.publish(&wakes(&named("aa"), 1)).await, [Published::Confirmed]);
    let error = other.ready(&named("aa")).await.unwrap_err();
    let said = format!("{:#}", std::error::Error::source(&error).unwrap());
    assert!(said.contains(&rabbit.name(&named("aa"))), "{said}");
    assert!(said.contains("'16'") && said.contains("'8'") && said.contains("x-max-length"), "{said}");
    assert_eq!(other.publish(&wakes(&named("aa"), 2)).await, [Published::Unknown; 2]);
    becomes("taking says so too", async || other.take(&named("aa"), 1).await.is_err()).await;
    // The others are not disturbed, and nothing reconnects.
    assert_eq!(other.publish(&wakes(&named("bb"), 1)).await, [Published::Confirmed]);
    drain(&other, &named("bb"), 1).await;
    assert_eq!(other.counts().connections, 1);
    drop(other);
    drain(&rabbit.queue, &named("aa"), 1).await;
    rabbit.clean().await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_once() {
    let with = async |set: fn(&mut RabbitOptions)| {
        let mut options = RabbitOptions::new(url());
        set(&mut options);
        RabbitQueue::connect(options).await.err()
    };
    let bad_url = with(|options| options.url = "http://somewhere:secret@host".into()).await;
    assert!(matches!(bad_url, Some(RabbitOpenError::Url(_))));
    assert!(!bad_url.unwrap().to_string().contains("secret"));
    assert!(matches!(with(|options| options.limit = 0).await, Some(RabbitOpenError::Option(_))));
    assert!(matches!(with(|options| options.prefetch = 0).await, Some(RabbitOpenError::Option(_))));
    assert!(matches!(with(|options| options.prefix = String::new()).await, Some(RabbitOpenError::Option(_))));
    let host = |url: &str| url.rsplit_once('@').unwrap().1.to_owned();
    let mut options = RabbitOptions::new(format!("amqp://nobody:wrong@{}", host(&url())));
    assert!(matches!(RabbitQueue::connect(options.clone()).await.err(), Some(RabbitOpenError::Refused(_))));
    options.url = url().replace("/penstock", "/nowhere");
    assert!(matches!(RabbitQueue::connect(options.clone()).await.err(), Some(RabbitOpenError::Refused(_))));
    assert!(!format!("{options:?}").contains("penstock:"));
}

#[tokio::test]
async fn a_silent_consumer_is_opened_again() {
    let rabbit = Rabbit::with(|options| {
        options.limit = 64;
        options.silence = Duration::from_millis(1_500);
    })
    .await;
    let wakes = wakes(&named("aa"), 10);
    put(&rabbit.queue, &wakes).await;
    // As many as are fetched ahead, and none is answered: the broker sends no more.
    for _ in 0..AHEAD {
        next(&rabbit.queue, &named("aa")).await;
    }
    assert_eq!(drain(&rabbit.queue, &named("aa"), 6).await.len(), 6);
    assert_eq!(rabbit.queue.counts().reopened, 1);
    rabbit.clean().await;
}

#[tokio::test]
async fn an_arrival_wakes_whoever_waits() {
    let rabbit = Rabbit::fresh().await;
    let queue = &rabbit.queue;
    assert!(take(queue, &named("aa"), 1).await.is_empty());
    becomes("consuming", async || {
        put(queue, &wakes(&named("aa"), 1)).await;
        timeout(Duration::from_millis(500), queue.arrived()).await.is_ok()
    })
    .await;
    while !take(queue, &named("aa"), 10).await.is_empty() {}
    for _ in 0..20 {
        let (came, ()) = tokio::join!(timeout(Duration::from_secs(2), queue.arrived()), async {
            put(queue, &wakes(&named("aa"), 1)).await;
        });
        came.expect("an arrival was not told");
        let deliveries = take(queue, &named("aa"), 10).await;
        for delivery in deliveries {
            queue.ack(delivery).await;
        }
    }
    // Waiting that is given up, over and over, loses no signal.
    let waiting = async {
        loop {
            if timeout(Duration::from_micros(300), queue.arrived()).await.is_ok() {
                return;
            }
        }
    };
    let (came, ()) = tokio::join!(timeout(Duration::from_secs(2), waiting), async {
        put(queue, &wakes(&named("aa"), 1)).await;
    });
    came.expect("an arrival was lost");
    rabbit.clean().await;
}

#[tokio::test]
async fn a_resting_worker_leaves_everything_to_the_other() {
    let rabbit = Rabbit::fresh().await;
    let other = RabbitQueue::connect(rabbit.options.clone()).await.unwrap();
    let slice = wakes(&named("aa"), 6);
    put(&rabbit.queue, &slice).await;
    let held = next(&rabbit.queue, &named("aa")).await;
    let since = Instant::now();
    rabbit.queue.rest().await;
    let took = since.elapsed();
    assert!(took < Duration::from_millis(100), "resting took {took:?}");
    assert_eq!(drain(&other, &named("aa"), 5).await.len(), 5);
    rabbit.queue.ack(held).await;
    drop(other);
    ready_becomes(&rabbit.queue, &named("aa"), 0).await;
    rabbit.clean().await;
}
