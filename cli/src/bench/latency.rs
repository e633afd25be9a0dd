//! Times of many requests in little memory, as percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Durations from a microsecond to an hour, to three digits.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

/// Percentiles in milliseconds; absent when nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half took at most this.
    pub p50: f64,
    /// Nineteen of twenty.
    pub p95: f64,
    /// All but one of a hundred.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// How many were measured.
    pub count: u64,
}

const HOUR_US: u64 = 3_600_000_000;

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, HOUR_US, 3).expect("one to an hour in three digits is a valid range"))
    }
}

impl Latency {
    /// Counts one duration; more than an hour counts as an hour.
    pub fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(HOUR_US).clamp(1, HOUR_US);
        self.0.saturating_record(micros);
    }

    /// The percentiles.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let millis = |micros: u64| micros as f64 / 1e3;
        let at = |quantile| millis(self.0.value_at_quantile(quantile));
        (!self.0.is_empty()).then(|| Percentiles {
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max: millis(self.0.max()),
            count: self.0.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_numbers() {
        let mut times = Latency::default();
        for ms in (1..=100).rev() {
            times.record(Duration::from_millis(ms));
        }
        let found = times.percentiles().unwrap();
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected * 0.002;
        assert!(near(found.p50, 50.0) && near(found.p95, 95.0) && near(found.p99, 99.0), "{found:?}");
        assert!(near(found.max, 100.0) && found.count == 100, "{found:?}");
        assert_eq!(Latency::default().percentiles(), None);
    }
}
