//! Attempts against real servers on loopback, which is forbidden unless a test allows it.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use contract::guard::Guard;
use futures::FutureExt;
use futures::future::BoxFuture;
use standardwebhooks::Webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Answer, Limits, Lookup, MAX_RETRY_AFTER, Message, Sender, SystemResolver, retry_after};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const BODY: &str = r#"{"object": "event",  "type":"batch.completed"}"#;
const NOW: i64 = 1_614_265_330;

/// Long enough for a machine under load, where the test does not wait for the end.
const PATIENT: Limits = Limits { attempt: Duration::from_secs(60), connect: Duration::from_secs(30) };

/// Answers each look-up of a name with the next line, and the last one for ever.
struct Script(Mutex<VecDeque<Vec<IpAddr>>>);

impl Script {
    fn new(lines: &[&[&str]]) -> Arc<Self> {
        let line = |line: &&[&str]| line.iter().map(|text| text.parse().expect("an address")).collect();
        Arc::new(Self(Mutex::new(lines.iter().map(line).collect())))
    }
}

impl Lookup for Script {
    fn lookup(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = if lines.len() > 1 { lines.pop_front() } else { lines.front().cloned() };
        async move { Ok(line.unwrap_or_default()) }.boxed()
    }
}

fn sender(allowed: &[&str], lookup: Arc<dyn Lookup>, limits: Limits) -> Sender {
    Sender::with(Guard::allowing(allowed).expect("networks"), lookup, limits).expect("a client")
}

fn local() -> Sender {
    sender(&["127.0.0.1"], Arc::new(SystemResolver), PATIENT)
}

async fn send(sender: &Sender, url: &str) -> Answer {
    let secrets = [NEW.to_owned(), OLD.to_owned()];
    sender.send(&Message { id: "evt_1", url, body: BODY, secrets: &secrets }, NOW).await
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Unreachable { why } => why,
        other => panic!("not unreachable: {other:?}"),
    }
}

fn forbidden(answer: Answer) -> String {
    match answer {
        Answer::Forbidden { why } => why,
        other => panic!("not forbidden: {other:?}"),
    }
}

/// Names and values of an answer.
type Headers = &'static [(&'static str, &'static str)];

/// The requests that a server has seen.
type Seen = Arc<Mutex<Vec<(Method, HeaderMap, Bytes)>>>;

/// A server on loopback that answers everything alike; its URL, and what it has seen.
async fn server(status: u16, headers: Headers) -> (String, Seen) {
    let seen = Seen::default();
    let answer = move |State(seen): State<Seen>, method: Method, asked: HeaderMap, body: Bytes| async move {
        seen.lock().unwrap().push((method, asked, body));
        let named = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        (StatusCode::from_u16(status).unwrap(), named.collect::<HeaderMap>(), "a body that nobody keeps")
    };
    let router = Router::new().fallback(answer).with_state(seen.clone());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, seen)
}

/// A listener on all of loopback that does `with` to each connection; its port, and how many there were.
async fn listener<F: Future<Output = ()> + Send + 'static>(
    with: impl Fn(TcpStream) -> F + Send + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(with(stream));
        }
    });
    (port, connections)
}

/// How many connections a listener had by now.
async fn count(port: u16, connections: &AtomicUsize) -> usize {
    // Connections are accepted in order: when this one is closed from there, all before it were counted.
    let mut own = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let _ = own.read(&mut [0; 1]).await;
    connections.fetch_sub(1, Ordering::SeqCst) - 1
}

async fn reset(stream: TcpStream) {
    drop(stream);
}

