//! Webhooks, and the events that are told.

use std::time::Duration;

use contract::webhook::{MAX_WEBHOOKS, RETRIED_FOR, SECRET_BYTES, WebhookRefused};
use contract::{
    AttemptEnd, BatchEnd, BatchId, BatchState, Class, Cursor, DeliveryFilter, DeliveryState, DueDelivery, ErrorCode,
    FileId, Hook, IdempotencyKey, JobError, JobId, Kind, Made, NewBatch, NewJob, NewWebhook, Outcome, Secret, Subject,
    TenantId, Then, Timestamp, Webhook, WebhookChange, WebhookDelivery, WebhookEvent, WebhookId,
};

use crate::help::*;

const HOLD: Duration = Duration::from_secs(90);

fn secret(nth: u8) -> Secret {
    Secret::new([nth; SECRET_BYTES])
}

fn new(url: &str, events: &[WebhookEvent]) -> NewWebhook {
    NewWebhook {
        id: WebhookId::new(),
        tenant: tenant(),
        url: Some(url.into()),
        events: events.to_vec(),
        description: "a \0 ü".into(),
        secret: secret(1),
        idempotency: None,
    }
}

fn other() -> TenantId {
    TenantId::from("globex")
}

async fn add(t: &dyn StoreUnderTest, webhook: &NewWebhook) -> Webhook {
    t.admin().add_webhook(webhook).await.unwrap().unwrap().into_inner()
}

fn hooked(url: &str, events: &[WebhookEvent]) -> NewJob {
    NewJob { webhook: Some(Hook { url: url.into(), events: events.to_vec() }), ..job() }
}

/// Everything that is told, oldest first: where to, what, of which job or batch, and its place.
async fn told(t: &dyn StoreUnderTest) -> Vec<(String, WebhookEvent, Subject, u32)> {
    let filter = DeliveryFilter { limit: 100, ..DeliveryFilter::default() };
    let (deliveries, has_more) = t.admin().deliveries(&tenant(), &filter).await.unwrap();
    assert!(!has_more);
    let told = deliveries.into_iter().rev();
    told.map(|delivery| (delivery.url, delivery.event, delivery.subject, delivery.sequence)).collect()
}

async fn due(t: &dyn StoreUnderTest) -> Vec<DueDelivery> {
    t.admin().due_deliveries(&[], 10, 100, HOLD).await.unwrap()
}

async fn end(t: &dyn StoreUnderTest, delivery: &WebhookDelivery, status: Option<u16>, then: Then) {
    let error = (then != Then::Delivered).then(|| "no \0".to_owned());
    let end = AttemptEnd { status, error, took: Duration::from_millis(7), then };
    t.admin().end_attempt(&delivery.id, &end).await.unwrap();
}

async fn delivery_of(t: &dyn StoreUnderTest, known: &WebhookDelivery) -> WebhookDelivery {
    t.admin().delivery(&tenant(), &known.id).await.unwrap().unwrap().0
}

pub async fn a_webhook_is_kept_as_it_was_made(t: &mut dyn StoreUnderTest) {
    let asked = new("https://a.example/x?y", &[WebhookEvent::JobFailed, WebhookEvent::BatchExpired]);
    let kept = add(t, &asked).await;
    assert_eq!((kept.id, &kept.url, &kept.events), (asked.id, &asked.url, &asked.events));
    assert_eq!((&kept.description, kept.created_at, kept.disabled_at), (&asked.description, kept.now, None));
    assert_eq!(kept.signing().collect::<Vec<_>>(), [&asked.secret]);
    t.reopen().await;
    assert_eq!(t.admin().webhook(&tenant(), &asked.id).await.unwrap(), Some(kept.clone()));
    assert_eq!(t.admin().webhook(&other(), &asked.id).await.unwrap(), None);
    let second = add(t, &new("https://b.example", &[])).await;
    add(t, &NewWebhook { tenant: other(), ..new("https://c.example", &[]) }).await;
    assert_eq!(t.admin().webhooks(&tenant()).await.unwrap(), [second, kept]);
}

