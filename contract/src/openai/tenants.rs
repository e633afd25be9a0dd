//! Bodies of the tenant routes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::{Fields, wrong_value};
use super::{MAX_STRING_BYTES, ParseError};
use crate::ids::TenantId;
use crate::tenant::{LimitChange, MAX_LIMIT, MAX_WEIGHT, Tenant, TenantChange, TenantPolicy};

/// Most characters of a tenant's name.
const MAX_TENANT_CHARS: usize = 64;

/// Reads a tenant's name.
///
/// # Errors
/// What it must be.
pub fn tenant_name(text: &str) -> Result<TenantId, ParseError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() || text.len() > MAX_TENANT_CHARS || !text.chars().all(fits) {
        let what = format_args!("must be 1 to {MAX_TENANT_CHARS} letters, digits, `.`, `_` and `-`");
        return Err(wrong_value("tenant", what));
    }
    Ok(TenantId::from(text))
}

/// What `POST /v1/tenants/{tenant}` takes. What is left out stays as it is; `null` means no limit, or weight 1.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantRequest {
    /// Calls that make jobs, batches or files, a minute, for each API process.
    #[schema(minimum = 1, maximum = 1_000_000_000, example = 600)]
    pub requests_per_minute: Option<u64>,
    /// Estimated tokens of the jobs it submits (the prompt at four bytes a token, and the output asked for), a minute,
    /// for each API process. Batch lines are not counted.
    #[schema(minimum = 1, maximum = 1_000_000_000, example = 200_000)]
    pub tokens_per_minute: Option<u64>,
    /// Calls under way that somebody waits for, for each API process.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    pub concurrent_requests: Option<u64>,
    /// Unfinished jobs, batch lines left out: exact, however many processes there are.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    pub queued_jobs: Option<u64>,
    /// Its share of a queue's dispatches among the tenants that wait.
    #[schema(minimum = 1, maximum = 1_000)]
    pub weight: Option<u32>,
}

/// Reads the body of `POST /v1/tenants/{tenant}`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_tenant(body: &Value) -> Result<TenantChange, ParseError> {
    let mut fields = Fields::of(body, "")?;
    let change = TenantChange {
        requests_per_minute: limit(&mut fields, body, "requests_per_minute")?,
        tokens_per_minute: limit(&mut fields, body, "tokens_per_minute")?,
        concurrent_requests: limit(&mut fields, body, "concurrent_requests")?,
        queued_jobs: limit(&mut fields, body, "queued_jobs")?,
        weight: match number(&mut fields, "weight", u64::from(MAX_WEIGHT))? {
            Some(weight) => Some(u32::try_from(weight).unwrap_or(MAX_WEIGHT)),
            None => is_null(body, "weight").then_some(1),
        },
    };
    fields.finish()?;
    Ok(change)
}

fn is_null(body: &Value, name: &str) -> bool {
    body.get(name).is_some_and(Value::is_null)
}

fn number(fields: &mut Fields<'_>, name: &'static str, max: u64) -> Result<Option<u64>, ParseError> {
    let number = fields.integer(name, 1, i64::try_from(max).unwrap_or(i64::MAX))?;
    Ok(number.and_then(|number| u64::try_from(number).ok()))
}

fn limit(fields: &mut Fields<'_>, body: &Value, name: &'static str) -> Result<LimitChange, ParseError> {
    Ok(match number(fields, name, MAX_LIMIT)? {
        Some(limit) => LimitChange::Set(limit),
        // Only here does a `null` ask for something: there is no other way to say that a limit is gone.
        None if is_null(body, name) => LimitChange::Clear,
        None => LimitChange::Keep,
    })
}

/// A tenant as it is shown; what is `null` has no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TenantObject {
    /// Its name.
    #[schema(example = "acme")]
    pub id: String,
    /// Always `tenant`.
    pub object: String,
    /// Calls that make jobs, batches or files, a minute, for each API process.
    #[schema(required)]
    pub requests_per_minute: Option<u64>,
    /// Estimated tokens of the jobs it submits, a minute, for each API process.
    #[schema(required)]
    pub tokens_per_minute: Option<u64>,
    /// Calls under way that somebody waits for, for each API process.
    #[schema(required)]
    pub concurrent_requests: Option<u64>,
    /// Unfinished jobs, batch lines left out.
    #[schema(required)]
    pub queued_jobs: Option<u64>,
    /// Its share of a queue's dispatches among the tenants that wait.
    pub weight: u32,
    /// When it was first set; `null` where nothing was said of it.
    #[schema(required)]
    pub created_at: Option<String>,
    /// When it was last set.
    #[schema(required)]
    pub changed_at: Option<String>,
}

