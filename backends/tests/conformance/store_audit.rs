//! The audit: it passes what is sound, and finds each thing that is not.

use std::collections::BTreeSet;

use contract::batch::BatchEnd;
use contract::{
    Audit, AuditFilter, BatchId, BatchState, BreachKind, Class, Cursor, Day, FileId, JobId, Kind, NewBatch, NewFile,
    NewJob, Purpose, RefusedLine, Tally, TenantId,
};
use serde_json::json;

use crate::help::*;

/// The day on which every test begins, at 18:04:14.
fn first() -> Day {
    "2025-11-29".parse().unwrap()
}

async fn audit_of(t: &dyn StoreUnderTest, tenant: Option<&str>, from: Day, to: Day) -> Audit {
    t.admin().audit(&AuditFilter { tenant: tenant.map(TenantId::from), from, to }).await.unwrap()
}

async fn audit(t: &dyn StoreUnderTest) -> Audit {
    audit_of(t, None, first(), first().plus(1)).await
}

/// A job that succeeded.
async fn succeeded(t: &dyn StoreUnderTest, new: NewJob) -> JobId {
    let store = t.store();
    let accepted = accept(&*store, new).await;
    let held = lease(&*store, accepted.job, 0, "w").await.unwrap().lease;
    assert!(finish(&*store, held, success()).await);
    accepted.job
}

/// A batch of three lines: two jobs that succeeded, and one that was refused.
async fn completed(t: &dyn StoreUnderTest, tenant: &str) -> BatchId {
    let admin = t.admin();
    let batch = NewBatch {
        id: BatchId::new(),
        tenant: TenantId::from(tenant),
        endpoint: Kind::Completion,
        input: FileId::new(),
        window: secs(86_400),
        run_after: None,
        only: None,
        webhook: None,
        window_text: "24h".into(),
        metadata: [].into(),
        output_life: None,
        keep: None,
        idempotency: None,
    };
    assert!(admin.add_batch(&batch).await.unwrap().is_ok());
    assert!(admin.begin_batch(&batch.id, "small", 3).await.unwrap());
    for line in 0..2 {
        succeeded(t, NewJob { class: Class::Bulk, batch_line: Some((batch.id.0, line)), ..job_of(tenant) }).await;
    }
    let refused = RefusedLine { line: 2, custom_id: "c".into(), status: 400, body: json!({}) };
    let to = Cursor { line: 3, offset: 9 };
    assert!(admin.batch_expanded(&batch.id, &[refused], Cursor::default(), to).await.unwrap());
    assert!(admin.finalize_batch(&batch.id).await.unwrap());
    let output = NewFile {
        id: FileId::new(),
        tenant: TenantId::from(tenant),
        filename: "out.jsonl".into(),
        purpose: Purpose::BatchOutput,
        bytes: 3,
        expires_in: None,
        idempotency: None,
    };
    let end = BatchEnd { state: BatchState::Completed, output: Some((output, 3)), errors: None };
    assert!(admin.end_batch(&batch.id, &end).await.unwrap().is_some());
    batch.id
}

fn kinds(audit: &Audit) -> BTreeSet<BreachKind> {
    audit.breaches.iter().map(|breach| breach.kind).collect()
}

pub async fn what_is_sound_adds_up(t: &mut dyn StoreUnderTest) {
    assert_eq!(audit(t).await, Audit::default());
    let store = t.store();
    succeeded(t, job()).await;
    let waiting = accept(&*store, job()).await.job;
    running(&*store, "w").await;
    store.cancel(&tenant(), &waiting).await.unwrap();
    let batch = completed(t, "b").await;
    let next = first().plus(1);
    t.advance(secs(86_400)).await;
    // What ran out on the second day was accepted on the first.
    assert_eq!(store.reap(10).await.unwrap().ended.len(), 1);
    accept(&*store, job()).await;

    let found = audit(t).await;
    assert!(found.holds(), "{:?}", found.breaches);
    let lines: Vec<_> = found.days.iter().map(|line| (line.day, line.tenant.clone().unwrap().0, line.tally)).collect();
    let none = Tally::default();
    let acme = Tally { accepted: 3, succeeded: 1, cancelled: 1, expired: 1, ..none };
    let b = Tally { accepted: 2, succeeded: 2, ..none };
    let later = Tally { accepted: 1, unfinished: 1, ..none };
    let expected = [(first(), "acme", acme), (first(), "b", b), (next, "acme", later)];
    assert_eq!(lines, expected.map(|(day, tenant, tally)| (day, tenant.to_owned(), tally)));
    let [shown] = &found.batches[..] else { panic!("{:?}", found.batches) };
    assert_eq!((shown.id, shown.state, shown.total, shown.refused), (batch, BatchState::Completed, 3, 1));
    assert_eq!((shown.tally, shown.day), (b, first()));
}

