//! The usage ledger.

use contract::{
    CancelAnswer, Class, Day, ErrorCode, JobError, NewJob, Outcome, TenantId, TokenSums, Usage, UsageFilter, UsageLine,
};
use futures::future::join_all;

use crate::help::*;

/// The day on which every test begins, at 18:04:14.
const FIRST: &str = "2025-11-29";

fn first() -> Day {
    FIRST.parse().unwrap()
}

/// All lines of a few days: the same whether changes wait to be summed up or not.
async fn lines(t: &dyn StoreUnderTest, tenant: Option<&str>) -> Vec<UsageLine> {
    let tenant = tenant.map(TenantId::from);
    let filter = UsageFilter { tenant, from: first(), to: first().plus(7), limit: 1_000 };
    let before = t.admin().usage_lines(&filter).await.unwrap();
    while t.admin().fold_usage(3).await.unwrap() == 3 {}
    assert_eq!(t.admin().fold_usage(3).await.unwrap(), 0);
    let after = t.admin().usage_lines(&filter).await.unwrap();
    assert_eq!(before, after);
    after
}

fn line(day: Day) -> UsageLine {
    let none = TokenSums::default();
    UsageLine {
        tenant: tenant(),
        day,
        release: release(),
        model: "small".into(),
        class: Class::Standard,
        accepted: 0,
        succeeded: 0,
        failed: 0,
        cancelled: 0,
        expired: 0,
        tokens: none,
        wasted: none,
    }
}

fn tokens(prompt: u64, cached: u64, output: u64) -> TokenSums {
    TokenSums { prompt, cached, output }
}

fn failed(usage: Usage) -> Outcome {
    Outcome::Failed { error: JobError::new(ErrorCode::NotFinite, "nan"), usage }
}

pub async fn usage_is_by_day_and_by_end(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let [a, b, c, late] = [
        running(&*store, "w").await,
        running(&*store, "w").await,
        running(&*store, "w").await,
        running(&*store, "w").await,
    ];
    store.renew(&[late], secs(3_600)).await.unwrap();
    let waiting = accept(&*store, job()).await.job;
    accept(&*store, NewJob { deadline_in: secs(60), ..job() }).await;
    let two = Usage { prompt_tokens: 7, cached_tokens: 4, output_tokens: 2 };
    let record = contract::RecordLocation::Inline(vec![1]);
    assert!(finish(&*store, a, success()).await);
    assert!(finish(&*store, b, Outcome::Succeeded { record, usage: two, first_token_ms: None }).await);
    assert!(finish(&*store, c, failed(usage(3))).await);
    let cancelled = store.cancel(&tenant(), &waiting).await.unwrap();
    assert_eq!(cancelled, CancelAnswer::Cancelled { was_running: false });
    t.advance(secs(61)).await;
    assert_eq!(store.reap(10).await.unwrap().ended.len(), 1);

    let one = UsageLine { accepted: 6, succeeded: 2, failed: 1, cancelled: 1, expired: 1, ..line(first()) };
    // 10 + 7 prompt, 0 + 4 cached, 5 + 2 generated; the failed attempt took 10 and gave 3.
    let one = UsageLine { tokens: tokens(17, 4, 7), wasted: tokens(10, 0, 3), ..one };
    assert_eq!(lines(t, Some("acme")).await, std::slice::from_ref(&one));
    assert!(finish(&*store, late, Outcome::Expired { usage: usage(1) }).await);
    let one = UsageLine { expired: 2, wasted: tokens(20, 0, 4), ..one };
    assert_eq!(lines(t, Some("acme")).await, [one]);
    t.reopen().await;
    assert_eq!(lines(t, Some("acme")).await[0].accepted, 6);
}

pub async fn waste_is_of_the_day_on_which_it_is_booked(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let ends_later = accept(&*store, NewJob { deadline_in: secs(86_400), ..job() }).await.job;
    let held = lease(&*store, ends_later, 0, "w").await.unwrap().lease;
    store.renew(&[held], secs(86_400)).await.unwrap();
    // 18:04:14 and 21,345 s are one second before midnight.
    t.advance(secs(21_345)).await;
    store.cancel(&tenant(), &ends_later).await.unwrap();
    t.advance(secs(1)).await;
    for _ in 0..2 {
        store.usage(&held, usage(4)).await.unwrap();
    }
    let accepted = UsageLine { accepted: 1, cancelled: 1, ..line(first()) };
    let booked = UsageLine { wasted: tokens(10, 0, 4), ..line(first().plus(1)) };
    assert_eq!(lines(t, Some("acme")).await, [accepted, booked]);
}

pub async fn a_job_that_runs_again_wastes_its_first_attempt(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let attempt = running(&*store, "w").await;
    store.usage(&attempt, usage(9)).await.unwrap();
    let error = JobError::new(ErrorCode::EngineFailed, "step");
    store.retry(&attempt, &error).await.unwrap().unwrap();
    let again = lease(&*store, attempt.job, 1, "w").await.unwrap().lease;
    // While it runs, what it wasted is counted already.
    let so_far = UsageLine { accepted: 1, wasted: tokens(10, 0, 9), ..line(first()) };
    assert_eq!(lines(t, Some("acme")).await, std::slice::from_ref(&so_far));
    assert!(finish(&*store, again, success()).await);
    // Late, and told twice.
    store.usage(&attempt, usage(9)).await.unwrap();
    assert_eq!(
        lines(t, Some("acme")).await,
        [UsageLine { succeeded: 1, tokens: tokens(10, 0, 5), ..so_far }],
        "a result has the tokens of its own attempt"
    );
}

