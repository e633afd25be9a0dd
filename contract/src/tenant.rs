//! Tenants: how much of an installation each may use, and its share of what all of them want.

use crate::ids::TenantId;
use crate::time::Timestamp;

/// The highest that a limit can be.
pub const MAX_LIMIT: u64 = 1_000_000_000;
/// The highest that a weight can be.
pub const MAX_WEIGHT: u32 = 1_000;

/// What a tenant may use; what is `None` has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Calls that make jobs, batches or files, a minute.
    pub requests_per_minute: Option<u64>,
    /// Estimated tokens of the jobs it submits, a minute. Batch lines are not counted.
    pub tokens_per_minute: Option<u64>,
    /// Calls under way that somebody waits for.
    pub concurrent_requests: Option<u64>,
    /// Unfinished jobs, batch lines left out.
    pub queued_jobs: Option<u64>,
}

/// A tenant's limits and weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantPolicy {
    /// What it may use.
    pub limits: TenantLimits,
    /// Its share of a queue's dispatches among the tenants that wait, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
}

impl Default for TenantPolicy {
    /// No limits, weight 1: what a tenant has of which nothing was said.
    fn default() -> Self {
        Self { limits: TenantLimits::default(), weight: 1 }
    }
}

/// A tenant of which something was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// Its limits and weight.
    pub policy: TenantPolicy,
    /// When it was first set.
    pub created_at: Timestamp,
    /// When it was last set.
    pub changed_at: Timestamp,
}

/// What becomes of one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// There is none any more.
    Clear,
    /// It is this from now on, 1 to [`MAX_LIMIT`].
    Set(u64),
}

/// A change of a tenant's policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantChange {
    /// Of [`TenantLimits::requests_per_minute`].
    pub requests_per_minute: LimitChange,
    /// Of [`TenantLimits::tokens_per_minute`].
    pub tokens_per_minute: LimitChange,
    /// Of [`TenantLimits::concurrent_requests`].
    pub concurrent_requests: LimitChange,
    /// Of [`TenantLimits::queued_jobs`].
    pub queued_jobs: LimitChange,
    /// The new weight; `None`: as it is.
    pub weight: Option<u32>,
}
