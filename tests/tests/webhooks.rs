//! Webhooks, as their receivers see them: `python/webhook_receiver.py` verifies every request with the official packages.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::client::merge;
use tests::cluster::tiny_model;
use tests::python::python;
use tests::server::data_dir;
use tests::{Client, Process, Server, Settings, penstock};

/// Longer than the first retry takes to come, which is 5 s and up to a fifth more.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that may call receivers on this machine.
fn serve(data: &Path) -> Server {
    let settings = Settings { model: Some(tiny_model()), ..Settings::default() };
    Server::start(data, &settings.with("PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS", "[\"127.0.0.1/32\"]"))
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The Python receiver.
struct Receiver {
    _process: Process,
    client: Client,
    address: String,
}

impl Receiver {
    fn start(port: u16) -> Self {
        let mut command = python("webhook_receiver.py");
        command.arg(port.to_string());
        let mut process = Process::spawn(command);
        let address = process.wait_for_line("The receiver is ready on ");
        let Some(address) = address else { panic!("the receiver did not come up:\n{}", process.log()) };
        Self { _process: process, client: Client::new(&address), address }
    }

    /// The address of a webhook of this name.
    fn url(&self, name: &str) -> String {
        format!("{}/hook/{name}", self.address)
    }

    /// Says how requests to this name are verified and answered.
    async fn set(&self, name: &str, settings: Value) {
        let put = self.client.http.put(self.client.url(&format!("/set/{name}"))).json(&settings);
        assert_eq!(put.send().await.unwrap().status(), 200);
    }

    /// What came for this name.
    async fn seen(&self, name: &str) -> Vec<Value> {
        self.client.get(&format!("/seen/{name}")).await.1.as_array().unwrap().clone()
    }

    /// What came for this name, once so many came.
    async fn wait(&self, name: &str, n: usize) -> Vec<Value> {
        let begin = Instant::now();
        loop {
            let seen = self.seen(name).await;
            if seen.len() >= n {
                return seen;
            }
            assert!(begin.elapsed() < PATIENCE, "{name}: {n} were expected, came: {seen:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Makes a webhook that leads here and tells the receiver its secret; answers its id.
    async fn webhook(&self, client: &Client, name: &str, settings: Value) -> String {
        let (status, made) = client.post("/v1/webhooks", &json!({"url": self.url(name)})).await;
        assert_eq!(status, 201, "{made}");
        let mut all = json!({"secrets": [made["secret"]]});
        merge(&mut all, settings);
        self.set(name, all).await;
        made["id"].as_str().unwrap().to_owned()
    }
}

async fn submit(client: &Client, outer: Value) -> String {
    let mut body =
        json!({"type": "completion", "request": {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "seed": 1}});
    merge(&mut body, outer);
    let (status, job) = client.post("/v1/jobs", &body).await;
    assert_eq!(status, 202, "{job}");
    job["id"].as_str().unwrap().to_owned()
}

async fn succeeded(client: &Client, outer: Value) -> Value {
    let id = submit(client, outer).await;
    let job = client.finished(&id, PATIENCE).await;
    assert_eq!(job["status"], "succeeded", "{job}");
    job
}

/// The body, once it is verified by its first secret and says the same as the headers.
fn verified(request: &Value) -> Value {
    assert_eq!(request["why"][0], Value::Null, "{request:#}");
    let body: Value = serde_json::from_str(request["body"].as_str().unwrap()).unwrap();
    assert_eq!(request["headers"]["webhook-id"], body["id"], "{request:#}");
    assert_eq!(request["headers"]["content-type"], "application/json", "{request:#}");
    assert!(body["id"].as_str().unwrap().starts_with("msg_"), "{body}");
    body
}

fn in_order(requests: &[Value]) -> Vec<Value> {
    let mut bodies: Vec<_> = requests.iter().map(verified).collect();
    bodies.sort_by_key(|body| body["sequence"].as_u64());
    bodies
}

/// Asks until the answer is what was waited for.
async fn until(client: &Client, path: &str, is: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let (status, answer) = client.get(path).await;
        assert_eq!(status, 200, "{answer}");
        if is(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{path} stays as it is: {answer:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn command(server: &Server, arguments: &[&str]) -> Command {
    let mut command = penstock();
    command.arg("webhooks").args(arguments).env("PENSTOCK_SERVER", &server.address);
    command
}

/// Runs a `penstock webhooks` command that must succeed; its standard output.
fn run(server: &Server, arguments: &[&str]) -> String {
    let output = command(server, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn run_json(server: &Server, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(server, arguments)).unwrap()
}

#[tokio::test]
async fn a_webhook_is_told_of_a_jobs_start_and_end_and_told_again_when_asked() {
    let (_folder, data) = data_dir();
    let (server, receiver) = (serve(&data), Receiver::start(0));
    let client = server.client();
    let made = run_json(&server, &["create", &receiver.url("all"), "--description", "ours", "--json"]);
    let id = made["id"].as_str().unwrap();
    receiver.set("all", json!({"secrets": [made["secret"]]})).await;
    assert_eq!(json!(run(&server, &["secret", id])), made["secret"]);

    let job = succeeded(&client, json!({"metadata": {"run": "7"}})).await;
    let requests = receiver.wait("all", 2).await;
    let bodies = in_order(&requests);
    let told = |nth: usize| (bodies[nth]["type"].as_str().unwrap(), bodies[nth]["sequence"].as_u64().unwrap());
    assert_eq!((told(0), told(1)), (("job.started", 1), ("job.succeeded", 2)));
    let started =
        json!({"id": job["id"], "object": "job", "status": "running", "attempt": 1, "metadata": {"run": "7"}});
    assert_eq!(bodies[0]["data"], started);
    let job = client.job(job["id"].as_str().unwrap()).await;
    assert!(job["result"]["choices"][0]["text"].is_string(), "{job}");
    assert_eq!(bodies[1]["data"], job, "the job as its route shows it");

    // The log has them, and a delivery that is asked for again is the same one.
    let msg = bodies[1]["id"].as_str().unwrap();
    let log =
        until(&client, "/v1/webhooks/deliveries?status=delivered", |list| list["data"].as_array().unwrap().len() == 2);
    assert_eq!(log.await["data"][0]["subject"], job["id"]);
    run(&server, &["redeliver", msg]);
    let requests = receiver.wait("all", 3).await;
    let first = requests.iter().find(|request| request["headers"]["webhook-id"] == msg).unwrap();
    assert_eq!(verified(&requests[2]), bodies[1]);
    assert_eq!(requests[2]["body"], first["body"], "byte for byte");
    let path = format!("/v1/webhooks/deliveries/{msg}");
    until(&client, &path, |delivery| delivery["status"] == "delivered" && delivery["attempts"] == 2).await;
    let shown = run(&server, &["deliveries", msg]);
    assert!(shown.contains("job.succeeded") && shown.matches(" 204 ").count() == 2, "{shown}");
    let listed = run_json(&server, &["deliveries", "--webhook", id, "--status", "delivered", "--limit", "1", "--json"]);
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["has_more"]), (1, &json!(true)), "{listed}");
    assert!(run(&server, &["list"]).contains("ours"));

    run(&server, &["delete", id]);
    let later = succeeded(&client, json!({})).await;
    let log = client.get("/v1/webhooks/deliveries?limit=100").await.1;
    let n_told = log["data"].as_array().unwrap().iter().filter(|delivery| delivery["subject"] == later["id"]).count();
    assert_eq!(n_told, 0, "a deleted webhook is told of nothing: {log}");
    assert!(!run(&server, &["list"]).contains(id));
    let gone = command(&server, &["secret", id]).output().unwrap();
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(!gone.status.success() && said.contains("webhook_not_found"), "{said}");
}

#[tokio::test]
async fn an_address_of_a_job_or_batch_alone_is_signed_with_the_tenants_secret() {
    let (folder, data) = data_dir();
    let (server, receiver) = (serve(&data), Receiver::start(0));
    let client = server.client();
    let secret = run(&server, &["secret"]);
    let hook = |name: &str| json!({"url": receiver.url(name), "events": ["job.succeeded"]});
    receiver.set("own", json!({"secrets": [secret]})).await;
    let job = succeeded(&client, json!({"webhook": hook("own")})).await;
    let body = verified(&receiver.wait("own", 1).await[0]);
    assert_eq!((&body["type"], &body["data"]["id"]), (&json!("job.succeeded"), &job["id"]));

    // While the secret changes, the earlier one and the new one verify the same request.
    let newer = run(&server, &["rotate", "--overlap-hours", "1"]);
    receiver.set("rotated", json!({"secrets": [newer, secret]})).await;
    succeeded(&client, json!({"webhook": hook("rotated")})).await;
    let request = &receiver.wait("rotated", 1).await[0];
    assert_eq!(request["why"], json!([null, null]), "{request:#}");
    let newest = run(&server, &["rotate", "--overlap-hours", "0"]);
    receiver.set("ended", json!({"secrets": [newest, newer, secret]})).await;
    succeeded(&client, json!({"webhook": hook("ended")})).await;
    let why = receiver.wait("ended", 1).await[0]["why"].clone();
    assert_eq!(why, json!([null, "No matching signature found", "No matching signature found"]));

    // A batch: told of once, as a whole, and OpenAI's own package reads it.
    receiver.webhook(&client, "batch", json!({})).await;
    let body = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 2});
    let line = |n: u32| {
        format!("{}\n", json!({"custom_id": format!("n{n}"), "method": "POST", "url": "/v1/completions", "body": body}))
    };
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, (0..3).map(line).collect::<String>()).unwrap();
    let mut submit = penstock();
    submit.args(["batch", "submit", "--wait", "--json"]).arg(&input).env("PENSTOCK_SERVER", &server.address);
    let output = submit.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let batch: Value = serde_json::from_slice(&output.stdout).unwrap();
    let request = &receiver.wait("batch", 1).await[0];
    let body = verified(request);
    assert_eq!((&body["type"], &body["sequence"]), (&json!("batch.completed"), &json!(1)));
    assert_eq!(body["data"], client.get(&format!("/v1/batches/{}", batch["id"].as_str().unwrap())).await.1);
    let event = json!({
        "kind": "BatchCompletedWebhookEvent",
        "type": "batch.completed",
        "id": body["id"],
        "created_at": batch["completed_at"],
        "data_id": batch["id"],
    });
    assert_eq!(request["openai"], event);
    assert_eq!(receiver.seen("batch").await.len(), 1, "lines are their batch's affair");
}

#[tokio::test]
async fn who_asks_for_it_is_told_how_far_a_batch_is() {
    const LINES: u64 = 3_000;
    let (folder, data) = data_dir();
    let settings = Settings { model: Some(tiny_model()), ..Settings::default() };
    let settings = settings.with("PENSTOCK_WEBHOOKS__ALLOWED_NETWORKS", "[\"127.0.0.1/32\"]");
    let server = Server::start(&data, &settings.with("PENSTOCK_WEBHOOKS__PROGRESS_SECONDS", 0));
    let (client, receiver) = (server.client(), Receiver::start(0));
    receiver.webhook(&client, "everything", json!({})).await;
    let id = receiver.webhook(&client, "progress", json!({})).await;
    let events = json!({"events": ["batch.progress", "batch.completed"]});
    assert_eq!(client.post(&format!("/v1/webhooks/{id}"), &events).await.0, 200);

    let body = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 16});
    let line = |n: u64| {
        format!("{}\n", json!({"custom_id": format!("n{n}"), "method": "POST", "url": "/v1/completions", "body": body}))
    };
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, (0..LINES).map(line).collect::<String>()).unwrap();
    let mut submit = penstock();
    submit.args(["batch", "submit", "--wait", "--json"]).arg(&input).env("PENSTOCK_SERVER", &server.address);
    let output = submit.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let batch: Value = serde_json::from_slice(&output.stdout).unwrap();

    let completed = verified(&receiver.wait("everything", 1).await[0]);
    let n_events = completed["sequence"].as_u64().unwrap();
    assert_eq!((&completed["type"], &completed["data"]["id"]), (&json!("batch.completed"), &batch["id"]));
    assert!(n_events > 2, "{LINES} lines were done in no time: {completed}");
    // Progress that was on its way when the next came is left out.
    let begin = Instant::now();
    let told: Vec<Value> = loop {
        let told: Vec<Value> = receiver.seen("progress").await.iter().map(verified).collect();
        if told.last().is_some_and(|last| last["sequence"] == n_events) {
            break told;
        }
        assert!(begin.elapsed() < PATIENCE, "{told:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(told.len() > 2, "{told:#?}");
    assert_eq!(told.last().unwrap()["type"], "batch.completed");
    for pair in told.windows(2) {
        assert_eq!(pair[0]["type"], "batch.progress");
        let status = pair[0]["data"]["status"].as_str();
        assert!(matches!(status, Some("in_progress" | "finalizing")), "{pair:#?}");
        assert!(pair[0]["sequence"].as_u64() < pair[1]["sequence"].as_u64(), "{pair:#?}");
        let done = |body: &Value| body["data"]["request_counts"]["completed"].as_u64().unwrap();
        assert!(done(&pair[0]) < done(&pair[1]) || pair[1]["type"] == "batch.completed", "{pair:#?}");
    }
    assert_eq!(receiver.seen("everything").await.len(), 1, "who does not name it is not told");
}

#[tokio::test]
async fn what_fails_comes_again_a_redirect_leads_nowhere_and_gone_is_the_end() {
    let (_folder, data) = data_dir();
    let (server, receiver, elsewhere) = (serve(&data), Receiver::start(0), Receiver::start(0));
    let client = server.client();
    let failing = receiver.webhook(&client, "failing", json!({"answers": [500, 500]})).await;
    let target = elsewhere.url("target");
    let moved = receiver.webhook(&client, "moved", json!({"answer": 307, "location": target})).await;
    let seen_other = receiver.webhook(&client, "other", json!({"answer": 303, "location": target})).await;
    let gone = receiver.webhook(&client, "gone", json!({"answer": 410})).await;
    let job = succeeded(&client, json!({})).await;

    let begin = Instant::now();
    let requests = receiver.wait("failing", 4).await;
    println!("the retries came after {:.1} s", begin.elapsed().as_secs_f64());
    let answered = |request: &Value| request["answered"].as_u64().unwrap();
    assert_eq!(requests.iter().map(answered).collect::<Vec<_>>(), [500, 500, 204, 204]);
    for nth in [1, 2] {
        let same: Vec<_> = requests.iter().filter(|request| verified(request)["sequence"] == nth).collect();
        assert_eq!(same.len(), 2, "{requests:#?}");
        assert_eq!(same[0]["headers"]["webhook-id"], same[1]["headers"]["webhook-id"]);
        assert_eq!(same[0]["body"], same[1]["body"], "byte for byte");
        let at = |request: &Value| request["headers"]["webhook-timestamp"].as_str().unwrap().parse::<i64>().unwrap();
        assert!((4..=10).contains(&(at(same[1]) - at(same[0]))), "signed anew, after 5 to 6 s: {same:#?}");
    }
    let path = format!("/v1/webhooks/deliveries?webhook={failing}&status=delivered");
    let list = until(&client, &path, |list| list["data"].as_array().unwrap().len() == 2).await;
    assert_eq!(list["data"][0]["attempts"], 2, "{list}");

    for (id, status) in [(&moved, 307), (&seen_other, 303)] {
        let path = format!("/v1/webhooks/deliveries?webhook={id}");
        let list = until(&client, &path, |list| list["data"][0]["attempts"].as_u64() >= Some(1)).await;
        let delivery = &list["data"][0];
        assert_eq!((&delivery["status"], &delivery["subject"]), (&json!("waiting"), &job["id"]), "{list}");
        let path = format!("/v1/webhooks/deliveries/{}", delivery["id"].as_str().unwrap());
        assert_eq!(client.get(&path).await.1["log"][0]["status"], status);
    }
    assert!(elsewhere.seen("target").await.is_empty(), "a redirect was followed");

    let webhook = until(&client, &format!("/v1/webhooks/{gone}"), |webhook| webhook["enabled"] == false).await;
    assert!(webhook["disabled_reason"].as_str().unwrap().contains("410"), "{webhook}");
    assert!(run(&server, &["list"]).contains("disabled: "));
    let list = client.get(&format!("/v1/webhooks/deliveries?webhook={gone}")).await.1;
    assert!(list["data"].as_array().unwrap().iter().all(|delivery| delivery["status"] == "failed"), "{list}");
    succeeded(&client, json!({})).await;
    receiver.wait("failing", 6).await;
    let told = receiver.seen("gone").await;
    assert!(
        told.iter().all(|request| verified(request)["data"]["id"] == job["id"]),
        "a disabled webhook is left alone"
    );
}

#[tokio::test]
async fn a_webhooks_old_and_new_secret_both_sign_while_they_overlap() {
    let (_folder, data) = data_dir();
    let (server, receiver) = (serve(&data), Receiver::start(0));
    let client = server.client();
    let id = receiver.webhook(&client, "hook", json!({})).await;
    let old = run(&server, &["secret", &id]);
    let rotated = run_json(&server, &["rotate", &id, "--json"]);
    assert_eq!(rotated["earlier"], json!([old]));
    receiver.set("hook", json!({"secrets": [rotated["secret"], old]})).await;
    succeeded(&client, json!({})).await;
    for request in receiver.wait("hook", 2).await {
        assert_eq!(request["why"], json!([null, null]), "{request:#}");
    }
}

#[tokio::test]
async fn a_kill_between_a_jobs_end_and_its_delivery_loses_nothing() {
    let (_folder, data) = data_dir();
    let server = serve(&data);
    let client = server.client();
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/hook/late");
    let (status, webhook) = client.post("/v1/webhooks", &json!({"url": url})).await;
    assert_eq!(status, 201, "{webhook}");
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(submit(&client, json!({})).await);
    }
    for job in &jobs {
        client.finished(job, PATIENCE).await;
    }
    // An attempt that is cut off is made again only after 90 s; nobody listens, so attempts end at once.
    let path = "/v1/webhooks/deliveries?limit=100";
    let list = until(&client, path, |list| {
        let tried = list["data"].as_array().unwrap().iter().filter(|delivery| delivery["attempts"] != 0);
        tried.count() == 10
    });
    let ids = |list: &Value| {
        let mut ids: Vec<_> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|delivery| delivery["id"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };
    let before = ids(&list.await);
    server.kill();

    let receiver = Receiver::start(port);
    receiver.set("late", json!({"secrets": [webhook["secret"]]})).await;
    let begin = Instant::now();
    let server = serve(&data);
    let requests = receiver.wait("late", 10).await;
    println!("all came {:.1} s after the restart began", begin.elapsed().as_secs_f64());
    let mut came: Vec<_> =
        requests.iter().map(|request| verified(request)["id"].as_str().unwrap().to_owned()).collect();
    came.sort();
    assert_eq!(came, before, "each once, under the ids of before");
    for job in &jobs {
        let sent = server.client().job(job).await;
        let of = |event: &str| {
            let bodies = requests.iter().map(verified);
            bodies.filter(|body| body["type"] == event && body["data"]["id"] == **job).collect::<Vec<_>>()
        };
        assert_eq!((of("job.started").len(), of("job.succeeded").len()), (1, 1));
        assert_eq!(of("job.succeeded")[0]["data"]["result"], sent["result"]);
    }
}

#[tokio::test]
async fn without_the_setting_nothing_leads_to_this_machine() {
    let (_folder, data) = data_dir();
    let server = Server::start(&data, &Settings { model: Some(tiny_model()), ..Settings::default() });
    let client = server.client();
    for url in
        ["http://127.0.0.1:9000", "https://127.0.0.1", "https://localhost/x", "https://[::1]/", "https://2130706433/"]
    {
        let (status, refused) = client.post("/v1/webhooks", &json!({"url": url})).await;
        assert_eq!((status.as_u16(), &refused["error"]["param"]), (400, &json!("url")), "{url}: {refused}");
        let request = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 1});
        let body = json!({"type": "completion", "request": request, "webhook": {"url": url}});
        let (status, refused) = client.post("/v1/jobs", &body).await;
        assert_eq!((status.as_u16(), &refused["error"]["param"]), (400, &json!("webhook.url")), "{url}: {refused}");
    }
    let refused = command(&server, &["create", "http://127.0.0.1:9000"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("webhooks.allowed_networks"), "{said}");
}

/// `penstock webhooks listen`; killed when dropped.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Listens, and answers the line that it prints for the first request. That it was printed does not mean that it was
/// answered yet: whoever waits for its end keeps the process until then.
fn listened(server: &Server, port: u16, arguments: &[&str], meanwhile: impl FnOnce()) -> (String, Listening) {
    let address = format!("127.0.0.1:{port}");
    let mut listen = command(server, &["listen", "--listen", &address]);
    listen.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Listening(listen.spawn().unwrap());
    let mut said = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert!(first.contains(&address), "{first}");
    assert!(said.next().unwrap().unwrap().contains("webhooks.allowed_networks = [\"127.0.0.1/32\"]"));
    meanwhile();
    let line = BufReader::new(child.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    (line, child)
}

#[tokio::test]
async fn the_command_line_receives_verifies_and_shows_them() {
    let (_folder, data) = data_dir();
    let server = serve(&data);
    let client = server.client();
    let port = free_port();
    let made = run(&server, &["create", &format!("http://127.0.0.1:{port}/x"), "--event", "job.succeeded"]);
    let [id, secret] = ["id", "secret"].map(|name| {
        let line = made.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    });
    let job = succeeded(&client, json!({})).await;
    let path = format!("/v1/webhooks/deliveries?webhook={id}");
    let list = until(&client, &path, |list| list["data"][0]["attempts"].as_u64() >= Some(1)).await;
    let msg = list["data"][0]["id"].as_str().unwrap();
    let path = format!("/v1/webhooks/deliveries/{msg}");
    let again = || drop(run(&server, &["redeliver", msg]));
    let ended = async |attempts: u64, status: u16| {
        let delivery = until(&client, &path, |delivery| delivery["attempts"] == attempts).await;
        assert_eq!(delivery["log"][0]["status"], status, "{delivery:#}");
        delivery
    };
    let job = job["id"].as_str().unwrap();

    let (line, listening) = listened(&server, port, &["--secret", &secret], again);
    assert!(line.contains(&format!(" {msg} job.succeeded 2 {job} verified")), "{line}");
    ended(2, 204).await;
    drop(listening);
    let newer = run(&server, &["rotate", &id]);
    let (line, listening) = listened(&server, port, &["--secret", &secret, "--secret", &newer], again);
    assert!(line.ends_with(" verified by secret 1"), "{line}");
    ended(3, 204).await;
    drop(listening);
    let (line, listening) = listened(&server, port, &["--json"], again);
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["data"]["id"], job);
    ended(4, 204).await;
    drop(listening);
    let (line, listening) = listened(&server, port, &["--secret", &newer, "--answer", "503"], again);
    assert!(line.ends_with(" verified"), "{line}");
    ended(5, 503).await;
    drop(listening);
    let foreign = run(&server, &["secret"]);
    let (line, _listening) = listened(&server, port, &["--secret", &foreign], again);
    assert!(line.contains("not verified: signature invalid"), "{line}");
    let delivery = ended(6, 400).await;
    assert_eq!(delivery["status"], "waiting", "{delivery:#}");
}