pub async fn one_key_makes_one_webhook(t: &mut dyn StoreUnderTest) {
    let key = |body| Some(IdempotencyKey { key: "k".into(), body_hash: [body; 32] });
    let asked = NewWebhook { idempotency: key(1), ..new("https://a.example", &[]) };
    let first = add(t, &asked).await;
    let repeat = NewWebhook { id: WebhookId::new(), secret: secret(2), ..asked.clone() };
    assert_eq!(t.admin().add_webhook(&repeat).await.unwrap(), Ok(Made::Replayed(first)));
    let differs = NewWebhook { id: WebhookId::new(), idempotency: key(2), ..asked };
    assert_eq!(t.admin().add_webhook(&differs).await.unwrap(), Err(WebhookRefused::KeyReused));
    for _ in 1..MAX_WEBHOOKS {
        add(t, &new("https://a.example", &[])).await;
    }
    let more = new("https://a.example", &[]);
    assert_eq!(t.admin().add_webhook(&more).await.unwrap(), Err(WebhookRefused::TooMany));
    assert!(matches!(t.admin().add_webhook(&repeat).await.unwrap(), Ok(Made::Replayed(_))), "also when there are many");
}

pub async fn a_tenant_has_one_secret_of_its_own(t: &mut dyn StoreUnderTest) {
    let own = |nth| NewWebhook { url: None, secret: secret(nth), ..new("", &[]) };
    let first = add(t, &own(1)).await;
    let again = add(t, &own(2)).await;
    assert_eq!((again.id, again.secrets), (first.id, first.secrets));
    let theirs = add(t, &NewWebhook { tenant: other(), ..own(3) }).await;
    assert_ne!(theirs.id, first.id);
    assert_eq!(t.admin().webhooks(&tenant()).await.unwrap(), [], "it is no webhook");
    assert!(!t.admin().delete_webhook(&tenant(), &first.id).await.unwrap());
    // Nothing is told to it.
    let job = accept(&*t.store(), job()).await.job;
    t.store().cancel(&tenant(), &job).await.unwrap();
    assert_eq!(told(t).await, []);
}

pub async fn a_webhook_is_changed_and_rotated(t: &mut dyn StoreUnderTest) {
    let asked = new("https://a.example", &[]);
    add(t, &asked).await;
    let change =
        async |change: WebhookChange| t.admin().change_webhook(&tenant(), &asked.id, &change).await.unwrap().unwrap();
    let changed = change(WebhookChange {
        url: Some("https://b.example".into()),
        events: Some(vec![WebhookEvent::JobStarted]),
        description: Some("new".into()),
        ..WebhookChange::default()
    })
    .await;
    assert_eq!((changed.url.as_deref(), changed.description.as_str()), (Some("https://b.example"), "new"));
    assert_eq!(changed.events, [WebhookEvent::JobStarted]);
    let off = change(WebhookChange { enabled: Some(false), ..WebhookChange::default() }).await;
    assert!(off.disabled_at == Some(off.now) && off.disabled_why.is_some());
    let on = change(WebhookChange { enabled: Some(true), ..WebhookChange::default() }).await;
    assert_eq!((on.disabled_at, on.disabled_why, on.events), (None, None, changed.events));

    let rotate =
        async |nth, overlap| change(WebhookChange { secret: Some((secret(nth), overlap)), ..Default::default() }).await;
    let rotated = rotate(2, secs(60)).await;
    assert_eq!(rotated.signing().collect::<Vec<_>>(), [&secret(2), &secret(1)]);
    let again = rotate(3, secs(600)).await;
    assert_eq!(again.signing().collect::<Vec<_>>(), [&secret(3), &secret(2), &secret(1)]);
    t.advance(secs(60)).await;
    let later = t.admin().webhook(&tenant(), &asked.id).await.unwrap().unwrap();
    assert_eq!(later.signing().collect::<Vec<_>>(), [&secret(3), &secret(2)], "the first one keeps its end");
    let now = rotate(4, Duration::ZERO).await;
    assert_eq!(now.signing().collect::<Vec<_>>(), [&secret(4)]);
    let nothing = WebhookChange::default();
    assert_eq!(t.admin().change_webhook(&other(), &asked.id, &nothing).await.unwrap(), None);
}

