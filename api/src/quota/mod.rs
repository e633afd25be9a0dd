//! What each tenant may use at this process: requests and tokens a minute, and calls under way that somebody waits for.
//!
//! It is counted in memory, so that no call asks a store for it: with several API processes a tenant has its limits at
//! each of them. What the limits are is read from the store and believed for two seconds. The bound of a tenant's
//! unfinished jobs is the store's to hold, exactly; from here it only learns what it is.

mod bucket;
mod headers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contract::openai::tenants::{CountStanding, LimitsObject, RateStanding};
use contract::{AdminStore, StoreError, TenantId, TenantPolicy};

use self::bucket::Bucket;
use crate::error::ApiError;

pub(crate) use self::headers::{Violated, is_limited, tell, whole_seconds};

/// How long what the store said of a tenant is believed: limits that were changed elsewhere hold after so long.
const BELIEVED: Duration = Duration::from_secs(2);
/// Most tenants that are remembered while they use nothing.
const REMEMBERED: usize = 10_000;

/// What is limited by the minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rated {
    /// Calls that make jobs, batches or files.
    Requests,
    /// Estimated tokens of submitted jobs.
    Tokens,
}

impl Rated {
    /// Its name in headers and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Rated::Requests => "requests",
            Rated::Tokens => "tokens",
        }
    }
}

/// What a call takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub requests: u64,
    pub tokens: u64,
    /// Somebody waits for its answer.
    pub is_waited_for: bool,
}

impl Ask {
    /// One request that brings no tokens and that nobody waits for.
    pub const ONE: Ask = Ask { requests: 1, tokens: 0, is_waited_for: false };
}

/// What is left of a limit by the minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Left {
    what: Rated,
    limit: u64,
    remaining: u64,
    reset: Duration,
}

/// All tenants at this process.
pub(crate) struct Quotas {
    store: Arc<dyn AdminStore>,
    tenants: Mutex<HashMap<TenantId, Account>>,
}

/// One tenant at this process.
#[derive(Default)]
struct Account {
    policy: TenantPolicy,
    asked_at: Option<Instant>,
    requests: Bucket,
    tokens: Bucket,
    /// Calls under way that somebody waits for.
    under_way: u64,
}

impl Account {
    fn is_fresh(&self) -> bool {
        self.asked_at.is_some_and(|at| at.elapsed() < BELIEVED)
    }

    /// Forgetting it changes nothing.
    fn is_idle(&self, now: Instant) -> bool {
        let is_full = |bucket: &Bucket| bucket.reset(now).is_zero();
        !self.is_fresh() && self.under_way == 0 && is_full(&self.requests) && is_full(&self.tokens)
    }

    /// The limits by the minute that there are, with what they are counted in.
    fn rates(&mut self) -> impl Iterator<Item = (Rated, u64, &mut Bucket)> {
        let limits = self.policy.limits;
        let requests = (Rated::Requests, limits.requests_per_minute, &mut self.requests);
        let tokens = (Rated::Tokens, limits.tokens_per_minute, &mut self.tokens);
        [requests, tokens].into_iter().filter_map(|(what, limit, bucket)| Some((what, limit?, bucket)))
    }

    /// Takes all that a call asks for, or nothing.
    fn take(&mut self, ask: Ask, now: Instant) -> Result<(), ApiError> {
        let amount = |what| match what {
            Rated::Requests => ask.requests,
            Rated::Tokens => ask.tokens,
        };
        let mut refusals = Vec::new();
        for (what, limit, bucket) in self.rates() {
            let amount = amount(what);
            if amount > limit {
                return Err(ApiError::ExceedsLimit { what, limit, amount });
            }
            let wait = bucket.wait(amount, limit, now);
            if !wait.is_zero() {
                refusals.push((wait, ApiError::RateLimited { what, limit, amount, wait }));
            }
        }
        // The one that takes longest: when it fits, the others do.
        if let Some((_, refusal)) = refusals.into_iter().max_by_key(|(wait, _)| *wait) {
            return Err(refusal);
        }
        if let Some(limit) = self.policy.limits.concurrent_requests
            && ask.is_waited_for
            && self.under_way >= limit
        {
            return Err(ApiError::TooConcurrent { limit });
        }
        for (what, limit, bucket) in self.rates() {
            bucket.take(amount(what), limit, now);
        }
        self.under_way += u64::from(ask.is_waited_for);
        Ok(())
    }

    fn left(&mut self, now: Instant) -> Vec<Left> {
        let left = |(what, limit, bucket): (Rated, u64, &mut Bucket)| Left {
            what,
            limit,
            remaining: bucket.remaining(limit, now),
            reset: bucket.reset(now),
        };
        self.rates().map(left).collect()
    }
}

/// A call that was let in.
pub(crate) struct Admitted {
    /// Most unfinished jobs of the tenant, if that is limited.
    pub tenant_bound: Option<u64>,
    /// Its place among the calls under way: to be kept until its answer has ended.
    pub seat: Option<Seat>,
}

/// A place among a tenant's calls under way, given back when it is dropped.
pub(crate) struct Seat {
    quotas: Arc<Quotas>,
    tenant: TenantId,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(account) = self.quotas.tenants().get_mut(&self.tenant) {
            account.under_way = account.under_way.saturating_sub(1);
        }
    }
}

impl Quotas {
    pub fn new(store: Arc<dyn AdminStore>) -> Self {
        Self { store, tenants: Mutex::default() }
    }

