//! The usage ledger.

use axum::Json;
use axum::extract::{RawQuery, State};
use contract::openai::ErrorEnvelope;
use contract::openai::tenants::tenant_name;
use contract::openai::usage::UsageList;
use contract::{Day, TenantId, Timestamp, UsageFilter};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::routes::list::pairs;
use crate::state::AppState;

/// Most lines of one answer.
const MAX_LINES: u32 = 10_000;
/// Most days of one answer, a leap year.
const MAX_DAYS: u32 = 366;
/// Days of an answer where none are asked for.
const DEFAULT_DAYS: i32 = 30;

/// Some days, and perhaps a tenant, of a query string.
pub(super) struct Days {
    pub(super) from: Day,
    pub(super) to: Day,
    pub(super) tenant: Option<TenantId>,
}

impl Days {
    /// Reads `from`, `to` and, where the route has it, `tenant`. Without `to` the last day is today; without `from` the
    /// first is so many days before that.
    pub(super) fn read(query: Option<&str>, usual: i32, most: u32, has_tenant: bool) -> Result<Self, ApiError> {
        let (mut from, mut to, mut tenant) = (None, None, None);
        for (name, value) in pairs(query)? {
            match name.as_str() {
                "from" => from = Some(day("from", &value)?),
                "to" => to = Some(day("to", &value)?),
                "tenant" if has_tenant => tenant = Some(tenant_name(&value).map_err(ApiError::from)?),
                _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
            }
        }
        let to = to.unwrap_or_else(today);
        let from = from.unwrap_or_else(|| Day(to.plus(1 - usual).0.max(0)));
        match to.count_from(from) {
            0 => Err(ApiError::query("from", format_args!("is later than `to`, which is {to}"))),
            n if n > most => Err(ApiError::query(
                "from",
                format_args!("makes {n} days with `to`, which is {to}; {most} are the most"),
            )),
            _ => Ok(Self { from, to, tenant }),
        }
    }
}

fn day(name: &'static str, value: &str) -> Result<Day, ApiError> {
    value.parse().map_err(|err| ApiError::query(name, format_args!("is wrong: {err}")))
}

fn today() -> Day {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Day::of(Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}

/// What the caller's tenant used: jobs and tokens by day (UTC), release, model and class.
///
/// Jobs count on the day on which they were accepted, and again, by how they ended, on the day of their end. Tokens
/// count on the day of the end for results, and where an attempt gave no result as `wasted_tokens`, on the day on which
/// they were booked.
#[utoipa::path(get, path = "/v1/usage", tag = "jobs",
    params(
        ("from" = Option<String>, Query, description = "The first day, as 2026-11-29; default: 30 days with `to`"),
        ("to" = Option<String>, Query, description = "The last day; default: today. At most 366 days"),
    ),
    responses(
        (status = 200, description = "The lines, first day first", body = UsageList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn own(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<UsageList>, ApiError> {
    let days = Days::read(query.as_deref(), DEFAULT_DAYS, MAX_DAYS, false)?;
    lines(&state, Days { tenant: Some(caller.tenant), ..days }).await
}

/// What all tenants used, or one of them: figures only, as `/v1/usage` has them.
#[utoipa::path(get, path = "/v1/usage/tenants", tag = "operations",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant"),
        ("from" = Option<String>, Query, description = "The first day, as 2026-11-29; default: 30 days with `to`"),
        ("to" = Option<String>, Query, description = "The last day; default: today. At most 366 days"),
    ),
    responses(
        (status = 200, description = "The lines, first day first", body = UsageList),
        (status = 400, description = "A parameter is wrong, or there are more than 10,000 lines", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn of_tenants(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<UsageList>, ApiError> {
    lines(&state, Days::read(query.as_deref(), DEFAULT_DAYS, MAX_DAYS, true)?).await
}

async fn lines(state: &AppState, days: Days) -> Result<Json<UsageList>, ApiError> {
    let Days { from, to, tenant } = days;
    let lines = state.deps.admin.usage_lines(&UsageFilter { tenant, from, to, limit: MAX_LINES + 1 }).await?;
    if lines.len() > MAX_LINES as usize {
        let problem = format_args!("leaves more than {MAX_LINES} lines: ask for fewer days, or for one tenant");
        return Err(ApiError::query("from", problem));
    }
    Ok(Json(UsageList::new(from, to, &lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_defaults_and_limits() {
        let read = |query: &str| Days::read(Some(query), 30, 366, true);
        let days = read("to=2026-03-01&tenant=a%2Db").unwrap_or_else(|err| panic!("{err}"));
        // 30 days with the last one: February 2026 has 28.
        assert_eq!((days.from.to_string(), days.to.to_string()), ("2026-01-31".into(), "2026-03-01".into()));
        assert_eq!(days.tenant, Some(TenantId::from("a-b")));
        assert!(read("from=2024-01-01&to=2024-12-31").is_ok(), "366 days");
        for (query, param) in [
            ("from=2026-03-02&to=2026-03-01", "`from`"),
            ("from=2023-12-31&to=2024-12-31", "`from`"),
            ("from=yesterday", "`from`"),
            ("to=2026-02-30", "`to`"),
            ("tenant=%00", "`tenant`"),
            ("tenant=a%20b", "`tenant`"),
            ("days=3", "`days`"),
        ] {
            let message = read(query).err().map(|err| err.to_string()).unwrap_or_default();
            assert!(message.contains(param), "{query}: {message}");
        }
        assert!(Days::read(Some("tenant=a"), 30, 366, false).is_err());
    }
}
