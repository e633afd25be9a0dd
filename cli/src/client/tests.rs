//! The client commands against a server that plays the native routes' shapes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use serde_json::{Value, json};

use super::job::JobView;
use super::server::{Server, ServerError};
use super::{ClientCommand, cancel, list, submit, wait};
use crate::config::{self, Client};

#[derive(Debug, Parser)]
struct Typed {
    #[command(subcommand)]
    command: ClientCommand,
}

fn typed(arguments: &[&str]) -> Result<ClientCommand, String> {
    let typed = Typed::try_parse_from(std::iter::once(&"penstock").chain(arguments));
    typed.map(|typed| typed.command).map_err(|error| error.to_string())
}

/// The body that a `submit` with these arguments sends.
fn body(arguments: &[&str], file: Option<Value>) -> Result<Value, String> {
    let ClientCommand::Submit(args) = typed(&[&["submit"], arguments].concat())? else { panic!("not a submit") };
    submit::job_body(&args, file).map_err(|error| error.to_string())
}

#[derive(Clone, Default)]
struct Play {
    /// Method, path with query, authorization.
    seen: Arc<Mutex<Vec<String>>>,
    /// States of the job, one per look; the last one stays.
    states: Arc<Mutex<Vec<&'static str>>>,
}

fn job(id: &str, status: &str) -> Value {
    let result =
        (status == "succeeded").then(|| json!({"choices": [{"message": {"role": "assistant", "content": "Hello."}}]}));
    json!({"id": id, "object": "job", "status": status, "class": "standard", "result": result, "error": null})
}

fn refuse(status: u16, error: Value) -> Response {
    (StatusCode::from_u16(status).unwrap(), [("retry-after", "7")], Json(json!({"error": error}))).into_response()
}

async fn show(
    State(play): State<Play>,
    Path(id): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    play.seen.lock().unwrap().push(format!("GET {id} {query:?}"));
    if id != "job_1" {
        return refuse(
            404,
            json!({"message": format!("no job {id}"), "type": "invalid_request_error", "code": "job_not_found", "param": null}),
        );
    }
    let mut states = play.states.lock().unwrap();
    let state = if states.len() > 1 { states.remove(0) } else { states[0] };
    Json(job(&id, state)).into_response()
}

async fn accept(State(play): State<Play>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    play.seen.lock().unwrap().push(format!("POST {:?}", headers.get("authorization")));
    match body["request"]["model"].as_str() {
        Some("full") => refuse(
            429,
            json!({"message": "the queue is full", "type": "rate_limit_error", "code": "queue_full", "param": null}),
        ),
        Some("hot") => refuse(
            400,
            json!({"message": "must be at most 2", "type": "invalid_request_error", "code": "invalid_value", "param": "request.temperature"}),
        ),
        _ => (StatusCode::ACCEPTED, Json(job("job_1", "queued"))).into_response(),
    }
}

/// 250 jobs, `job_249` first, in pages of at most 100.
async fn page(Query(query): Query<std::collections::HashMap<String, String>>) -> Json<Value> {
    let first = query.get("after").map_or(249, |id| id["job_".len()..].parse::<i32>().unwrap() - 1);
    let limit = query["limit"].parse::<i32>().unwrap().min(100);
    let last = (first - limit + 1).max(0);
    let data: Vec<_> = (last..=first)
        .rev()
        .map(|n| job(&format!("job_{n}"), query.get("status").map_or("queued", String::as_str)))
        .collect();
    Json(json!({"object": "list", "data": data, "has_more": last > 0, "last_id": format!("job_{last}")}))
}