#[tokio::test]
async fn a_delivery_is_signed_with_every_secret() {
    let (url, seen) = server(204, &[("set-cookie", "a=b")]).await;
    let secrets = [NEW.to_owned(), OLD.to_owned()];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap();
    let message = Message { id: "evt_1", url: &url, body: BODY, secrets: &secrets };
    let sender = local();
    for _ in 0..2 {
        assert_eq!(sender.send(&message, now).await, Answer::Delivered { status: 204 });
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    for (method, headers, body) in seen.iter() {
        assert_eq!((method, &body[..]), (&Method::POST, BODY.as_bytes()));
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("content-type"), Some("application/json"));
        assert_eq!(header("user-agent"), Some(concat!("penstock/", env!("CARGO_PKG_VERSION"))));
        assert_eq!(header("webhook-id"), Some("evt_1"));
        assert_eq!(header("webhook-timestamp"), Some(now.to_string().as_str()));
        assert_eq!(header("cookie"), None);
        let signatures: Vec<&str> = header("webhook-signature").unwrap().split(' ').collect();
        assert_eq!(signatures.len(), 2);
        for (secret, signature) in secrets.iter().zip(signatures) {
            let webhook = Webhook::new(secret).unwrap();
            webhook.verify(body, headers).unwrap();
            assert_eq!(webhook.sign("evt_1", now, body).unwrap(), signature);
        }
        let stranger = Webhook::new("whsec_c3RyYW5nZXIgc3RyYW5nZXIgc3RyYW5nZXI=").unwrap();
        assert!(stranger.verify(body, headers).is_err());
    }
}

