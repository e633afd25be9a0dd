//! The usage ledger: jobs and tokens by day, kept beside the jobs and not counted anew for each question.

use std::fmt;
use std::str::FromStr;

use ::time::{Date, Month};

use crate::ids::{Class, Fingerprint, TenantId};
use crate::time::Timestamp;

const DAY_MS: i64 = 24 * 3_600 * 1_000;
/// 9999-12-31.
const LAST: i32 = 2_932_896;

/// A day in UTC: days since 1970-01-01. Shown as `2026-11-29`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub i32);

impl Day {
    /// The day of a point in time.
    pub fn of(at: Timestamp) -> Self {
        Self(i32::try_from(at.0.div_euclid(DAY_MS)).unwrap_or(if at.0 < 0 { i32::MIN } else { i32::MAX }))
    }

    /// Its first moment.
    pub fn start(self) -> Timestamp {
        Timestamp(i64::from(self.0) * DAY_MS)
    }

    /// The day so many days later.
    #[must_use]
    pub fn plus(self, days: i32) -> Self {
        Self(self.0.saturating_add(days))
    }

    /// Days from `from` to `self`, both counted: 1 for the same day, 0 when `self` is earlier.
    pub fn count_from(self, from: Day) -> u32 {
        u32::try_from(i64::from(self.0) - i64::from(from.0) + 1).unwrap_or(0)
    }
}

impl fmt::Display for Day {
    /// Days outside the years 1970 to 9999 are shown as the nearest end of that range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let julian = UNIX_EPOCH_JULIAN + self.0.clamp(0, LAST);
        let date = Date::from_julian_day(julian).unwrap_or(Date::MIN);
        write!(f, "{:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day())
    }
}

/// The Julian day of 1970-01-01.
const UNIX_EPOCH_JULIAN: i32 = 2_440_588;

/// A text that is no day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no day from 1970-01-01 to 9999-12-31: write it as 2026-11-29")]
pub struct BadDay(String);

impl FromStr for Day {
    type Err = BadDay;

    fn from_str(text: &str) -> Result<Self, BadDay> {
        let parse = || {
            let shape = text.bytes().enumerate().all(|(nth, byte)| match nth {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
            let whole = (text.len() == 10 && shape).then_some(text)?;
            let month = Month::try_from(whole[5..7].parse::<u8>().ok()?).ok()?;
            let date = Date::from_calendar_date(whole[..4].parse().ok()?, month, whole[8..].parse().ok()?).ok()?;
            Some(date.to_julian_day() - UNIX_EPOCH_JULIAN).filter(|days| *days >= 0)
        };
        parse().map(Self).ok_or_else(|| BadDay(text.chars().take(40).collect()))
    }
}

/// Which part of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    /// Whose; `None` for all tenants.
    pub tenant: Option<TenantId>,
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    /// Most lines.
    pub limit: u32,
}

/// Sums of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenSums {
    /// Tokens of prompts.
    pub prompt: u64,
    /// Those of them that were in the cache.
    pub cached: u64,
    /// Tokens generated.
    pub output: u64,
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLine {
    /// Whose jobs.
    pub tenant: TenantId,
    /// When: of acceptance for `accepted`, of the end for the ends and the tokens of results, of the booking for wasted
    /// tokens.
    pub day: Day,
    /// The release they ran on.
    pub release: Fingerprint,
    /// The name the clients called it by.
    pub model: String,
    /// Their class.
    pub class: Class,
    /// Jobs accepted.
    pub accepted: u64,
    /// Jobs that ended with a result.
    pub succeeded: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs whose deadline passed.
    pub expired: u64,
    /// Tokens of the attempts that gave the results.
    pub tokens: TokenSums,
    /// Tokens of attempts that gave no result.
    pub wasted: TokenSums,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read_as_they_are_shown() {
        // `date -u -d @1764439454` is in 2025-11-29, which `date -u -d 2025-11-29 +%s` begins at 1764374400.
        let day: Day = "2025-11-29".parse().unwrap();
        assert_eq!((day.start(), Day::of(Timestamp(1_764_439_454_123))), (Timestamp(1_764_374_400_000), day));
        assert_eq!(Day::of(Timestamp(1_764_374_399_999)), day.plus(-1));
        for text in ["1970-01-01", "2024-02-29", "2025-12-31", "9999-12-31"] {
            assert_eq!(text.parse::<Day>().unwrap().to_string(), text);
        }
        assert_eq!("1970-01-01".parse(), Ok(Day(0)));
        assert_eq!((day.count_from(day), day.plus(6).count_from(day), day.count_from(day.plus(1))), (1, 7, 0));
        let wrong =
            ["", "2025-11-31", "2025-02-29", "2025-13-01", "2025-1-01", "25-11-29", "1969-12-31", "2025-11-29Z"];
        for text in wrong.into_iter().chain(["+025-11-29", "2025/11/29", "٢٠٢٥-١١-٢٩"]) {
            assert!(text.parse::<Day>().is_err(), "{text}");
        }
        assert_eq!((Day(i32::MIN).to_string(), Day(i32::MAX).to_string()), ("1970-01-01".into(), "9999-12-31".into()));
    }
}
