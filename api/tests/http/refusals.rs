//! What is refused: with the right status, code and field, in the envelope, and without a trace in the store.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use contract::Class;
use serde_json::{Value, json};

use crate::support::{Choices, MODEL, PLAIN, World, chat, request};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const JOBS: &str = "/v1/jobs";

fn raw(path: &str, content_type: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let builder = Request::post(path);
    let builder = match content_type {
        Some(value) => builder.header("content-type", value),
        None => builder,
    };
    builder.body(body.into()).unwrap()
}

#[tokio::test]
async fn bodies_that_are_no_json_say_where() {
    let world = World::new().await;
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "line 1"),
        (b"{".to_vec(), "line 1, column 1"),
        (b"{\n\"model\": \"m\",\n}".to_vec(), "line 3"),
        (b"{\"model\": \"\xff\xfe\"}".to_vec(), "not UTF-8"),
        (b"{\"model\": \"a\", \"model\": \"b\"}".to_vec(), "`model` twice"),
        (deep.into_bytes(), "deeper than 64"),
        (b"{\"temperature\": 1e999}".to_vec(), "out of range"),
        (b"{\"temperature\": NaN}".to_vec(), "line 1"),
        (b"{\"a\":1} {\"b\":2}".to_vec(), "trailing"),
        (b"\"\\ud83d\"".to_vec(), "line 1"),
        (b"model=tiny&prompt=hi".to_vec(), "line 1"),
    ];
    for path in [CHAT, TEXT, JOBS] {
        for (body, words) in &cases {
            let answer = world.call(raw(path, Some("application/json"), body.clone())).await;
            assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_json"));
            assert!(answer.text.contains(words), "{path}: {} lacks {words}", answer.text);
        }
    }
    assert_eq!(world.jobs().await, 0);
}

#[tokio::test]
async fn media_types_and_sizes_have_their_statuses() {
    let world = World::new().await;
    for content_type in
        [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("multipart/form-data")]
    {
        let answer = world.call(raw(CHAT, content_type, chat(false).to_string())).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (415, "unsupported_media_type"));
    }
    for (charset, status) in [("utf-8", 404), ("\"UTF-8\"", 404), ("utf-16", 415), ("latin1", 415)] {
        let content_type = format!("application/json; charset={charset}");
        let body = json!({"model": "another", "prompt": "Hi"}).to_string();
        let answer = world.call(raw("/v1/completions", Some(&content_type), body)).await;
        assert_eq!(answer.status.as_u16(), status, "{charset}");
    }
    let zipped = Request::post(CHAT).header("content-type", "application/json").header("content-encoding", "gzip");
    assert_eq!(world.call(zipped.body(Body::from("x")).unwrap()).await.status.as_u16(), 415);
    let declared = Request::post(CHAT).header("content-type", "application/json").header("content-length", "4194305");
    assert_eq!(world.call(declared.body(Body::empty()).unwrap()).await.status.as_u16(), 413);
    let huge = raw(CHAT, Some("application/json; charset=utf-8"), vec![b' '; 4 * 1024 * 1024 + 1]);
    let answer = world.call(huge).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (413, "body_too_large"));
}

