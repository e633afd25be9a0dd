//! Webhooks: made, changed, rotated, and the log of what was sent.

use axum::http::StatusCode;
use contract::{AdminStore, AttemptEnd, Class, JobStore, TenantId, Then};
use serde_json::{Value, json};

use crate::files::members;
use crate::support::{MODEL, World};

const PATH: &str = "/v1/webhooks";

fn asked() -> Value {
    json!({"url": "https://example.com/hook", "events": ["job.succeeded"], "description": "mine"})
}

#[tokio::test]
async fn a_webhook_is_made_shown_changed_and_deleted() {
    let world = World::new().await;
    let made = world.post_with(PATH, &[("idempotency-key", "k")], &asked()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let made = made.json();
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("wh_") && made["secret"].as_str().unwrap().starts_with("whsec_"), "{made}");
    let again = world.post_with(PATH, &[("idempotency-key", "k")], &asked()).await;
    assert_eq!((again.json(), again.header("idempotency-replayed")), (made.clone(), Some("true")));
    let other = world.post_with(PATH, &[("idempotency-key", "k")], &json!({"url": "https://example.com"})).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);

    let shown = world.get(&format!("{PATH}/{id}")).await.json();
    let expected = ["id", "object", "url", "events", "description", "enabled", "disabled_reason", "created_at"];
    assert_eq!(members(&shown), expected.into(), "no secret");
    assert_eq!((&shown["url"], &shown["enabled"]), (&asked()["url"], &json!(true)));
    assert_eq!(world.get(PATH).await.json()["data"], json!([shown]));

    let change = json!({"url": "https://example.org/2", "events": [], "enabled": false});
    let changed = world.post(&format!("{PATH}/{id}"), &change).await.json();
    assert_eq!((&changed["url"], &changed["events"], &changed["enabled"]), (&change["url"], &json!([]), &json!(false)));
    assert!(changed["disabled_reason"].is_string());
    assert_eq!(world.post(&format!("{PATH}/{id}"), &json!({"enabled": true})).await.json()["enabled"], true);

    let secret = world.get(&format!("{PATH}/{id}/secret")).await.json();
    assert_eq!((&secret["secret"], &secret["earlier"]), (&made["secret"], &json!([])));
    let rotated = world.post(&format!("{PATH}/{id}/rotate"), &json!({"overlap_seconds": 60})).await.json();
    assert_ne!(rotated["secret"], made["secret"]);
    assert_eq!(rotated["earlier"], json!([made["secret"]]));

    let delete =
        |id: String| axum::http::Request::delete(format!("{PATH}/{id}")).body(axum::body::Body::empty()).unwrap();
    assert_eq!(world.call(delete(id.to_owned())).await.json()["deleted"], true);
    for gone in [id, "wh_1", "x"] {
        let answer = world.get(&format!("{PATH}/{gone}")).await;
        assert_eq!((answer.status, answer.code()), (StatusCode::NOT_FOUND, "webhook_not_found".to_owned()));
        assert_eq!(world.call(delete(gone.to_owned())).await.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn addresses_inside_are_refused_wherever_they_are_given() {
    let world = World::new().await;
    let job = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"}});
    for url in [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://localhost/",
        "https://user:password@example.com/",
        "https://example.com:22/",
        "ftp://example.com/",
        "example.com",
        "",
    ] {
        let refused = world.post(PATH, &json!({"url": url})).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("url")),
            "{url}"
        );
        let mut job = job.clone();
        job["webhook"] = json!({"url": url});
        let refused = world.post("/v1/jobs", &job).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("webhook.url")),
            "{url}"
        );
    }
    assert_eq!((world.jobs().await, world.get(PATH).await.json()["data"].clone()), (0, json!([])));
}

