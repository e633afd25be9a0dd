//! The clients, and the ledger they keep of what they were told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Splitmix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// What clients were told, independent of what the product says later.
#[derive(Default)]
pub struct Ledger {
    /// Jobs that a 202 or 200 named, by idempotency key.
    pub accepted: Mutex<BTreeMap<String, String>>,
    /// Jobs whose cancel was acknowledged.
    pub cancelled: Mutex<Vec<String>>,
    /// Results that synchronous calls gave: job and text.
    pub answers: Mutex<Vec<(String, String)>>,
    pub refused: AtomicU64,
    pub unavailable: AtomicU64,
    pub broken: AtomicU64,
    pub streams: AtomicU64,
    /// Times that a reader of a job's events came back, on whichever API process.
    pub resumed: AtomicU64,
    /// Answers of a kind that no fault explains.
    pub strange: Mutex<Vec<String>>,
}

impl Ledger {
    pub fn summary(&self) -> String {
        format!(
            "{} jobs accepted, {} cancels acknowledged, {} answers read ({} streamed, {} times resumed), {} refused for \
             lack of room, {} answers 503, {} connections broken",
            self.accepted.lock().unwrap().len(),
            self.cancelled.lock().unwrap().len(),
            self.answers.lock().unwrap().len(),
            self.streams.load(Ordering::Relaxed),
            self.resumed.load(Ordering::Relaxed),
            self.refused.load(Ordering::Relaxed),
            self.unavailable.load(Ordering::Relaxed),
            self.broken.load(Ordering::Relaxed),
        )
    }

    /// Counts an answer that is no success; true when a repeat may help.
    fn failed(&self, status: u16, body: &str) -> bool {
        match status {
            429 => self.refused.fetch_add(1, Ordering::Relaxed),
            503 => self.unavailable.fetch_add(1, Ordering::Relaxed),
            // Cancelled, expired, or a worker lost too often: told as such, and checked against the row.
            409 | 502 | 504 => 0,
            _ => {
                self.strange.lock().unwrap().push(format!("{status} {body}"));
                0
            }
        };
        matches!(status, 429 | 503)
    }
}

pub struct Clients {
    stopping: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Clients {
    pub fn start(addresses: &[String], ledger: Arc<Ledger>, seed: u64, n: u64) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..n {
            let client = Client {
                http: tests::Client::new("").http,
                addresses: addresses.to_vec(),
                ledger: Arc::clone(&ledger),
                random: Random(seed ^ (number << 32)),
                number,
                sent: 0,
            };
            tasks.spawn(client.run(Arc::clone(&stopping)));
        }
        Self { stopping, tasks }
    }

    pub async fn stop(mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

struct Client {
    http: reqwest::Client,
    addresses: Vec<String>,
    ledger: Arc<Ledger>,
    random: Random,
    number: u64,
    sent: u64,
}

impl Client {
    async fn run(mut self, stopping: Arc<AtomicBool>) {
        while !stopping.load(Ordering::Relaxed) {
            // Every other client only submits and cancels, and so fills the queues.
            let kinds = if self.number.is_multiple_of(2) { 10 } else { 4 };
            match self.random.below(kinds) {
                0 => self.cancel().await,
                1..=3 => {
                    self.submit().await;
                }
                4..=5 => self.read_events().await,
                6 | 7 => self.call().await,
                _ => self.stream().await,
            }
            tokio::time::sleep(Duration::from_millis(self.random.below(30))).await;
        }
    }

    fn url(&mut self, path: &str) -> String {
        let nth = self.random.below(self.addresses.len() as u64) as usize;
        format!("{}{path}", self.addresses[nth])
    }

    fn request(&mut self) -> Value {
        let tokens = [5, 40, 400, 2_000][self.random.below(4) as usize];
        let prompt = format!("client {} request {}", self.number, self.sent);
        let mut request = json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 1});
        if self.random.below(2) == 0 {
            request["ignore_eos"] = true.into();
        }
        if self.random.below(8) == 0 {
            // A record too large for its row.
            request["logprobs"] = 5.into();
        }
        request
    }