/// Bodies, with where they go, status, code and field.
#[tokio::test]
async fn wrong_fields_are_named() {
    let world = World::new().await;
    let chat_with = |field: &str, value: Value| {
        let mut body = chat(false);
        body[field] = value;
        body
    };
    let text_with = |field: &str, value: Value| {
        let mut body = json!({"model": MODEL, "prompt": "Hi"});
        body[field] = value;
        body
    };
    let job_with = |field: &str, value: Value| {
        let mut body = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}});
        body[field] = value;
        body
    };
    let long_prompt = "x".repeat(16_001);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let called = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls":
        [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]);
    let plain = |more: Value| {
        let mut body = json!({"model": PLAIN, "messages": [{"role": "user", "content": "Hi"}]});
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    };
    let base_chat = json!({"model": "base", "messages": [{"role": "user", "content": "Hi"}]});
    #[rustfmt::skip]
    let cases: Vec<(&str, Value, u16, &str, Option<&str>)> = vec![
        (CHAT, json!([]), 400, "invalid_type", None),
        (CHAT, json!({}), 400, "missing_required_parameter", Some("model")),
        (CHAT, chat_with("model", json!("gpt-4o")), 404, "model_not_found", Some("model")),
        (TEXT, text_with("model", json!("gpt-4o")), 404, "model_not_found", Some("model")),
        (JOBS, job_with("request", json!({"model": "gpt-4o", "prompt": "x"})), 404, "model_not_found", Some("model")),
        (CHAT, base_chat.clone(), 400, "no_chat_template", Some("model")),
        (JOBS, json!({"type": "chat", "request": base_chat}), 400, "no_chat_template", Some("model")),
        (CHAT, chat_with("messages", json!([])), 400, "invalid_value", Some("messages")),
        (CHAT, chat_with("messages", json!("Hi")), 400, "invalid_type", Some("messages")),
        (CHAT, chat_with("messages", json!([{"role": "wizard", "content": "x"}])), 400, "invalid_value", Some("messages[0].role")),
        (CHAT, chat_with("messages", json!([{"role": "user", "content": 1}])), 400, "invalid_type", Some("messages[0].content")),
        (CHAT, chat_with("messages", json!([{"role": "user", "content": long_prompt}])), 400, "context_length_exceeded", Some("messages")),
        (CHAT, chat_with("temperature", json!(3)), 400, "invalid_value", Some("temperature")),
        (CHAT, chat_with("temperature", json!("1")), 400, "invalid_type", Some("temperature")),
        (CHAT, chat_with("top_p", json!(0)), 400, "invalid_value", Some("top_p")),
        (CHAT, chat_with("max_tokens", json!(1001)), 400, "context_length_exceeded", Some("max_tokens")),
        (CHAT, chat_with("max_tokens", json!(0)), 400, "invalid_value", Some("max_tokens")),
        (CHAT, chat_with("max_tokens", json!(1.5)), 400, "invalid_value", Some("max_tokens")),
        (CHAT, chat_with("min_tokens", json!(1001)), 400, "context_length_exceeded", Some("min_tokens")),
        (CHAT, chat_with("stop_token_ids", json!([1, 100])), 400, "invalid_value", Some("stop_token_ids[1]")),
        (CHAT, chat_with("logit_bias", json!({"99": 1, "100": -100})), 400, "invalid_value", Some("logit_bias.100")),
        (CHAT, chat_with("logit_bias", json!({"the": 1})), 400, "invalid_value", Some("logit_bias.the")),
        (TEXT, text_with("repetition_penalty", json!(0)), 400, "invalid_value", Some("repetition_penalty")),
        (TEXT, text_with("presence_penalty", json!(2.5)), 400, "invalid_value", Some("presence_penalty")),
        (TEXT, text_with("frequency_penalty", json!(-3)), 400, "invalid_value", Some("frequency_penalty")),
        (TEXT, text_with("typical_p", json!(0)), 400, "invalid_value", Some("typical_p")),
        (JOBS, job_with("request", json!({"model": MODEL, "prompt": "x", "logit_bias": {"100": 1}})), 400, "invalid_value", Some("request.logit_bias.100")),
        (CHAT, chat_with("tools", json!([{"type": "function"}])), 400, "missing_required_parameter", Some("tools[0].function")),
        (CHAT, chat_with("tool_choice", json!("required")), 400, "invalid_value", Some("tool_choice")),
        (CHAT, plain(json!({"tools": tools})), 400, "unsupported_parameter", Some("tools")),
        (CHAT, plain(json!({"messages": called})), 400, "unsupported_parameter", Some("messages[1]")),
        (JOBS, json!({"type": "chat", "request": plain(json!({"tools": tools}))}), 400, "unsupported_parameter", Some("request.tools")),
        (CHAT, chat_with("n", json!(9)), 400, "invalid_value", Some("n")),
        (TEXT, text_with("best_of", json!(2)), 400, "unsupported_parameter", Some("best_of")),
        (CHAT, chat_with("response_format", json!({"type": "yaml"})), 400, "unsupported_parameter", Some("response_format.type")),
        (CHAT, chat_with("store", json!(true)), 400, "unsupported_parameter", Some("store")),
        (CHAT, chat_with("stream_options", json!({"include_usage": true})), 400, "invalid_value", Some("stream_options")),
        (CHAT, chat_with("logprob", json!(true)), 400, "unknown_parameter", Some("logprob")),
        (TEXT, text_with("prompt", json!(null)), 400, "missing_required_parameter", Some("prompt")),
        (TEXT, text_with("prompt", json!([1, 100])), 400, "invalid_value", Some("prompt[1]")),
        (TEXT, text_with("prompt", json!(vec![1; 1000])), 400, "context_length_exceeded", Some("prompt")),
        (TEXT, text_with("prompt", json!(long_prompt)), 400, "context_length_exceeded", Some("prompt")),
        (TEXT, text_with("prompt", json!(["a", "b"])), 400, "unsupported_parameter", Some("prompt")),
        (TEXT, text_with("echo", json!(true)), 400, "unsupported_parameter", Some("echo")),
        (TEXT, text_with("logprobs", json!(21)), 400, "invalid_value", Some("logprobs")),
        (TEXT, text_with("seed", json!(0.5)), 400, "invalid_value", Some("seed")),
        (JOBS, json!({"type": "completion"}), 400, "missing_required_parameter", Some("request")),
        (JOBS, job_with("type", json!("image")), 400, "invalid_value", Some("type")),
        (JOBS, job_with("class", json!("now")), 400, "invalid_value", Some("class")),
        (JOBS, job_with("deadline_seconds", json!(0)), 400, "invalid_value", Some("deadline_seconds")),
        (JOBS, job_with("deadline_seconds", json!(604801)), 400, "invalid_value", Some("deadline_seconds")),
        (JOBS, job_with("metadata", json!({"a": 1})), 400, "invalid_type", Some("metadata.a")),
        (JOBS, job_with("callback", json!({"url": "x"})), 400, "unknown_parameter", Some("callback")),
        (JOBS, job_with("request", json!({"model": MODEL, "prompt": "x", "stream": true})), 400, "invalid_value", Some("request.stream")),
        (JOBS, job_with("request", json!({"model": MODEL, "prompt": [100]})), 400, "invalid_value", Some("request.prompt[0]")),
        (JOBS, job_with("request", json!({"model": MODEL, "prompt": "x", "max_tokens": 2000})), 400, "context_length_exceeded", Some("request.max_tokens")),
    ];
    for (path, body, status, code, param) in cases {
        let answer = world.post(path, &body).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status.as_u16(), error["code"].as_str()), (status, Some(code)), "{path} {body} → {error}");
        assert_eq!(error["param"].as_str(), param, "{path} {body}");
        assert!(error["type"].is_string() && !error["message"].as_str().unwrap().is_empty(), "{error}");
    }
    assert_eq!(world.jobs().await, 0);
}

