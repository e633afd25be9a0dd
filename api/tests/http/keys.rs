//! Keys: who gets in, and what each may do.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use contract::{AdminStore, JobId, Key, KeyText, NewKey, Scope, TenantId};
use serde_json::{Value, json};

use crate::support::{Answer, MODEL, World, model};

/// A key straight from the store.
async fn key(world: &World, tenant: &str, scopes: &[Scope], expires_in: Option<Duration>) -> (Key, String) {
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

async fn call(world: &World, method: &Method, path: &str, key: Option<&str>, body: Option<&Value>) -> Answer {
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

/// Every route of the description with ids that exist or once did; what says how the server is left out.
fn routes(job: &JobId) -> Vec<(Method, String)> {
    let mut routes = Vec::new();
    for (path, item) in api::openapi().paths.paths {
        if ["/", "/livez", "/readyz", "/openapi.json"].contains(&path.as_str()) {
            continue;
        }
        let id = if path.starts_with("/v1/keys") { format!("key_{}", "0".repeat(32)) } else { job.to_string() };
        let path = path.replace("{id}", &id).replace("{model}", MODEL);
        for (method, there) in [(Method::GET, item.get.is_some()), (Method::POST, item.post.is_some())] {
            if there {
                routes.push((method, path.clone()));
            }
        }
    }
    assert!(routes.len() > 10);
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
    let job = world.submit(contract::Class::Standard).await;
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
    for (method, path) in routes(&job) {
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
    assert_eq!(get(&world, &format!("/v1/jobs/{job}"), &good).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_scope_opens_its_routes_and_no_others() {
    let mut world = World::new().await;
    let job = world.submit(contract::Class::Standard).await;
    // One that has not seen that there were no keys a moment ago.
    world.router = api::router(world.deps.clone());
    for scope in Scope::ALL {
        let (_, text) = key(&world, "local", &[scope], None).await;
        for (method, path) in routes(&job) {
            let answer = call(&world, &method, &path, Some(&text), Some(&json!({}))).await;
            let is_in = match scope {
                _ if path.starts_with("/v1/models") => true,
                Scope::Read => method == Method::GET && path.starts_with("/v1/jobs"),
                Scope::Submit => method == Method::POST && !path.starts_with("/v1/keys"),
                Scope::Admin => path.starts_with("/v1/keys") || path == "/v1/stats",
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
    assert_eq!(get(&world, "/v1/jobs", &acme).await.json()["data"][0]["id"], id.as_str());

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