    /// Learns a tenant's limits, unless they were learned a moment ago.
    pub async fn learn(&self, tenant: &TenantId) -> Result<(), StoreError> {
        if self.tenants().get(tenant).is_some_and(Account::is_fresh) {
            return Ok(());
        }
        let asked_at = Instant::now();
        let policy = self.store.tenant(tenant).await?.map(|tenant| tenant.policy).unwrap_or_default();
        let mut tenants = self.tenants();
        if tenants.len() >= REMEMBERED && !tenants.contains_key(tenant) {
            tenants.retain(|_, account| !account.is_idle(asked_at));
        }
        let account = tenants.entry(tenant.clone()).or_default();
        (account.policy, account.asked_at) = (policy, Some(asked_at));
        Ok(())
    }

    /// Lets a call in, whose tenant's limits were learned: it takes all that it asks for, or is refused and takes nothing.
    pub fn admit(self: &Arc<Self>, tenant: &TenantId, ask: Ask) -> Result<Admitted, ApiError> {
        let mut tenants = self.tenants();
        let account = tenants.entry(tenant.clone()).or_default();
        account.take(ask, Instant::now())?;
        let seat = ask.is_waited_for.then(|| Seat { quotas: self.clone(), tenant: tenant.clone() });
        Ok(Admitted { tenant_bound: account.policy.limits.queued_jobs, seat })
    }

    /// What is left of a tenant's limits by the minute.
    fn left(&self, tenant: &TenantId) -> Vec<Left> {
        self.tenants().get_mut(tenant).map(|account| account.left(Instant::now())).unwrap_or_default()
    }

    /// A tenant's limits and what is left of them, with its unfinished jobs as the store counts them.
    pub fn standing(&self, tenant: &TenantId, unfinished: u64) -> LimitsObject {
        let mut tenants = self.tenants();
        let account = tenants.entry(tenant.clone()).or_default();
        let left = account.left(Instant::now());
        let rate = |what| {
            left.iter().find(|left| left.what == what).map(|left| RateStanding {
                limit: left.limit,
                remaining: left.remaining,
                reset_seconds: left.reset.as_millis() as f64 / 1_000.0,
            })
        };
        let count = |limit: Option<u64>, used| limit.map(|limit| CountStanding { limit, used });
        let limits = account.policy.limits;
        LimitsObject {
            object: "limits".to_owned(),
            tenant: tenant.to_string(),
            requests_per_minute: rate(Rated::Requests),
            tokens_per_minute: rate(Rated::Tokens),
            concurrent_requests: count(limits.concurrent_requests, account.under_way),
            queued_jobs: count(limits.queued_jobs, unfinished),
            weight: account.policy.weight,
        }
    }

    /// What was known of a tenant's limits may have changed by this process's own doing.
    pub fn forget(&self, tenant: &TenantId) {
        if let Some(account) = self.tenants().get_mut(tenant) {
            account.asked_at = None;
        }
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<TenantId, Account>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use contract::TenantLimits;

    use super::*;

    fn account(limits: TenantLimits) -> Account {
        Account { policy: TenantPolicy { limits, weight: 1 }, ..Account::default() }
    }

    #[test]
    fn a_call_takes_all_that_it_asks_for_or_nothing() {
        let limits = TenantLimits {
            requests_per_minute: Some(10),
            tokens_per_minute: Some(100),
            concurrent_requests: Some(1),
            ..TenantLimits::default()
        };
        let (mut account, now) = (account(limits), Instant::now());
        let left = |account: &mut Account| account.left(now).iter().map(|left| left.remaining).collect::<Vec<_>>();
        let ask = Ask { requests: 1, tokens: 60, is_waited_for: true };
        account.take(ask, now).unwrap();
        assert_eq!(left(&mut account), [9, 40]);
        // Of tokens there is too little, for 20 of 100: 12 s.
        let refused = account.take(ask, now).unwrap_err();
        assert!(
            matches!(refused, ApiError::RateLimited { what: Rated::Tokens, wait, .. } if wait == Duration::from_secs(12)),
            "{refused:?}"
        );
        // Of places there is none.
        let refused = account.take(Ask { tokens: 1, ..ask }, now).unwrap_err();
        assert!(matches!(refused, ApiError::TooConcurrent { limit: 1 }), "{refused:?}");
        // It could never fit.
        let refused = account.take(Ask { tokens: 101, ..ask }, now).unwrap_err();
        assert!(matches!(refused, ApiError::ExceedsLimit { what: Rated::Tokens, .. }), "{refused:?}");
        assert_eq!((left(&mut account), account.under_way), (vec![9, 40], 1));
        account.take(Ask { requests: 9, tokens: 40, is_waited_for: false }, now).unwrap();
        // Of both there is nothing: what takes longer is told.
        let refused = account.take(Ask { requests: 1, tokens: 50, is_waited_for: false }, now).unwrap_err();
        assert!(
            matches!(refused, ApiError::RateLimited { what: Rated::Tokens, wait, .. } if wait == Duration::from_secs(30)),
            "{refused:?}"
        );
    }

    #[test]
    fn without_limits_nothing_is_counted_and_nothing_is_told() {
        let (mut account, now) = (account(TenantLimits::default()), Instant::now());
        account.take(Ask { requests: 1_000_000, tokens: u64::MAX, is_waited_for: false }, now).unwrap();
        assert!(account.left(now).is_empty() && account.requests.reset(now).is_zero());
    }
}