#[tokio::test]
async fn headers_and_queries_are_checked() {
    let world = World::new().await;
    let body = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}});
    let answer = world.post_with(JOBS, &[("idempotency-key", "")], &body).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "invalid_header"));
    let job = world.submit(Class::Standard).await;
    let bad_event = Request::get(format!("/v1/jobs/{job}/events")).header("last-event-id", "abc");
    let answer = world.call(bad_event.body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["param"].as_str()), (400, Some("Last-Event-ID")));
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("status=done", "status"),
        ("class=fast", "class"),
        ("after=7", "after"),
        ("foo=1", "foo"),
    ] {
        let answer = world.get(&format!("/v1/jobs?{query}")).await;
        let param_seen = answer.json()["error"]["param"].as_str().map(str::to_owned);
        assert_eq!((answer.status.as_u16(), param_seen.as_deref()), (400, Some(param)));
    }
    for query in ["wait=61", "wait=-1", "wait=x", "weight=1"] {
        assert_eq!(world.get(&format!("/v1/jobs/{job}?{query}")).await.status.as_u16(), 400, "{query}");
    }
}

#[tokio::test]
async fn routes_methods_and_foreign_jobs_have_the_envelope_too() {
    let world = World::new().await;
    let foreign = world.foreign_job().await;
    let unknown = contract::JobId::new();
    let mut cases: Vec<(Method, String, u16, &str)> = vec![
        (Method::GET, "/v2/jobs".into(), 404, "route_not_found"),
        (Method::POST, "/v1/embeddings".into(), 404, "route_not_found"),
        (Method::GET, "/metrics".into(), 404, "route_not_found"),
        (Method::DELETE, "/v1/jobs".into(), 405, "method_not_allowed"),
        (Method::GET, CHAT.into(), 405, "method_not_allowed"),
        (Method::GET, "/v1/models/none".into(), 404, "model_not_found"),
        (Method::GET, "/v1/models/%FF".into(), 404, "model_not_found"),
    ];
    for id in [foreign.to_string(), unknown.to_string(), "job_x".into(), "%20".into(), "%FF".into()] {
        cases.push((Method::GET, format!("/v1/jobs/{id}"), 404, "job_not_found"));
        cases.push((Method::GET, format!("/v1/jobs/{id}/events"), 404, "job_not_found"));
        cases.push((Method::POST, format!("/v1/jobs/{id}/cancel"), 404, "job_not_found"));
    }
    for (method, path, status, code) in cases {
        let request = Request::builder().method(method.clone()).uri(&path).body(Body::empty()).unwrap();
        let answer = world.call(request).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {}", answer.text);
        assert_eq!(answer.code(), code, "{method} {path}");
        assert!(answer.header("x-request-id").is_some() && answer.header("penstock-release").is_some());
    }
    assert_eq!(world.jobs().await, 0, "the other tenant's job is not listed");
}

