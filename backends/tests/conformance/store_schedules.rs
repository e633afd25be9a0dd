//! Schedules, and the batches that are made of them. The clock begins at 2025-11-29T18:04:14Z.

use std::collections::BTreeSet;
use std::time::Duration;

use contract::schedule::MAX_SCHEDULES;
use contract::{
    Batch, BatchEnd, BatchId, BatchState, BatchTemplate, CatchUp, FileDeletion, FileId, Fired, Hook, IdempotencyKey,
    Kind, Made, NewFile, NewSchedule, Overlap, Purpose, Schedule, ScheduleChange, ScheduleId, ScheduleRefused,
    TenantId, Timestamp, Zone,
};
use futures::future::join_all;

use crate::help::*;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).unwrap()
}

fn other() -> TenantId {
    TenantId::from("globex")
}

fn key(text: &str, body: u8) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { key: text.into(), body_hash: [body; 32] })
}

fn new_file() -> NewFile {
    NewFile {
        id: FileId::new(),
        tenant: tenant(),
        filename: "in.jsonl".into(),
        purpose: Purpose::Batch,
        bytes: 3,
        expires_in: Some(30 * DAY),
        idempotency: None,
    }
}

async fn add_file(t: &dyn StoreUnderTest, file: &NewFile) -> FileId {
    t.admin().add_file(file).await.unwrap().unwrap().into_inner().id
}

/// Every night at three.
fn nightly(input: FileId) -> NewSchedule {
    NewSchedule {
        id: ScheduleId::new(),
        tenant: tenant(),
        name: "a \0 ü".into(),
        cron: "0 3 * * *".parse().unwrap(),
        zone: Zone::default(),
        overlap: Overlap::Skip,
        catch_up: CatchUp::One,
        enabled: true,
        batch: BatchTemplate {
            input,
            endpoint: Kind::Embedding,
            window: secs(5_400),
            window_text: "90m".into(),
            metadata: [("k\0".to_owned(), "v\u{f8ff}".to_owned())].into(),
            output_life: Some(secs(3_600)),
            keep: Some(secs(7_200)),
            webhook: Some(Hook { url: "https://a.example/".into(), events: vec![] }),
        },
        idempotency: None,
    }
}

async fn add(t: &dyn StoreUnderTest, new: &NewSchedule) -> Schedule {
    t.admin().add_schedule(new).await.unwrap().unwrap().into_inner()
}

async fn shown(t: &dyn StoreUnderTest, id: &ScheduleId) -> Schedule {
    t.admin().schedule(&tenant(), id).await.unwrap().unwrap()
}

/// Lets time pass until then.
async fn until(t: &dyn StoreUnderTest, id: &ScheduleId, then: Timestamp) {
    let now = shown(t, id).await.now;
    t.advance(Duration::from_millis(then.millis_since(now))).await;
}

/// Does what is to be done now, as a scheduler does.
async fn fire(t: &dyn StoreUnderTest, id: &ScheduleId) -> Option<Fired> {
    let due = t.admin().due_schedules(10).await.unwrap();
    let due = due.into_iter().find(|(due, _)| due == id)?.1;
    t.admin().fire_schedule(id, due, BatchId::new()).await.unwrap()
}

async fn run_of(t: &dyn StoreUnderTest, id: &ScheduleId) -> Batch {
    match fire(t, id).await {
        Some(Fired::Run(batch)) => *batch,
        other => panic!("no run: {other:?}"),
    }
}

async fn end(t: &dyn StoreUnderTest, batch: &BatchId) {
    let cancelled = BatchEnd { state: BatchState::Cancelled, output: None, errors: None };
    assert!(t.admin().end_batch(batch, &cancelled).await.unwrap().is_some());
}

async fn change(t: &dyn StoreUnderTest, id: &ScheduleId, change: ScheduleChange) -> Result<Schedule, ScheduleRefused> {
    t.admin().change_schedule(&tenant(), id, &change).await.unwrap()
}

fn enabled(enabled: bool) -> ScheduleChange {
    ScheduleChange { enabled: Some(enabled), ..ScheduleChange::default() }
}

