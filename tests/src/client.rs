//! A plain HTTP client of the native API, written against the documented shapes and nothing else.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};

/// The default model's name.
pub const MODEL: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m";

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    /// For calls that have no method here.
    pub http: reqwest::Client,
    address: String,
}

impl Client {
    /// A client of the server at `address`.
    ///
    /// # Panics
    /// When the system has no randomness for TLS.
    pub fn new(address: &str) -> Self {
        // Installed by whichever test comes first.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().expect("a client without options can be built");
        Self { http, address: address.to_owned() }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// POSTs JSON; answers status and JSON body.
    ///
    /// # Panics
    /// When the server does not answer JSON.
    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let answer = self.http.post(self.url(path)).json(body).send().await.expect("the server answers");
        let status = answer.status();
        (status, answer.json().await.expect("the answer is JSON"))
    }

    /// GETs JSON; answers status and body.
    ///
    /// # Panics
    /// When the server does not answer JSON.
    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        let answer = self.http.get(self.url(path)).send().await.expect("the server answers");
        let status = answer.status();
        (status, answer.json().await.expect("the answer is JSON"))
    }

    /// Submits a chat job; answers its id.
    ///
    /// # Panics
    /// When it is not accepted.
    pub async fn submit_chat(&self, text: &str, fields: Value, outer: Value) -> String {
        let mut request = json!({"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0});
        merge(&mut request, fields);
        let mut body = json!({"type": "chat", "request": request});
        merge(&mut body, outer);
        let (status, job) = self.post("/v1/jobs", &body).await;
        assert_eq!(status, 202, "{job}");
        job["id"].as_str().expect("a job has an id").to_owned()
    }

    /// The job as it is now.
    ///
    /// # Panics
    /// When the server does not know it.
    pub async fn job(&self, id: &str) -> Value {
        let (status, job) = self.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(status, 200, "{job}");
        job
    }

    /// Waits until the job has ended.
    ///
    /// # Panics
    /// When it has not after `patience`.
    pub async fn finished(&self, id: &str, patience: Duration) -> Value {
        let begin = Instant::now();
        loop {
            let (status, job) = self.get(&format!("/v1/jobs/{id}?wait=10")).await;
            assert_eq!(status, 200, "{job}");
            if !matches!(job["status"].as_str(), Some("queued" | "running")) {
                return job;
            }
            assert!(begin.elapsed() < patience, "still not ended: {job}");
        }
    }

    /// All jobs that carry `metadata.run = run`.
    ///
    /// # Panics
    /// When the list is not what it is documented to be.
    pub async fn jobs_of_run(&self, run: &str) -> Vec<Value> {
        let mut jobs = Vec::new();
        let mut after = String::new();
        loop {
            let (status, page) = self.get(&format!("/v1/jobs?limit=100&metadata.run={run}{after}")).await;
            assert_eq!(status, 200, "{page}");
            jobs.extend(page["data"].as_array().expect("a list has data").iter().cloned());
            if page["has_more"] != true {
                return jobs;
            }
            after = format!("&after={}", page["last_id"].as_str().expect("a list has a last id"));
        }
    }
}

/// Puts the fields of `from` into the object `into`.
///
/// # Panics
/// When either is no object.
pub fn merge(into: &mut Value, from: Value) {
    let into = into.as_object_mut().expect("fields are put into an object");
    let Value::Object(from) = from else { panic!("fields come from an object") };
    into.extend(from);
}

/// Milliseconds since the epoch of an RFC 3339 time in UTC, as the native API writes them.
///
/// # Panics
/// When it is no such time.
pub fn unix_ms(text: &str) -> i64 {
    let time = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
    let nanos = time.unwrap_or_else(|err| panic!("{text} is no RFC 3339 time: {err}")).unix_timestamp_nanos();
    i64::try_from(nanos / 1_000_000).expect("a time of our days")
}
