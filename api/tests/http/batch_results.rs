//! What a batch says while it runs: results, progress; and running again what failed. The test plays scheduler and worker.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use contract::{
    AdminStore, BatchEnd, BatchId, BatchState, Class, Cursor, JobStore, NewFile, NewJob, Purpose, RefusedLine, TenantId,
};
use serde_json::{Value, json};

use crate::files::{delete, members, uploaded};
use crate::support::{Answer, MODEL, World, model};

/// A batch in progress of five lines: jobs 0 to 3, and line 4 refused.
async fn batch(world: &World) -> (BatchId, Vec<NewJob>) {
    batch_kept(world, None).await
}

/// The same, whose lines are kept for so long.
async fn batch_kept(world: &World, keep: Option<std::time::Duration>) -> (BatchId, Vec<NewJob>) {
    let input = uploaded(world, b"{\"custom_id\": \"a\"}\n").await;
    let asked = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "2h",
        "metadata": {"k": "v"}});
    let made = world.post("/v1/batches", &asked).await;
    let id: BatchId = made.json()["id"].as_str().unwrap().parse().unwrap();
    let line = |line: u32| NewJob {
        id: contract::JobId::new(),
        tenant: TenantId::local(),
        release: model().release,
        route: MODEL.into(),
        class: Class::Bulk,
        bound: u64::MAX,
        tenant_bound: None,
        delay: std::time::Duration::ZERO,
        deadline_in: std::time::Duration::from_secs(60),
        seed: 1,
        request: contract::openai::parse_completion(&json!({"model": MODEL, "prompt": "Hi"})).unwrap().request,
        metadata: Default::default(),
        batch_line: Some((id.0, line)),
        custom_id: Some(format!("c{line}")),
        webhook: None,
        sequence_key: None,
        on_failure: contract::OnFailure::Skip,
        traceparent: None,
        idempotency: None,
        published_by_caller: false,
        trajectory: contract::TrajectoryMode::Full,
        keep,
    };
    let jobs: Vec<NewJob> = (0..4).map(line).collect();
    world.store.begin_batch(&id, MODEL, 5).await.unwrap();
    world.store.accept(&jobs).await.unwrap();
    let body = json!({"error": {"message": "no", "type": "invalid_request_error", "param": null, "code": "x"}});
    let refused = RefusedLine { line: 4, custom_id: "c4".into(), status: 400, body };
    let to = Cursor { line: 5, offset: 9 };
    assert!(world.store.batch_expanded(&id, &[refused], Cursor::default(), to).await.unwrap());
    (id, jobs)
}

/// Runs the next job of the batch.
async fn run_one(world: &World) -> contract::JobId {
    let leased = world.lease(Class::Bulk).await;
    world.succeed(&leased, &[(3, "Hel"), (4, "lo")]).await;
    leased.lease.job
}

async fn results(world: &World, batch: &BatchId, query: &str) -> (Answer, Vec<Value>) {
    let answer = world.get(&format!("/v1/batches/{batch}/results{query}")).await;
    let lines = match answer.status {
        StatusCode::OK => answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        _ => Vec::new(),
    };
    (answer, lines)
}