pub async fn a_schedule_is_kept_as_it_was_made(t: &mut dyn StoreUnderTest) {
    let new = nightly(add_file(t, &new_file()).await);
    let made = add(t, &new).await;
    assert_eq!(made, new.made(made.now));
    assert_eq!((made.created_at, made.next_at), (made.now, Some(at("2025-11-30T03:00:00Z"))));
    t.reopen().await;
    assert_eq!(t.admin().schedule(&tenant(), &new.id).await.unwrap(), Some(made));
    assert_eq!(t.admin().schedule(&other(), &new.id).await.unwrap(), None, "another tenant's");
    let asleep = NewSchedule { id: ScheduleId::new(), enabled: false, catch_up: CatchUp::None, ..new };
    let asleep = NewSchedule { overlap: Overlap::Allow, zone: "Europe/Berlin".parse().unwrap(), ..asleep };
    let made = add(t, &asleep).await;
    assert_eq!((made.next_at, shown(t, &asleep.id).await), (None, asleep.made(made.now)));
}

pub async fn one_key_makes_one_schedule(t: &mut dyn StoreUnderTest) {
    let file = NewFile { idempotency: key("file", 1), ..new_file() };
    let new = NewSchedule { idempotency: key("k", 1), ..nightly(add_file(t, &file).await) };
    let first = add(t, &new).await;
    let again = NewSchedule { id: ScheduleId::new(), ..new.clone() };
    assert_eq!(t.admin().add_schedule(&again).await.unwrap(), Ok(Made::Replayed(first)));
    for used in [key("k", 2), key("file", 2), key("file", 1)] {
        let differs = NewSchedule { id: ScheduleId::new(), idempotency: used, ..new.clone() };
        assert_eq!(t.admin().add_schedule(&differs).await.unwrap(), Err(ScheduleRefused::KeyReused));
    }
    let admin = t.admin();
    let made = join_all((0..8).map(|_| {
        let (admin, new) =
            (admin.clone(), NewSchedule { id: ScheduleId::new(), idempotency: key("b", 1), ..new.clone() });
        async move { admin.add_schedule(&new).await.unwrap().unwrap() }
    }))
    .await;
    assert_eq!(made.iter().filter(|made| matches!(made, Made::New(_))).count(), 1);
    assert_eq!(made.into_iter().map(|made| made.into_inner().id).collect::<BTreeSet<_>>().len(), 1);
}

pub async fn schedules_are_listed_newest_first_and_a_hundred_are_the_most(t: &mut dyn StoreUnderTest) {
    let file = add_file(t, &new_file()).await;
    let mut ids = Vec::new();
    for _ in 0..MAX_SCHEDULES {
        ids.insert(0, add(t, &nightly(file)).await.id);
    }
    let page = async |after, limit| {
        let (page, has_more) = t.admin().schedules(&tenant(), after, limit).await.unwrap();
        (page.iter().map(|schedule| schedule.id).collect::<Vec<_>>(), has_more)
    };
    assert_eq!(page(None, 3).await, (ids[..3].to_vec(), true));
    assert_eq!(page(Some(ids[96]), 3).await, (ids[97..].to_vec(), false));
    assert_eq!(t.admin().schedules(&other(), None, 10).await.unwrap(), (vec![], false));
    assert_eq!(t.admin().add_schedule(&nightly(file)).await.unwrap(), Err(ScheduleRefused::TooMany));
    assert!(t.admin().delete_schedule(&tenant(), &ids[0]).await.unwrap());
    assert!(t.admin().add_schedule(&nightly(file)).await.unwrap().is_ok());
}

pub async fn a_schedule_needs_a_file_for_batches_that_lives(t: &mut dyn StoreUnderTest) {
    let foreign = add_file(t, &NewFile { tenant: other(), ..new_file() }).await;
    let output = add_file(t, &NewFile { purpose: Purpose::BatchOutput, ..new_file() }).await;
    let old = add_file(t, &NewFile { expires_in: Some(secs(60)), ..new_file() }).await;
    t.advance(secs(60)).await;
    for file in [foreign, output, old, FileId::new()] {
        assert_eq!(t.admin().add_schedule(&nightly(file)).await.unwrap(), Err(ScheduleRefused::NoFile));
    }
    assert_eq!(t.admin().schedules(&tenant(), None, 10).await.unwrap(), (vec![], false));
}