pub async fn a_job_is_told_of_as_it_goes(t: &mut dyn StoreUnderTest) {
    add(t, &new("https://all.example", &[])).await;
    add(t, &new("https://failed.example", &[WebhookEvent::JobFailed])).await;
    add(t, &NewWebhook { tenant: other(), ..new("https://theirs.example", &[]) }).await;
    let job = accept(&*t.store(), hooked("https://own.example", &[WebhookEvent::JobSucceeded])).await.job;
    assert_eq!(told(t).await, [], "nobody is told of acceptance");
    let leased = lease(&*t.store(), job, 0, "w").await.unwrap();
    let started = told(t).await;
    assert_eq!(started, [("https://all.example".into(), WebhookEvent::JobStarted, Subject::Job(job), 1)]);
    // A second attempt is no second start.
    let error = JobError::new(ErrorCode::EngineFailed, "again");
    t.store().retry(&leased.lease, &error).await.unwrap().unwrap();
    t.advance(secs(600)).await;
    let leased = lease(&*t.store(), job, 1, "w").await.unwrap();
    assert_eq!(told(t).await.len(), 1);
    assert!(finish(&*t.store(), leased.lease, success()).await);
    let mut ended = told(t).await.split_off(1);
    ended.sort_by(|a, b| a.0.cmp(&b.0));
    let event = |url: &str| (url.to_owned(), WebhookEvent::JobSucceeded, Subject::Job(job), 2);
    assert_eq!(ended, [event("https://all.example"), event("https://own.example")]);
}

pub async fn each_end_of_a_job_is_told(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let (failed, cancelled, expired) = (job(), job(), NewJob { deadline_in: secs(5), ..job() });
    let before = accept(&*store, job()).await.job;
    add(t, &new("https://all.example", &[])).await;
    store.accept(&[failed.clone(), cancelled.clone(), expired.clone()]).await.unwrap();
    let leased = lease(&*store, failed.id, 0, "w").await.unwrap();
    let error = JobError::new(ErrorCode::InvalidRequest, "no");
    assert!(finish(&*store, leased.lease, Outcome::Failed { error, usage: usage(0) }).await);
    store.cancel(&tenant(), &cancelled.id).await.unwrap();
    t.advance(secs(6)).await;
    store.reap(100).await.unwrap();
    // Accepted before there was a webhook: nobody asked to be told of it.
    store.cancel(&tenant(), &before).await.unwrap();
    let events: Vec<_> =
        told(t).await.into_iter().map(|(_, event, subject, sequence)| (event, subject, sequence)).collect();
    let expected = [
        (WebhookEvent::JobStarted, Subject::Job(failed.id), 1),
        (WebhookEvent::JobFailed, Subject::Job(failed.id), 2),
        (WebhookEvent::JobCancelled, Subject::Job(cancelled.id), 2),
        (WebhookEvent::JobExpired, Subject::Job(expired.id), 2),
    ];
    assert_eq!(events, expected);
}

fn batch(webhook: Option<Hook>) -> NewBatch {
    NewBatch {
        id: BatchId::new(),
        tenant: tenant(),
        endpoint: Kind::Completion,
        input: FileId::new(),
        window: secs(60),
        window_text: "1m".into(),
        metadata: Default::default(),
        output_life: None,
        keep: None,
        run_after: None,
        only: None,
        webhook,
        idempotency: None,
    }
}

/// Gives a line of a batch a job and ends that.
async fn end_line(t: &dyn StoreUnderTest, batch: &NewBatch, line: u32) {
    let job = NewJob {
        class: Class::Bulk,
        batch_line: Some((batch.id.0, line)),
        custom_id: Some(format!("c{line}")),
        ..job()
    };
    t.store().accept(std::slice::from_ref(&job)).await.unwrap();
    let leased = lease(&*t.store(), job.id, 0, "w").await.unwrap();
    assert!(finish(&*t.store(), leased.lease, success()).await);
}

