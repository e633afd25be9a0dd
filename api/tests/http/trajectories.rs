//! Trajectories before and after they are archived, and results that archiving does not change.

use contract::Trajectories;
use contract::trajectory::{SegmentBuilder, frame_of};
use contract::{Class, JobError, JobId, JobStore, Leased, RecordLocation, TrajectoryMode};
use object_store::ObjectStoreExt;
use serde_json::json;

use crate::support::{Answer, World, model, record, succeeded};

const SCRIPT: [(u32, &str); 3] = [(10, "He"), (11, ""), (12, "llo")];

/// A world whose jobs keep so much.
async fn world(mode: TrajectoryMode) -> World {
    let mut world = World::new().await;
    world.deps.trajectories = Trajectories { default: mode, ..Trajectories::default() };
    world.router = api::router(world.deps.clone());
    world
}

/// A job that succeeded, its record in its row or staged.
async fn ended(world: &World, staged: bool) -> (JobId, Leased) {
    let job = world.submit(Class::Bulk).await;
    let leased = world.lease(Class::Bulk).await;
    let record = record(&leased, &SCRIPT);
    let encoded = record.encode().unwrap();
    let location = if staged {
        let key = format!("records/{job}/1");
        world.objects.put(&key.as_str().into(), encoded.into()).await.unwrap();
        RecordLocation::Staged(key)
    } else {
        RecordLocation::Inline(encoded)
    };
    world.finish(&leased.lease, succeeded(&record, location)).await;
    (job, leased)
}

/// Puts what is kept of a job into a segment behind another line, as the archiver does.
async fn archive(world: &World, leased: &Leased, mode: TrajectoryMode) {
    let record = record(leased, &SCRIPT);
    let encoded = record.encode().unwrap();
    let frame = frame_of(&encoded, &record.job, &record.release, mode).unwrap().unwrap();
    let mut segment = SegmentBuilder::new("trajectories/x/2026/01/02/y.jsonl.zst".into());
    segment.push(JobId::new(), b"another record's frame");
    segment.push(record.job, &frame);
    let (key, bytes, places) = segment.finish();
    world.objects.put(&key.into(), bytes.into()).await.unwrap();
    assert_eq!(world.store.archived(&places[1..]).await.unwrap(), [true]);
}

async fn trajectory(world: &World, job: &JobId) -> Answer {
    world.get(&format!("/v1/jobs/{job}/trajectory")).await
}

#[tokio::test]
async fn a_full_one_is_the_record_before_and_after_archiving() {
    for staged in [false, true] {
        let world = world(TrajectoryMode::Full).await;
        let (job, leased) = ended(&world, staged).await;
        let result = world.get(&format!("/v1/jobs/{job}")).await.json();
        let before = trajectory(&world, &job).await;
        assert_eq!(before.status.as_u16(), 200, "{}", before.text);
        assert_eq!(before.header("penstock-release"), Some(model().release.as_str()));
        let before = before.json();
        assert_eq!(
            (&before["object"], &before["mode"], &before["job"]),
            (&json!("trajectory"), &json!("full"), &json!(job.to_string()))
        );
        assert!(before["segment"].is_null());
        assert_eq!(before["record"]["prompt_ids"], json!([1, 2]));
        assert_eq!(before["record"]["choices"][0]["output_ids"], json!([10, 11, 12]));
        assert_eq!(before["record"]["release"], json!(model().release.as_str()));

        archive(&world, &leased, TrajectoryMode::Full).await;
        world.objects.delete(&format!("records/{job}/1").into()).await.ok();
        let after = trajectory(&world, &job).await.json();
        assert_eq!(after["record"], before["record"], "staged: {staged}");
        assert_eq!(after["segment"]["offset"], json!("another record's frame".len()));
        assert_eq!(world.get(&format!("/v1/jobs/{job}")).await.json(), result, "staged: {staged}");
        let stream = world.get(&format!("/v1/jobs/{job}/events")).await;
        assert_eq!(stream.events().len(), 5, "{}", stream.text);
    }
}

#[tokio::test]
async fn a_redacted_one_says_nothing_and_the_result_stays() {
    let world = world(TrajectoryMode::Redacted).await;
    let (job, leased) = ended(&world, false).await;
    let result = world.get(&format!("/v1/jobs/{job}")).await.json();
    assert_eq!(result["result"]["choices"][0]["text"], "Hello");
    let before = trajectory(&world, &job).await.json();
    assert_eq!((&before["mode"], &before["record"]["redacted"]), (&json!("redacted"), &json!(true)));
    assert_eq!(before["record"]["choices"][0]["n_output"], 3);
    assert!(!before.to_string().contains("Hello") && !before.to_string().contains("_ids\":["), "{before}");
    archive(&world, &leased, TrajectoryMode::Redacted).await;
    let after = trajectory(&world, &job).await.json();
    assert_eq!(after["record"], before["record"]);
    assert!(after["segment"]["key"].is_string());
    assert_eq!(world.get(&format!("/v1/jobs/{job}")).await.json(), result);
}

#[tokio::test]
async fn what_has_none_says_why() {
    let world = world(TrajectoryMode::Full).await;
    let refusal = |answer: Answer| (answer.status.as_u16(), answer.code());
    let never = JobId::new();
    assert_eq!(refusal(trajectory(&world, &never).await), (404, "job_not_found".to_owned()));
    assert_eq!(refusal(world.get("/v1/jobs/x/trajectory").await), (404, "job_not_found".to_owned()));
    let foreign = world.foreign_job().await;
    assert_eq!(refusal(trajectory(&world, &foreign).await), (404, "job_not_found".to_owned()));
    let job = world.submit(Class::Bulk).await;
    assert_eq!(refusal(trajectory(&world, &job).await), (409, "job_not_ended".to_owned()));
    let leased = world.lease(Class::Bulk).await;
    assert_eq!(refusal(trajectory(&world, &job).await), (409, "job_not_ended".to_owned()));
    world.fail(&leased.lease, JobError::new(contract::ErrorCode::NotFinite, "nan")).await;
    assert_eq!(refusal(trajectory(&world, &job).await), (404, "no_trajectory".to_owned()));

    let off = self::world(TrajectoryMode::Off).await;
    let (job, _) = ended(&off, false).await;
    let answer = trajectory(&off, &job).await;
    assert!(answer.text.contains("off"), "{}", answer.text);
    assert_eq!(refusal(answer), (404, "no_trajectory".to_owned()));
    assert_eq!(off.get(&format!("/v1/jobs/{job}")).await.json()["status"], "succeeded");
}

#[tokio::test]
async fn the_tenants_own_mode_wins_over_the_default() {
    let mut world = World::new().await;
    let tenants = [(contract::TenantId::local(), TrajectoryMode::Redacted)].into();
    world.deps.trajectories = Trajectories { default: TrajectoryMode::Off, tenants, keep: None };
    world.router = api::router(world.deps.clone());
    let (job, _) = ended(&world, false).await;
    assert_eq!(trajectory(&world, &job).await.json()["mode"], "redacted");
}
