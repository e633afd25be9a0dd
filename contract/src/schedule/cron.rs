//! The times of a schedule: a cron expression, read from a clock that hangs somewhere.

use std::str::FromStr;

use chrono::DateTime;
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds, Year};

use crate::time::Timestamp;

/// Most bytes of an expression.
const MAX_BYTES: usize = 200;
/// Short names of some expressions.
const NAMES: [&str; 6] = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually"];

/// A cron expression of five fields: minute, hour, day of month, month, day of week.
///
/// Where the clock is put forward, a daily time that does not exist is run at the first moment after the gap. Where it is
/// put back, a daily time that comes twice is run at the first of the two; of expressions with several times a day, those
/// that do not exist are left out, and those that come twice are run twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    pattern: croner::Cron,
}

/// A text that is no cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCron {
    /// It has not five fields.
    #[error(
        "has {0} fields, and five are read: minute, hour, day of month, month, day of week. Every minute is the most: \
         there is no field for seconds, and none for years"
    )]
    Fields(usize),
    /// A short name that is none.
    #[error("is none of the short names, which are @hourly, @daily, @weekly, @monthly, @yearly and @annually")]
    Name,
    /// It is too long.
    #[error("has more than {MAX_BYTES} bytes")]
    TooLong,
    /// A field is wrong.
    #[error(
        "has `{text}` as its {name}, which must be {range}, `*`, or lists, ranges and steps of these, as 1,15 or 1-5 or */15"
    )]
    Field {
        /// Which.
        name: &'static str,
        /// What stands there.
        text: String,
        /// What may.
        range: &'static str,
    },
    /// It is wrong as a whole.
    #[error("is no cron expression: {0}")]
    Whole(String),
    /// It is well formed and means nothing.
    #[error("names no day that ever comes")]
    Never,
}

impl FromStr for Cron {
    type Err = BadCron;

    fn from_str(text: &str) -> Result<Self, BadCron> {
        let text = text.trim();
        if text.len() > MAX_BYTES {
            return Err(BadCron::TooLong);
        }
        let n_fields = text.split_whitespace().count();
        if text.starts_with('@') {
            if !NAMES.contains(&text.to_ascii_lowercase().as_str()) {
                return Err(BadCron::Name);
            }
        } else if n_fields != 5 {
            return Err(BadCron::Fields(n_fields));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        if !text.starts_with('@') {
            check_fields(text, &parser)?;
        }
        let pattern = parser
            .parse(text)
            .map_err(|err| BadCron::Whole(err.to_string().trim_end_matches('.').chars().take(200).collect()))?;
        let cron = Self { text: text.to_owned(), pattern };
        match cron.next(Zone(Tz::UTC), Timestamp(0)) {
            Some(_) => Ok(cron),
            None => Err(BadCron::Never),
        }
    }
}

/// The fields, and what may stand in each.
const FIELDS: [(&str, &str); 5] = [
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of week", "0 to 7 or SUN to SAT"),
];
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Finds the field that is wrong. The parser knows more forms than crontab(5) has, and does not say which field it means.
fn check_fields(text: &str, parser: &CronParser) -> Result<(), BadCron> {
    for (n, (field, (name, range))) in text.split_whitespace().zip(FIELDS).enumerate() {
        let names: &[&str] = match n {
            3 => &MONTHS,
            4 => &WEEKDAYS,
            _ => &[],
        };
        let alone: Vec<&str> = (0..FIELDS.len()).map(|place| if place == n { field } else { "*" }).collect();
        if !field.split(',').all(|part| is_part(part, names)) || parser.parse(&alone.join(" ")).is_err() {
            return Err(BadCron::Field { name, text: field.chars().take(40).collect(), range });
        }
    }
    Ok(())
}

/// `*`, a value or a range, each perhaps with a step.
fn is_part(part: &str, names: &[&str]) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_value = |text: &str| is_number(text) || names.iter().any(|name| name.eq_ignore_ascii_case(text));
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let is_range = range.split_once('-').is_some_and(|(first, last)| is_value(first) && is_value(last));
    (range == "*" || is_value(range) || is_range) && step.is_none_or(is_number)
}

impl Cron {
    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first of its times that is later than this; `None` at the end of the calendar.
    pub fn next(&self, zone: Zone, after: Timestamp) -> Option<Timestamp> {
        let after = DateTime::from_timestamp(after.unix_seconds(), 0)?.with_timezone(&zone.0);
        let next = self.pattern.find_next_occurrence(&after, false).ok()?;
        Some(Timestamp(next.timestamp_millis()))
    }
}

/// Where a clock hangs: a time zone of the IANA's database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone(Tz);

/// A text that names no time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is `{0}`, which is no time zone of the IANA's database; UTC, Europe/Berlin and America/New_York are")]
pub struct BadZone(String);

impl Default for Zone {
    fn default() -> Self {
        Self(Tz::UTC)
    }
}

impl FromStr for Zone {
    type Err = BadZone;

    fn from_str(text: &str) -> Result<Self, BadZone> {
        text.parse().map(Self).map_err(|_| BadZone(text.chars().take(80).collect()))
    }
}

impl Zone {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        self.0.name()
    }
}
