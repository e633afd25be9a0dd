//! Keys: who gets in, and what each may do.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use contract::{
    AdminStore, BatchEnd, BatchId, BatchState, ErrorCode, JobError, JobId, Key, KeyText, NewKey, Scope, TenantId,
};
use serde_json::{Value, json};

use crate::files::{upload_of, uploaded};
use crate::support::{Answer, MODEL, World, model};

/// A key straight from the store.
pub async fn key(world: &World, tenant: &str, scopes: &[Scope], expires_in: Option<Duration>) -> (Key, String) {
    let asked = contract::openai::keys::ParsedKey {
        tenant: TenantId::from(tenant),
        name: "test".into(),
        scopes: scopes.iter().copied().collect(),
        expires_in,
    };
    let random: [u8; 30] = std::array::from_fn(|_| getrandom::u32().unwrap() as u8);
    let (new, text) = NewKey::make(asked, random);
    (world.store.add_key(&new).await.unwrap(), text.reveal().to_owned())
}

pub async fn call(world: &World, method: &Method, path: &str, key: Option<&str>, body: Option<&Value>) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let body = match body {
        Some(body) => {
            request = request.header("content-type", "application/json");
            Body::from(body.to_string())
        }
        None => Body::empty(),
    };
    world.call(request.body(body).unwrap()).await
}

async fn get(world: &World, path: &str, key: &str) -> Answer {
    call(world, &Method::GET, path, Some(key), None).await
}

/// The key of a blocked sequence, as paths have it.
const SEQUENCE: &str = "order%2017%2F4";

/// What there is of a tenant.
struct Things {
    job: String,
    file: String,
    batch: String,
    webhook: String,
    delivery: String,
    schedule: String,
}