impl TenantObject {
    /// What is shown of a tenant.
    pub fn of(tenant: &Tenant) -> Self {
        let times = (Some(tenant.created_at.rfc3339()), Some(tenant.changed_at.rfc3339()));
        Self { created_at: times.0, changed_at: times.1, ..Self::with(&tenant.id, &tenant.policy) }
    }

    /// One of which nothing was said.
    pub fn unset(id: &TenantId) -> Self {
        Self::with(id, &TenantPolicy::default())
    }

    fn with(id: &TenantId, policy: &TenantPolicy) -> Self {
        let TenantPolicy { limits, weight } = *policy;
        Self {
            id: id.to_string(),
            object: "tenant".to_owned(),
            requests_per_minute: limits.requests_per_minute,
            tokens_per_minute: limits.tokens_per_minute,
            concurrent_requests: limits.concurrent_requests,
            queued_jobs: limits.queued_jobs,
            weight,
            created_at: None,
            changed_at: None,
        }
    }
}

/// Tenants of which something was said, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TenantList {
    /// Always `list`.
    pub object: String,
    /// The tenants.
    pub data: Vec<TenantObject>,
}

/// A limit of so much a minute, and where the caller stands.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RateStanding {
    /// The limit, which is also the most that can be used at once.
    pub limit: u64,
    /// What can be used now, at this API process.
    pub remaining: u64,
    /// Seconds until all of it can be used again.
    pub reset_seconds: f64,
}

/// A limit of so many at once, and where the caller stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CountStanding {
    /// The limit.
    pub limit: u64,
    /// How many there are.
    pub used: u64,
}

/// A caller's limits, and what is left of them; what is `null` has no limit.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct LimitsObject {
    /// Always `limits`.
    pub object: String,
    /// Whose they are.
    pub tenant: String,
    /// Calls that make jobs, batches or files.
    #[schema(required)]
    pub requests_per_minute: Option<RateStanding>,
    /// Estimated tokens of submitted jobs.
    #[schema(required)]
    pub tokens_per_minute: Option<RateStanding>,
    /// Calls under way that somebody waits for, at this API process.
    #[schema(required)]
    pub concurrent_requests: Option<CountStanding>,
    /// Unfinished jobs, batch lines left out.
    #[schema(required)]
    pub queued_jobs: Option<CountStanding>,
    /// The tenant's share of a queue's dispatches among the tenants that wait.
    pub weight: u32,
}

/// Reads a tenant's name out of a field, `local` if there is none.
pub(super) fn tenant_field(fields: &mut Fields<'_>) -> Result<TenantId, ParseError> {
    tenant_name(fields.string("tenant", MAX_STRING_BYTES)?.unwrap_or(TenantId::LOCAL))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_left_out_is_kept_and_null_clears() {
        assert_eq!(parse_tenant(&json!({})).unwrap(), TenantChange::default());
        let change = parse_tenant(&json!({
            "requests_per_minute": 60, "tokens_per_minute": null, "queued_jobs": 1_000_000_000, "weight": 1_000,
        }));
        let expected = TenantChange {
            requests_per_minute: LimitChange::Set(60),
            tokens_per_minute: LimitChange::Clear,
            concurrent_requests: LimitChange::Keep,
            queued_jobs: LimitChange::Set(1_000_000_000),
            weight: Some(1_000),
        };
        assert_eq!(change.unwrap(), expected);
        assert_eq!(parse_tenant(&json!({"weight": null})).unwrap().weight, Some(1));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (json!({"requests_per_minute": 0}), "requests_per_minute"),
            (json!({"tokens_per_minute": 1_000_000_001_u64}), "tokens_per_minute"),
            (json!({"concurrent_requests": "5"}), "concurrent_requests"),
            (json!({"queued_jobs": -1}), "queued_jobs"),
            (json!({"queued_jobs": 1.5}), "queued_jobs"),
            (json!({"weight": 0}), "weight"),
            (json!({"weight": 1_001}), "weight"),
            (json!({"requests": 3}), "requests"),
        ] {
            assert_eq!(parse_tenant(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        assert_eq!(parse_tenant(&json!([])).unwrap_err().param, None);
    }

    #[test]
    fn names_are_those_that_keys_can_have() {
        assert_eq!(tenant_name("a.B_9-").unwrap().as_str(), "a.B_9-");
        for wrong in ["", "a b", "ü", "a/b", "a\0", &"x".repeat(65)] {
            assert_eq!(tenant_name(wrong).unwrap_err().param.as_deref(), Some("tenant"), "{wrong}");
        }
    }
}