#[tokio::test]
async fn what_was_sent_is_listed_and_sent_again() {
    let world = World::new().await;
    let made = world.post(PATH, &json!({"url": "https://example.com/all"})).await.json();
    let job = json!({"type": "completion", "request": {"model": MODEL, "prompt": "Hi"},
        "webhook": {"url": "https://example.com/own", "events": ["job.failed"]}});
    let id = world.post("/v1/jobs", &job).await.json()["id"].as_str().unwrap().to_owned();
    let leased = world.lease(Class::Standard).await;
    world.succeed(&leased, &[(3, "x")]).await;
    let list = world.get(&format!("{PATH}/deliveries")).await.json();
    let events: Vec<_> = list["data"].as_array().unwrap().iter().map(|one| one["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["job.succeeded", "job.started"], "newest first, and nothing for the job's own address");
    let newest = &list["data"][0];
    assert_eq!((&newest["subject"], &newest["webhook"], &newest["sequence"]), (&json!(id), &made["id"], &json!(2)));
    assert_eq!((&newest["status"], &newest["attempts"]), (&json!("waiting"), &json!(0)));
    let page = world.get(&format!("{PATH}/deliveries?limit=1")).await.json();
    assert_eq!((&page["has_more"], &page["last_id"]), (&json!(true), &newest["id"]));
    let rest =
        world.get(&format!("{PATH}/deliveries?after={}&status=waiting", newest["id"].as_str().unwrap())).await.json();
    assert_eq!(rest["data"], json!([list["data"][1]]));

    let due = world.store.due_deliveries(&[], 10, 10, std::time::Duration::from_secs(90)).await.unwrap();
    let due = due.into_iter().find(|due| newest["id"] == due.delivery.id.to_string()).unwrap();
    let end =
        AttemptEnd { status: Some(500), error: Some("no".into()), took: std::time::Duration::ZERO, then: Then::GiveUp };
    world.store.end_attempt(&due.delivery.id, &end).await.unwrap();
    let path = format!("{PATH}/deliveries/{}", newest["id"].as_str().unwrap());
    let one = world.get(&path).await.json();
    assert_eq!(
        (&one["status"], &one["log"][0]["status"], &one["log"][0]["error"]),
        (&json!("failed"), &json!(500), &json!("no"))
    );
    assert!(world.get(&format!("{PATH}/{}", made["id"].as_str().unwrap())).await.json()["disabled_reason"].is_string());
    let again = world.post(&format!("{path}/redeliver"), &json!({})).await;
    assert_eq!((again.status, &again.json()["status"]), (StatusCode::OK, &json!("waiting")));
    for (query, param) in [("?limit=0", "limit"), ("?status=sent", "status"), ("?webhook=1", "webhook"), ("?x=1", "x")]
    {
        let refused = world.get(&format!("{PATH}/deliveries{query}")).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)));
    }
    let answer = world.get(&format!("{PATH}/deliveries/msg_1")).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::NOT_FOUND, "delivery_not_found".to_owned()));
    // A job that ended before anybody asked is told to nobody.
    let before = world.store.deliveries(&TenantId::local(), &Default::default()).await.unwrap().0.len();
    world.store.cancel(&TenantId::local(), &leased.lease.job).await.unwrap();
    assert_eq!(world.store.deliveries(&TenantId::local(), &Default::default()).await.unwrap().0.len(), before);
}

#[tokio::test]
async fn a_tenants_own_secret_stays_until_it_is_rotated() {
    let world = World::new().await;
    let first = world.get(&format!("{PATH}/secret")).await.json();
    assert!(first["secret"].as_str().unwrap().starts_with("whsec_"), "{first}");
    assert_eq!(world.get(&format!("{PATH}/secret")).await.json(), first);
    let path = format!("{PATH}/secret/rotate");
    let rotated = world.call(axum::http::Request::post(&path).body(axum::body::Body::empty()).unwrap()).await.json();
    assert_eq!(rotated["earlier"], json!([first["secret"]]));
    assert_eq!(world.get(&format!("{PATH}/secret")).await.json(), rotated);
    assert_eq!(world.get(PATH).await.json()["data"], json!([]), "it is no webhook");
}