/// A job that waits, and a batch that has ended, with the file it read.
async fn things(world: &World) -> Things {
    let job = world.submit(contract::Class::Standard).await.to_string();
    let file = uploaded(world, b"{}\n").await;
    let body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
    let made = world.post("/v1/batches", &body).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text);
    let batch = made.json()["id"].as_str().unwrap().to_owned();
    let id: BatchId = batch.parse().unwrap();
    let cancelled = BatchEnd { state: BatchState::Cancelled, output: None, errors: None };
    assert!(world.store.end_batch(&id, &cancelled).await.unwrap().is_some());
    let made = world.post("/v1/webhooks", &json!({"url": "https://example.com"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let webhook = made.json()["id"].as_str().unwrap().to_owned();
    let told = world.submit(contract::Class::Standard).await;
    assert!(contract::JobStore::cancel(&*world.store, &TenantId::local(), &told).await.is_ok());
    let delivery = world.get("/v1/webhooks/deliveries").await.json()["data"][0]["id"].as_str().unwrap().to_owned();
    let scheduled = json!({"name": "n", "cron": "@daily", "batch": body});
    let made = world.post("/v1/schedules", &scheduled).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let schedule = made.json()["id"].as_str().unwrap().to_owned();
    Things { job, file, batch, webhook, delivery, schedule }
}

/// Every route of the description with ids that exist or once did; what says how the server is left out.
fn routes(things: &Things) -> Vec<(Method, String)> {
    let mut routes = Vec::new();
    for (path, item) in api::openapi().paths.paths {
        if ["/", "/livez", "/readyz", "/openapi.json"].contains(&path.as_str()) {
            continue;
        }
        let no_key = format!("key_{}", "0".repeat(32));
        let id = match path.split('/').nth(2).unwrap() {
            "keys" => &no_key,
            "files" => &things.file,
            "batches" => &things.batch,
            "webhooks" if path.contains("/deliveries/") => &things.delivery,
            "webhooks" => &things.webhook,
            "schedules" => &things.schedule,
            _ => &things.job,
        };
        let path = path.replace("{id}", id).replace("{model}", MODEL).replace("{tenant}", "acme");
        let path = path.replace("{key}", SEQUENCE);
        assert!(!path.contains('{'), "{path}");
        for (method, operation) in [
            (Method::GET, &item.get),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
            (Method::PUT, &item.put),
            (Method::PATCH, &item.patch),
        ] {
            if operation.is_some() {
                routes.push((method, path.clone()));
            }
        }
    }
    let among = |method: Method, path: &str| routes.contains(&(method, path.to_owned()));
    assert!(among(Method::DELETE, &format!("/v1/files/{}", things.file)));
    assert!(among(Method::POST, &format!("/v1/batches/{}/cancel", things.batch)));
    assert!(among(Method::GET, &format!("/v1/jobs/{}", things.job)));
    routes
}

#[tokio::test]
async fn without_keys_a_server_is_open_and_from_the_first_on_it_is_not() {
    let world = World::new().await;
    assert_eq!(world.get("/v1/models").await.status, StatusCode::OK);
    // Client libraries send something in any case.
    assert_eq!(get(&world, "/v1/models", "sk-nothing").await.status, StatusCode::OK);
    let made = world.post("/v1/keys", &json!({"scopes": ["admin", "read"], "name": "me"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let made = made.json();
    let key = made["key"].as_str().unwrap();
    assert!(key.starts_with(made["prefix"].as_str().unwrap()), "{made}");

    let refused = world.get("/v1/models").await;
    assert_eq!((refused.status, refused.code()), (StatusCode::UNAUTHORIZED, "invalid_api_key".to_owned()));
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(get(&world, "/v1/models", key).await.status, StatusCode::OK);
    // Never again is it shown.
    let listed = get(&world, "/v1/keys", key).await;
    assert_eq!(listed.json()["data"][0]["id"], made["id"]);
    assert!(!listed.text.contains(key), "{}", listed.text);
    for open in ["/livez", "/readyz", "/openapi.json", "/"] {
        assert_eq!(world.get(open).await.status, StatusCode::OK, "{open}");
    }
}

#[tokio::test]
async fn every_route_turns_away_who_may_not() {
    let mut world = World::new().await;
    let things = things(&world).await;
    // One that has not seen that there were no keys a moment ago.
    world.router = api::router(world.deps.clone());
    let all = Scope::ALL.as_slice();
    let (_, good) = key(&world, "local", all, None).await;
    let (revoked, revoked_text) = key(&world, "local", all, None).await;
    world.store.revoke_key(&revoked.id).await.unwrap();
    let (_, expired) = key(&world, "local", all, Some(Duration::from_secs(60))).await;
    world.ahead.fetch_add(61_000, std::sync::atomic::Ordering::Relaxed);
    let unknown = KeyText::new([9; 30]).reveal().to_owned();
    // The right prefix, and another secret.
    let forged = format!("{}{}", &good[..good.len() - 48], "0".repeat(48));
    let bad = [&revoked_text, &expired, &unknown, &forged, "", "sk-123", "psk_1_2"];
    for (method, path) in routes(&things) {
        let refused = call(&world, &method, &path, None, None).await;
        assert_eq!(
            (refused.status, refused.code()),
            (StatusCode::UNAUTHORIZED, "invalid_api_key".to_owned()),
            "{path}"
        );
        for key in bad {
            let refused = call(&world, &method, &path, Some(key), None).await;
            assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{method} {path} {key}");
            assert!(!refused.text.contains("psk_0"), "an error never quotes a key: {}", refused.text);
        }
    }
    assert_eq!(get(&world, &format!("/v1/jobs/{}", things.job), &good).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_scope_opens_its_routes_and_no_others() {
    let mut world = World::new().await;
    let things = things(&world).await;
    // One that has not seen that there were no keys a moment ago.
    world.router = api::router(world.deps.clone());
    for scope in Scope::ALL {
        let (_, text) = key(&world, "local", &[scope], None).await;
        for (method, path) in routes(&things) {
            let answer = call(&world, &method, &path, Some(&text), Some(&json!({}))).await;
            let is_in = match scope {
                _ if path.starts_with("/v1/models") => true,
                Scope::Read => {
                    let kept = [
                        "/v1/jobs",
                        "/v1/files",
                        "/v1/batches",
                        "/v1/webhooks",
                        "/v1/schedules",
                        "/v1/limits",
                        "/v1/sequences",
                    ];
                    let is_secret = path.ends_with("/secret");
                    let is_own = path == "/v1/usage";
                    method == Method::GET
                        && !is_secret
                        && (is_own || kept.iter().any(|prefix| path.starts_with(prefix)))
                }
                // A secret makes deliveries: reading it is more than reading.
                Scope::Submit if path.ends_with("/secret") => true,
                Scope::Submit => {
                    method != Method::GET && !path.starts_with("/v1/keys") && !path.starts_with("/v1/tenants")
                }
                Scope::Admin => {
                    let figures = ["/v1/stats", "/v1/audit", "/v1/usage/tenants"];
                    path.starts_with("/v1/keys") || path.starts_with("/v1/tenants") || figures.contains(&path.as_str())
                }
            };
            assert_eq!(answer.status != StatusCode::FORBIDDEN, is_in, "{scope}: {method} {path}: {}", answer.text);
            if !is_in {
                assert_eq!(answer.code(), "missing_scope");
            }
        }
    }
}

#[tokio::test]
async fn nothing_of_one_tenant_is_there_for_another() {
    let world = World::new().await;
    let (_, acme) = key(&world, "acme", &Scope::ALL, None).await;
    let (_, globex) = key(&world, "globex", &Scope::ALL, None).await;
    let body = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}});
    let made = call(&world, &Method::POST, "/v1/jobs", Some(&acme), Some(&body)).await;
    assert_eq!(made.status, StatusCode::ACCEPTED, "{}", made.text);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let leased = world.lease(contract::Class::Standard).await;
    assert_eq!(leased.tenant.as_str(), "acme");
    world.succeed(&leased, &[(3, "Hel"), (4, "lo")]).await;

    for path in ["", "/events", "/trajectory"].map(|rest| format!("/v1/jobs/{id}{rest}")) {
        assert_eq!(get(&world, &path, &acme).await.status, StatusCode::OK, "{path}");
        let foreign = get(&world, &path, &globex).await;
        assert_eq!((foreign.status, foreign.code()), (StatusCode::NOT_FOUND, "job_not_found".to_owned()), "{path}");
    }
    let cancel = format!("/v1/jobs/{id}/cancel");
    assert_eq!(call(&world, &Method::POST, &cancel, Some(&globex), None).await.status, StatusCode::NOT_FOUND);
    assert_eq!(get(&world, "/v1/jobs", &globex).await.json()["data"], json!([]));
    assert_eq!(get(&world, "/v1/usage", &globex).await.json()["data"], json!([]));
    assert_eq!(get(&world, "/v1/usage", &acme).await.json()["data"][0]["tenant"], "acme");
    assert_eq!(get(&world, "/v1/jobs", &acme).await.json()["data"][0]["id"], id.as_str());

    // What a failure of one tenant blocked.
    let blocking = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"},
        "sequence_key": "order 17/4", "on_failure": "block"});
    let made = call(&world, &Method::POST, "/v1/jobs", Some(&acme), Some(&blocking)).await;
    assert_eq!(made.status, StatusCode::ACCEPTED, "{}", made.text);
    let leased = world.lease(contract::Class::Standard).await;
    world.fail(&leased.lease, JobError::new(ErrorCode::NotFinite, "nan")).await;
    let sequence = format!("/v1/sequences/{SEQUENCE}");
    let resume = format!("{sequence}/resume");
    for (method, path) in [(&Method::GET, &sequence), (&Method::POST, &resume)] {
        let foreign = call(&world, method, path, Some(&globex), None).await;
        let found = (foreign.status, foreign.code());
        assert_eq!(found, (StatusCode::NOT_FOUND, "sequence_not_found".to_owned()), "{path}");
    }
    assert_eq!(get(&world, "/v1/sequences", &globex).await.json()["data"], json!([]));
    let own = get(&world, "/v1/sequences", &acme).await.json();
    assert_eq!(own["data"], json!([get(&world, &sequence, &acme).await.json()]));
    assert_eq!(own["data"][0]["state"], "blocked");

    // One idempotency key of each tenant is another one.
    let keyed = async |key: &str| {
        let request = Request::post("/v1/jobs").header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json").header("idempotency-key", "same");
        let answer = world.call(request.body(Body::from(body.to_string())).unwrap()).await;
        answer.json()["id"].as_str().unwrap().to_owned()
    };
    let (first, foreign) = (keyed(&acme).await, keyed(&globex).await);
    assert_ne!(first, foreign);
    assert_eq!(keyed(&acme).await, first);

    // A call that somebody waits for is its tenant's too.
    let call = crate::support::request(
        "/v1/completions",
        &[("authorization", &format!("Bearer {globex}"))],
        &json!({"model": MODEL, "prompt": "Hi", "stream": true}),
    );
    let call = world.start(call);
    let leased = world.lease(contract::Class::Interactive).await;
    assert_eq!((leased.tenant.as_str(), &leased.request.model), ("globex", &model().name));
    world.succeed(&leased, &[(3, "Hel"), (4, "lo")]).await;
    assert!(call.await.unwrap().text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn no_file_batch_or_webhook_of_one_tenant_is_there_for_another() {
    let world = World::new().await;
    let (_, acme) = key(&world, "acme", &Scope::ALL, None).await;
    let (_, globex) = key(&world, "globex", &Scope::ALL, None).await;
    let sent = b"{\"custom_id\": \"a\"}\n";
    let by_acme = format!("Bearer {acme}");
    let file = world.call(upload_of(&[("authorization", &by_acme)], sent)).await.json();
    let file_id = file["id"].as_str().unwrap().to_owned();
    let asked = json!({"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"});
    let batch = call(&world, &Method::POST, "/v1/batches", Some(&acme), Some(&asked)).await.json();
    let batch_id = batch["id"].as_str().unwrap().to_owned();
    let (file_path, batch_path) = (format!("/v1/files/{file_id}"), format!("/v1/batches/{batch_id}"));

    let hook = json!({"url": "https://example.com", "events": ["job.cancelled"]});
    let hook = call(&world, &Method::POST, "/v1/webhooks", Some(&acme), Some(&hook)).await.json();
    let hook_id = hook["id"].as_str().unwrap().to_owned();
    let told = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}});
    let told = call(&world, &Method::POST, "/v1/jobs", Some(&acme), Some(&told)).await.json()["id"].clone();
    let cancel = format!("/v1/jobs/{}/cancel", told.as_str().unwrap());
    call(&world, &Method::POST, &cancel, Some(&acme), None).await;
    let sent_to = get(&world, "/v1/webhooks/deliveries", &acme).await.json()["data"][0]["id"].clone();
    let delivery_id = sent_to.as_str().unwrap().to_owned();
    let (hook_path, delivery_path) =
        (format!("/v1/webhooks/{hook_id}"), format!("/v1/webhooks/deliveries/{delivery_id}"));
    let scheduled = json!({"name": "n", "cron": "@daily", "batch": asked});
    let schedule = call(&world, &Method::POST, "/v1/schedules", Some(&acme), Some(&scheduled)).await.json();
    let schedule_id = schedule["id"].as_str().unwrap().to_owned();
    let schedule_path = format!("/v1/schedules/{schedule_id}");
    let things = Things {
        job: JobId::new().to_string(),
        file: file_id.clone(),
        batch: batch_id.clone(),
        webhook: hook_id.clone(),
        delivery: delivery_id.clone(),
        schedule: schedule_id.clone(),
    };
    let mut walked = Vec::new();
    for (method, path) in routes(&things) {
        let expected = match path.as_str() {
            "/v1/files" | "/v1/batches" | "/v1/webhooks" | "/v1/webhooks/deliveries" | "/v1/schedules"
                if method == Method::GET =>
            {
                let list = get(&world, &path, &globex).await;
                assert_eq!(list.json()["data"], json!([]), "{path}: {}", list.text);
                continue;
            }
            path if path.starts_with(&file_path) => "file_not_found",
            path if path.starts_with(&batch_path) => "batch_not_found",
            path if path.starts_with(&delivery_path) => "delivery_not_found",
            path if path.starts_with(&hook_path) => "webhook_not_found",
            path if path.starts_with(&schedule_path) => "schedule_not_found",
            _ => continue,
        };
        let foreign = call(&world, &method, &path, Some(&globex), Some(&json!({}))).await;
        let found = (foreign.status, foreign.code());
        assert_eq!(found, (StatusCode::NOT_FOUND, expected.to_owned()), "{method} {path}: {}", foreign.text);
        // Exactly what is said of one that never was.
        let nobody = format!("{:032x}", 1);
        let path = path
            .replace(&file_id[5..], &nobody)
            .replace(&batch_id[6..], &nobody)
            .replace(&hook_id[3..], &nobody)
            .replace(&delivery_id[4..], &nobody)
            .replace(&schedule_id[9..], &nobody);
        let of_nobody = call(&world, &method, &path, Some(&globex), Some(&json!({}))).await;
        let ours = foreign
            .text
            .replace(&file_id[5..], &nobody)
            .replace(&batch_id[6..], &nobody)
            .replace(&hook_id[3..], &nobody)
            .replace(&delivery_id[4..], &nobody)
            .replace(&schedule_id[9..], &nobody);
        assert_eq!((of_nobody.status, of_nobody.text), (foreign.status, ours), "{method} {path}");
        walked.push((method, path));
    }
    assert!(walked.len() >= 20, "{walked:?}");
    // A schedule over somebody else's file.
    let refused = call(&world, &Method::POST, "/v1/schedules", Some(&globex), Some(&scheduled)).await;
    let param = refused.json()["error"]["param"].clone();
    assert_eq!((refused.status, param), (StatusCode::BAD_REQUEST, json!("batch.input_file_id")), "{}", refused.text);
    // A batch over somebody else's file.
    let refused = call(&world, &Method::POST, "/v1/batches", Some(&globex), Some(&asked)).await;
    let param = refused.json()["error"]["param"].clone();
    assert_eq!((refused.status, param), (StatusCode::BAD_REQUEST, json!("input_file_id")), "{}", refused.text);
    assert_eq!(get(&world, "/v1/batches", &globex).await.json()["data"], json!([]));

    // All of it is as it was for whose it is.
    assert_eq!(get(&world, &file_path, &acme).await.json(), file);
    assert_eq!(get(&world, &format!("{file_path}/content"), &acme).await.text.as_bytes(), sent);
    assert_eq!(get(&world, &batch_path, &acme).await.json(), batch);
    assert_eq!(get(&world, &schedule_path, &acme).await.json(), schedule);
    assert_eq!(get(&world, &hook_path, &acme).await.json()["url"], hook["url"]);
    assert_eq!(get(&world, "/v1/files", &acme).await.json()["data"], json!([file]));
    assert_eq!(get(&world, "/v1/batches", &acme).await.json()["data"], json!([batch]));

    // One idempotency key of each tenant is another one.
    let keyed = async |key: &str| {
        let authorization = format!("Bearer {key}");
        let headers = [("authorization", authorization.as_str()), ("idempotency-key", "same")];
        let file = world.call(upload_of(&headers, sent)).await.json()["id"].as_str().unwrap().to_owned();
        let asked = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
        let headers = [headers[0], ("idempotency-key", "same too")];
        let batch = world.post_with("/v1/batches", &headers, &asked).await;
        (file, batch.json()["id"].as_str().unwrap().to_owned())
    };
    let (first, foreign) = (keyed(&acme).await, keyed(&globex).await);
    assert!(first.0 != foreign.0 && first.1 != foreign.1);
    assert_eq!(keyed(&acme).await, first);
}

#[tokio::test]
async fn a_revoked_key_is_turned_away() {
    let world = World::new().await;
    let (_, admin) = key(&world, "local", &[Scope::Admin], None).await;
    let (made, text) = key(&world, "local", &[Scope::Read], None).await;
    assert_eq!(get(&world, "/v1/jobs", &text).await.status, StatusCode::OK);
    let revoke = format!("/v1/keys/{}/revoke", made.id);
    for _ in 0..2 {
        let revoked = call(&world, &Method::POST, &revoke, Some(&admin), None).await;
        assert_eq!(revoked.status, StatusCode::OK, "{}", revoked.text);
        assert!(revoked.json()["revoked_at"].is_string());
    }
    let refused = get(&world, "/v1/jobs", &text).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(refused.text.contains("was revoked"), "{}", refused.text);
    for nobody in ["key_1", &format!("key_{}", "0".repeat(32)), &text] {
        let path = format!("/v1/keys/{nobody}/revoke");
        let answer = call(&world, &Method::POST, &path, Some(&admin), None).await;
        assert_eq!((answer.status, answer.code()), (StatusCode::NOT_FOUND, "key_not_found".to_owned()));
    }
}

#[tokio::test]
async fn one_revoked_elsewhere_works_for_two_seconds_at_most() {
    let world = World::new().await;
    let (made, text) = key(&world, "local", &[Scope::Read], None).await;
    assert_eq!(get(&world, "/v1/jobs", &text).await.status, StatusCode::OK);
    world.store.revoke_key(&made.id).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(get(&world, "/v1/jobs", &text).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_server_can_need_keys_before_there_is_one() {
    let mut closed = World::new().await;
    closed.router = api::router(api::Deps { needs_key: true, ..closed.deps.clone() });
    assert_eq!(closed.get("/v1/models").await.status, StatusCode::UNAUTHORIZED);
    let refused = closed.post("/v1/keys", &json!({})).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let (_, text) = key(&closed, "local", &[Scope::Read], None).await;
    assert_eq!(get(&closed, "/v1/models", &text).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_key_is_not_made_twice_by_a_repeat() {
    let world = World::new().await;
    let refused = world.post_with("/v1/keys", &[("idempotency-key", "k")], &json!({})).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::BAD_REQUEST, "invalid_header".to_owned()));
    assert!(!world.store.has_keys().await.unwrap());
}