pub async fn who_names_it_is_told_how_far_a_batch_is(t: &mut dyn StoreUnderTest) {
    const EVERY: Duration = Duration::from_secs(30);
    let admin = t.admin();
    let named = [WebhookEvent::BatchProgress, WebhookEvent::BatchFailed];
    add(t, &new("https://all.example", &[])).await;
    add(t, &new("https://named.example", &named)).await;
    add(t, &NewWebhook { tenant: other(), ..new("https://c.example", &named) }).await;
    let hook = Hook { url: "https://own.example".into(), events: named.to_vec() };
    let (waiting, running) = (batch(Some(hook.clone())), batch(Some(hook)));
    for batch in [&waiting, &running] {
        admin.add_batch(batch).await.unwrap().unwrap();
    }
    assert!(admin.begin_batch(&running.id, "small", 3).await.unwrap());
    let to_tell = async || {
        let batches = admin.batches_to_tell(EVERY, 10).await.unwrap();
        batches.iter().map(|batch| (batch.id, batch.counts.succeeded)).collect::<Vec<_>>()
    };
    let tell = async |done: u64| {
        let data = serde_json::json!({"done": done, "of": "a \0 ü"});
        admin.tell_progress(&running.id, done, &data).await.unwrap()
    };
    assert_eq!(to_tell().await, [(running.id, 0)]);
    assert!(!tell(0).await, "nothing has happened yet");
    assert_eq!(to_tell().await, [], "it was just looked at");
    end_line(t, &running, 0).await;
    t.advance(EVERY).await;
    assert_eq!(to_tell().await, [(running.id, 1)]);
    assert!(tell(1).await);
    let first = due(t).await;
    assert_eq!(first.len(), 2, "{first:?}");
    for sent in &first {
        assert_eq!(sent.data, Some(serde_json::json!({"done": 1, "of": "a \0 ü"})));
        assert_eq!((sent.delivery.event, sent.delivery.sequence), (WebhookEvent::BatchProgress, 1));
    }
    // The one is there; the other still waits, and the next takes its place.
    end(t, &first[0].delivery, Some(200), Then::Delivered).await;
    end(t, &first[1].delivery, Some(500), Then::Retry(secs(60))).await;
    end_line(t, &running, 1).await;
    t.advance(EVERY).await;
    assert!(tell(2).await);
    assert!(!tell(2).await, "it was told of as many");
    let event = |delivery: &WebhookDelivery| (delivery.event, delivery.sequence);
    let second = due(t).await;
    assert_eq!(
        second.iter().map(|sent| event(&sent.delivery)).collect::<Vec<_>>(),
        [(WebhookEvent::BatchProgress, 2), (WebhookEvent::BatchProgress, 2)]
    );
    assert_eq!(t.admin().delivery(&tenant(), &first[1].delivery.id).await.unwrap(), None);
    end(t, &second[0].delivery, Some(200), Then::Delivered).await;

    // After the end no progress is told, also none that is on its way.
    let ended = BatchEnd { state: BatchState::Expired, output: None, errors: None };
    assert!(admin.end_batch(&running.id, &ended).await.is_err(), "its files have no line");
    assert!(admin.fail_batch(&waiting.id, &[]).await.unwrap());
    let told_of = async |batch: &NewBatch| {
        let told = told(t).await.into_iter().filter(|told| told.2 == Subject::Batch(batch.id));
        told.map(|(url, event, _, sequence)| (url, event, sequence)).collect::<Vec<_>>()
    };
    let mut failed = told_of(&waiting).await;
    failed.sort_unstable();
    let fail = |url: &str| (url.to_owned(), WebhookEvent::BatchFailed, 1);
    assert_eq!(failed, [fail("https://all.example"), fail("https://named.example"), fail("https://own.example")]);
    end_line(t, &running, 2).await;
    assert!(admin.batch_expanded(&running.id, &[], Cursor::default(), Cursor { line: 3, offset: 9 }).await.unwrap());
    assert!(admin.finalize_batch(&running.id).await.unwrap());
    let end_all = BatchEnd { state: BatchState::Completed, output: Some((output(), 3)), errors: None };
    admin.end_batch(&running.id, &end_all).await.unwrap().unwrap();
    t.advance(EVERY).await;
    assert!(to_tell().await.is_empty() && !tell(3).await, "it has ended");
    let of_all: Vec<_> = told_of(&running).await.into_iter().filter(|told| told.0 == "https://all.example").collect();
    assert_eq!(of_all, [("https://all.example".to_owned(), WebhookEvent::BatchCompleted, 3)]);
    let states: Vec<_> = told_of(&running).await.into_iter().map(|told| told.2).collect();
    assert_eq!(states, [1, 2, 3], "what was on its way at the end is left out");
}