#[tokio::test]
async fn a_full_queue_is_a_429_and_leaves_no_row() {
    let mut choices = Choices::default();
    choices.limits.bounds.standard = 2;
    choices.limits.bounds.interactive = 0;
    let world = World::with(choices).await;
    world.submit(Class::Standard).await;
    world.submit(Class::Standard).await;
    let body = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}});
    let answer = world.post(JOBS, &body).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (429, "queue_full"));
    assert_eq!(answer.header("retry-after"), Some("5"));
    assert_eq!(world.post(CHAT, &chat(false)).await.status.as_u16(), 429);
    assert_eq!(world.post(CHAT, &chat(true)).await.status.as_u16(), 429);
    assert_eq!(world.jobs().await, 2);
}

#[tokio::test]
async fn without_a_ready_worker_only_synchronous_calls_are_refused() {
    let world = World::with(Choices { ready: false, ..Choices::default() }).await;
    for ready in [None, Some(false)] {
        if let Some(ready) = ready {
            world.beat(ready).await;
        }
        let answer = world.post(CHAT, &chat(false)).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "no_ready_worker"));
        assert!(answer.header("retry-after").is_some());
        let readiness = world.get("/readyz").await;
        assert_eq!(readiness.status.as_u16(), 503);
        assert!(readiness.json()["reason"].is_string());
    }
    assert_eq!(world.jobs().await, 0);
    world.submit(Class::Interactive).await;
    let later = world.call(request(CHAT, &[("prefer", "respond-async")], &chat(false))).await;
    assert_eq!(later.status.as_u16(), 202);
    assert_eq!(world.get("/livez").await.status.as_u16(), 200);
    world.beat(true).await;
    let readiness = world.get("/readyz").await;
    assert_eq!((readiness.status.as_u16(), readiness.json()["ready"].as_bool()), (200, Some(true)));
    assert_eq!(readiness.json()["models"][0]["release"].as_str(), readiness.header("penstock-release"));
}

#[tokio::test]
async fn a_store_that_cannot_write_is_a_503() {
    // Room for the tables and little more.
    let world = World::with(Choices { max_bytes: Some(500_000), ..Choices::default() }).await;
    let metadata: serde_json::Map<String, Value> = (0..16).map(|n| (n.to_string(), json!("x".repeat(500)))).collect();
    let body =
        json!({"type": "completion", "metadata": metadata, "request": {"model": MODEL, "prompt": "x".repeat(9_000)}});
    for _ in 0..100 {
        let answer = world.post(JOBS, &body).await;
        if answer.status == StatusCode::ACCEPTED {
            continue;
        }
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store_unavailable"));
        assert!(answer.header("retry-after").is_some());
        return;
    }
    panic!("the file never got full");
}
