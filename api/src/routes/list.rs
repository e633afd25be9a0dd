//! Listing jobs: filters and a cursor.

use std::str::FromStr;

use axum::Json;
use axum::extract::{Query, RawQuery, State};
use contract::openai::ErrorEnvelope;
use contract::openai::native::JobList;
use contract::{Class, Filter, JobId, JobState};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::state::AppState;

const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;
/// Most pairs of a query string: more than all parameters, and each metadata filter, once.
const MAX_PAIRS: usize = 32;

/// The pairs of a query string, decoded, in order.
pub(super) fn pairs(query: Option<&str>) -> Result<Vec<(String, String)>, ApiError> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(Vec::new()) };
    let uri = format!("/?{query}").parse().map_err(|_| ApiError::query("query", "cannot be read"))?;
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&uri)
        .map_err(|_| ApiError::query("query", "cannot be read: percent-encode it as UTF-8"))?;
    if pairs.len() > MAX_PAIRS {
        return Err(ApiError::query("query", format_args!("has {} pairs; {MAX_PAIRS} are the most", pairs.len())));
    }
    Ok(pairs)
}

/// Reads `limit`: a whole number from 1 to `max`.
pub(super) fn most(value: &str, max: u32) -> Result<u32, ApiError> {
    let limit = value.parse().ok().filter(|limit| (1..=max).contains(limit));
    limit.ok_or_else(|| ApiError::query("limit", format_args!("must be a whole number from 1 to {max}")))
}

fn filter(query: Option<&str>) -> Result<Filter, ApiError> {
    let mut filter = Filter { limit: DEFAULT_LIMIT, ..Filter::default() };
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "status" | "state" => {
                for word in value.split(',') {
                    let state = JobState::from_str(word.trim());
                    filter
                        .states
                        .push(state.map_err(|problem| ApiError::query(&name, format_args!("is wrong: {problem}")))?);
                }
            }
            "class" => {
                let class = Class::from_str(&value);
                filter.class =
                    Some(class.map_err(|problem| ApiError::query("class", format_args!("is wrong: {problem}")))?);
            }
            "after" => {
                let after = JobId::from_str(&value);
                filter.after =
                    Some(after.map_err(|problem| ApiError::query("after", format_args!("is wrong: {problem}")))?);
            }
            "limit" => filter.limit = most(&value, MAX_LIMIT)?,
            _ => match name.strip_prefix("metadata.").filter(|key| !key.is_empty()) {
                Some(key) => {
                    filter.metadata.insert(key.to_owned(), value);
                }
                None => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
            },
        }
    }
    Ok(filter)
}

/// Jobs, newest first, without their results.
///
/// Further pages: give `last_id` of a page as `after` while `has_more` is true. `metadata.KEY=VALUE` keeps the jobs
/// that carry the pair; several must all match.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs",
    params(
        ("status" = Option<String>, Query, description = "One or several of queued, running, succeeded, failed, cancelled, expired, with commas between"),
        ("class" = Option<Class>, Query, description = "Only this class"),
        ("after" = Option<String>, Query, description = "Only jobs older than this one"),
        ("limit" = Option<u32>, Query, description = "Most jobs of the page; default 20", minimum = 1, maximum = 100),
    ),
    responses(
        (status = 200, description = "A page", body = JobList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<JobList>, ApiError> {
    let page = state.deps.store.list(&caller.tenant, &filter(query.as_deref())?).await?;
    Ok(Json(JobList::new(&page.jobs, page.has_more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parameters_reach_the_filter() {
        let after = JobId::new();
        let query = format!("status=queued,running&class=bulk&metadata.a%20b=%C3%A9&limit=7&after={after}");
        let filter = filter(Some(&query)).unwrap();
        assert_eq!(filter.states, [JobState::Queued, JobState::Running]);
        assert_eq!((filter.class, filter.limit, filter.after), (Some(Class::Bulk), 7, Some(after)));
        assert_eq!(filter.metadata.get("a b").map(String::as_str), Some("é"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (query, param) in [
            ("limit=0", "`limit`"),
            ("limit=101", "`limit`"),
            ("limit=x", "`limit`"),
            ("status=done", "`status`"),
            ("status=", "`status`"),
            ("class=urgent", "`class`"),
            ("after=job_1", "`after`"),
            ("metadata.=x", "`metadata.`"),
            ("page=2", "`page`"),
        ] {
            let message = filter(Some(query)).unwrap_err().to_string();
            assert!(message.contains(param), "{query}: {message}");
        }
    }
}