async fn resubmit(world: &World, batch: &BatchId) -> Answer {
    world.call(Request::post(format!("/v1/batches/{batch}/resubmit")).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn results_are_there_while_others_run() {
    let world = World::new().await;
    let (id, jobs) = batch(&world).await;
    let first = run_one(&world).await;
    world.store.cancel(&TenantId::local(), &jobs[2].id).await.unwrap();
    let (answer, lines) = results(&world, &id, "").await;
    assert_eq!(answer.header("content-type"), Some("application/jsonl"));
    assert_eq!(answer.header("penstock-batch-status"), Some("in_progress"));
    assert_eq!(answer.header("penstock-has-more"), Some("false"));
    let ids: Vec<&str> = lines.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c4", "c0", "c2"], "in the order in which they ended");
    assert!(lines.iter().all(|line| members(line) == ["id", "custom_id", "response", "error"].into()), "{lines:?}");
    assert_eq!((&lines[0]["id"], &lines[0]["response"]["status_code"]), (&json!("line_4"), &json!(400)));
    assert_eq!(lines[1]["response"]["body"]["choices"][0]["text"], "Hello");
    assert_eq!(lines[2]["error"]["code"], "batch_cancelled");
    // On from where a reader was, whatever kind of line that was.
    let (answer, rest) = results(&world, &id, "?after=line_4&limit=1").await;
    assert_eq!((rest.len(), &rest[0]), (1, &lines[1]));
    assert_eq!(answer.header("penstock-has-more"), Some("true"));
    let (_, rest) = results(&world, &id, &format!("?after={first}")).await;
    assert_eq!(rest, lines[2..]);
    run_one(&world).await;
    let (_, rest) = results(&world, &id, &format!("?after={}", jobs[2].id)).await;
    assert_eq!(rest[0]["custom_id"], "c1");
}

#[tokio::test]
async fn a_wrong_place_or_number_is_refused() {
    let world = World::new().await;
    let (id, jobs) = batch(&world).await;
    let unfinished = format!("?after={}", jobs[0].id);
    for (query, param) in [
        ("?after=x", "after"),
        ("?after=line_0", "after"),
        (unfinished.as_str(), "after"),
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?order=asc", "order"),
    ] {
        let (answer, _) = results(&world, &id, query).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}: {}", answer.text);
        assert_eq!(answer.json()["error"]["param"], param);
    }
    for route in ["results", "progress"] {
        let answer = world.get(&format!("/v1/batches/{}/{route}", BatchId::new())).await;
        assert_eq!((answer.status, answer.code()), (StatusCode::NOT_FOUND, "batch_not_found".to_owned()));
    }
}

#[tokio::test]
async fn progress_adds_up() {
    let world = World::new().await;
    let (id, jobs) = batch(&world).await;
    run_one(&world).await;
    let running = world.lease(Class::Bulk).await;
    assert_eq!(running.lease.job, jobs[1].id);
    // Lines have ended in no time: a second goes by.
    world.ahead.fetch_add(1_000, Ordering::Relaxed);
    let shown = world.get(&format!("/v1/batches/{id}/progress")).await.json();
    let expected = json!({"object": "batch.progress", "id": id.to_string(), "status": "in_progress", "run_after": null,
        "total": 5, "expanded": 5, "queued": 2, "running": 1, "succeeded": 1, "failed": 1, "cancelled": 0, "expired": 0,
        "jobs_ahead": 0, "keep_seconds": null});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}: {shown}");
    }
    let speed = shown["lines_per_second"].as_f64().unwrap();
    assert!(speed > 0.0 && speed <= 1.0, "one job in at least a second: {speed}");
    let left = shown["seconds_left"].as_f64().unwrap();
    assert!((left - 3.0 / speed).abs() <= 1.0, "three lines at {speed}: {left}");
}

#[tokio::test]
async fn what_failed_is_run_again() {
    let world = World::new().await;
    let (id, jobs) = batch(&world).await;
    let early = resubmit(&world, &id).await;
    assert_eq!((early.status, early.code()), (StatusCode::CONFLICT, "batch_not_ended".to_owned()));
    run_one(&world).await;
    for job in &jobs[1..] {
        world.store.cancel(&TenantId::local(), &job.id).await.unwrap();
    }
    let file = |filename: &str| NewFile {
        id: contract::FileId::new(),
        tenant: TenantId::local(),
        filename: filename.into(),
        purpose: Purpose::BatchOutput,
        bytes: 1,
        expires_in: None,
        idempotency: None,
    };
    let end = BatchEnd { state: BatchState::Completed, output: Some((file("o"), 1)), errors: Some((file("e"), 4)) };
    world.store.end_batch(&id, &end).await.unwrap().unwrap();
    let again = resubmit(&world, &id).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
    let again = again.json();
    let old = world.get(&format!("/v1/batches/{id}")).await.json();
    assert_ne!(again["id"], old["id"]);
    for same in ["input_file_id", "endpoint", "completion_window", "metadata"] {
        assert_eq!(again[same], old[same], "{same}");
    }
    let new: BatchId = again["id"].as_str().unwrap().parse().unwrap();
    let only = world.store.batch_lines(&new).await.unwrap().unwrap();
    assert_eq!(only.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);

    // Again: the lines are those of the file, not of the batch before.
    world.store.begin_batch(&new, MODEL, 4).await.unwrap();
    world.store.cancel_batch(&TenantId::local(), &new).await.unwrap();
    let end = BatchEnd { state: BatchState::Cancelled, output: None, errors: Some((file("e"), 4)) };
    world.store.end_batch(&new, &end).await.unwrap().unwrap();
    let path = format!("/v1/batches/{new}/resubmit");
    let body = json!({"completion_window": "7m", "metadata": {}});
    let third = world.post_with(&path, &[("idempotency-key", "k")], &body).await;
    assert_eq!(third.status, StatusCode::OK, "{}", third.text);
    let shown = third.json();
    assert_eq!((&shown["completion_window"], &shown["metadata"]), (&json!("7m"), &Value::Null));
    let third: BatchId = shown["id"].as_str().unwrap().parse().unwrap();
    let only = world.store.batch_lines(&third).await.unwrap().unwrap();
    assert_eq!(only.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    let repeat = world.post_with(&path, &[("idempotency-key", "k")], &body).await;
    assert_eq!((&repeat.json()["id"], repeat.header("idempotency-replayed")), (&shown["id"], Some("true")));
    let other = world.post_with(&path, &[("idempotency-key", "k")], &json!({})).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    let wrong = world.post(&path, &json!({"completion_window": "soon"})).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("completion_window")));
}