pub async fn a_time_is_run_once_by_whoever_is_first(t: &mut dyn StoreUnderTest) {
    let new = nightly(add_file(t, &new_file()).await);
    let due = add(t, &new).await.next_at.unwrap();
    until(t, &new.id, Timestamp(due.0 - 1)).await;
    assert_eq!(t.admin().due_schedules(10).await.unwrap(), []);
    assert_eq!(t.admin().fire_schedule(&new.id, due, BatchId::new()).await.unwrap(), None, "its time has not come");
    t.advance(Duration::from_millis(1)).await;
    assert_eq!(t.admin().due_schedules(10).await.unwrap(), [(new.id, due)]);
    let fired = join_all((0..8).map(|_| {
        let (admin, id) = (t.admin(), new.id);
        async move { admin.fire_schedule(&id, due, BatchId::new()).await.unwrap() }
    }))
    .await;
    let mut runs = fired.into_iter().flatten();
    let Some(Fired::Run(batch)) = runs.next() else { panic!("nobody was first") };
    assert_eq!(runs.next(), None);
    assert_eq!(t.admin().batches(&tenant(), None, 10).await.unwrap(), (vec![(*batch).clone()], false));
    assert_eq!((batch.schedule, batch.input, batch.state), (Some(new.id), new.batch.input, BatchState::Validating));
    assert_eq!((&batch.metadata, batch.output_life), (&new.batch.metadata, new.batch.output_life));
    assert_eq!(batch.keep, Some(secs(7_200)));
    assert_eq!((batch.window(), &batch.window_text), (new.batch.window, &new.batch.window_text));
    let after = shown(t, &new.id).await;
    assert_eq!((after.next_at, after.last_at), (Some(at("2025-12-01T03:00:00Z")), Some(due)));
    assert_eq!((after.last_batch, after.runs, after.skipped), (Some(batch.id), 1, 0));
    assert_eq!(t.admin().due_schedules(10).await.unwrap(), []);
    t.reopen().await;
    assert_eq!(t.admin().fire_schedule(&new.id, due, BatchId::new()).await.unwrap(), None);
    // Its end is told to the address of the schedule, as that of any batch is.
    end(t, &batch.id).await;
    let (told, _) = t.admin().deliveries(&tenant(), &contract::DeliveryFilter::default()).await.unwrap();
    assert_eq!(told.iter().map(|delivery| delivery.url.as_str()).collect::<Vec<_>>(), ["https://a.example/"]);
}

pub async fn a_run_that_has_not_ended_is_waited_for(t: &mut dyn StoreUnderTest) {
    let new = nightly(add_file(t, &new_file()).await);
    let beside = NewSchedule { id: ScheduleId::new(), overlap: Overlap::Allow, ..new.clone() };
    for new in [&new, &beside] {
        add(t, new).await;
    }
    t.advance(DAY).await;
    let (first, _) = (run_of(t, &new.id).await, run_of(t, &beside.id).await);
    t.advance(DAY).await;
    assert_eq!(fire(t, &new.id).await, Some(Fired::Skipped));
    let passed_over = shown(t, &new.id).await;
    assert_eq!((passed_over.runs, passed_over.skipped, passed_over.last_batch), (1, 1, Some(first.id)));
    assert_eq!(passed_over.next_at, Some(at("2025-12-02T03:00:00Z")));
    run_of(t, &beside.id).await;
    end(t, &first.id).await;
    t.advance(DAY).await;
    let second = run_of(t, &new.id).await;
    // One on demand counts as well.
    end(t, &second.id).await;
    t.admin().run_schedule(&tenant(), &new.id, BatchId::new(), None).await.unwrap().unwrap();
    t.advance(DAY).await;
    assert_eq!(fire(t, &new.id).await, Some(Fired::Skipped));
}

pub async fn times_that_were_missed_are_one_run_or_none(t: &mut dyn StoreUnderTest) {
    let new = nightly(add_file(t, &new_file()).await);
    let strict = NewSchedule { id: ScheduleId::new(), catch_up: CatchUp::None, ..new.clone() };
    for new in [&new, &strict] {
        add(t, new).await;
    }
    t.advance(10 * DAY).await;
    let due = t.admin().due_schedules(10).await.unwrap();
    assert_eq!(due.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [at("2025-11-30T03:00:00Z"); 2]);
    assert_eq!(t.admin().due_schedules(1).await.unwrap().len(), 1);
    run_of(t, &new.id).await;
    assert_eq!(fire(t, &strict.id).await, Some(Fired::Skipped));
    assert_eq!(t.admin().due_schedules(10).await.unwrap(), []);
    for (id, runs, skipped) in [(new.id, 1, 0), (strict.id, 0, 1)] {
        let schedule = shown(t, &id).await;
        assert_eq!((schedule.runs, schedule.skipped), (runs, skipped));
        assert_eq!(schedule.next_at, Some(at("2025-12-10T03:00:00Z")));
    }
}