fn output() -> contract::NewFile {
    contract::NewFile {
        id: FileId::new(),
        tenant: tenant(),
        filename: "o".into(),
        purpose: contract::Purpose::BatchOutput,
        bytes: 1,
        expires_in: None,
        idempotency: None,
    }
}

pub async fn a_batch_is_told_of_and_its_lines_are_not(t: &mut dyn StoreUnderTest) {
    let admin = t.admin();
    add(t, &new("https://all.example", &[])).await;
    let hook = Hook { url: "https://own.example".into(), events: vec![WebhookEvent::BatchCompleted] };
    let (completed, failed) = (batch(Some(hook.clone())), batch(Some(hook)));
    for batch in [&completed, &failed] {
        admin.add_batch(batch).await.unwrap().unwrap();
    }
    assert!(admin.fail_batch(&failed.id, &[]).await.unwrap());
    assert!(admin.begin_batch(&completed.id, "small", 1).await.unwrap());
    end_line(t, &completed, 0).await;
    let to = Cursor { line: 1, offset: 9 };
    assert!(admin.batch_expanded(&completed.id, &[], Cursor::default(), to).await.unwrap());
    assert!(admin.finalize_batch(&completed.id).await.unwrap());
    let end = BatchEnd { state: BatchState::Completed, output: Some((output(), 1)), errors: None };
    admin.end_batch(&completed.id, &end).await.unwrap().unwrap();
    let event = |url: &str, event, batch: &NewBatch| (url.to_owned(), event, Subject::Batch(batch.id), 1);
    let mut found = told(t).await;
    found.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    let expected = [
        event("https://all.example", WebhookEvent::BatchCompleted, &completed),
        event("https://own.example", WebhookEvent::BatchCompleted, &completed),
        event("https://all.example", WebhookEvent::BatchFailed, &failed),
    ];
    assert_eq!(found, expected);
}

/// Cancels so many new jobs, of which somebody is told.
async fn cancelled(t: &dyn StoreUnderTest, n: usize, make: impl Fn() -> NewJob) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..n {
        let id = accept(&*t.store(), make()).await.job;
        t.store().cancel(&tenant(), &id).await.unwrap();
        ids.push(id);
    }
    ids
}

pub async fn what_is_due_is_taken_for_a_while(t: &mut dyn StoreUnderTest) {
    let webhook = add(t, &NewWebhook { secret: secret(5), ..new("https://a.example", &[]) }).await;
    let jobs = cancelled(t, 3, job).await;
    let first = t.admin().due_deliveries(&[], 2, 100, HOLD).await.unwrap();
    let of = |due: &[DueDelivery]| due.iter().map(|due| due.delivery.subject).collect::<Vec<_>>();
    assert_eq!(of(&first), [Subject::Job(jobs[0]), Subject::Job(jobs[1])], "oldest first");
    assert!(first.iter().all(|due| due.secrets == [secret(5)] && due.delivery.webhook == Some(webhook.id)));
    assert_eq!(first[0].delivery.retry_until.millis_since(first[0].delivery.at), RETRIED_FOR.as_millis() as u64);
    assert_eq!(of(&due(t).await), [Subject::Job(jobs[2])]);
    assert_eq!(due(t).await, []);
    // Whoever took them is gone.
    t.advance(HOLD).await;
    let busy = [first[0].delivery.destination()];
    assert_eq!(t.admin().due_deliveries(&busy, 10, 100, HOLD).await.unwrap(), []);
    assert_eq!(due(t).await.len(), 3);
}