/// A batch of nobody's lines yet.
async fn fresh_batch(world: &World) -> BatchId {
    let input = uploaded(world, b"{}\n").await;
    let asked = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h"});
    world.post("/v1/batches", &asked).await.json()["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn nothing_failed_is_nothing_to_run_again() {
    let world = World::new().await;
    let (_, others) = batch(&world).await;
    let id = fresh_batch(&world).await;
    world.store.begin_batch(&id, MODEL, 1).await.unwrap();
    let line = NewJob { id: contract::JobId::new(), batch_line: Some((id.0, 0)), ..others[0].clone() };
    world.store.accept(&[line]).await.unwrap();
    assert!(world.store.batch_expanded(&id, &[], Cursor::default(), Cursor { line: 1, offset: 3 }).await.unwrap());
    for _ in 0..5 {
        run_one(&world).await;
    }
    let output = NewFile {
        id: contract::FileId::new(),
        tenant: TenantId::local(),
        filename: "o".into(),
        purpose: Purpose::BatchOutput,
        bytes: 1,
        expires_in: None,
        idempotency: None,
    };
    let end = BatchEnd { state: BatchState::Completed, output: Some((output, 1)), errors: None };
    world.store.end_batch(&id, &end).await.unwrap().unwrap();
    let answer = resubmit(&world, &id).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::CONFLICT, "nothing_to_resubmit".to_owned()));
}

#[tokio::test]
async fn a_batch_that_ended_before_its_lines_were_counted_is_run_whole() {
    let world = World::new().await;
    let id = fresh_batch(&world).await;
    let end = BatchEnd { state: BatchState::Cancelled, output: None, errors: None };
    world.store.end_batch(&id, &end).await.unwrap().unwrap();
    let answer = resubmit(&world, &id).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let again: BatchId = answer.json()["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(world.store.batch_lines(&again).await.unwrap(), None, "all lines of its file");
}

#[tokio::test]
async fn a_batch_whose_file_is_gone_is_not_run_again_and_says_why() {
    let world = World::new().await;
    let ended = async || {
        let id = fresh_batch(&world).await;
        let end = BatchEnd { state: BatchState::Cancelled, output: None, errors: None };
        world.store.end_batch(&id, &end).await.unwrap().unwrap();
        let input = world.get(&format!("/v1/batches/{id}")).await.json()["input_file_id"].as_str().unwrap().to_owned();
        (id, input)
    };
    let (deleted, its_input) = ended().await;
    assert_eq!(delete(&world, &format!("/v1/files/{its_input}")).await.status, StatusCode::OK);
    let answer = resubmit(&world, &deleted).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::GONE, "file_deleted".to_owned()));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&its_input) && message.contains("upload it again"), "{message}");

    let (expired, _) = ended().await;
    // A second after the life that files have by default.
    world.ahead.store((30 * 24 * 3_600 + 1) * 1_000, Ordering::Relaxed);
    let answer = resubmit(&world, &expired).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::GONE, "file_expired".to_owned()));
}