pub async fn a_file_stays_while_an_enabled_schedule_uses_it(t: &mut dyn StoreUnderTest) {
    let file = add_file(t, &new_file()).await;
    let new = nightly(file);
    add(t, &new).await;
    let delete = async || t.admin().delete_file(&tenant(), &file).await.unwrap();
    assert_eq!(delete().await, FileDeletion::InUse);
    t.advance(40 * DAY).await;
    assert_eq!(t.admin().expired_files(10).await.unwrap(), [], "past its own end, and still there");
    let batch = run_of(t, &new.id).await;
    end(t, &batch.id).await;

    change(t, &new.id, enabled(false)).await.unwrap();
    assert_eq!(t.admin().expired_files(10).await.unwrap(), [file]);
    assert_eq!(change(t, &new.id, enabled(true)).await, Err(ScheduleRefused::NoFile), "it may go at any moment");
    t.admin().files_emptied(&[file]).await.unwrap();
    let run = t.admin().run_schedule(&tenant(), &new.id, BatchId::new(), None).await.unwrap();
    assert_eq!(run, Err(ScheduleRefused::NoFile));
    assert_eq!(delete().await, FileDeletion::Deleted);

    let fresh = add_file(t, &new_file()).await;
    let batch = BatchTemplate { input: fresh, ..new.batch };
    let changed = ScheduleChange { batch: Some(batch), ..enabled(true) };
    assert!(change(t, &new.id, changed).await.unwrap().is_enabled());
    assert_eq!(t.admin().delete_file(&tenant(), &fresh).await.unwrap(), FileDeletion::InUse);
    assert!(t.admin().delete_schedule(&tenant(), &new.id).await.unwrap());
    assert_eq!(t.admin().delete_file(&tenant(), &fresh).await.unwrap(), FileDeletion::Deleted);
}

pub async fn a_schedule_whose_file_is_gone_says_so_and_goes_on(t: &mut dyn StoreUnderTest) {
    let file = add_file(t, &new_file()).await;
    let new = nightly(file);
    let due = add(t, &new).await.next_at.unwrap();
    t.admin().files_emptied(&[file]).await.unwrap();
    until(t, &new.id, due).await;
    let Some(Fired::Failed(why)) = fire(t, &new.id).await else { panic!("there is no file") };
    let failing = shown(t, &new.id).await;
    assert_eq!((failing.last_error.as_ref(), failing.runs, failing.last_at), (Some(&why), 0, None));
    assert!(why.contains(&file.to_string()), "{why}");
    assert_eq!(failing.next_at, Some(at("2025-12-01T03:00:00Z")));
    assert_eq!(t.admin().batches(&tenant(), None, 10).await.unwrap(), (vec![], false));

    let missing = BatchTemplate { input: FileId::new(), ..new.batch.clone() };
    let given = ScheduleChange { batch: Some(missing), ..ScheduleChange::default() };
    assert_eq!(change(t, &new.id, given).await, Err(ScheduleRefused::NoFile));
    let batch = BatchTemplate { input: add_file(t, &new_file()).await, ..new.batch };
    let given = ScheduleChange { batch: Some(batch), ..ScheduleChange::default() };
    assert_eq!(change(t, &new.id, given).await.unwrap().next_at, failing.next_at, "other files, same times");
    t.advance(DAY).await;
    run_of(t, &new.id).await;
    assert_eq!(shown(t, &new.id).await.last_error, None);
}