    /// Submits a job under a key until somebody says whether it is accepted.
    async fn submit(&mut self) -> Option<String> {
        self.sent += 1;
        let key = format!("{}-{}", self.number, self.sent);
        let class = ["interactive", "standard", "bulk"][self.random.below(3) as usize];
        let body = json!({"type": "completion", "class": class, "deadline_seconds": 600, "request": self.request()});
        for _ in 0..40 {
            let url = self.url("/v1/jobs");
            let sending = self.http.post(url).header("idempotency-key", &key).json(&body);
            match sending.timeout(Duration::from_secs(20)).send().await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let Ok(text) = answer.text().await else { continue };
                    if status == 202 || status == 200 {
                        let job: Value = serde_json::from_str(&text).unwrap();
                        let id = job["id"].as_str().unwrap().to_owned();
                        let earlier = self.ledger.accepted.lock().unwrap().insert(key.clone(), id.clone());
                        assert!(earlier.is_none_or(|earlier| earlier == id), "one key, two jobs");
                        return Some(id);
                    }
                    // Refused for lack of room: nothing is kept, so nothing is owed.
                    if !self.ledger.failed(status, &text) || status == 429 {
                        return None;
                    }
                }
                Err(_) => {
                    self.ledger.broken.fetch_add(1, Ordering::Relaxed);
                }
            }
            tokio::time::sleep(Duration::from_millis(200 + self.random.below(300))).await;
        }
        None
    }

    /// Submits a job and reads its events, hanging up now and then and going on elsewhere after the last token it has.
    async fn read_events(&mut self) {
        let Some(id) = self.submit().await else { return };
        let (mut text, mut position) = (String::new(), 0_u64);
        // Long enough for every fault; what does not end is found out at the end.
        let give_up = Instant::now() + Duration::from_secs(90);
        while Instant::now() < give_up {
            let patience = 1 + self.random.below(400);
            let url = self.url(&format!("/v1/jobs/{id}/events"));
            let asking = self.http.get(url).header("last-event-id", position.to_string());
            let Ok(answer) = asking.send().await else {
                self.ledger.broken.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            };
            let status = answer.status().as_u16();
            if status != 200 {
                let body = answer.text().await.unwrap_or_default();
                self.ledger.failed(status, &body);
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
            self.ledger.resumed.fetch_add(u64::from(position > 0), Ordering::Relaxed);
            let (mut unread, mut n_read) = (Vec::new(), 0);
            let mut pieces = answer.bytes_stream();
            while let Ok(Some(Ok(piece))) = timeout(Duration::from_secs(20), pieces.next()).await {
                unread.extend_from_slice(&piece);
                while let Some(end) = unread.windows(2).position(|pair| pair == b"\n\n") {
                    let event = String::from_utf8(unread.drain(..end + 2).collect()).unwrap();
                    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                    let data = data.map(|data| serde_json::from_str::<Value>(data).unwrap()).unwrap_or_default();
                    if event.contains("event: token") {
                        position += 1;
                        assert_eq!(data["position"], position, "{id}: a gap or a repeat");
                        text.push_str(data["text"].as_str().unwrap());
                        n_read += 1;
                    } else if event.contains("event: ended") {
                        if data["job"]["status"] == "succeeded" {
                            self.ledger.answers.lock().unwrap().push((id, text));
                        }
                        return;
                    }
                }
                if n_read >= patience {
                    break;
                }
            }
        }
    }

    /// A call that waits for its answer.
    async fn call(&mut self) {
        self.sent += 1;
        let (url, body) = (self.url("/v1/completions"), self.request());
        match self.http.post(url).json(&body).timeout(Duration::from_secs(60)).send().await {
            Ok(answer) => {
                let status = answer.status().as_u16();
                let job = answer.headers().get("penstock-job").and_then(|id| id.to_str().ok()).map(str::to_owned);
                let Ok(text) = answer.text().await else { return };
                if status == 200 {
                    let body: Value = serde_json::from_str(&text).unwrap();
                    let answer = body["choices"][0]["text"].as_str().unwrap().to_owned();
                    self.ledger.answers.lock().unwrap().push((job.unwrap(), answer));
                } else {
                    self.ledger.failed(status, &text);
                }
            }
            Err(_) => {
                self.ledger.broken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A streamed call.
    async fn stream(&mut self) {
        self.sent += 1;
        let (url, mut body) = (self.url("/v1/completions"), self.request());
        body["stream"] = true.into();
        let answer = match self.http.post(url).json(&body).timeout(Duration::from_secs(60)).send().await {
            Ok(answer) => answer,
            Err(_) => {
                self.ledger.broken.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let status = answer.status().as_u16();
        let job = answer.headers().get("penstock-job").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let Ok(text) = answer.text().await else {
            self.ledger.broken.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if status != 200 {
            self.ledger.failed(status, &text);
            return;
        }
        let mut whole = String::new();
        let mut done = false;
        for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            if line == "[DONE]" {
                done = true;
                continue;
            }
            let chunk: Value = serde_json::from_str(line).unwrap();
            whole.push_str(chunk["choices"][0]["text"].as_str().unwrap_or_default());
        }
        if done {
            self.ledger.streams.fetch_add(1, Ordering::Relaxed);
            self.ledger.answers.lock().unwrap().push((job.unwrap(), whole));
        }
    }

    /// Cancels some job of its own.
    async fn cancel(&mut self) {
        let mine = format!("{}-", self.number);
        let id = {
            let accepted = self.ledger.accepted.lock().unwrap();
            let mut own = accepted.iter().rev().filter(|(key, _)| key.starts_with(&mine)).take(20);
            own.nth(self.random.below(20) as usize).map(|(_, id)| id.clone())
        };
        let Some(id) = id else { return };
        let url = self.url(&format!("/v1/jobs/{id}/cancel"));
        if let Ok(answer) = self.http.post(url).timeout(Duration::from_secs(20)).send().await {
            let status = answer.status().as_u16();
            let Ok(text) = answer.text().await else { return };
            if status == 200 {
                let job: Value = serde_json::from_str(&text).unwrap();
                if job["status"] == "cancelled" {
                    self.ledger.cancelled.lock().unwrap().push(id);
                }
            } else {
                self.ledger.failed(status, &text);
            }
        }
    }
}