#[tokio::test]
async fn what_is_for_later_says_so() {
    let world = World::new().await;
    let input = uploaded(&world, b"{}\n").await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let asked = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "1h",
        "run_after": now + 7_200});
    let made = world.post("/v1/batches", &asked).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text);
    let made = made.json();
    assert_eq!(made["expires_at"], now + 7_200 + 3_600);
    let progress = world.get(&format!("/v1/batches/{}/progress", made["id"].as_str().unwrap())).await.json();
    assert_eq!(progress["run_after"], now + 7_200);
    let far = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "1h",
        "run_after": now + 31 * 86_400});
    let refused = world.post("/v1/batches", &far).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("run_after")));

    let at = contract::Timestamp(i64::try_from(now + 3_600).unwrap() * 1_000).rfc3339();
    let job = |extra: Value| {
        let mut job = json!({"type": "completion", "class": "interactive", "deadline_seconds": 60,
            "request": {"model": MODEL, "prompt": "Hi"}, "run_after": at});
        job.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        job
    };
    let made = world.post("/v1/jobs", &job(json!({}))).await;
    assert_eq!(made.status, StatusCode::ACCEPTED, "{}", made.text);
    let deadline = contract::Timestamp::parse_rfc3339(made.json()["expires_at"].as_str().unwrap()).unwrap();
    assert!((deadline.unix_seconds() - i64::try_from(now).unwrap() - 3_660).abs() <= 5, "{}", made.text);
    let queue = contract::QueueId { release: model().release, class: Class::Interactive };
    assert_eq!(contract::Queue::ready(&*world.queue, &queue).await.unwrap(), 0, "nobody is woken before its time");
    assert_eq!(world.store.due(&queue, 10).await.unwrap(), []);
    world.ahead.fetch_add(3_601_000, Ordering::Relaxed);
    assert_eq!(world.store.due(&queue, 10).await.unwrap().len(), 1);
    for extra in [json!({"run_after": "tomorrow"}), json!({"sequence_key": "s"})] {
        let refused = world.post("/v1/jobs", &job(extra)).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("run_after")));
    }
}

#[tokio::test]
async fn a_result_whose_time_is_over_is_there_until_the_batch_has_ended() {
    let world = World::new().await;
    let (id, jobs) = batch_kept(&world, Some(std::time::Duration::from_secs(60))).await;
    run_one(&world).await;
    for job in &jobs[1..] {
        world.store.cancel(&TenantId::local(), &job.id).await.unwrap();
    }
    world.ahead.fetch_add(60_000, Ordering::Relaxed);
    let first = async || {
        let (_, lines) = results(&world, &id, "").await;
        lines.into_iter().find(|line| line["custom_id"] == "c0").unwrap()
    };
    assert_eq!(first().await["response"]["body"]["choices"][0]["text"], "Hello", "the batch has not ended");
    assert!(world.store.expired_jobs(10).await.unwrap().is_empty());
    let file = |lines: u32| {
        let file = NewFile {
            id: contract::FileId::new(),
            tenant: TenantId::local(),
            filename: "x".into(),
            purpose: Purpose::BatchOutput,
            bytes: 1,
            expires_in: None,
            idempotency: None,
        };
        Some((file, lines))
    };
    let end = BatchEnd { state: BatchState::Completed, output: file(1), errors: file(4) };
    assert!(world.store.end_batch(&id, &end).await.unwrap().is_some());
    let expired: Vec<_> = world.store.expired_jobs(10).await.unwrap().iter().map(|row| row.job).collect();
    assert_eq!(expired.len(), 4);
    for is_emptied in [false, true] {
        if is_emptied {
            assert_eq!(world.store.empty_jobs(&expired).await.unwrap(), 4);
        }
        let line = first().await;
        assert_eq!((&line["response"], &line["error"]["code"]), (&json!(null), &json!("result_expired")));
        assert_eq!(line["id"], jobs[0].id.to_string());
    }
    // Lines without a result say the same as before.
    let (_, lines) = results(&world, &id, "").await;
    let codes: Vec<_> = lines.iter().filter_map(|line| line["error"]["code"].as_str()).collect();
    assert_eq!(codes.iter().filter(|code| **code == "batch_cancelled").count(), 3);
}
