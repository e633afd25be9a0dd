//! Points in time as the store keeps them.

use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A point in time in whole milliseconds since the Unix epoch, by the store's clock.
///
/// Native routes show it as RFC 3339, OpenAI routes as Unix seconds; on the wire between rooms it is the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Seconds since the epoch, rounded down.
    pub fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// `2026-11-29T18:04:14.123Z`; times outside the years 1 to 9999 are shown as the nearest end of that range.
    pub fn rfc3339(self) -> String {
        let clamped = self.0.clamp(-62_135_596_800_000, 253_402_300_799_999);
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(clamped) * 1_000_000)
            .ok()
            .and_then(|at| at.format(&Rfc3339).ok())
            .unwrap_or_default()
    }

    /// Reads what [`Timestamp::rfc3339`] writes, in any offset from UTC.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).ok().map(Self)
    }

    /// Milliseconds from `earlier` to `self`, never negative.
    pub fn millis_since(self, earlier: Timestamp) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_both_wire_forms() {
        let at = Timestamp(1_764_439_454_120);
        assert_eq!(at.rfc3339(), "2025-11-29T18:04:14.12Z");
        assert_eq!(at.unix_seconds(), 1_764_439_454);
        assert_eq!(Timestamp(i64::MAX).rfc3339(), "9999-12-31T23:59:59.999Z");
        for text in ["2025-11-29T18:04:14.12Z", "2025-11-29T19:04:14.120+01:00"] {
            assert_eq!(Timestamp::parse_rfc3339(text), Some(at));
        }
        assert_eq!(Timestamp::parse_rfc3339("2025-11-29"), None);
        assert_eq!(Timestamp(5).millis_since(Timestamp(9)), 0);
    }
}