async fn server(play: &Play) -> Server {
    let app = Router::new()
        .route("/base/v1/jobs", post(accept).get(page))
        .route("/base/v1/jobs/{id}", get(show))
        .route("/base/v1/jobs/{id}/cancel", post(|Path(id): Path<String>| async move { Json(job(&id, "cancelled")) }))
        .route("/base/v1/models", get(|| async { Json(json!({"data": [{"id": "the-model"}]})) }))
        .fallback(|| async { "a page" })
        .with_state(play.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    at(&format!("http://{address}/base"))
}

fn at(address: &str) -> Server {
    let flags = super::ServerArgs { server: Some(address.to_owned()), api_key: Some("sk-1".to_owned()) }.flags();
    Server::new(&client(flags)).unwrap()
}

fn client(flags: config::Flags) -> Client {
    config::load_from(None, std::iter::empty(), flags).unwrap().config.client
}

#[test]
fn flags_become_the_body_of_a_job() {
    let arguments = [
        "--chat",
        "Hi",
        "--model",
        "m",
        "--class",
        "bulk",
        "--deadline-seconds",
        "60",
        "--max-tokens",
        "5",
        "--temperature",
        "0.5",
        "--seed",
        "-3",
        "--metadata",
        "a=b=c",
        "--metadata",
        "d=",
        "--sequence-key",
        "k",
        "--on-failure",
        "block",
    ];
    let expected = json!({
        "type": "chat",
        "request": {"messages": [{"role": "user", "content": "Hi"}], "model": "m", "max_tokens": 5, "temperature": 0.5, "seed": -3},
        "class": "bulk", "deadline_seconds": 60, "metadata": {"a": "b=c", "d": ""},
        "sequence_key": "k", "on_failure": "block",
    });
    assert_eq!(body(&arguments, None).unwrap(), expected);
    assert_eq!(body(&["--prompt", "x"], None).unwrap(), json!({"type": "completion", "request": {"prompt": "x"}}));
}

#[test]
fn files_may_hold_an_openai_body_or_a_job_and_flags_win() {
    let from = |file: Value| body(&["--file", "f", "--max-tokens", "1"], Some(file));
    let chat = from(json!({"messages": [], "max_completion_tokens": 9, "top_p": 0.5})).unwrap();
    assert_eq!(chat, json!({"type": "chat", "request": {"messages": [], "top_p": 0.5, "max_tokens": 1}}));
    let whole = from(json!({"type": "completion", "request": {"prompt": "x"}, "class": "bulk"})).unwrap();
    assert_eq!(whole, json!({"type": "completion", "request": {"prompt": "x", "max_tokens": 1}, "class": "bulk"}));
    let not_stored = json!({"prompt": "x", "store": false});
    let kept = body(&["--file", "f", "--keep-seconds", "60"], Some(not_stored)).unwrap();
    assert_eq!(kept, json!({"type": "completion", "request": {"prompt": "x"}, "keep_seconds": 60}));
    let job = json!({"type": "completion", "request": {"prompt": "x"}, "keep_seconds": 60});
    let unkept = body(&["--file", "f", "--no-store"], Some(job)).unwrap();
    assert_eq!(unkept, json!({"type": "completion", "request": {"prompt": "x"}, "store": false}));
    assert!(from(json!({"input": "x"})).unwrap_err().contains("neither `messages` nor `prompt`"));
    assert!(from(json!([1])).unwrap_err().contains("neither"));
    assert!(from(json!({"request": 3})).unwrap_err().contains("`request` of the body is not an object"));
}

#[test]
fn a_submit_needs_exactly_one_input_and_well_formed_pairs() {
    for arguments in [
        &["submit"] as &[_],
        &["submit", "--chat", "a", "--prompt", "b"],
        &["submit", "--chat", "a", "--metadata", "x"],
        &["submit", "--chat", "a", "--class", "urgent"],
        &["submit", "--chat", "a", "--no-store", "--keep-seconds", "60"],
    ] {
        assert!(typed(arguments).is_err(), "{arguments:?}");
    }
    let ClientCommand::Submit(args) = typed(&["submit", "--chat", "a", "--wait"]).unwrap() else {
        panic!("not a submit")
    };
    assert_eq!(args.wait, Some(None));
    let ClientCommand::Submit(args) = typed(&["submit", "--chat", "a", "--wait=5"]).unwrap() else {
        panic!("not a submit")
    };
    assert_eq!(args.wait, Some(Some(5)));
}

#[tokio::test]
async fn the_key_is_sent_as_bearer_and_the_servers_model_is_taken() {
    let play = Play::default();
    let server = server(&play).await;
    assert_eq!(submit::only_model(&server).await.unwrap(), "the-model");
    let answer = server.post(&["v1", "jobs"], Some(&json!({"request": {}}))).await.unwrap();
    assert_eq!(answer["id"], "job_1");
    assert_eq!(*play.seen.lock().unwrap(), [r#"POST Some("Bearer sk-1")"#]);
}

#[tokio::test]
async fn waiting_looks_at_once_then_polls_until_the_end() {
    let play = Play::default();
    *play.states.lock().unwrap() = vec!["queued", "running", "succeeded"];
    let ended = wait::until_ended(&server(&play).await, "job_1", None).await.unwrap();
    assert_eq!((ended.status(), ended.result_text().as_str()), ("succeeded", "Hello.\n"));
    let waits = [r#"GET job_1 []"#, r#"GET job_1 [("wait", "30")]"#, r#"GET job_1 [("wait", "30")]"#];
    assert_eq!(*play.seen.lock().unwrap(), waits);
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_the_job_as_it_is() {
    let play = Play::default();
    *play.states.lock().unwrap() = vec!["queued"];
    let begun = Instant::now();
    let job = wait::until_ended(&server(&play).await, "job_1", Some(Duration::from_millis(300))).await.unwrap();
    assert!(!job.has_ended() && begun.elapsed() < Duration::from_secs(2));
    assert_eq!(wait::report(&job, false).unwrap(), std::process::ExitCode::from(124));
}

#[tokio::test]
async fn lists_are_fetched_page_by_page_up_to_the_limit() {
    let server = server(&Play::default()).await;
    for (limit, n, has_more) in [("5", 5, true), ("220", 220, true), ("250", 250, false), ("900", 250, false)] {
        let ClientCommand::List(args) = typed(&["list", "--limit", limit, "--state", "failed"]).unwrap() else {
            panic!("not a list")
        };
        let found = list::find(&args, &server).await.unwrap();
        assert_eq!((found.jobs.len(), found.has_more), (n, has_more), "{limit}");
        let expected: Vec<_> = (250 - n..250).rev().map(|n| format!("job_{n}")).collect();
        assert!(found.jobs.iter().map(JobView::id).eq(expected.iter().map(String::as_str)));
        assert!(found.jobs.iter().all(|job| job.status() == "failed"));
    }
    assert_eq!(cancel::cancel(&server, "job_1").await.unwrap().status(), "cancelled");
}

#[tokio::test]
async fn refusals_say_what_where_and_what_next() {
    let server = server(&Play::default()).await;
    let refused = async |model: &str| {
        server.post(&["v1", "jobs"], Some(&json!({"request": {"model": model}}))).await.unwrap_err().to_string()
    };
    assert_eq!(refused("full").await, "the server refused (429, queue_full): the queue is full\ntry again in 7 s");
    assert_eq!(
        refused("hot").await,
        "the server refused (400, invalid_value): must be at most 2 (field request.temperature)"
    );
    let missing = JobView::fetch(&server, "../odd id", None).await.unwrap_err().to_string();
    assert_eq!(
        missing,
        "the server refused (404, job_not_found): no job ../odd id\n`penstock list` shows the jobs there are"
    );
    let foreign = server.get(&["elsewhere"], &[]).await.unwrap_err().to_string();
    assert!(foreign.contains("is it a Penstock server?"), "{foreign}");
}

#[tokio::test]
async fn without_a_server_the_message_says_how_to_start_one() {
    let error = JobView::fetch(&at("http://127.0.0.1:1"), "job_1", None).await.unwrap_err();
    assert!(matches!(error, ServerError::Unreachable { .. }));
    let message = error.to_string();
    assert!(
        message.starts_with("no server answers at http://127.0.0.1:1 (") && message.contains("`penstock serve`"),
        "{message}"
    );
    for wrong in ["127.0.0.1:8080", "ftp://x", "", "http://"] {
        let settings = client(super::ServerArgs { server: Some(wrong.to_owned()), api_key: None }.flags());
        assert!(Server::new(&settings).unwrap_err().to_string().contains("is no address of a server"), "{wrong}");
    }
}

#[test]
fn states_and_results_that_are_not_known_yet_pass_through() {
    let view = |value| JobView(value);
    assert!(!view(json!({"id": "j", "status": "paused"})).has_ended());
    assert!(view(json!({"id": "j", "status": "archived", "finished_at": "2026-01-01T00:00:00Z"})).has_ended());
    let two = json!({"result": {"choices": [{"text": "a"}, {"text": "b\n"}]}});
    assert_eq!(view(two).result_text(), "a\nb\n");
    assert_eq!(view(json!({"result": {"data": []}})).result_text(), "{\n  \"data\": []\n}\n");
    let failed = json!({"error": {"code": "quarantined", "message": "three workers died under it"}});
    assert_eq!(view(failed).error().unwrap(), "quarantined: three workers died under it");
}
