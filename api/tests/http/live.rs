//! Over a real socket: hang-ups, stalled clients, keep-alive, and the orderly end.

use std::time::Duration;

use contract::{Class, JobId, JobState};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{Choices, World, chat, events};

const SCRIPT: [(u32, &str); 2] = [(10, "He"), (12, "llo")];

struct Server {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

async fn serve(world: &World) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(api::run(listener, world.deps.clone(), async {
        stopped.await.ok();
    }));
    Server { address, stop, running }
}

impl Server {
    async fn send(&self, path: &str, headers: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    }
}

async fn read_all(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// Takes the chunk sizes out of a chunked body.
fn unchunk(answer: &str) -> String {
    let (_, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    let mut whole = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").unwrap();
        if size == 0 {
            break;
        }
    }
    whole
}

async fn becomes(world: &World, job: &JobId, expected: JobState) {
    for _ in 0..1_000 {
        if world.state(job).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{job} is {} and not {expected}", world.state(job).await);
}

#[tokio::test]
async fn hanging_up_cancels_a_synchronous_call() {
    let world = World::new().await;
    let server = serve(&world).await;
    for (stream, with_token) in [(false, false), (true, false), (true, true)] {
        let client = server.send("/v1/chat/completions", "", &chat(stream)).await;
        let leased = world.lease(Class::Interactive).await;
        if with_token {
            world.tokens(&leased.lease, &SCRIPT, 1..=1).await;
            let mut first = [0; 16];
            let mut client = client;
            client.read_exact(&mut first).await.unwrap();
            drop(client);
        } else {
            drop(client);
        }
        becomes(&world, &leased.lease.job, JobState::Cancelled).await;
    }
    let stats = world.get("/v1/stats").await.json();
    assert_eq!(stats["queues"][0]["queued"], 0);
}

#[tokio::test]
async fn hanging_up_changes_nothing_with_a_key_or_on_an_asynchronous_call() {
    let world = World::new().await;
    let server = serve(&world).await;
    let native = json!({"type": "chat", "class": "interactive", "request": chat(false)});
    for (path, headers, body) in [
        ("/v1/chat/completions", "idempotency-key: a\r\n", chat(false)),
        ("/v1/chat/completions", "idempotency-key: b\r\n", chat(true)),
        ("/v1/chat/completions", "prefer: respond-async, wait=30\r\n", chat(false)),
        ("/v1/jobs", "prefer: wait=30\r\n", native),
    ] {
        let client = server.send(path, headers, &body).await;
        let leased = world.lease(Class::Interactive).await;
        drop(client);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(world.state(&leased.lease.job).await, JobState::Running, "{path} {headers}");
        world.succeed(&leased, &SCRIPT).await;
    }
}

#[tokio::test]
async fn a_body_that_stops_coming_is_a_408() {
    let mut choices = Choices::default();
    choices.limits.body_pause = Duration::from_millis(50);
    let world = World::with(choices).await;
    let server = serve(&world).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    client.write_all(head.as_bytes()).await.unwrap();
    let answer = read_all(client).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn a_head_that_stops_coming_is_cut() {
    let mut choices = Choices::default();
    choices.limits.head_timeout = Duration::from_millis(50);
    let world = World::with(choices).await;
    let server = serve(&world).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(5), read_all(client)).await.unwrap();
    assert!(!answer.contains("200 OK"), "{answer}");
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut() {
    let mut choices = Choices::default();
    choices.limits.write_stall = Duration::from_millis(100);
    let world = World::with(choices).await;
    let server = serve(&world).await;
    let job = world.submit(Class::Standard).await;
    let leased = world.lease(Class::Standard).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(format!("GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    // More than both sockets' buffers hold.
    let megabyte = "x".repeat(1 << 20);
    let script: Vec<(u32, &str)> = (0..24).map(|id| (id, megabyte.as_str())).collect();
    world.tokens(&leased.lease, &script, 1..=24).await;
    // Not reading makes the server give up. What was sent until then can be read, and then comes the end, which is
    // not that of a whole stream: the last chunk of size zero is missing.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut got = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), client.read_to_end(&mut got)).await.unwrap();
    assert!(got.len() < 24 << 20 && !got.ends_with(b"0\r\n\r\n"), "{} bytes, {ended:?}", got.len());
    assert_eq!(world.state(&job).await, JobState::Running);
}

#[tokio::test]
async fn shutting_down_lets_calls_finish_and_takes_no_more() {
    let world = World::new().await;
    let server = serve(&world).await;
    let calling = server.send("/v1/chat/completions", "", &chat(false)).await;
    let streaming = server.send("/v1/chat/completions", "", &chat(true)).await;
    let first = world.lease(Class::Interactive).await;
    let second = world.lease(Class::Interactive).await;
    server.stop.send(()).unwrap();
    let refused = async {
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), refused).await.unwrap();
    for leased in [&first, &second] {
        world.tokens(&leased.lease, &SCRIPT, 1..=2).await;
        world.succeed(leased, &SCRIPT).await;
    }
    assert!(read_all(calling).await.contains("\"content\":\"Hello\""));
    assert!(unchunk(&read_all(streaming).await).ends_with("data: [DONE]\n\n"));
    tokio::time::timeout(Duration::from_secs(5), server.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_outlives_the_grace_ends_with_an_error_and_is_cancelled() {
    let mut choices = Choices::default();
    choices.limits.grace = Duration::from_millis(100);
    let world = World::with(choices).await;
    let server = serve(&world).await;
    let streaming = server.send("/v1/chat/completions", "", &chat(true)).await;
    let first = world.lease(Class::Interactive).await;
    world.tokens(&first.lease, &SCRIPT, 1..=1).await;
    let calling = server.send("/v1/chat/completions", "", &chat(false)).await;
    let second = world.lease(Class::Interactive).await;
    let job = world.submit(Class::Standard).await;
    let mut polling = TcpStream::connect(server.address).await.unwrap();
    polling.write_all(format!("GET /v1/jobs/{job}?wait=30 HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop.send(()).unwrap();
    let polled = read_all(polling).await;
    assert!(polled.starts_with("HTTP/1.1 200") && polled.contains("\"status\":\"queued\""), "{polled}");
    let called = read_all(calling).await;
    assert!(called.starts_with("HTTP/1.1 503") && called.contains("shutting_down"), "{called}");
    let streamed = unchunk(&read_all(streaming).await);
    assert!(events(&streamed).last().unwrap().2.contains("shutting_down"), "{streamed}");
    tokio::time::timeout(Duration::from_secs(5), server.running).await.unwrap().unwrap();
    // Nobody will ask for these results; the asynchronous job is nobody's loss.
    for leased in [first, second] {
        assert_eq!(world.state(&leased.lease.job).await, JobState::Cancelled);
    }
    assert_eq!(world.state(&job).await, JobState::Queued);
}
