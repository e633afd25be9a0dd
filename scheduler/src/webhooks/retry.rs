//! When a delivery that failed is tried again.

use std::time::Duration;

use contract::WebhookDelivery;

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

/// The pauses after the first attempt, the second and so on, as Standard Webhooks suggests; the last one again and again.
const PAUSES: [Duration; 9] = [
    Duration::from_secs(5),
    minutes(1),
    minutes(5),
    minutes(30),
    minutes(2 * 60),
    minutes(5 * 60),
    minutes(10 * 60),
    minutes(14 * 60),
    minutes(20 * 60),
];
/// A last attempt is made at the end of the time, unless one was made so shortly before.
const LAST: Duration = Duration::from_secs(60);

/// How long a delivery waits after an attempt that failed, or `None` when its time is over. `asked` is the server's own
/// wish; `random` spreads what failed together, by up to a fifth more.
pub(super) fn pause(
    delivery: &WebhookDelivery,
    status: Option<u16>,
    asked: Option<Duration>,
    random: u32,
) -> Option<Duration> {
    let left = Duration::from_millis(delivery.retry_until.millis_since(delivery.now));
    // A server that says that it is too much, and not for how long, is left alone for longer.
    let is_overloaded = asked.is_none() && matches!(status, Some(429 | 502 | 504));
    let nth = delivery.tries as usize + usize::from(is_overloaded);
    let pause = PAUSES[nth.min(PAUSES.len() - 1)];
    let spread = pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 5.0);
    let pause = (pause + spread).max(asked.unwrap_or_default());
    match () {
        () if pause <= left => Some(pause),
        () if left > LAST => Some(left),
        () => None,
    }
}

/// Some random number; without randomness nothing is spread.
pub(super) fn random() -> u32 {
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use contract::webhook::RETRIED_FOR;
    use contract::{DeliveryId, DeliveryState, JobId, Subject, TenantId, Timestamp, WebhookEvent};

    use super::*;

    fn delivery(attempts: u32, since: Duration) -> WebhookDelivery {
        let now = i64::try_from(since.as_millis()).unwrap();
        WebhookDelivery {
            id: DeliveryId::new(),
            tenant: TenantId::local(),
            webhook: None,
            url: "https://a.example".into(),
            event: WebhookEvent::JobFailed,
            subject: Subject::Job(JobId::new()),
            sequence: 2,
            at: Timestamp(0),
            state: DeliveryState::Waiting,
            attempts,
            tries: attempts,
            next_at: Some(Timestamp(now)),
            retry_until: Timestamp(i64::try_from(RETRIED_FOR.as_millis()).unwrap()),
            now: Timestamp(now),
        }
    }

    #[test]
    fn a_server_that_never_answers_is_tried_for_three_days() {
        for random in [0, u32::MAX] {
            let (mut since, mut attempts) = (Duration::ZERO, 0);
            while let Some(pause) = pause(&delivery(attempts, since), None, None, random) {
                since += pause;
                attempts += 1;
            }
            assert!(since <= RETRIED_FOR && since >= RETRIED_FOR - LAST, "{since:?}");
            assert!((9..=11).contains(&attempts), "{attempts}");
        }
    }

    #[test]
    fn what_a_server_asks_for_is_honoured() {
        let first = delivery(0, Duration::ZERO);
        assert_eq!(pause(&first, Some(500), None, 0), Some(Duration::from_secs(5)));
        assert_eq!(pause(&first, Some(429), None, 0), Some(minutes(1)));
        assert_eq!(pause(&first, Some(429), Some(Duration::from_secs(12)), 0), Some(Duration::from_secs(12)));
        assert_eq!(pause(&first, Some(503), Some(minutes(60)), 0), Some(minutes(60)));
        assert_eq!(pause(&first, Some(503), Some(Duration::from_secs(1)), 0), Some(Duration::from_secs(5)));
        // Not beyond the end of its time.
        let late = delivery(8, RETRIED_FOR - minutes(60));
        assert_eq!(pause(&late, Some(503), Some(minutes(600)), 0), Some(minutes(60)));
        assert_eq!(pause(&delivery(9, RETRIED_FOR), None, None, 0), None);
    }
}
