//! Batches: accepted, listed, cancelled, and what is said of them. The test plays the scheduler through its port.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use contract::{
    AdminStore, BatchEnd, BatchError, BatchId, BatchState, Cursor, FileId, JobId, NewFile, Purpose, RefusedLine,
    TenantId,
};
use object_store::ObjectStoreExt;
use serde_json::{Value, json};

use crate::files::{FILES, delete, ids, members, refused, uploaded};
use crate::support::{Answer, MODEL, World};

const BATCHES: &str = "/v1/batches";
const LINES: &[u8] = b"{\"custom_id\": \"a\"}\n{\"custom_id\": \"b\"}\n";

fn asked(input: &str) -> Value {
    json!({"input_file_id": input, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
}

fn with(body: &Value, field: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[field] = value;
    body
}

async fn made(world: &World, body: &Value) -> Value {
    let answer = world.post(BATCHES, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

/// Makes a batch over a new file.
async fn batch(world: &World) -> BatchId {
    id(&made(world, &asked(&uploaded(world, LINES).await)).await)
}

fn id(object: &Value) -> BatchId {
    object["id"].as_str().unwrap().parse().unwrap()
}

async fn shown(world: &World, batch: &BatchId) -> Value {
    let answer = world.get(&format!("{BATCHES}/{batch}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

async fn cancel(world: &World, batch: &BatchId) -> Answer {
    world.call(Request::post(format!("{BATCHES}/{batch}/cancel")).body(Body::empty()).unwrap()).await
}

fn end(state: BatchState) -> BatchEnd {
    BatchEnd { state, output: None, errors: None }
}

/// A file that is known to the store only.
fn known_file(tenant: TenantId, purpose: Purpose) -> NewFile {
    let filename = "errors.jsonl".to_owned();
    NewFile { id: FileId::new(), tenant, filename, purpose, bytes: 3, expires_in: None, idempotency: None }
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// Whether it is a time of this test.
fn is_now(at: &Value, from: i64) -> bool {
    at.as_i64().is_some_and(|at| (from..=now()).contains(&at))
}

/// <https://platform.openai.com/docs/api-reference/batch/object>, without `model`, which is there once it is known.
const MEMBERS: [&str; 21] = [
    "cancelled_at",
    "cancelling_at",
    "completed_at",
    "completion_window",
    "created_at",
    "endpoint",
    "error_file_id",
    "errors",
    "expired_at",
    "expires_at",
    "failed_at",
    "finalizing_at",
    "id",
    "in_progress_at",
    "input_file_id",
    "metadata",
    "object",
    "output_file_id",
    "request_counts",
    "status",
    "usage",
];

#[tokio::test]
async fn a_batch_is_accepted_and_looks_like_openais() {
    let world = World::new().await;
    let (from, input) = (now(), uploaded(&world, LINES).await);
    for endpoint in ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"] {
        let mut body = with(&asked(&input), "metadata", json!({"team": "a"}));
        body["endpoint"] = json!(endpoint);
        body["output_expires_after"] = json!({"anchor": "created_at", "seconds": 3_600});
        let object = made(&world, &body).await;
        assert_eq!(members(&object), MEMBERS.into());
        assert!(object["id"].as_str().unwrap().starts_with("batch_"), "{object}");
        for (name, expected) in [
            ("object", json!("batch")),
            ("status", json!("validating")),
            ("endpoint", json!(endpoint)),
            ("input_file_id", json!(input)),
            ("completion_window", json!("24h")),
            ("metadata", json!({"team": "a"})),
            ("request_counts", json!({"total": 0, "completed": 0, "failed": 0})),
            (
                "usage",
                json!({
                    "input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 0,
                    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0,
                }),
            ),
        ] {
            assert_eq!(object[name], expected, "{name}");
        }
        assert!(is_now(&object["created_at"], from), "{object}");
        let created = object["created_at"].as_i64().unwrap();
        assert_eq!(object["expires_at"].as_i64().unwrap() - created, 24 * 3_600);
        for later in [
            "errors",
            "output_file_id",
            "error_file_id",
            "in_progress_at",
            "finalizing_at",
            "completed_at",
            "failed_at",
            "expired_at",
            "cancelling_at",
            "cancelled_at",
        ] {
            assert_eq!(object[later], Value::Null, "{later}");
        }
        assert_eq!(shown(&world, &id(&object)).await, object);
    }
    // What may be null or left out is the same either way.
    for empty in [asked(&input), with(&asked(&input), "metadata", Value::Null)] {
        assert_eq!(made(&world, &empty).await["metadata"], Value::Null);
    }
}

#[tokio::test]
async fn wrong_fields_are_named_and_no_batch_is_made() {
    let world = World::new().await;
    let good = asked(&uploaded(&world, LINES).await);
    let nobody = FileId::new().to_string();
    let life = |anchor: Value, seconds: Value| json!({"anchor": anchor, "seconds": seconds});
    let many: Value = (0..17).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let long_key = "k".repeat(65);
    let long_key_param = format!("metadata.{}", &long_key[..64]);
    let (missing, invalid, kind) = ("missing_required_parameter", "invalid_value", "invalid_type");
    let (anchor, seconds) = ("output_expires_after.anchor", "output_expires_after.seconds");
    #[rustfmt::skip]
    let cases: Vec<(&str, Value, &str, &str)> = vec![
        ("input_file_id", Value::Null, missing, "input_file_id"),
        ("input_file_id", json!(17), kind, "input_file_id"),
        ("input_file_id", json!(""), invalid, "input_file_id"),
        ("input_file_id", json!("file-1"), invalid, "input_file_id"),
        ("input_file_id", json!(nobody), invalid, "input_file_id"),
        ("endpoint", Value::Null, missing, "endpoint"),
        ("endpoint", json!(["/v1/completions"]), kind, "endpoint"),
        ("endpoint", json!("/v1/embeddings"), invalid, "endpoint"),
        ("endpoint", json!("v1/completions"), invalid, "endpoint"),
        ("completion_window", Value::Null, missing, "completion_window"),
        ("completion_window", json!(24), kind, "completion_window"),
        ("metadata", json!([]), kind, "metadata"),
        ("metadata", json!({"a": 1}), kind, "metadata.a"),
        ("metadata", json!({"a": null}), kind, "metadata.a"),
        ("metadata", json!({"": "v"}), invalid, "metadata."),
        ("metadata", many, invalid, "metadata"),
        ("metadata", json!({long_key: "v"}), invalid, &long_key_param),
        ("metadata", json!({"a": "v".repeat(513)}), invalid, "metadata.a"),
        ("output_expires_after", json!(3_600), kind, "output_expires_after"),
        ("output_expires_after", json!({}), missing, anchor),
        ("output_expires_after", json!({"anchor": "created_at"}), missing, seconds),
        ("output_expires_after", life(json!("last_active_at"), json!(3_600)), invalid, anchor),
        ("output_expires_after", life(json!("created_at"), json!(3_599)), invalid, seconds),
        ("output_expires_after", life(json!("created_at"), json!(2_592_001)), invalid, seconds),
        ("output_expires_after", life(json!("created_at"), json!("3600")), kind, seconds),
        ("run_after", json!("soon"), kind, "run_after"),
        ("run_after", json!(-1), invalid, "run_after"),
        ("priority", json!(1), "unknown_parameter", "priority"),
    ];
    for (field, value, code, param) in cases {
        let body = with(&good, field, value);
        let answer = world.post(BATCHES, &body).await;
        assert_eq!(refused(&answer, 400), (code.to_owned(), Some(param.to_owned())), "{body}");
    }
    for no_object in [json!([good]), json!("x"), Value::Null] {
        assert_eq!(refused(&world.post(BATCHES, &no_object).await, 400).0, kind, "{no_object}");
    }
    let request = Request::post(BATCHES).header("content-type", "text/plain").body(Body::from(good.to_string()));
    assert_eq!(refused(&world.call(request.unwrap()).await, 415).0, "unsupported_media_type");
    let request = Request::post(BATCHES).header("content-type", "application/json").body(Body::from("{"));
    assert_eq!(refused(&world.call(request.unwrap()).await, 400).0, "invalid_json");
    assert_eq!(world.get(BATCHES).await.json()["data"], json!([]));
}

#[tokio::test]
async fn metadata_goes_up_to_its_limits() {
    let world = World::new().await;
    let mut metadata: serde_json::Map<_, _> = (0..15).map(|n| (format!("k{n}"), json!("v"))).collect();
    // Characters, and not bytes.
    metadata.insert("é".repeat(64), json!("é".repeat(512)));
    let body = with(&asked(&uploaded(&world, LINES).await), "metadata", metadata.clone().into());
    assert_eq!(made(&world, &body).await["metadata"], Value::from(metadata));
}

#[tokio::test]
async fn the_window_is_any_time_from_a_minute_to_thirty_days() {
    let world = World::new().await;
    let good = asked(&uploaded(&world, LINES).await);
    for (window, seconds) in
        [("1m", 60), ("90m", 5_400), ("1h", 3_600), ("24h", 86_400), ("720h", 2_592_000), ("30d", 2_592_000)]
    {
        let object = made(&world, &with(&good, "completion_window", json!(window))).await;
        assert_eq!(object["completion_window"], window);
        let (created, expires) = (object["created_at"].as_i64().unwrap(), object["expires_at"].as_i64().unwrap());
        assert_eq!(expires - created, seconds, "{window}");
    }
    for window in
        ["0m", "0d", "31d", "721h", "43201m", "24", "soon", "", "h", "-1h", "+1h", "1.5h", " 24h", "24 h", "24H", "60s"]
    {
        let answer = world.post(BATCHES, &with(&good, "completion_window", json!(window))).await;
        let expected = ("invalid_value".to_owned(), Some("completion_window".to_owned()));
        assert_eq!(refused(&answer, 400), expected, "{window}");
    }
    assert_eq!(ids(&world.get(BATCHES).await.json()).len(), 6);
}

#[tokio::test]
async fn only_a_file_of_ones_own_for_batches_that_lives_is_read() {
    let world = World::new().await;
    let foreign = known_file(TenantId::from("somebody else"), Purpose::Batch);
    let output = known_file(TenantId::local(), Purpose::BatchOutput);
    for file in [&foreign, &output] {
        world.store.add_file(file).await.unwrap().unwrap();
    }
    let (expired, deleted) = (uploaded(&world, LINES).await, uploaded(&world, LINES).await);
    assert_eq!(delete(&world, &format!("{FILES}/{deleted}")).await.status, StatusCode::OK);
    // Not a day before its end.
    world.ahead.store(29 * 24 * 3_600 * 1_000, Ordering::Relaxed);
    let fresh = uploaded(&world, LINES).await;
    made(&world, &asked(&expired)).await;
    world.ahead.store((30 * 24 * 3_600 + 1) * 1_000, Ordering::Relaxed);
    made(&world, &asked(&fresh)).await;
    for wrong in [foreign.id.to_string(), output.id.to_string(), expired, deleted] {
        let answer = world.post(BATCHES, &asked(&wrong)).await;
        let expected = ("invalid_value".to_owned(), Some("input_file_id".to_owned()));
        assert_eq!(refused(&answer, 400), expected, "{}", answer.text);
    }
    assert_eq!(ids(&world.get(BATCHES).await.json()).len(), 2);
}

#[tokio::test]
async fn a_repeat_with_the_same_key_gives_the_same_batch() {
    let world = World::new().await;
    let body = asked(&uploaded(&world, LINES).await);
    let keyed = async |key: &str, body: &Value| world.post_with(BATCHES, &[("idempotency-key", key)], body).await;
    let first = keyed("k", &body).await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (StatusCode::OK, None), "{}", first.text);
    let batch = id(&first.json());
    let repeat = keyed("k", &body).await;
    assert_eq!((repeat.status, repeat.header("idempotency-replayed")), (StatusCode::OK, Some("true")));
    assert_eq!(repeat.json(), first.json());
    // The same in other words, and as the batch is by now.
    assert!(world.store.begin_batch(&batch, MODEL, 2).await.unwrap());
    let fields = body.as_object().unwrap().iter().rev();
    let spaced: Vec<String> = fields.map(|(name, value)| format!(" {}  : {value} ", json!(name))).collect();
    let request = Request::post(BATCHES).header("content-type", "application/json").header("idempotency-key", "k");
    let repeat = world.call(request.body(Body::from(format!("{{{}}}", spaced.join(",")))).unwrap()).await;
    assert_eq!(repeat.header("idempotency-replayed"), Some("true"), "{}", repeat.text);
    assert_eq!(repeat.json(), shown(&world, &batch).await);
    assert_eq!(repeat.json()["status"], "in_progress");

    let other = with(&body, "completion_window", json!("1h"));
    assert_eq!(refused(&keyed("k", &other).await, 422).0, "idempotency_key_reused");
    assert_ne!(keyed("another", &body).await.json()["id"], first.json()["id"]);
    for bad in ["", &"k".repeat(256)] {
        assert_eq!(refused(&keyed(bad, &body).await, 400).0, "invalid_header");
    }
    // A refused one has used no key.
    assert_eq!(keyed("third", &with(&body, "completion_window", json!("soon"))).await.status.as_u16(), 400);
    assert_eq!(keyed("third", &body).await.status, StatusCode::OK);
    assert_eq!(ids(&world.get(BATCHES).await.json()).len(), 3);
}

#[tokio::test]
async fn batches_are_listed_in_pages_newest_first() {
    let world = World::new().await;
    let empty = world.get(BATCHES).await.json();
    assert_eq!(empty, json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false}));
    let body = asked(&uploaded(&world, LINES).await);
    let mut newest_first = Vec::new();
    for _ in 0..21 {
        newest_first.insert(0, made(&world, &body).await["id"].as_str().unwrap().to_owned());
    }
    // Twenty without a word.
    let page = world.get(BATCHES).await.json();
    assert_eq!(
        (ids(&page), &page["has_more"]),
        (newest_first[..20].iter().map(String::as_str).collect(), &json!(true))
    );
    assert_eq!(page["data"][0], shown(&world, &newest_first[0].parse().unwrap()).await);
    let all = world.get(&format!("{BATCHES}?limit=100")).await.json();
    assert_eq!((ids(&all).len(), &all["has_more"]), (21, &json!(false)));
    assert_eq!(ids(&world.get(&format!("{BATCHES}?limit=1")).await.json()), [newest_first[0].as_str()]);
    let (mut seen, mut after) = (Vec::new(), String::new());
    for (n, has_more) in [(8, true), (8, true), (5, false)] {
        let list = world.get(&format!("{BATCHES}?limit=8{after}")).await.json();
        assert_eq!((ids(&list).len(), &list["has_more"]), (n, &json!(has_more)));
        assert_eq!((&list["first_id"], &list["last_id"]), (&list["data"][0]["id"], &list["data"][n - 1]["id"]));
        seen.extend(ids(&list).into_iter().map(str::to_owned));
        after = format!("&after={}", list["last_id"].as_str().unwrap());
    }
    assert_eq!(seen, newest_first);
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("after=batch_1", "after"),
        ("after=file-00000000000000000000000000000000", "after"),
        ("order=asc", "order"),
    ] {
        let answer = world.get(&format!("{BATCHES}?{query}")).await;
        assert_eq!(refused(&answer, 400).1.as_deref(), Some(param), "{query}");
    }
}

#[tokio::test]
async fn cancelling_twice_is_cancelling_once() {
    let world = World::new().await;
    for has_begun in [false, true] {
        let (from, batch) = (now(), batch(&world).await);
        if has_begun {
            assert!(world.store.begin_batch(&batch, MODEL, 2).await.unwrap());
        }
        let first = cancel(&world, &batch).await;
        assert_eq!(first.status, StatusCode::OK, "{}", first.text);
        let object = first.json();
        assert_eq!((&object["status"], &object["cancelled_at"]), (&json!("cancelling"), &Value::Null));
        assert!(is_now(&object["cancelling_at"], from), "{object}");
        assert_eq!(cancel(&world, &batch).await.json(), object);
        assert_eq!(shown(&world, &batch).await, object);
        // Its last line has ended.
        let errors = has_begun.then(|| (known_file(TenantId::local(), Purpose::BatchOutput), 2));
        let end = BatchEnd { errors, ..end(BatchState::Cancelled) };
        assert!(world.store.end_batch(&batch, &end).await.unwrap().is_some());
        let again = cancel(&world, &batch).await;
        assert_eq!(again.status, StatusCode::OK, "{}", again.text);
        let object = again.json();
        assert_eq!(object["status"], "cancelled");
        assert!(is_now(&object["cancelled_at"], from) && is_now(&object["cancelling_at"], from), "{object}");
        // Lines that never ran failed.
        let n = if has_begun { 2 } else { 0 };
        assert_eq!(object["request_counts"], json!({"total": n, "completed": 0, "failed": n}));
        assert_eq!(object, shown(&world, &batch).await);
    }
}

#[tokio::test]
async fn what_has_ended_cannot_be_cancelled() {
    let world = World::new().await;
    let wrong = BatchError { code: "empty_file".into(), message: "empty".into(), param: None, line: None };
    let failed = batch(&world).await;
    assert!(world.store.fail_batch(&failed, &[wrong]).await.unwrap());
    let finalizing = batch(&world).await;
    assert!(world.store.begin_batch(&finalizing, MODEL, 0).await.unwrap());
    assert!(world.store.finalize_batch(&finalizing).await.unwrap());
    let mut all = vec![(failed, "failed"), (finalizing, "finalizing")];
    for (state, word) in [(BatchState::Expired, "expired"), (BatchState::Completed, "completed")] {
        let batch = batch(&world).await;
        assert!(world.store.begin_batch(&batch, MODEL, 0).await.unwrap());
        assert!(world.store.end_batch(&batch, &end(state)).await.unwrap().is_some());
        all.push((batch, word));
    }
    for (batch, word) in all {
        let before = shown(&world, &batch).await;
        assert_eq!(before["status"], word);
        let answer = cancel(&world, &batch).await;
        assert_eq!(refused(&answer, 409).0, "batch_already_ended", "{word}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        assert_eq!(shown(&world, &batch).await, before);
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_file_is_told_line_by_line() {
    let world = World::new().await;
    let (from, batch) = (now(), batch(&world).await);
    let errors =
        [("invalid_json_line", None, Some(2)), ("url_mismatch", Some("url"), Some(3)), ("empty_file", None, None)];
    let errors = errors.map(|(code, param, line)| BatchError {
        code: code.to_owned(),
        message: format!("{code} is wrong"),
        param: param.map(str::to_owned),
        line,
    });
    assert!(world.store.fail_batch(&batch, &errors).await.unwrap());
    let object = shown(&world, &batch).await;
    assert_eq!((&object["status"], &object["completed_at"]), (&json!("failed"), &Value::Null));
    assert!(is_now(&object["failed_at"], from), "{object}");
    let expected = json!({"object": "list", "data": [
        {"code": "invalid_json_line", "message": "invalid_json_line is wrong", "param": null, "line": 2},
        {"code": "url_mismatch", "message": "url_mismatch is wrong", "param": "url", "line": 3},
        {"code": "empty_file", "message": "empty_file is wrong", "param": null, "line": null},
    ]});
    assert_eq!(object["errors"], expected);
}

#[tokio::test]
async fn a_batch_without_results_completes_with_its_errors_only() {
    let world = World::new().await;
    let (from, batch) = (now(), batch(&world).await);
    assert!(world.store.begin_batch(&batch, MODEL, 2).await.unwrap());
    let object = shown(&world, &batch).await;
    assert_eq!((&object["status"], &object["model"]), (&json!("in_progress"), &json!(MODEL)));
    assert!(is_now(&object["in_progress_at"], from), "{object}");
    assert_eq!(object["request_counts"], json!({"total": 2, "completed": 0, "failed": 0}));
    let lines = [(0, "a"), (1, "b")].map(|(line, name)| RefusedLine {
        line,
        custom_id: name.to_owned(),
        status: 400,
        body: json!({"error": {"message": "no"}}),
    });
    let whole = Cursor { line: 2, offset: LINES.len() as u64 };
    assert!(world.store.batch_expanded(&batch, &lines, Cursor::default(), whole).await.unwrap());
    assert!(world.store.finalize_batch(&batch).await.unwrap());
    let object = shown(&world, &batch).await;
    assert_eq!((&object["status"], &object["error_file_id"]), (&json!("finalizing"), &Value::Null));
    assert!(is_now(&object["finalizing_at"], from), "{object}");
    let file = known_file(TenantId::local(), Purpose::BatchOutput);
    world.objects.put(&file.id.object_key().into(), "{}\n".into()).await.unwrap();
    let errors = Some((file.clone(), 2));
    let end = BatchEnd { errors, ..end(BatchState::Completed) };
    assert!(world.store.end_batch(&batch, &end).await.unwrap().is_some());

    let object = shown(&world, &batch).await;
    let mut expected = Vec::from(MEMBERS);
    expected.push("model");
    assert_eq!(members(&object), expected.into_iter().collect());
    assert_eq!((&object["status"], &object["output_file_id"]), (&json!("completed"), &Value::Null));
    assert_eq!(object["error_file_id"], file.id.to_string());
    assert!(is_now(&object["completed_at"], from), "{object}");
    assert_eq!(object["request_counts"], json!({"total": 2, "completed": 0, "failed": 2}));
    let content = world.get(&format!("{FILES}/{}/content", file.id)).await;
    assert_eq!((content.status, content.text.as_str()), (StatusCode::OK, "{}\n"));
    let listed = world.get(&format!("{FILES}?purpose=batch_output")).await.json();
    assert_eq!(ids(&listed), [file.id.to_string()]);
}

#[tokio::test]
async fn what_is_no_batch_is_a_404() {
    let world = World::new().await;
    let hex = "0".repeat(32);
    let file = uploaded(&world, LINES).await;
    let (nobody, job) = (BatchId::new().to_string(), JobId::new().to_string());
    let long = "x".repeat(5_000);
    for id in [&nobody, "batch_1", "batch_", &hex, &format!("batch-{hex}"), &job, &file, "%FF", "%00", &long] {
        for (method, rest) in [(Method::GET, ""), (Method::POST, "/cancel")] {
            let request = Request::builder().method(method).uri(format!("{BATCHES}/{id}{rest}"));
            let answer = world.call(request.body(Body::empty()).unwrap()).await;
            assert_eq!(refused(&answer, 404).0, "batch_not_found", "{id}{rest}");
            assert!(answer.text.len() < 1_000, "what is shown of an id has its limits");
        }
    }
}
