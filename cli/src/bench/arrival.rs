//! When requests are sent: as soon as an earlier one has ended, or at random times that heed nobody.

use std::fmt;
use std::time::Duration;

use gpu_worker::engine::random::uniform;
use serde::Serialize;

/// How requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// So many clients, each of which sends its next request when its last one has ended. A slow server is sent less.
    Closed {
        /// Clients.
        clients: usize,
    },
    /// At this mean rate with exponential gaps, whatever the server does.
    Poisson {
        /// Requests per second.
        per_second: f64,
    },
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrival::Closed { clients } => write!(f, "{clients} clients"),
            Arrival::Poisson { per_second } => write!(f, "{per_second}/s"),
        }
    }
}

/// Start times of `n` requests of a Poisson process, from its begin on. The same seed gives the same times.
pub fn poisson(per_second: f64, n: usize, seed: u64) -> impl Iterator<Item = Duration> {
    let mut at = 0.0;
    (0..n).map(move |nth| {
        // The inverse of the exponential distribution; `uniform` is below 1, so the logarithm is finite.
        let gap = -(1.0 - uniform(seed, u32::try_from(nth).unwrap_or(u32::MAX))).ln() / per_second;
        at += gap;
        Duration::from_secs_f64(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let n = 20_000;
        let times: Vec<f64> = poisson(50.0, n, 7).map(|at| at.as_secs_f64()).collect();
        assert!(times.is_sorted());
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        // Its standard deviation is its mean, 1/50 s; the mean of 20,000 gaps strays by 0.7 % at most in 68 of 100 runs.
        assert!((mean - 0.02).abs() < 0.02 * 0.03, "{mean}");
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() - 0.02).abs() < 0.02 * 0.05, "{}", variance.sqrt());
    }
}