pub async fn addresses_are_apart(t: &mut dyn StoreUnderTest) {
    add(t, &new("https://flooded.example", &[])).await;
    cancelled(t, 9, job).await;
    for url in ["https://own.example/1", "https://own.example/2"] {
        cancelled(t, 1, || hooked(url, &[])).await;
    }
    let taken = t.admin().due_deliveries(&[], 4, 100, HOLD).await.unwrap();
    let count = |url: &str| taken.iter().filter(|due| due.delivery.url == url).count();
    assert_eq!((count("https://flooded.example"), taken.len()), (4, 6));
    // Two addresses of one server are one destination.
    assert_eq!(taken.iter().filter(|due| due.delivery.webhook.is_none()).count(), 2);
    // Addresses that a job named are signed with the tenant's own secret, once there is one.
    assert!(taken.iter().filter(|due| due.delivery.webhook.is_none()).all(|due| due.secrets.is_empty()));
    add(t, &NewWebhook { url: None, secret: secret(7), ..new("", &[]) }).await;
    t.advance(HOLD).await;
    let again = due(t).await;
    let own: Vec<_> = again.iter().filter(|due| due.delivery.webhook.is_none()).collect();
    assert!(own.len() == 2 && own.iter().all(|due| due.secrets == [secret(7)]));
}

pub async fn attempts_are_kept_and_decide_what_follows(t: &mut dyn StoreUnderTest) {
    add(t, &new("https://a.example", &[])).await;
    cancelled(t, 2, job).await;
    let taken = due(t).await;
    let (first, second) = (&taken[0].delivery, &taken[1].delivery);
    end(t, first, Some(503), Then::Retry(secs(300))).await;
    end(t, second, Some(204), Then::Delivered).await;
    let waiting = delivery_of(t, first).await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Waiting, 1));
    assert_eq!(waiting.next_at, Some(Timestamp(waiting.now.0 + 300_000)));
    let delivered = delivery_of(t, second).await;
    assert_eq!((delivered.state, delivered.next_at), (DeliveryState::Delivered, None));
    t.advance(secs(299)).await;
    assert_eq!(due(t).await, []);
    t.advance(secs(1)).await;
    let again = due(t).await;
    assert_eq!((again.len(), again[0].delivery.id), (1, first.id));
    end(t, first, None, Then::Retry(secs(1))).await;
    let (_, attempts) = t.admin().delivery(&tenant(), &first.id).await.unwrap().unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.status).collect::<Vec<_>>(), [None, Some(503)], "newest first");
    assert_eq!((attempts[0].error.as_deref(), attempts[0].took), (Some("no \0"), Duration::from_millis(7)));
    assert_eq!(t.admin().delivery(&other(), &first.id).await.unwrap(), None);
    // What has ended keeps its end.
    end(t, second, Some(500), Then::Retry(secs(1))).await;
    assert_eq!(delivery_of(t, second).await.attempts, 1);
    let only = |state| DeliveryFilter { state: Some(state), limit: 10, ..DeliveryFilter::default() };
    let (page, _) = t.admin().deliveries(&tenant(), &only(DeliveryState::Delivered)).await.unwrap();
    assert_eq!(page.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [second.id]);
    let newest = DeliveryFilter { limit: 1, webhook: first.webhook, ..DeliveryFilter::default() };
    let (page, has_more) = t.admin().deliveries(&tenant(), &newest).await.unwrap();
    assert_eq!((page[0].id, has_more), (second.id, true));
    let older = DeliveryFilter { after: Some(second.id), ..newest };
    let (page, has_more) = t.admin().deliveries(&tenant(), &older).await.unwrap();
    assert_eq!((page[0].id, has_more), (first.id, false));
    assert_eq!(t.admin().deliveries(&other(), &older).await.unwrap(), (vec![], false));
}

