//! What the server says of itself.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::{MODEL, World, model};

#[tokio::test]
async fn the_description_has_every_route_and_no_other() {
    let world = World::new().await;
    let answer = world.get("/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let description = answer.json();
    let mut routes = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        routes.extend(methods.as_object().unwrap().keys().map(|method| format!("{method} {path}")));
    }
    let expected = [
        "delete /v1/files/{id}",
        "get /",
        "get /livez",
        "get /openapi.json",
        "get /readyz",
        "get /v1/batches",
        "get /v1/batches/{id}",
        "get /v1/batches/{id}/progress",
        "get /v1/batches/{id}/results",
        "get /v1/files",
        "get /v1/files/{id}",
        "get /v1/files/{id}/content",
        "get /v1/jobs",
        "get /v1/jobs/{id}",
        "get /v1/jobs/{id}/events",
        "get /v1/jobs/{id}/trajectory",
        "get /v1/keys",
        "get /v1/models",
        "get /v1/models/{model}",
        "get /v1/sequences",
        "get /v1/sequences/{key}",
        "get /v1/stats",
        "get /v1/limits",
        "get /v1/tenants",
        "get /v1/tenants/{tenant}",
        "post /v1/tenants/{tenant}",
        "delete /v1/tenants/{tenant}",
        "delete /v1/schedules/{id}",
        "get /v1/schedules",
        "get /v1/schedules/{id}",
        "get /v1/schedules/{id}/runs",
        "post /v1/schedules",
        "post /v1/schedules/{id}",
        "post /v1/schedules/{id}/run",
        "get /v1/audit",
        "get /v1/usage",
        "get /v1/usage/tenants",
        "delete /v1/webhooks/{id}",
        "get /v1/webhooks",
        "get /v1/webhooks/deliveries",
        "get /v1/webhooks/deliveries/{id}",
        "get /v1/webhooks/secret",
        "get /v1/webhooks/{id}",
        "get /v1/webhooks/{id}/secret",
        "post /v1/webhooks",
        "post /v1/webhooks/deliveries/{id}/redeliver",
        "post /v1/webhooks/secret/rotate",
        "post /v1/webhooks/{id}",
        "post /v1/webhooks/{id}/rotate",
        "post /v1/batches",
        "post /v1/batches/{id}/cancel",
        "post /v1/batches/{id}/resubmit",
        "post /v1/chat/completions",
        "post /v1/completions",
        "post /v1/files",
        "post /v1/jobs",
        "post /v1/jobs/{id}/cancel",
        "post /v1/jobs:batch",
        "post /v1/keys",
        "post /v1/keys/{id}/revoke",
        "post /v1/sequences/{key}/resume",
    ];
    assert_eq!(routes, expected.map(str::to_owned).into());
    assert!(description["openapi"].as_str().unwrap().starts_with("3."));
    // Each reference leads somewhere.
    let schemas = description["components"]["schemas"].as_object().unwrap();
    for reference in answer.text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} is not described");
    }
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let world = World::new().await;
    let list = world.get("/v1/models").await.json();
    assert_eq!((list["object"].as_str(), list["data"][0]["id"].as_str()), (Some("list"), Some(MODEL)));
    let one = world.get(&format!("/v1/models/{MODEL}")).await.json();
    assert_eq!(one, list["data"][0]);
    assert_eq!((one["max_model_len"].as_u64(), &one["release"]), (Some(1000), &json!(model().release.as_str())));
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let world = World::new().await;
    let page = world.get("/").await;
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert!(!page.text.contains("http://") && !page.text.contains("https://"), "no assets from elsewhere");
    assert!(page.text.contains("/v1/stats") && page.text.contains("<h1>"));
    let stats = world.get("/v1/stats").await.json();
    assert_eq!(stats["workers"][0]["capacity"], 16);
    assert_eq!(stats["queues"].as_array().unwrap().len(), 9, "three classes of three models");
}
