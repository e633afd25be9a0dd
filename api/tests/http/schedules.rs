//! Schedules: made, changed, run on demand, and what is said of them. The test plays the scheduler through its port.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use contract::{AdminStore, BatchId, FileId, NewFile, Purpose, ScheduleId, ScheduleStore, TenantId, Timestamp};
use serde_json::{Value, json};

use crate::files::{FILES, delete, ids, members, refused, uploaded};
use crate::support::{Answer, World};

const SCHEDULES: &str = "/v1/schedules";
const LINES: &[u8] = b"{\"custom_id\": \"a\"}\n";
const DAY_MS: i64 = 24 * 3_600 * 1_000;

fn asked(input: &str) -> Value {
    json!({"name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "batch": {"input_file_id": input,
        "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"team": "a"}}})
}

async fn made(world: &World, body: &Value) -> Value {
    let answer = world.post(SCHEDULES, body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
    answer.json()
}

fn path(schedule: &Value) -> String {
    format!("{SCHEDULES}/{}", schedule["id"].as_str().unwrap())
}

async fn run(world: &World, schedule: &Value, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::post(format!("{}/run", path(schedule)));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    world.call(request.body(Body::empty()).unwrap()).await
}

/// Does what is due, as a scheduler does.
async fn fire(world: &World) -> usize {
    let due = world.store.due_schedules(100).await.unwrap();
    for (id, at) in &due {
        world.store.fire_schedule(id, *at, BatchId::new()).await.unwrap();
    }
    due.len()
}

#[tokio::test]
async fn a_schedule_is_made_shown_changed_and_deleted() {
    let world = World::new().await;
    let file = uploaded(&world, LINES).await;
    let keyed = async |body: &Value| world.post_with(SCHEDULES, &[("idempotency-key", "k")], body).await;
    let first = keyed(&asked(&file)).await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (StatusCode::CREATED, None), "{}", first.text);
    let schedule = first.json();
    let expected = [
        "id",
        "object",
        "name",
        "cron",
        "timezone",
        "batch",
        "enabled",
        "overlap",
        "catch_up",
        "created_at",
        "next_at",
        "last_at",
        "last_batch_id",
        "last_error",
        "runs",
        "skipped",
    ];
    assert_eq!(members(&schedule), expected.into());
    assert!(schedule["id"].as_str().unwrap().starts_with("schedule_"), "{schedule}");
    assert_eq!(
        (&schedule["enabled"], &schedule["overlap"], &schedule["catch_up"]),
        (&json!(true), &json!("skip"), &json!("one"))
    );
    let next = Timestamp::parse_rfc3339(schedule["next_at"].as_str().unwrap()).unwrap();
    let created = Timestamp::parse_rfc3339(schedule["created_at"].as_str().unwrap()).unwrap();
    assert!(next > created && next.0 - created.0 <= DAY_MS + 3_600_000, "{schedule}");
    // 03:00 in Berlin is 01:00 UTC in summer and 02:00 in winter.
    assert!([1, 2].contains(&(next.0 / 3_600_000 % 24)) && next.0 % 3_600_000 == 0, "{schedule}");
    let batch = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h",
        "metadata": {"team": "a"}, "output_expires_after": null, "keep_seconds": null, "webhook": null});
    assert_eq!(schedule["batch"], batch);
    // What is shown can be sent again.
    let mut again = asked(&file);
    again["batch"] = schedule["batch"].clone();
    assert_eq!(made(&world, &again).await["batch"], batch);

    let repeat = keyed(&asked(&file)).await;
    assert_eq!((repeat.header("idempotency-replayed"), repeat.json()), (Some("true"), schedule.clone()));
    assert_eq!(refused(&keyed(&json!({"name": "x"})).await, 400).1.as_deref(), Some("cron"));
    let mut other = asked(&file);
    other["cron"] = json!("@daily");
    assert_eq!(refused(&keyed(&other).await, 422).0, "idempotency_key_reused");
    assert_eq!(world.get(&path(&schedule)).await.json(), schedule);

    let change = json!({"name": "weekly", "cron": "0 3 * * SUN", "overlap": "allow", "catch_up": "none",
        "enabled": false});
    let changed = world.post(&path(&schedule), &change).await;
    assert_eq!(changed.status, StatusCode::OK, "{}", changed.text);
    let changed = changed.json();
    for (field, value) in change.as_object().unwrap() {
        assert_eq!(&changed[field], value, "{field}");
    }
    assert_eq!((&changed["next_at"], &changed["batch"]), (&Value::Null, &batch));
    assert_eq!(world.get(&path(&schedule)).await.json(), changed);
    assert!(world.post(&path(&schedule), &json!({"enabled": true})).await.json()["next_at"].is_string());

    let deleted = delete(&world, &path(&schedule)).await;
    assert_eq!((deleted.status, deleted.json()["deleted"].clone()), (StatusCode::OK, json!(true)));
    let nobody = ScheduleId::new().to_string();
    for gone in [schedule["id"].as_str().unwrap(), &nobody, "schedule_1", "%FF", &"x".repeat(5_000)] {
        let gone = format!("{SCHEDULES}/{gone}");
        let bare = |request: axum::http::request::Builder| world.call(request.body(Body::empty()).unwrap());
        for answer in [
            world.get(&gone).await,
            world.post(&gone, &json!({})).await,
            delete(&world, &gone).await,
            bare(Request::post(format!("{gone}/run"))).await,
            world.get(&format!("{gone}/runs")).await,
        ] {
            assert_eq!(refused(&answer, 404).0, "schedule_not_found", "{gone}");
            assert!(answer.text.len() < 1_000, "what is shown of an id has its limits");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_and_leaves_nothing() {
    let world = World::new().await;
    let good = asked(&uploaded(&world, LINES).await);
    let output = NewFile {
        id: FileId::new(),
        tenant: TenantId::local(),
        filename: "o".into(),
        purpose: Purpose::BatchOutput,
        bytes: 1,
        expires_in: None,
        idempotency: None,
    };
    world.store.add_file(&output).await.unwrap().unwrap();
    let cases = [
        ("/cron", json!("*/5 * * * * *"), "cron", "seconds"),
        ("/cron", json!("0 3 * *"), "cron", "five"),
        ("/cron", json!("0 0 30 2 *"), "cron", "ever comes"),
        ("/cron", json!("@reboot"), "cron", "@daily"),
        ("/timezone", json!("Berlin"), "timezone", "Europe/Berlin"),
        ("/name", json!(""), "name", "1 to 200"),
        ("/overlap", json!("queue"), "overlap", "skip and allow"),
        ("/batch/endpoint", json!("/v1/images/generations"), "batch.endpoint", "/v1/completions"),
        ("/batch/run_after", json!(1), "batch.run_after", "leave it out"),
        ("/batch/input_file_id", json!(FileId::new().to_string()), "batch.input_file_id", "POST /v1/files"),
        ("/batch/input_file_id", json!(output.id.to_string()), "batch.input_file_id", "purpose batch"),
        ("/batch/webhook", json!({"url": "https://127.0.0.1/"}), "batch.webhook.url", "cannot be called"),
    ];
    for (pointer, value, param, fix) in cases {
        let mut body = good.clone();
        let (at, name) = pointer.rsplit_once('/').unwrap();
        body.pointer_mut(at).unwrap()[name] = value;
        let answer = world.post(SCHEDULES, &body).await;
        assert_eq!(refused(&answer, 400).1.as_deref(), Some(param), "{body}");
        assert!(answer.text.contains(fix), "{fix}: {}", answer.text);
    }
    assert_eq!(world.get(SCHEDULES).await.json()["data"], json!([]));
    // Where it is changed, just the same.
    let schedule = made(&world, &good).await;
    for (change, param) in [
        (json!({"cron": "x"}), "cron"),
        (json!({"timezone": 1}), "timezone"),
        (json!({"batch": {}}), "batch.input_file_id"),
        (json!({"next_at": "2026-01-01T00:00:00Z"}), "next_at"),
    ] {
        assert_eq!(refused(&world.post(&path(&schedule), &change).await, 400).1.as_deref(), Some(param));
    }
    let mut batch = good["batch"].clone();
    batch["input_file_id"] = json!(output.id.to_string());
    let answer = world.post(&path(&schedule), &json!({"batch": batch})).await;
    assert_eq!(refused(&answer, 400).1.as_deref(), Some("batch.input_file_id"));
    assert_eq!(world.get(&path(&schedule)).await.json(), schedule);
    for (query, param) in [("limit=0", "limit"), ("limit=101", "limit"), ("after=x", "after"), ("order=asc", "order")] {
        for list in [SCHEDULES.to_owned(), format!("{}/runs", path(&schedule))] {
            let answer = world.get(&format!("{list}?{query}")).await;
            assert_eq!(refused(&answer, 400).1.as_deref(), Some(param), "{list} {query}");
        }
    }
}

#[tokio::test]
async fn a_hundred_are_the_most_and_they_are_listed_in_pages() {
    let world = World::new().await;
    let body = asked(&uploaded(&world, LINES).await);
    let mut newest_first = Vec::new();
    for _ in 0..100 {
        newest_first.insert(0, made(&world, &body).await["id"].as_str().unwrap().to_owned());
    }
    let answer = world.post(SCHEDULES, &body).await;
    assert_eq!(refused(&answer, 400).0, "invalid_value");
    assert!(answer.text.contains("at most 100"), "{}", answer.text);
    let page = world.get(SCHEDULES).await.json();
    assert_eq!((ids(&page).len(), &page["has_more"]), (20, &json!(true)));
    let (mut seen, mut after) = (Vec::new(), String::new());
    for has_more in [true, true, false] {
        let list = world.get(&format!("{SCHEDULES}?limit=40{after}")).await.json();
        assert_eq!((&list["has_more"], &list["first_id"]), (&json!(has_more), &list["data"][0]["id"]));
        seen.extend(ids(&list).into_iter().map(str::to_owned));
        after = format!("&after={}", list["last_id"].as_str().unwrap());
    }
    assert_eq!(seen, newest_first);
}

#[tokio::test]
async fn runs_are_batches_that_name_their_schedule() {
    let world = World::new().await;
    let file = uploaded(&world, LINES).await;
    let schedule = made(&world, &asked(&file)).await;
    let first = run(&world, &schedule, &[("idempotency-key", "r")]).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.text);
    let batch = first.json();
    assert_eq!((&batch["schedule_id"], &batch["input_file_id"]), (&schedule["id"], &json!(file)));
    assert_eq!((&batch["status"], &batch["metadata"]), (&json!("validating"), &json!({"team": "a"})));
    let repeat = run(&world, &schedule, &[("idempotency-key", "r")]).await;
    assert_eq!((repeat.header("idempotency-replayed"), repeat.json()), (Some("true"), batch.clone()));
    let id = batch["id"].as_str().unwrap();
    assert_eq!(world.get(&format!("/v1/batches/{id}")).await.json(), batch);

    // Its time comes while that one has not ended, and comes again when it has.
    world.ahead.store(DAY_MS + 3_600_000, Ordering::Relaxed);
    assert_eq!(fire(&world).await, 1);
    let shown = world.get(&path(&schedule)).await.json();
    assert_eq!((&shown["runs"], &shown["skipped"], &shown["last_batch_id"]), (&json!(1), &json!(1), &json!(id)));
    assert!(world.store.fail_batch(&id.parse().unwrap(), &[]).await.unwrap());
    world.ahead.store(2 * (DAY_MS + 3_600_000), Ordering::Relaxed);
    assert_eq!(fire(&world).await, 1);
    let shown = world.get(&path(&schedule)).await.json();
    assert_eq!((&shown["runs"], &shown["skipped"]), (&json!(2), &json!(1)));
    let runs = world.get(&format!("{}/runs", path(&schedule))).await.json();
    assert_eq!(ids(&runs), [shown["last_batch_id"].as_str().unwrap(), id]);
    let newest = world.get(&format!("{}/runs?limit=1", path(&schedule))).await.json();
    assert_eq!((ids(&newest)[0], &newest["has_more"]), (ids(&runs)[0], &json!(true)));
    let rest = world.get(&format!("{}/runs?after={}", path(&schedule), ids(&runs)[0])).await.json();
    assert_eq!((ids(&rest), &rest["has_more"]), (vec![id], &json!(false)));

    // A batch of one's own has no such member.
    let own = world.post("/v1/batches", &schedule["batch"]).await;
    assert_eq!((own.status, own.json().get("schedule_id").cloned()), (StatusCode::OK, None), "{}", own.text);
}

#[tokio::test]
async fn a_file_in_use_cannot_be_deleted_and_a_file_that_is_gone_is_told() {
    let world = World::new().await;
    let file = uploaded(&world, LINES).await;
    let schedule = made(&world, &asked(&file)).await;
    let answer = delete(&world, &format!("{FILES}/{file}")).await;
    assert_eq!(refused(&answer, 409).0, "file_in_use");
    assert!(answer.text.contains("schedule"), "{}", answer.text);
    // Its bytes are lost all the same.
    world.store.files_emptied(&[file.parse().unwrap()]).await.unwrap();
    world.ahead.store(DAY_MS + 3_600_000, Ordering::Relaxed);
    assert_eq!(fire(&world).await, 1);
    let shown = world.get(&path(&schedule)).await.json();
    assert!(shown["last_error"].as_str().unwrap().contains(&file), "{shown}");
    assert_eq!((&shown["runs"], &shown["enabled"]), (&json!(0), &json!(true)));
    let answer = run(&world, &schedule, &[]).await;
    assert_eq!(refused(&answer, 409).0, "schedule_file_gone");
    world.post(&path(&schedule), &json!({"enabled": false})).await;
    let answer = world.post(&path(&schedule), &json!({"enabled": true})).await;
    assert_eq!(refused(&answer, 409).0, "schedule_file_gone");
    assert_eq!(delete(&world, &format!("{FILES}/{file}")).await.status, StatusCode::OK);

    let mut batch = schedule["batch"].clone();
    batch["input_file_id"] = json!(uploaded(&world, LINES).await);
    let changed = world.post(&path(&schedule), &json!({"enabled": true, "batch": batch})).await.json();
    assert_eq!((&changed["enabled"], &changed["batch"]), (&json!(true), &batch));
    assert_eq!(run(&world, &schedule, &[]).await.status, StatusCode::OK);
    assert_eq!(world.get(&path(&schedule)).await.json()["last_error"], Value::Null);
}
