//! Times by hand, from a calendar, and what follows at a schedule's time.

use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).unwrap()
}

fn times(cron: &str, zone: &str, after: &str, n: usize) -> Vec<String> {
    let (cron, zone): (Cron, Zone) = (cron.parse().unwrap(), zone.parse().unwrap());
    let next = |after: &Timestamp| cron.next(zone, *after);
    std::iter::successors(Some(at(after)), next).skip(1).take(n).map(Timestamp::rfc3339).collect()
}

#[test]
fn the_next_times_are_those_of_the_calendar() {
    assert_eq!(times("0 3 * * *", "UTC", "2026-03-01T03:00:00Z", 2), ["2026-03-02T03:00:00Z", "2026-03-03T03:00:00Z"]);
    // A moment before, and a moment after.
    assert_eq!(times("0 3 * * *", "UTC", "2026-03-01T02:59:59.999Z", 1), ["2026-03-01T03:00:00Z"]);
    assert_eq!(times("0 3 * * *", "UTC", "2026-03-01T03:00:00.001Z", 1), ["2026-03-02T03:00:00Z"]);
    assert_eq!(
        times("*/20 * * * *", "UTC", "2026-01-01T23:30:00Z", 2),
        ["2026-01-01T23:40:00Z", "2026-01-02T00:00:00Z"]
    );
    // 2026-03-06 is a Friday.
    assert_eq!(times("30 18 * * FRI", "UTC", "2026-03-06T18:30:00Z", 1), ["2026-03-13T18:30:00Z"]);
    assert_eq!(times("0 0 * * 1-5", "UTC", "2026-03-06T00:00:00Z", 1), ["2026-03-09T00:00:00Z"]);
    // Both days given: either will do. The 13th is a Friday in March 2026.
    assert_eq!(
        times("0 0 10 * FRI", "UTC", "2026-03-07T00:00:00Z", 2),
        ["2026-03-10T00:00:00Z", "2026-03-13T00:00:00Z"]
    );
    assert_eq!(times("0 0 31 * *", "UTC", "2026-03-31T00:00:00Z", 2), ["2026-05-31T00:00:00Z", "2026-07-31T00:00:00Z"]);
    assert_eq!(
        times("0 12 29 2 *", "UTC", "2026-01-01T00:00:00Z", 2),
        ["2028-02-29T12:00:00Z", "2032-02-29T12:00:00Z"]
    );
    assert_eq!(times("@hourly", "UTC", "2026-01-01T00:10:00Z", 1), ["2026-01-01T01:00:00Z"]);
    assert_eq!(times("0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00:00Z", 1), ["2026-01-01T03:30:00Z"]);
}

#[test]
fn where_the_clock_is_put_forward_a_daily_time_is_run_after_the_gap() {
    // Europe/Berlin, 2026-03-29: 02:00 CET is 03:00 CEST, that is 01:00 UTC.
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", 3),
        ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    );
    // Every half hour goes on every half hour.
    assert_eq!(
        times("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 3),
        ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
    );
}