pub async fn who_wants_no_more_gets_no_more(t: &mut dyn StoreUnderTest) {
    let gone = add(t, &new("https://gone.example", &[])).await;
    cancelled(t, 3, job).await;
    let taken = t.admin().due_deliveries(&[], 1, 100, HOLD).await.unwrap();
    end(t, &taken[0].delivery, Some(410), Then::Disable("gone".into())).await;
    let disabled = t.admin().webhook(&tenant(), &gone.id).await.unwrap().unwrap();
    assert_eq!((disabled.disabled_why.as_deref(), disabled.disabled_at), (Some("gone"), Some(disabled.now)));
    t.advance(HOLD).await;
    assert_eq!(due(t).await, []);
    cancelled(t, 1, job).await;
    assert_eq!(told(t).await.len(), 3, "a disabled one is told nothing new");
    // An address of a job's own has no webhook to disable; what waits for it is given up too, and for no other.
    cancelled(t, 2, || hooked("https://own.example/gone", &[])).await;
    cancelled(t, 1, || hooked("https://own.example/other", &[])).await;
    let own = t.admin().due_deliveries(&[], 1, 100, HOLD).await.unwrap();
    end(t, &own[0].delivery, Some(410), Then::Disable("gone".into())).await;
    t.advance(HOLD).await;
    let left: Vec<String> = due(t).await.into_iter().map(|due| due.delivery.url).collect();
    assert_eq!(left, ["https://own.example/other"]);
}

pub async fn a_webhook_that_is_switched_off_gets_no_more(t: &mut dyn StoreUnderTest) {
    let webhook = add(t, &new("https://a.example", &[])).await;
    cancelled(t, 2, job).await;
    let taken = t.admin().due_deliveries(&[], 1, 100, HOLD).await.unwrap();
    let off = WebhookChange { enabled: Some(false), ..WebhookChange::default() };
    t.admin().change_webhook(&tenant(), &webhook.id, &off).await.unwrap().unwrap();
    t.advance(HOLD).await;
    assert_eq!(due(t).await, []);
    // What was under way and arrived is delivered.
    end(t, &taken[0].delivery, Some(200), Then::Delivered).await;
    assert_eq!(delivery_of(t, &taken[0].delivery).await.state, DeliveryState::Delivered);
}

pub async fn many_ends_at_the_same_time_are_all_kept(t: &mut dyn StoreUnderTest) {
    add(t, &new("https://a.example", &[])).await;
    cancelled(t, 12, job).await;
    let taken = due(t).await;
    let ends = taken.iter().enumerate().map(|(nth, due)| {
        let then = if nth % 2 == 0 { Then::Disable("gone".into()) } else { Then::Delivered };
        let end = AttemptEnd { status: Some(1), error: None, took: Duration::ZERO, then };
        let admin = t.admin();
        let id = due.delivery.id;
        async move { admin.end_attempt(&id, &end).await.unwrap() }
    });
    futures::future::join_all(ends).await;
    for (nth, due) in taken.iter().enumerate() {
        let expected = if nth % 2 == 0 { DeliveryState::Failed } else { DeliveryState::Delivered };
        assert_eq!(delivery_of(t, &due.delivery).await.state, expected, "{nth}");
    }
}

pub async fn a_webhook_that_takes_nothing_is_disabled(t: &mut dyn StoreUnderTest) {
    let webhook = add(t, &new("https://a.example", &[])).await;
    let is_on = async || t.admin().webhook(&tenant(), &webhook.id).await.unwrap().unwrap().disabled_at.is_none();
    cancelled(t, 2, job).await;
    let taken = due(t).await;
    t.advance(secs(60)).await;
    end(t, &taken[0].delivery, Some(200), Then::Delivered).await;
    end(t, &taken[1].delivery, Some(500), Then::GiveUp).await;
    assert!(is_on().await, "it took something since");
    assert_eq!(delivery_of(t, &taken[1].delivery).await.state, DeliveryState::Failed);
    t.advance(secs(60)).await;
    cancelled(t, 1, job).await;
    let taken = due(t).await;
    end(t, &taken[0].delivery, Some(500), Then::GiveUp).await;
    assert!(!is_on().await);
}

