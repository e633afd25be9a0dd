//! The usage ledger and the audit.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use contract::{Class, ErrorCode, JobError, JobStore, Outcome, Usage};
use serde_json::json;

use crate::support::{MODEL, World, model};

const DAY: &str = "from=2030-01-01&to=2030-01-01";

/// A server at noon of 2030-01-01, far from any midnight.
async fn at_noon() -> World {
    let world = World::new().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    // `date -u -d '2030-01-01 12:00' +%s`
    world.ahead.store(1_893_499_200_000 - now, Ordering::Relaxed);
    world
}

/// Four jobs: one succeeds, one fails, one is cancelled while it runs and one while it waits.
async fn four_ends(world: &World) {
    for _ in 0..3 {
        world.submit(Class::Standard).await;
    }
    let good = world.lease(Class::Standard).await;
    world.succeed(&good, &[(3, "Hel"), (4, "lo")]).await;
    let bad = world.lease(Class::Standard).await;
    let usage = Usage { prompt_tokens: 5, cached_tokens: 1, output_tokens: 3 };
    world.finish(&bad.lease, Outcome::Failed { error: JobError::new(ErrorCode::NotFinite, "nan"), usage }).await;
    let unwanted = world.lease(Class::Standard).await;
    let waiting = world.submit(Class::Standard).await;
    for job in [unwanted.lease.job, waiting] {
        let cancelled = world.post(&format!("/v1/jobs/{job}/cancel"), &json!(null)).await;
        assert_eq!(cancelled.status, StatusCode::OK, "{}", cancelled.text);
    }
    let late = Usage { prompt_tokens: 4, cached_tokens: 0, output_tokens: 1 };
    world.store.usage(&unwanted.lease, late).await.unwrap();
}

#[tokio::test]
async fn usage_is_what_the_jobs_used() {
    let world = at_noon().await;
    four_ends(&world).await;
    world.foreign_job().await;
    let line = json!({
        "day": "2030-01-01", "tenant": "local", "release": model().release, "model": MODEL, "class": "standard",
        "jobs": {"accepted": 4, "succeeded": 1, "failed": 1, "cancelled": 2, "expired": 0},
        // The result: two tokens of prompt, two generated.
        "tokens": {"prompt_tokens": 2, "cached_tokens": 0, "output_tokens": 2},
        // 5 + 4, 1 + 0, 3 + 1.
        "wasted_tokens": {"prompt_tokens": 9, "cached_tokens": 1, "output_tokens": 4},
    });
    let own = world.get(&format!("/v1/usage?{DAY}")).await;
    assert_eq!(own.status, StatusCode::OK, "{}", own.text);
    let expected = json!({"object": "list", "from": "2030-01-01", "to": "2030-01-01", "data": [line]});
    assert_eq!(own.json(), expected);

    let all = world.get(&format!("/v1/usage/tenants?{DAY}")).await.json();
    assert_eq!(all["data"].as_array().unwrap().len(), 2);
    assert_eq!((&all["data"][0], &all["data"][1]["tenant"]), (&line, &json!("somebody else")));
    assert_eq!(all["data"][1]["jobs"]["accepted"], 1);
    let one = world.get(&format!("/v1/usage/tenants?{DAY}&tenant=local")).await.json();
    assert_eq!(one["data"], json!([line]));
    // Days without jobs have no lines.
    assert_eq!(world.get("/v1/usage?from=2030-01-02&to=2030-02-01").await.json()["data"], json!([]));
    assert_eq!(world.get("/v1/usage").await.json()["data"], json!([]), "today is another day");
}

#[tokio::test]
async fn an_audit_adds_up_what_was_accepted() {
    let world = at_noon().await;
    four_ends(&world).await;
    world.foreign_job().await;
    let found = world.get(&format!("/v1/audit?{DAY}")).await;
    assert_eq!(found.status, StatusCode::OK, "{}", found.text);
    let day = |tenant: &str, [accepted, succeeded, failed, cancelled, unfinished]: [u32; 5]| {
        json!({"day": "2030-01-01", "tenant": tenant, "accepted": accepted, "succeeded": succeeded, "failed": failed,
            "cancelled": cancelled, "expired": 0, "unfinished": unfinished, "balanced": true})
    };
    let expected = json!({
        "object": "audit", "from": "2030-01-01", "to": "2030-01-01", "holds": true,
        "days": [day("local", [4, 1, 1, 2, 0]), day("somebody else", [1, 0, 0, 0, 1])],
        "batches": [], "more_batches": false, "breaches": [], "more_breaches": false,
    });
    assert_eq!(found.json(), expected);
    let one = world.get(&format!("/v1/audit?{DAY}&tenant=local")).await.json();
    assert_eq!(one["days"], json!([expected["days"][0]]));
}

#[tokio::test]
async fn wrong_days_are_named() {
    let world = World::new().await;
    for (path, param) in [
        ("/v1/usage?from=yesterday", "from"),
        ("/v1/usage?to=2026-02-30", "to"),
        ("/v1/usage?from=2026-03-02&to=2026-03-01", "from"),
        ("/v1/usage?from=2024-01-01&to=2026-01-01", "from"),
        ("/v1/usage?tenant=acme", "tenant"),
        ("/v1/usage/tenants?tenant=%00", "tenant"),
        ("/v1/audit?from=2026-01-01&to=2026-02-01", "from"),
        ("/v1/audit?day=2026-01-01", "day"),
    ] {
        let refused = world.get(path).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {}", refused.text);
        assert_eq!(refused.json()["error"]["param"], param, "{path}: {}", refused.text);
    }
}