#[test]
fn where_the_clock_is_put_back_a_daily_time_is_run_once() {
    // Europe/Berlin, 2026-10-25: 03:00 CEST is 02:00 CET, that is 01:00 UTC. 02:30 is at 00:30 UTC, and again at 01:30.
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
    assert_eq!(
        times("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 4),
        ["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"]
    );
}

#[test]
fn what_is_no_expression_is_refused_with_a_reason() {
    let cases = [
        ("", "0 fields"),
        ("0 3 * *", "4 fields"),
        ("0 0 3 * * *", "no field for seconds"),
        ("0 0 3 * * * 2026", "7 fields"),
        ("60 * * * *", "`60` as its minute, which must be 0 to 59"),
        ("* 24 * * *", "`24` as its hour, which must be 0 to 23"),
        ("a * * * *", "`a` as its minute"),
        ("1,2,,3 * * * *", "`1,2,,3` as its minute"),
        ("0 0 L * *", "`L` as its day of month, which must be 1 to 31"),
        ("0 22-2 * * *", "`22-2` as its hour"),
        ("*/0 * * * *", "`*/0` as its minute"),
        ("0 0 * 13 *", "`13` as its month, which must be 1 to 12 or JAN to DEC"),
        ("0 0 * * FRI#2", "`FRI#2` as its day of week"),
        ("0 0 * * MONDAY", "`MONDAY` as its day of week, which must be 0 to 7 or SUN to SAT"),
        ("\u{fc} * * * *", "as its minute"),
        ("@reboot", "short names"),
        ("0 0 30 2 *", "ever comes"),
        ("0 0 31 4,6 *", "ever comes"),
    ];
    for (text, why) in cases {
        let error = text.parse::<Cron>().unwrap_err().to_string();
        assert!(error.contains(why), "{text:?}: {error}");
    }
    assert_eq!(format!("0 {} * * *", "1,".repeat(100)).parse::<Cron>(), Err(BadCron::TooLong));
    assert_eq!(" 0 3 * * * ".parse::<Cron>().unwrap().as_str(), "0 3 * * *");
    for text in ["", "Berlin", "europe/berlin", "CEST+2", "+02:00"] {
        assert!(text.parse::<Zone>().unwrap_err().to_string().contains("time zone"), "{text}");
    }
    assert_eq!("America/New_York".parse::<Zone>().unwrap().as_str(), "America/New_York");
}

proptest! {
    #[test]
    fn no_text_panics_and_the_next_time_is_later(
        text in "[0-9*,/LW#?+A-C-]{1,6}( [0-9*,/LW#?+A-C-]{1,6}){4}",
        after in 0i64..4_000_000_000_000,
    ) {
        if let Ok(cron) = text.parse::<Cron>() {
            let next = cron.next("Europe/Berlin".parse().unwrap(), Timestamp(after)).unwrap();
            prop_assert!(next.0 > after && next.0 % 60_000 == 0);
        }
    }

    #[test]
    fn times_follow_each_other_through_changes_of_the_clock(minute in 0u32..60, hour in 0u32..24, day in 0i64..800) {
        let cron: Cron = format!("{minute} {hour} * * *").parse().unwrap();
        let zone: Zone = "America/New_York".parse().unwrap();
        let first = cron.next(zone, Timestamp(1_760_000_000_000 + day * 86_400_000)).unwrap();
        let second = cron.next(zone, first).unwrap();
        // A day of a time zone has 23 to 25 hours; a time that does not exist is moved by up to an hour more.
        let hours = second.millis_since(first) as f64 / 3_600_000.0;
        prop_assert!((22.0..=26.0).contains(&hours), "{} {}", first.rfc3339(), second.rfc3339());
    }
}

fn schedule() -> Schedule {
    let new = NewSchedule {
        id: ScheduleId::new(),
        tenant: TenantId::local(),
        name: "nightly".into(),
        cron: "0 3 * * *".parse().unwrap(),
        zone: Zone::default(),
        overlap: Overlap::Skip,
        catch_up: CatchUp::One,
        enabled: true,
        batch: BatchTemplate {
            input: FileId::new(),
            endpoint: Kind::Chat,
            window: Duration::from_secs(3_600),
            window_text: "1h".into(),
            metadata: BTreeMap::new(),
            output_life: None,
            keep: None,
            webhook: None,
        },
        idempotency: None,
    };
    new.made(at("2026-03-01T12:00:00Z"))
}

const FREE: Look = Look { has_open_run: false, was_run: false, has_file: true };

#[test]
fn many_missed_times_are_one_run() {
    let (mut schedule, batch) = (schedule(), BatchId::new());
    let due = schedule.next_at.unwrap();
    assert_eq!(due, at("2026-03-02T03:00:00Z"));
    schedule.now = at("2026-03-09T04:00:00Z");
    assert_eq!(schedule.take_turn(due, FREE, batch), Turn::Run);
    assert_eq!((schedule.next_at, schedule.runs), (Some(at("2026-03-10T03:00:00Z")), 1));
    assert_eq!((schedule.last_at, schedule.last_batch), (Some(schedule.now), Some(batch)));

    let mut strict = Schedule { catch_up: CatchUp::None, ..schedule.clone() };
    let due = strict.next_at.unwrap();
    strict.now = Timestamp(due.0 + 60_001);
    assert_eq!(strict.take_turn(due, FREE, BatchId::new()), Turn::Skip);
    assert_eq!((strict.runs, strict.skipped, strict.next_at), (1, 1, Some(at("2026-03-11T03:00:00Z"))));
    let due = strict.next_at.unwrap();
    strict.now = Timestamp(due.0 + 60_000);
    assert_eq!(strict.take_turn(due, FREE, BatchId::new()), Turn::Run);
}

#[test]
fn a_run_that_has_not_ended_and_a_file_that_is_gone_are_noted() {
    let mut schedule = schedule();
    let due = schedule.next_at.unwrap();
    schedule.now = due;
    let mut busy = schedule.clone();
    assert_eq!(busy.take_turn(due, Look { has_open_run: true, ..FREE }, BatchId::new()), Turn::Skip);
    assert_eq!((busy.runs, busy.skipped, busy.last_at), (0, 1, None));
    let mut both = Schedule { overlap: Overlap::Allow, ..schedule.clone() };
    assert_eq!(both.take_turn(due, Look { has_open_run: true, ..FREE }, BatchId::new()), Turn::Run);

    let Turn::Fail(why) = schedule.take_turn(due, Look { has_file: false, ..FREE }, BatchId::new()) else { panic!() };
    assert!(why.contains(&schedule.batch.input.to_string()) && why.starts_with("2026-03-02T03:00:00Z"), "{why}");
    assert_eq!((schedule.last_error.as_ref(), schedule.runs), (Some(&why), 0));
    let due = schedule.next_at.unwrap();
    assert_eq!(due, at("2026-03-03T03:00:00Z"));
    schedule.now = due;
    assert_eq!(schedule.take_turn(due, FREE, BatchId::new()), Turn::Run);
    assert_eq!(schedule.last_error, None);
}

#[test]
fn a_clock_that_was_put_back_brings_no_time_twice() {
    let mut schedule = schedule();
    let due = schedule.next_at.unwrap();
    schedule.now = Timestamp(due.0 - 5_000);
    assert_eq!(schedule.take_turn(due, Look { was_run: true, ..FREE }, BatchId::new()), Turn::Pass);
    assert_eq!((schedule.next_at, schedule.runs, schedule.skipped), (Some(at("2026-03-03T03:00:00Z")), 0, 0));
}

#[test]
fn a_change_counts_anew_only_where_times_change() {
    let schedule = Schedule { now: at("2026-03-01T20:00:00Z"), ..schedule() };
    let change = |change: ScheduleChange| schedule.changed(&change);
    let renamed = change(ScheduleChange { name: Some("x".into()), enabled: Some(true), ..ScheduleChange::default() });
    assert_eq!((renamed.name.as_str(), renamed.next_at), ("x", schedule.next_at));
    let moved = change(ScheduleChange { cron: Some("0 21 * * *".parse().unwrap()), ..ScheduleChange::default() });
    assert_eq!(moved.next_at, Some(at("2026-03-01T21:00:00Z")));
    // In New York it is 15:00; at 03:00 it is 08:00 UTC there.
    let zone = Some("America/New_York".parse().unwrap());
    assert_eq!(change(ScheduleChange { zone, ..Default::default() }).next_at, Some(at("2026-03-02T08:00:00Z")));
    let off = change(ScheduleChange { enabled: Some(false), ..ScheduleChange::default() });
    assert!(!off.is_enabled());
    assert_eq!(off.changed(&ScheduleChange { zone, ..Default::default() }).next_at, None, "it stays off");
    let later = Schedule { now: at("2026-04-01T03:00:00Z"), ..off };
    let on = later.changed(&ScheduleChange { enabled: Some(true), ..ScheduleChange::default() });
    assert_eq!(on.next_at, Some(at("2026-04-02T03:00:00Z")), "what was while it was off is not made up for");
}

#[test]
fn words_and_ids_are_read_as_they_are_written() {
    for overlap in [Overlap::Skip, Overlap::Allow] {
        assert_eq!(overlap.as_str().parse(), Ok(overlap));
        assert_eq!(serde_json::to_value(overlap).unwrap(), overlap.as_str());
    }
    for catch_up in [CatchUp::One, CatchUp::None] {
        assert_eq!(catch_up.as_str().parse(), Ok(catch_up));
        assert_eq!(serde_json::to_value(catch_up).unwrap(), catch_up.as_str());
    }
    assert!("all".parse::<CatchUp>().unwrap_err().to_string().contains("one and none"));
    let id = ScheduleId::new();
    assert_eq!(id.to_string().parse(), Ok(id));
    assert!(BatchId::new().to_string().parse::<ScheduleId>().is_err());
}