pub async fn a_delivery_is_sent_again_on_demand(t: &mut dyn StoreUnderTest) {
    add(t, &new("https://a.example", &[])).await;
    cancelled(t, 1, job).await;
    let delivery = due(t).await.remove(0).delivery;
    end(t, &delivery, Some(200), Then::Delivered).await;
    t.advance(RETRIED_FOR).await;
    assert_eq!(t.admin().redeliver(&other(), &delivery.id).await.unwrap(), None);
    let again = t.admin().redeliver(&tenant(), &delivery.id).await.unwrap().unwrap();
    assert_eq!((again.id, again.state, again.next_at), (delivery.id, DeliveryState::Waiting, Some(again.now)));
    assert_eq!(again.retry_until.millis_since(again.now), RETRIED_FOR.as_millis() as u64);
    assert_eq!(due(t).await[0].delivery.id, delivery.id);
    end(t, &delivery, Some(200), Then::Delivered).await;
    let twice = delivery_of(t, &delivery).await;
    assert_eq!((twice.attempts, twice.tries), (2, 1));
}

pub async fn a_deleted_webhook_is_told_nothing(t: &mut dyn StoreUnderTest) {
    let webhook = add(t, &new("https://a.example", &[])).await;
    cancelled(t, 1, job).await;
    assert!(!t.admin().delete_webhook(&other(), &webhook.id).await.unwrap());
    assert!(t.admin().delete_webhook(&tenant(), &webhook.id).await.unwrap());
    assert!(!t.admin().delete_webhook(&tenant(), &webhook.id).await.unwrap());
    assert_eq!(due(t).await, []);
    cancelled(t, 1, job).await;
    assert_eq!(told(t).await.len(), 1, "the log stays, and grows no more");
    let filter = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
    let left = t.admin().deliveries(&tenant(), &filter).await.unwrap().0.remove(0);
    assert_eq!(t.admin().redeliver(&tenant(), &left.id).await.unwrap(), None, "there is nothing to sign it with");
}

pub async fn old_deliveries_are_forgotten(t: &mut dyn StoreUnderTest) {
    add(t, &new("https://a.example", &[])).await;
    cancelled(t, 3, job).await;
    let taken = due(t).await;
    end(t, &taken[0].delivery, Some(200), Then::Delivered).await;
    t.advance(secs(10)).await;
    end(t, &taken[1].delivery, Some(200), Then::Delivered).await;
    assert_eq!(t.admin().forget_deliveries(secs(10), 10).await.unwrap(), 1);
    assert_eq!(t.admin().delivery(&tenant(), &taken[0].delivery.id).await.unwrap(), None);
    t.advance(secs(1_000)).await;
    assert_eq!(t.admin().forget_deliveries(secs(10), 10).await.unwrap(), 1, "what waits stays");
    assert_eq!(told(t).await.len(), 1);
}

pub async fn a_job_for_later_waits_for_its_time(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let later = NewJob { delay: secs(100), deadline_in: secs(50), ..job() };
    let accepted = accept(&*store, later.clone()).await;
    let shown = get(&*store, later.id).await;
    assert_eq!(shown.deadline, Timestamp(accepted.at.unwrap().0 + 150_000));
    assert_eq!(contract::Job::just_accepted(later.clone(), accepted.at.unwrap()).deadline, shown.deadline);
    t.advance(secs(99)).await;
    assert_eq!(store.due(&queue(), 10).await.unwrap(), []);
    t.advance(secs(1)).await;
    assert_eq!(store.due(&queue(), 10).await.unwrap()[0].job, later.id);
}