#[tokio::test]
async fn the_published_example_is_signed_as_published() {
    let (url, seen) = server(200, &[]).await;
    let message = Message {
        id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
        url: &url,
        body: r#"{"test": 2432232314}"#,
        secrets: &[OLD.to_owned()],
    };
    assert_eq!(local().send(&message, NOW).await, Answer::Delivered { status: 200 });
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].1["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[tokio::test]
async fn nothing_leaves_unsigned() {
    let (url, seen) = server(200, &[]).await;
    let sender = local();
    for secrets in [vec![], vec!["whsec_not base64".to_owned()], vec![OLD.to_owned(), "whsec_=".to_owned()]] {
        let message = Message { id: "evt_1", url: &url, body: BODY, secrets: &secrets };
        assert_eq!(why(sender.send(&message, NOW).await), "the webhook has no usable secret");
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn statuses_are_told_apart() {
    let failed =
        |status, seconds: Option<u64>| Answer::Failed { status, retry_after: seconds.map(Duration::from_secs) };
    let cases: [(u16, Headers, Answer); 9] = [
        (200, &[], Answer::Delivered { status: 200 }),
        (202, &[("retry-after", "5")], Answer::Delivered { status: 202 }),
        (304, &[], failed(304, None)),
        (400, &[], failed(400, None)),
        (410, &[("retry-after", "5")], Answer::Gone),
        (429, &[("retry-after", "7")], failed(429, Some(7))),
        (500, &[("retry-after", "soon")], failed(500, None)),
        (503, &[("retry-after", "Thu, 25 Feb 2021 15:03:10 GMT")], failed(503, Some(60))),
        (503, &[("retry-after", "999999999")], failed(503, Some(86_400))),
    ];
    let sender = local();
    for (status, headers, expected) in cases {
        let (url, _) = server(status, headers).await;
        assert_eq!(send(&sender, &url).await, expected);
    }
}

#[test]
fn retry_after_is_seconds_or_a_date_and_at_most_a_day() {
    let cases = [
        ("0", Some(0)),
        (" 120 ", Some(120)),
        ("86401", Some(86_400)),
        ("99999999999999999999999999", Some(86_400)),
        ("Thu, 25 Feb 2021 15:02:11 GMT", Some(1)),
        ("Thursday, 25-Feb-21 15:02:11 GMT", Some(1)),
        ("Thu Feb 25 15:02:11 2021", Some(1)),
        ("Thu, 25 Feb 2021 15:02:00 GMT", Some(0)),
        ("Thu, 25 Feb 2100 15:02:00 GMT", Some(86_400)),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
    ];
    for (text, seconds) in cases {
        let headers = HeaderMap::from_iter([(HeaderName::from_static("retry-after"), text.parse().unwrap())]);
        assert_eq!(retry_after(&headers, NOW), seconds.map(Duration::from_secs), "{text}");
    }
    assert_eq!(retry_after(&HeaderMap::new(), NOW), None);
    assert_eq!(MAX_RETRY_AFTER.as_secs(), 86_400);
}

#[tokio::test]
async fn redirects_are_failures_and_are_not_followed() {
    let (port, connections) = listener(reset).await;
    let sender = local();
    for status in [301, 302, 303, 307, 308] {
        let location: &'static str = format!("http://127.0.0.1:{port}/").leak();
        let (url, seen) = server(status, vec![("location", location)].leak()).await;
        assert_eq!(send(&sender, &url).await, Answer::Failed { status, retry_after: None });
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
    assert_eq!(count(port, &connections).await, 0);
}

#[tokio::test]
async fn a_server_that_never_answers_is_left_in_time() {
    let (port, _) = listener(|mut stream| async move {
        let mut sink = [0; 1024];
        while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let limits = Limits { attempt: Duration::from_millis(300), connect: Duration::from_secs(30) };
    let sender = sender(&["127.0.0.1"], Arc::new(SystemResolver), limits);
    let start = Instant::now();
    assert_eq!(why(send(&sender, &format!("http://127.0.0.1:{port}/")).await), "no answer in time");
    assert!(start.elapsed() >= limits.attempt);
    assert!(start.elapsed() < Duration::from_secs(20));

    // Nor does the handshake of TLS last longer than a connection may take.
    let limits = Limits { attempt: Duration::from_secs(60), connect: Duration::from_millis(300) };
    let sender = self::sender(&["127.0.0.1"], Arc::new(SystemResolver), limits);
    assert_eq!(why(send(&sender, &format!("https://127.0.0.1:{port}/")).await), "no connection in time");
    assert!(start.elapsed() < Duration::from_secs(40));
}

#[tokio::test]
async fn the_status_counts_though_the_rest_never_comes() {
    let (port, _) = listener(|mut stream| async move {
        let mut sink = [0; 4096];
        let _ = stream.read(&mut sink).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
        while stream.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let limits = Limits { attempt: Duration::from_millis(500), connect: Duration::from_secs(30) };
    let sender = sender(&["127.0.0.1"], Arc::new(SystemResolver), limits);
    assert_eq!(send(&sender, &format!("http://127.0.0.1:{port}/")).await, Answer::Delivered { status: 200 });
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let (cut, mut was_cut) = tokio::sync::mpsc::channel(1);
    let (port, _) = listener(move |mut stream| {
        let cut = cut.clone();
        async move {
            let mut sink = [0; 4096];
            let _ = stream.read(&mut sink).await;
            let _ = stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 999999999999\r\n\r\n").await;
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
            let _ = cut.send(()).await;
        }
    })
    .await;
    let answer = send(&local(), &format!("http://127.0.0.1:{port}/")).await;
    assert_eq!(answer, Answer::Failed { status: 500, retry_after: None });
    // The server sees its connection closed, though the attempt had a minute.
    tokio::time::timeout(Duration::from_secs(20), was_cut.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_no_answer_has_one_plain_phrase() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let refused = format!("http://{}/?token=secret", closed.local_addr().unwrap());
    drop(closed);
    let sender = local();
    assert_eq!(why(send(&sender, &refused).await), "the connection was refused");

    let (port, _) = listener(|mut stream| async move {
        let _ = stream.read(&mut [0; 64]).await;
    })
    .await;
    let phrase = why(send(&sender, &format!("http://127.0.0.1:{port}/?token=secret")).await);
    assert_eq!(phrase, "the connection ended without an answer");

    let (url, seen) = server(200, &[]).await;
    let phrase = why(send(&sender, &url.replace("http:", "https:")).await);
    assert_eq!(phrase, "no TLS connection came about");
    assert!(seen.lock().unwrap().is_empty());

    let nameless = self::sender(&[], Script::new(&[]), PATIENT);
    assert_eq!(why(send(&nameless, "https://hooks.example/").await), "the name has no address");
}

#[tokio::test]
async fn loopback_is_forbidden_unless_allowed() {
    let (url, seen) = server(200, &[]).await;
    let closed = Sender::new(Guard::default()).unwrap();
    assert!(forbidden(send(&closed, &url).await).contains("webhooks.allowed_networks"));
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(send(&local(), &url).await, Answer::Delivered { status: 200 });

    // The name needs no resolver: what this one says would be refused.
    let open = sender(&["127.0.0.1"], Script::new(&[&["10.0.0.1"]]), PATIENT);
    let named = url.replace("127.0.0.1", "localhost");
    assert_eq!(send(&open, &named).await, Answer::Delivered { status: 200 });
    assert!(forbidden(send(&closed, &named).await).contains("webhooks.allowed_networks"));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn no_spelling_of_loopback_is_connected_to() {
    let (port, connections) = listener(reset).await;
    // Something is allowed, so that the port is not the reason.
    let sender = sender(&["10.9.0.0/16"], Script::new(&[&["127.0.0.1"]]), PATIENT);
    let hosts = [
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0177.0.0.1",
        "0x7f.1",
        "0",
        "0.0.0.0",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "%31%32%37.0.0.1",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "user@127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "app.localhost",
        "127.0.0.1.nip.io",
        "localtest.me",
        "hooks.example.com",
        "hooks.example.com.",
    ];
    for host in hosts {
        for scheme in ["http", "https"] {
            forbidden(send(&sender, &format!("{scheme}://{host}:{port}/")).await);
        }
    }
    assert_eq!(count(port, &connections).await, 0);
}

#[tokio::test]
async fn a_name_that_leads_inside_is_forbidden() {
    let allowed = ["127.0.0.1"];
    for (allowed, line) in [
        (&[][..], &["127.0.0.1"][..]),
        (&[], &["::ffff:127.0.0.1"]),
        (&[], &["169.254.169.254"]),
        (&[], &["fd00:ec2::254"]),
        // Public ones beside it do not help, wherever it stands.
        (&[], &["8.8.8.8", "10.0.0.1"]),
        (&[], &["10.0.0.1", "8.8.8.8", "2606:4700::1111"]),
        (&allowed, &["127.0.0.1", "127.0.0.2"]),
    ] {
        let sender = sender(allowed, Script::new(&[line]), PATIENT);
        let phrase = forbidden(send(&sender, "https://hooks.example.com/").await);
        assert!(phrase.starts_with("the name leads to"), "{phrase}");
        // A client learns nothing about where names lead inside.
        assert!(!line.iter().any(|address| phrase.contains(address)), "{phrase}");
    }
}

#[tokio::test]
async fn other_ports_are_for_allowed_networks() {
    let sender = sender(&["127.0.0.1"], Script::new(&[&["127.0.0.1", "8.8.8.8"]]), PATIENT);
    let phrase = forbidden(send(&sender, "https://hooks.example.com:9000/").await);
    assert!(phrase.contains("443") && phrase.contains("webhooks.allowed_networks"), "{phrase}");
}

#[tokio::test]
async fn a_name_that_is_bound_to_another_address_is_asked_again() {
    let (port, connections) = listener(reset).await;
    // 127.0.0.2 stands for a place where webhooks may go, since nothing public listens here.
    let lookup = Script::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let sender = sender(&["127.0.0.2"], lookup, PATIENT);
    let url = format!("https://rebound.example:{port}/");
    // The listener speaks no TLS; that it was reached shows that it would be again.
    why(send(&sender, &url).await);
    assert_eq!(count(port, &connections).await, 1);
    connections.store(0, Ordering::SeqCst);
    for _ in 0..3 {
        forbidden(send(&sender, &url).await);
    }
    assert_eq!(count(port, &connections).await, 0);
}

#[tokio::test]
async fn the_system_s_resolver_finds_addresses() {
    let addresses = SystemResolver.lookup("localhost".to_owned()).await.unwrap();
    assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
}