pub async fn usage_is_kept_apart_and_in_order(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    for new in [
        NewJob { class: Class::Bulk, ..job_of("b") },
        NewJob { route: "large".into(), ..job_of("b") },
        job_of("b"),
        job_of("a"),
        NewJob { release: contract::Fingerprint("cd".repeat(32)), ..job_of("a") },
        job_of("a"),
    ] {
        accept(&*store, new).await;
    }
    t.advance(secs(86_400)).await;
    accept(&*store, job_of("a")).await;
    let key = |line: &UsageLine| {
        let class = line.class.as_str();
        (
            line.day.0 - first().0,
            line.tenant.to_string(),
            line.release.as_str()[..2].to_owned(),
            line.model.clone(),
            class,
        )
    };
    let all = lines(t, None).await;
    let expected = [
        (0, "a", "ab", "small", "standard"),
        (0, "a", "cd", "small", "standard"),
        (0, "b", "ab", "large", "standard"),
        (0, "b", "ab", "small", "bulk"),
        (0, "b", "ab", "small", "standard"),
        (1, "a", "ab", "small", "standard"),
    ];
    let expected = expected.map(|(day, tenant, release, model, class)| {
        (day, tenant.to_owned(), release.to_owned(), model.to_owned(), class)
    });
    assert_eq!(all.iter().map(key).collect::<Vec<_>>(), expected);
    assert_eq!(all.iter().map(|line| line.accepted).collect::<Vec<_>>(), [2, 1, 1, 1, 1, 1]);
    assert_eq!(lines(t, Some("a")).await.len(), 3);
    assert_eq!(lines(t, Some("nobody")).await, []);
    let admin = t.admin();
    let filter = UsageFilter { tenant: None, from: first(), to: first(), limit: 2 };
    assert_eq!(admin.usage_lines(&filter).await.unwrap(), all[..2]);
    let second = UsageFilter { from: first().plus(1), to: first().plus(1), ..filter };
    assert_eq!(admin.usage_lines(&second).await.unwrap(), all[5..]);
}

pub async fn what_was_used_outlives_its_rows(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let held = running(&*store, "w").await;
    assert!(finish(&*store, held, success()).await);
    let before = lines(t, None).await;
    assert_eq!((before[0].accepted, before[0].succeeded), (1, 1));
    let all = "DELETE FROM jobs";
    t.damage(all, all).await;
    assert_eq!(lines(t, None).await, before);
}

pub async fn many_changes_at_once_are_all_counted(t: &mut dyn StoreUnderTest) {
    const JOBS: u64 = 120;
    let lives = (0..JOBS).map(|n| {
        let store = t.store();
        tokio::spawn(async move {
            let accepted = accept(&*store, job()).await;
            let held = lease(&*store, accepted.job, 0, &format!("w{n}")).await.unwrap().lease;
            assert!(finish(&*store, held, success()).await);
        })
    });
    let lives: Vec<_> = lives.collect();
    let filter = UsageFilter { tenant: Some(tenant()), from: first(), to: first(), limit: 10 };
    let mut seen = 0;
    // Two that sum up at the same time, while jobs come and end: nothing is counted twice or forgotten.
    while seen < JOBS {
        let admin = t.admin();
        let (one, two) = tokio::join!(admin.fold_usage(5), admin.fold_usage(5));
        one.unwrap();
        two.unwrap();
        let lines = t.admin().usage_lines(&filter).await.unwrap();
        let succeeded = lines.first().map_or(0, |line| line.succeeded);
        assert!((seen..=JOBS).contains(&succeeded), "{succeeded} after {seen}");
        seen = succeeded;
    }
    join_all(lives).await.into_iter().for_each(|life| life.unwrap());
    let whole = UsageLine { accepted: JOBS, succeeded: JOBS, tokens: tokens(JOBS * 10, 0, JOBS * 5), ..line(first()) };
    assert_eq!(lines(t, None).await, [whole]);
}

/// The statement of a migration that fills the ledger from the rows.
fn filling(migration: &'static str) -> &'static str {
    let from = migration.find("INSERT INTO usage_days").unwrap();
    let statement = &migration[from..];
    &statement[..=statement.find(';').unwrap()]
}

pub async fn the_ledger_can_be_made_anew_from_the_rows(t: &mut dyn StoreUnderTest) {
    let store = t.store();
    let [good, bad, again, open, gone] = [
        running(&*store, "w").await,
        running(&*store, "w").await,
        running(&*store, "w").await,
        running(&*store, "w").await,
        running(&*store, "w").await,
    ];
    assert!(finish(&*store, good, success()).await);
    assert!(finish(&*store, bad, failed(usage(3))).await);
    let error = JobError::new(ErrorCode::EngineFailed, "step");
    for held in [again, open] {
        store.usage(&held, usage(2)).await.unwrap();
        store.retry(&held, &error).await.unwrap().unwrap();
    }
    let second = lease(&*store, again.job, 1, "w").await.unwrap().lease;
    assert!(finish(&*store, second, success()).await);
    store.cancel(&tenant(), &gone.job).await.unwrap();
    store.usage(&gone, usage(8)).await.unwrap();
    accept(&*store, NewJob { class: Class::Bulk, ..job_of("b") }).await;
    let kept = lines(t, None).await;
    assert_eq!((kept[0].accepted, kept[0].tokens, kept[0].wasted), (5, tokens(20, 0, 10), tokens(40, 0, 15)));
    let forget = "DELETE FROM usage_days";
    t.damage(forget, forget).await;
    assert_eq!(lines(t, None).await, []);
    t.damage(
        filling(include_str!("../../../migrations/sqlite/0007_usage.sql")),
        filling(include_str!("../../../migrations/postgres/0006_usage.sql")),
    )
    .await;
    assert_eq!(lines(t, None).await, kept);
}