pub async fn each_damage_to_a_job_is_found(t: &mut dyn StoreUnderTest) {
    const DAMAGE: [(&str, &str, BreachKind); 7] = [
        (
            "unaccepted",
            "DELETE FROM events WHERE kind = 'accepted' AND job IN (SELECT id FROM jobs WHERE tenant = 'unaccepted')",
            BreachKind::NotAccepted,
        ),
        (
            "twice",
            "INSERT INTO events (job, kind, state, attempt, at) SELECT job, kind, state, attempt, at FROM events \
             WHERE kind = 'accepted' AND job IN (SELECT id FROM jobs WHERE tenant = 'twice')",
            BreachKind::AcceptedTwice,
        ),
        (
            "untold",
            "DELETE FROM events WHERE kind = 'succeeded' AND job IN (SELECT id FROM jobs WHERE tenant = 'untold')",
            BreachKind::EndNotTold,
        ),
        (
            "again",
            "INSERT INTO events (job, kind, state, attempt, at) SELECT job, 'cancelled', 'cancelled', attempt, at \
             FROM events WHERE kind = 'succeeded' AND job IN (SELECT id FROM jobs WHERE tenant = 'again')",
            BreachKind::EndedTwice,
        ),
        (
            "otherwise",
            "UPDATE events SET state = 'failed' \
             WHERE kind = 'succeeded' AND job IN (SELECT id FROM jobs WHERE tenant = 'otherwise')",
            BreachKind::EndedOtherwise,
        ),
        (
            "waiting",
            "INSERT INTO events (job, kind, state, attempt, at) SELECT job, 'failed', 'failed', attempt, at \
             FROM events WHERE job IN (SELECT id FROM jobs WHERE tenant = 'waiting')",
            BreachKind::NotEnded,
        ),
        (
            "moved",
            "UPDATE events SET at = (SELECT max(at) FROM events) \
             WHERE kind = 'accepted' AND job IN (SELECT id FROM jobs WHERE tenant = 'moved')",
            BreachKind::AcceptedAtAnotherTime,
        ),
    ];
    let mut jobs = Vec::new();
    for (tenant, ..) in DAMAGE {
        jobs.push(match tenant {
            "waiting" => accept(&*t.store(), job_of(tenant)).await.job,
            _ => succeeded(t, job_of(tenant)).await,
        });
    }
    t.advance(secs(86_400)).await;
    succeeded(t, job_of("sound")).await;
    assert!(audit(t).await.holds());
    for (_, sql, _) in DAMAGE {
        t.damage(sql, sql).await;
    }
    let found = audit(t).await;
    assert!(!found.holds() && !found.more_breaches);
    assert_eq!(found.breaches.len(), DAMAGE.len(), "{:?}", found.breaches);
    for ((tenant, _, kind), job) in DAMAGE.into_iter().zip(jobs) {
        let breach = found.breaches.iter().find(|breach| breach.subject == job.to_string()).unwrap();
        let named = (breach.kind, breach.tenant.as_ref().unwrap().as_str(), breach.day);
        assert_eq!(named, (kind, tenant, Some(first())), "{breach:?}");
        // Alone as well.
        let alone = audit_of(t, Some(tenant), first(), first().plus(1)).await;
        assert!(!alone.holds() && kinds(&alone) == [kind].into(), "{tenant}: {alone:?}");
    }
    // The sums say so too, where an acceptance is missing, double or of another day.
    let off = found.days.iter().filter(|line| !line.tally.is_balanced());
    let off: BTreeSet<_> = off.map(|line| (line.tenant.clone().unwrap().0, line.day.0 - first().0)).collect();
    let expected = [("unaccepted", 0), ("twice", 0), ("moved", 0), ("moved", 1)];
    assert_eq!(off, expected.map(|(tenant, day)| (tenant.to_owned(), day)).into());
    assert!(audit_of(t, Some("sound"), first(), first().plus(1)).await.holds());
}

pub async fn an_event_without_its_row_is_found(t: &mut dyn StoreUnderTest) {
    let gone = succeeded(t, job_of("gone")).await;
    succeeded(t, job()).await;
    t.damage(
        "PRAGMA foreign_keys = OFF; DELETE FROM jobs WHERE tenant = 'gone'",
        "ALTER TABLE jobs DISABLE TRIGGER jobs_deleted; DELETE FROM jobs WHERE tenant = 'gone'",
    )
    .await;
    let found = audit(t).await;
    let [breach] = &found.breaches[..] else { panic!("{:?}", found.breaches) };
    assert_eq!((breach.kind, &breach.subject, &breach.tenant), (BreachKind::RowMissing, &gone.to_string(), &None));
    let lost = found.days.iter().find(|line| line.tenant.is_none()).unwrap();
    assert_eq!((lost.tally.accepted, lost.tally.rows()), (1, 0));
    assert!(audit_of(t, Some("acme"), first(), first()).await.holds());
}

