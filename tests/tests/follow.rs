//! `penstock score --follow`: lines of a pipe as they come, and messages of a real broker that are acknowledged when their
//! answers are durable, whoever is killed or cut on the way.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::{Value, json};
use tests::cluster::tiny_model;
use tests::proxy::Proxies;
use tests::server::data_dir;
use tests::services::Services;
use tests::{Process, Server, Settings, penstock};

const PATIENCE: Duration = Duration::from_secs(90);

/// `penstock score --follow` in this process' own temporary folder.
fn follow(temp: &Path, arguments: &[&str]) -> Command {
    let mut command = penstock();
    command.args(["score", "--follow"]).args(arguments).env("TMPDIR", temp);
    command
}

/// One that runs by itself, with the tiny model.
fn embedded(temp: &Path, arguments: &[&str]) -> Command {
    let mut command = follow(temp, arguments);
    command.args(["--model", &tiny_model()]);
    command
}

/// What stands in a folder that runs of ours use.
fn left_in(temp: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(temp).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A run with pipes in the hands of a test.
struct Piped {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Piped {
    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn write(&mut self, line: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line).and_then(|()| input.write_all(b"\n")).unwrap();
        input.flush().unwrap();
    }

    /// The next answer; waits for it.
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no answer came: {line:?}\n{}", self.said()))
    }

    /// The rest of the answers, once the input is closed.
    fn rest(&mut self) -> Vec<Value> {
        self.input = None;
        let lines = self.output.by_ref().lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        lines.collect()
    }

    /// What it has said, at its end.
    fn said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    fn ends_with(&mut self, status: i32) -> String {
        let ended = self.child.wait().unwrap();
        let said = self.said();
        assert_eq!(ended.code(), Some(status), "{said}");
        said
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ended_or_killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn prompt(n: usize, max_tokens: usize) -> Value {
    json!({"custom_id": format!("n-{n}"), "prompt": format!("{n} and"), "max_tokens": max_tokens, "temperature": 0})
}

/// What an answer says, without what differs from run to run.
fn essence(answer: &Value) -> Value {
    let body = &answer["response"]["body"];
    let mut usage = body["usage"].clone();
    // Another run shares other beginnings of prompts.
    usage.as_object_mut().map(|usage| usage.remove("prompt_tokens_details"));
    json!([answer["custom_id"], answer["response"]["status_code"], body["choices"], usage, answer["error"]["code"]])
}

#[test]
fn each_line_is_answered_before_the_next_one_comes_and_as_an_offline_run_answers_it() {
    let temp = tempfile::tempdir().unwrap();
    let runs = temp.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    let mut lines: Vec<Vec<u8>> = (0..12).map(|n| prompt(n, 1 + (n * 5) % 16).to_string().into_bytes()).collect();
    lines.insert(1, b"not json".to_vec());
    lines.insert(5, b"".to_vec());
    lines.insert(6, br#"{"prompt": "x", "temperature": 9}"#.to_vec());

    let mut run = Piped::spawn(embedded(&runs, &["--concurrency", "4"]));
    let mut answers = Vec::new();
    for line in &lines[..3] {
        run.write(line);
        answers.push(run.answer());
    }
    for line in &lines[3..] {
        run.write(line);
    }
    answers.extend(run.rest());
    let said = run.ends_with(1);
    assert!(said.contains("14 lines: 12 succeeded, 2 failed"), "{said}");
    let numbers: Vec<_> = answers.iter().map(|answer| answer["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15], "line 6 is blank");
    assert!(answers[1]["error"]["message"].as_str().unwrap().starts_with("line 2: not valid JSON"), "{}", answers[1]);
    assert_eq!(answers[5]["response"]["status_code"], 400, "{}", answers[5]);
    assert_eq!(left_in(&runs), Vec::<PathBuf>::new(), "the temporary folder is removed");

    let (input, output) = (temp.path().join("in.jsonl"), temp.path().join("out.jsonl"));
    std::fs::write(&input, lines.join(&b'\n')).unwrap();
    let offline = penstock().arg("score").arg(&input).arg("-o").arg(&output).args(["--model", &tiny_model()]).output();
    assert_eq!(offline.unwrap().status.code(), Some(1));
    let text = std::fs::read_to_string(&output).unwrap();
    let expected: Vec<Value> = text.lines().map(|line| essence(&serde_json::from_str(line).unwrap())).collect();
    assert_eq!(answers.iter().map(essence).collect::<Vec<_>>(), expected);
}

#[test]
fn a_stop_ends_what_is_under_way_and_removes_what_a_killed_run_left() {
    let temp = tempfile::tempdir().unwrap();
    let mut killed = Piped::spawn(embedded(temp.path(), &[]));
    killed.write(prompt(0, 1).to_string().as_bytes());
    killed.answer();
    assert_eq!(left_in(temp.path()).len(), 1);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(left_in(temp.path()).len(), 1, "a kill leaves the folder");

    let mut run = Piped::spawn(embedded(temp.path(), &["--unordered"]));
    let long = json!({"custom_id": "long", "prompt": "x", "max_tokens": 200, "ignore_eos": true});
    run.write(long.to_string().as_bytes());
    run.write(prompt(1, 1).to_string().as_bytes());
    // The second one is answered, so the first one was read.
    let first = run.answer();
    run.terminate();
    let mut line = String::new();
    run.output.read_line(&mut line).unwrap();
    let second: Value = serde_json::from_str(&line).unwrap();
    let mut names = [&first, &second].map(|answer| answer["custom_id"].as_str().unwrap());
    names.sort_unstable();
    assert_eq!(names, ["long", "n-1"]);
    let said = run.ends_with(0);
    assert!(said.contains("stopped: 2 lines: 2 succeeded, 0 failed"), "{said}");
    assert_eq!(left_in(temp.path()), Vec::<PathBuf>::new(), "of both runs");
}

#[test]
fn a_line_that_takes_too_long_is_an_error_line_and_the_rest_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let mut command = embedded(temp.path(), &["--deadline", "1s", "--concurrency", "40"]);
    // One sequence at a time, one token a step: forty of them are not done within a second.
    command.env("PENSTOCK_ENGINE__MAX_SEQUENCES", "1").env("PENSTOCK_ENGINE__STEP_TOKENS", "1");
    let mut run = Piped::spawn(command);
    let words = "word ".repeat(400);
    for n in 0..40 {
        let long = json!({"custom_id": format!("long-{n}"), "prompt": words, "max_tokens": 400, "ignore_eos": true});
        run.write(long.to_string().as_bytes());
    }
    let answers = run.rest();
    run.ends_with(1);
    assert_eq!(answers.len(), 40);
    let late = answers.iter().find(|answer| answer["error"]["code"] == "deadline_exceeded");
    let late = late.unwrap_or_else(|| panic!("every line was done within a second: {}", answers[39]));
    assert!(late["error"]["message"].as_str().unwrap().contains("had not ended within 1 s"), "{late}");
}

#[test]
fn a_reader_that_stops_stops_the_reading() {
    let temp = tempfile::tempdir().unwrap();
    let mut run = Piped::spawn(embedded(temp.path(), &["--concurrency", "2"]));
    const LINES: usize = 300;
    let written = Arc::new(AtomicUsize::new(0));
    let mut input = run.input.take().unwrap();
    let writer = std::thread::spawn({
        let written = Arc::clone(&written);
        move || {
            // Its name is in the answer too: about 2 kB each way, and a pipe holds 64 KiB.
            for n in 0..LINES {
                let line = json!({"custom_id": format!("{n} {}", "x".repeat(2_000)), "prompt": "a", "max_tokens": 1});
                writeln!(input, "{line}").unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // No progress for two seconds, after some: both ends are full.
    let (mut seen, mut since, begin) = (0, Instant::now(), Instant::now());
    while seen == 0 || since.elapsed() < Duration::from_secs(2) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
        let now = written.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    assert!(seen < LINES, "all {LINES} lines were taken although nobody reads an answer");
    let answers = run.rest();
    writer.join().unwrap();
    assert_eq!(answers.len(), LINES);
    run.ends_with(0);
}

#[test]
fn a_server_answers_as_the_engine_in_the_process_does() {
    let (_folder, data) = data_dir();
    let server = Server::start(&data, &Settings { model: Some(tiny_model()), ..Settings::default() });
    let temp = tempfile::tempdir().unwrap();
    let mut lines: Vec<Vec<u8>> = (0..8).map(|n| prompt(n, 1 + n).to_string().into_bytes()).collect();
    lines.push(br#"{"prompt": "x", "max_tokens": 100000000, "custom_id": "too long"}"#.to_vec());
    let answers = |command: Command| {
        let mut run = Piped::spawn(command);
        for line in &lines {
            run.write(line);
        }
        let answers = run.rest();
        run.ends_with(1);
        answers
    };
    let of_server = answers(follow(temp.path(), &["--server", &server.address]));
    let own = answers(embedded(temp.path(), &[]));
    assert_eq!(of_server.len(), lines.len());
    assert_eq!(of_server.iter().map(essence).collect::<Vec<_>>(), own.iter().map(essence).collect::<Vec<_>>());
    for (theirs, own) in of_server.iter().zip(&own) {
        assert_eq!((&theirs["line"], &theirs["release"]), (&own["line"], &own["release"]));
    }
}

/// A queue of questions and an exchange with a queue of answers, with names of their own on the shared broker.
struct Broker {
    url: String,
    name: String,
    channel: Channel,
    connection: Connection,
}

impl Broker {
    async fn new() -> Self {
        let url = Services::shared().get("PENSTOCK_TEST_QUEUE").to_owned();
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let broker = Self { url, name: format!("follow-{}", uuid::Uuid::now_v7().simple()), channel, connection };
        broker.declare(&broker.questions()).await;
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let name = broker.exchange();
        broker
            .channel
            .exchange_declare(name.as_str().into(), ExchangeKind::Direct, durable, FieldTable::default())
            .await
            .unwrap();
        broker
    }

    fn questions(&self) -> String {
        format!("{}-questions", self.name)
    }

    fn exchange(&self) -> String {
        format!("{}-exchange", self.name)
    }

    fn answers(&self) -> String {
        format!("{}-answers", self.name)
    }

    async fn declare(&self, queue: &str) {
        let declared = self.channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), FieldTable::default());
        declared.await.unwrap();
    }

    /// Binds the queue of answers.
    async fn bind(&self) {
        self.declare(&self.answers()).await;
        let (queue, exchange) = (self.answers(), self.exchange());
        self.channel
            .queue_bind(
                queue.as_str().into(),
                exchange.as_str().into(),
                "scored".into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
    }

    async fn ask(&self, id: &str, body: &[u8]) {
        let properties = BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2);
        let queue = self.questions();
        let options = BasicPublishOptions::default();
        let confirm = self.channel.basic_publish("".into(), queue.as_str().into(), options, body, properties).await;
        confirm.unwrap().await.unwrap();
    }

    /// Messages that wait in a queue, and who takes them.
    async fn count(&self, queue: &str) -> (u32, u32) {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap();
        (found.message_count(), found.consumer_count())
    }

    /// Messages of the queue of questions, once nobody takes them: what was not acknowledged is among them.
    async fn left(&self) -> u32 {
        let begin = Instant::now();
        loop {
            let (left, consumers) = self.count(&self.questions()).await;
            if consumers == 0 {
                // The broker puts back what a dead consumer held in a moment of its own.
                tokio::time::sleep(Duration::from_millis(300)).await;
                return self.count(&self.questions()).await.0.max(left);
            }
            assert!(begin.elapsed() < PATIENCE, "the broker does not notice that the consumer is gone");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn wait_for_answers(&self, n: u32, process: &Process) {
        let begin = Instant::now();
        while self.count(&self.answers()).await.0 < n {
            assert!(begin.elapsed() < PATIENCE, "{n} answers did not come:\n{}", process.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Takes every answer: what it says by the id of its question, with how often it came. Repeats must be equal.
    async fn take_answers(&self, into: &mut BTreeMap<String, (Value, usize)>) {
        let options = BasicGetOptions { no_ack: true };
        let queue = self.answers();
        while let Some(got) = self.channel.basic_get(queue.as_str().into(), options).await.unwrap() {
            let properties = &got.delivery.properties;
            let text = |property: &Option<lapin::types::ShortString>| property.as_ref().unwrap().to_string();
            assert_eq!(text(properties.content_type()), "application/json");
            assert_eq!(*properties.delivery_mode(), Some(2), "it survives a restart of the broker");
            let answer: Value = serde_json::from_slice(&got.delivery.data).unwrap();
            let id = text(properties.correlation_id());
            assert_eq!(answer["custom_id"], id, "{answer}");
            let content = json!([essence(&answer), text(properties.message_id())]);
            let (earlier, times) = into.entry(id).or_insert_with(|| (content.clone(), 0));
            assert_eq!(*earlier, content, "a repeat says the same");
            *times += 1;
        }
    }

    /// A run from the queue to the exchange.
    fn run(&self, temp: &Path) -> Process {
        let (questions, exchange) = (self.questions(), self.exchange());
        let flags = ["--from-queue", &questions, "--to-exchange", &exchange, "--routing-key", "scored"];
        let mut command = embedded(temp, &flags);
        command.args(["--concurrency", "4"]).env("PENSTOCK_FOLLOW__AMQP", &self.url);
        Process::spawn(command)
    }

    async fn remove(self) {
        for queue in [self.questions(), self.answers()] {
            self.channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
        }
        let exchange = self.exchange();
        self.channel.exchange_delete(exchange.as_str().into(), Default::default()).await.unwrap();
        self.connection.close(200, "".into()).await.unwrap();
    }
}

/// A question whose answer is drawn: its seed decides.
fn question(n: usize) -> Vec<u8> {
    let body = json!({"prompt": format!("{n} and"), "max_tokens": 60, "temperature": 1, "ignore_eos": true});
    body.to_string().into_bytes()
}

fn ends_well(mut process: Process) -> String {
    process.terminate();
    let status = process.wait(PATIENCE);
    assert!(status.is_some_and(|status| status.success()), "{}", process.log());
    process.log()
}

#[tokio::test]
async fn a_message_is_acknowledged_when_its_answer_is_confirmed_whoever_is_killed() {
    const MESSAGES: usize = 50;
    let temp = tempfile::tempdir().unwrap();
    let broker = Broker::new().await;
    broker.bind().await;
    for n in 0..MESSAGES {
        broker.ask(&format!("m-{n}"), &question(n)).await;
    }
    broker.ask("poison", b"not json").await;
    broker.ask("long", format!("{{\"prompt\": \"{}\"}}", "x".repeat(1_100_000)).as_bytes()).await;
    let mut answers = BTreeMap::new();

    let killed = broker.run(temp.path());
    broker.wait_for_answers(10, &killed).await;
    killed.kill();
    let left = broker.left().await as usize;
    assert!(left > 0, "it was killed in the middle");
    broker.take_answers(&mut answers).await;
    let answered = answers.len();
    assert!(answered >= MESSAGES + 2 - left, "{left} of {} are left, and {answered} have an answer", MESSAGES + 2);

    let process = broker.run(temp.path());
    broker.wait_for_answers(left as u32, &process).await;
    let said = ends_well(process);
    assert!(said.contains("stopped: "), "{said}");
    assert_eq!(broker.left().await, 0, "all is acknowledged");
    broker.take_answers(&mut answers).await;
    let twice = answers.values().filter(|(_, times)| *times > 1).count();
    println!("{answered} answered before the kill, {left} left; {twice} answered twice");
    assert_eq!(answers.len(), MESSAGES + 2);
    for n in 0..MESSAGES {
        assert_eq!(answers[&format!("m-{n}")].0[0][1], 200, "{:?}", answers[&format!("m-{n}")]);
    }
    for id in ["poison", "long"] {
        assert_eq!(answers[id].0[0][4], "invalid_json_line", "{:?}", answers[id]);
    }
    broker.remove().await;
}

#[tokio::test]
async fn without_a_queue_for_the_answers_nothing_is_acknowledged() {
    let temp = tempfile::tempdir().unwrap();
    let broker = Broker::new().await;
    for n in 0..5 {
        broker.ask(&format!("m-{n}"), &question(n)).await;
    }
    let waits = |process: &mut Process, what: &str| {
        let begin = Instant::now();
        while !process.log().contains(what) {
            assert!(process.is_running() && begin.elapsed() < PATIENCE, "{}", process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut killed = broker.run(temp.path());
    waits(&mut killed, "no queue is bound");
    killed.kill();
    assert_eq!(broker.left().await, 5, "nothing was acknowledged");

    let mut process = broker.run(temp.path());
    waits(&mut process, "no queue is bound");
    broker.bind().await;
    broker.wait_for_answers(5, &process).await;
    ends_well(process);
    assert_eq!(broker.left().await, 0);
    let mut answers = BTreeMap::new();
    broker.take_answers(&mut answers).await;
    assert_eq!(answers.len(), 5);
    assert!(answers.values().all(|(_, times)| *times == 1), "{answers:?}");
    broker.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_costs_no_message_and_the_file_has_every_answer() {
    const MESSAGES: usize = 40;
    let temp = tempfile::tempdir().unwrap();
    let broker = Broker::new().await;
    broker.bind().await;
    for n in 0..MESSAGES {
        broker.ask(&format!("m-{n}"), &question(n)).await;
    }
    let proxies = Proxies::to(&Services::shared()).await;
    let output = temp.path().join("answers.jsonl");
    let questions = broker.questions();
    let mut command = embedded(temp.path(), &["--from-queue", &questions, "-o", output.to_str().unwrap()]);
    // The store is made anew on the way, too.
    command.args(["--concurrency", "4", "--store-lines", "15"]).env("PENSTOCK_QUEUE__URL", proxies.way(&broker.url));
    let process = Process::spawn(command);
    let answers = || {
        let text = std::fs::read_to_string(&output).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |at| &text[..at]);
        let mut answers: BTreeMap<String, Value> = BTreeMap::new();
        for answer in whole.lines().map(|line| essence(&serde_json::from_str(line).unwrap())) {
            let earlier = answers.entry(answer[0].as_str().unwrap().to_owned()).or_insert_with(|| answer.clone());
            assert_eq!(*earlier, answer, "a repeat says the same");
        }
        answers
    };
    let wait_for = async |n: usize| {
        let begin = Instant::now();
        while answers().len() < n {
            assert!(begin.elapsed() < PATIENCE, "{n} answers did not come:\n{}", process.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    for n in [5, 20] {
        wait_for(n).await;
        proxies.queue.cut();
    }
    wait_for(MESSAGES).await;
    let said = ends_well(process);
    assert!(said.contains("the connection to the queue was lost"), "{said}");
    assert_eq!(broker.left().await, 0);
    assert!(answers().values().all(|answer| answer[1] == 200), "{:?}", answers());
    assert_eq!(left_in(temp.path()), [output], "no temporary folder is left");
    broker.remove().await;
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let broker = Broker::new().await;
    broker.bind().await;
    let questions = broker.questions();
    let fails = |arguments: &[&str], url: Option<&str>, says: &str| {
        let mut command = embedded(temp.path(), arguments);
        command.stdin(Stdio::null()).envs(url.map(|url| ("PENSTOCK_FOLLOW__AMQP", url)));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{arguments:?}: {said}");
    };
    fails(&["--from-queue", "no-such-queue"], Some(&broker.url), "no queue `no-such-queue`");
    let flags = ["--from-queue", &questions, "--to-exchange", "no-such-exchange"];
    fails(&flags, Some(&broker.url), "no exchange `no-such-exchange`");
    fails(&["--from-queue", &questions], None, "PENSTOCK_FOLLOW__AMQP");
    fails(&["--from-queue", &questions], Some("http://127.0.0.1"), "amqp://");
    fails(&["questions.jsonl"], None, "tail -n +1 -F questions.jsonl");
    fails(&["--overwrite"], None, "--overwrite");
    broker.remove().await;
}