pub async fn a_changed_schedule_runs_at_its_new_times_only(t: &mut dyn StoreUnderTest) {
    let new = nightly(add_file(t, &new_file()).await);
    let before = add(t, &new).await;
    let asked = ScheduleChange {
        name: Some("other".into()),
        cron: Some("30 20 * * *".parse().unwrap()),
        zone: Some("Europe/Berlin".parse().unwrap()),
        overlap: Some(Overlap::Allow),
        catch_up: Some(CatchUp::None),
        ..ScheduleChange::default()
    };
    assert_eq!(t.admin().change_schedule(&other(), &new.id, &asked).await.unwrap(), Err(ScheduleRefused::NotFound));
    assert_eq!(shown(t, &new.id).await, before);
    let changed = change(t, &new.id, asked.clone()).await.unwrap();
    // 20:30 in Berlin is 19:30 UTC in winter.
    assert_eq!(changed.next_at, Some(at("2025-11-29T19:30:00Z")));
    assert_eq!((shown(t, &new.id).await, &changed), (changed.clone(), &before.changed(&asked)));
    t.advance(DAY).await;
    // Who read the old time before it was changed.
    let old = before.next_at.unwrap();
    assert_eq!(t.admin().fire_schedule(&new.id, old, BatchId::new()).await.unwrap(), None);
    assert!(change(t, &ScheduleId::new(), enabled(true)).await.is_err());
    change(t, &new.id, enabled(false)).await.unwrap();
    assert_eq!(t.admin().due_schedules(10).await.unwrap(), []);
    let due = changed.next_at.unwrap();
    assert_eq!(t.admin().fire_schedule(&new.id, due, BatchId::new()).await.unwrap(), None, "it was disabled meanwhile");
    assert_eq!(change(t, &new.id, enabled(true)).await.unwrap().next_at, Some(at("2025-11-30T19:30:00Z")));
}

pub async fn runs_on_demand_are_listed_with_the_others(t: &mut dyn StoreUnderTest) {
    let new = NewSchedule { overlap: Overlap::Allow, ..nightly(add_file(t, &new_file()).await) };
    let made = add(t, &new).await;
    let admin = t.admin();
    let runs = async |tenant: TenantId, after, limit| {
        let runs = admin.schedule_runs(&tenant, &new.id, after, limit).await.unwrap();
        runs.map(|(runs, has_more)| (runs.iter().map(|batch| batch.id).collect::<Vec<_>>(), has_more))
    };
    assert_eq!(runs(tenant(), None, 10).await, Some((vec![], false)));
    let run = async |key: Option<IdempotencyKey>| {
        admin.run_schedule(&tenant(), &new.id, BatchId::new(), key.as_ref()).await.unwrap()
    };
    let first = run(key("k", 1)).await.unwrap();
    assert!(matches!(first, Made::New(_)));
    let first = first.into_inner();
    assert_eq!((first.schedule, first.input), (Some(new.id), new.batch.input));
    assert_eq!(run(key("k", 1)).await, Ok(Made::Replayed(first.clone())));
    assert_eq!(run(key("k", 2)).await, Err(ScheduleRefused::KeyReused));
    let after = shown(t, &new.id).await;
    assert_eq!((after.runs, after.next_at, after.last_batch), (1, made.next_at, Some(first.id)));
    let second = run(None).await.unwrap().into_inner();
    t.advance(DAY).await;
    let third = run_of(t, &new.id).await;
    // Another batch of the same file is none of its runs.
    let batch = new.batch.batch(BatchId::new(), &tenant(), None);
    assert_eq!(admin.add_batch(&batch).await.unwrap().unwrap().into_inner().schedule, None);
    assert_eq!(runs(tenant(), None, 2).await, Some((vec![third.id, second.id], true)));
    assert_eq!(runs(tenant(), Some(second.id), 2).await, Some((vec![first.id], false)));
    assert_eq!(runs(other(), None, 2).await, None);
    let theirs = admin.run_schedule(&other(), &new.id, BatchId::new(), None).await.unwrap();
    assert_eq!(theirs, Err(ScheduleRefused::NotFound));
    assert_eq!(admin.batch(&tenant(), &third.id).await.unwrap().unwrap().schedule, Some(new.id));

    assert!(!admin.delete_schedule(&other(), &new.id).await.unwrap());
    assert!(admin.delete_schedule(&tenant(), &new.id).await.unwrap());
    assert!(!admin.delete_schedule(&tenant(), &new.id).await.unwrap());
    assert_eq!(runs(tenant(), None, 2).await, None);
    assert_eq!(run(None).await, Err(ScheduleRefused::NotFound));
    let (batches, _) = admin.batches(&tenant(), None, 10).await.unwrap();
    assert_eq!(batches.iter().filter(|batch| batch.schedule == Some(new.id)).count(), 3, "what it made stays");
    t.advance(DAY).await;
    assert_eq!(admin.due_schedules(10).await.unwrap(), []);
}