pub async fn a_counter_that_is_off_is_found(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    accept(&*store, job()).await;
    accept(&*store, NewJob { batch_line: Some((uuid::Uuid::from_u128(1), 0)), ..job_of("b") }).await;
    assert!(audit(t).await.holds());
    let off = "UPDATE counters SET value = value + 2 WHERE name LIKE 'tenant:%'";
    t.damage(off, off).await;
    let missing = "DELETE FROM counters WHERE name LIKE 'lines:%' OR name LIKE 'queue:%'";
    t.damage(missing, missing).await;
    let found = audit(t).await;
    let named: BTreeSet<_> = found.breaches.iter().map(|breach| breach.subject.clone()).collect();
    let queue = format!("queue:{}:standard", release());
    assert_eq!(named, [queue, "tenant:acme".to_owned(), "lines:b".to_owned()].into());
    assert_eq!(kinds(&found), [BreachKind::Counter].into());
    let detail = &found.breaches.iter().find(|breach| breach.subject == "tenant:acme").unwrap().detail;
    assert_eq!(detail, "it is 3, and 1 rows are unfinished");
    let own = audit_of(t, Some("b"), first(), first()).await;
    assert_eq!(own.breaches.iter().map(|breach| breach.subject.as_str()).collect::<Vec<_>>(), ["lines:b"]);
}

pub async fn a_batch_that_does_not_add_up_is_found(t: &mut dyn StoreUnderTest) {
    let lost = completed(t, "lost").await;
    let open = completed(t, "open").await;
    completed(t, "sound").await;
    assert!(audit(t).await.holds());
    let sql = "DELETE FROM refused_lines WHERE batch IN (SELECT id FROM batches WHERE tenant = 'lost')";
    t.damage(sql, sql).await;
    let sql = "UPDATE jobs SET state = 'queued', record = NULL, finished_at = NULL WHERE tenant = 'open' AND line = 0";
    t.damage(sql, sql).await;
    let found = audit(t).await;
    let of = |id: BatchId| {
        let breaches = found.breaches.iter().filter(|breach| breach.subject == id.to_string());
        breaches.map(|breach| (breach.kind, breach.detail.clone())).collect::<Vec<_>>()
    };
    assert_eq!(of(lost), [(BreachKind::BatchLines, "2 jobs and 0 refused lines, of 3 lines".to_owned())]);
    assert_eq!(of(open), [(BreachKind::BatchUnfinished, "it is completed, and 1 of its jobs are not".to_owned())]);
    // The job itself and the counter of its tenant's lines say so as well.
    let expected = [BreachKind::BatchLines, BreachKind::BatchUnfinished, BreachKind::NotEnded, BreachKind::Counter];
    assert_eq!((kinds(&found), found.breaches.len()), (expected.into(), 4));
}

pub async fn an_audit_is_of_the_days_and_the_tenant_asked_for(t: &mut dyn StoreUnderTest) {
    completed(t, "a").await;
    t.advance(secs(86_400)).await;
    completed(t, "b").await;
    let seen = async |tenant: Option<&str>, from: Day, to: Day| {
        let found = audit_of(t, tenant, from, to).await;
        assert!(found.holds(), "{:?}", found.breaches);
        let tenants = found.days.iter().map(|line| line.tenant.clone().unwrap().0);
        let batches = found.batches.iter().map(|batch| batch.tenant.0.clone());
        (tenants.collect::<Vec<_>>(), batches.collect::<Vec<_>>())
    };
    let both = |tenants: &[&str]| {
        let tenants: Vec<String> = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        (tenants.clone(), tenants)
    };
    let (one, two) = (first(), first().plus(1));
    assert_eq!(seen(None, one, two).await, both(&["a", "b"]));
    assert_eq!(seen(None, one, one).await, both(&["a"]));
    assert_eq!(seen(None, two, two.plus(5)).await, both(&["b"]));
    assert_eq!(seen(Some("a"), one, two).await, both(&["a"]));
    assert_eq!(seen(Some("nobody"), one, two).await, both(&[]));
    assert_eq!(seen(None, one.plus(-3), one.plus(-1)).await, both(&[]));
}

pub async fn a_hundred_contradictions_are_named(t: &mut dyn StoreUnderTest) {
    let jobs: Vec<NewJob> = (0..101).map(|_| job()).collect();
    assert!(t.store().accept(&jobs).await.unwrap().iter().all(Result::is_ok));
    let all = "DELETE FROM events";
    t.damage(all, all).await;
    let found = audit(t).await;
    assert_eq!(
        (found.breaches.len(), found.more_breaches, kinds(&found)),
        (100, true, [BreachKind::NotAccepted].into())
    );
    assert_eq!(found.days[0].tally, Tally { unfinished: 101, ..Tally::default() });
}
