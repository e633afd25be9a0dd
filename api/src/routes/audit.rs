//! The audit.

use axum::Json;
use axum::extract::{RawQuery, State};
use contract::AuditFilter;
use contract::openai::ErrorEnvelope;
use contract::openai::audit::AuditObject;

use crate::error::ApiError;
use crate::routes::usage::Days;
use crate::state::AppState;

/// Most days of one audit.
const MAX_DAYS: u32 = 31;
/// Days of an audit where none are asked for.
const DEFAULT_DAYS: i32 = 7;

/// Whether every accepted job is there once, and ended once or is unfinished.
///
/// By tenant and day of acceptance (UTC), and by batch: `accepted` is counted from the events, the rest from the rows, and
/// `accepted = succeeded + failed + cancelled + expired + unfinished`. Each job's row is held against its events, each
/// batch against its lines, and the counters of unfinished jobs against the rows, all as they were at one moment; what
/// contradicts the rest is in `breaches`. It shows ids, and nothing of what was asked or answered.
#[utoipa::path(get, path = "/v1/audit", tag = "operations",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant"),
        ("from" = Option<String>, Query, description = "The first day of acceptance, as 2026-11-29; default: 7 days with `to`"),
        ("to" = Option<String>, Query, description = "The last day; default: today. At most 31 days"),
    ),
    responses(
        (status = 200, description = "What was found; `holds` says whether all is well", body = AuditObject),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn audit(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Json<AuditObject>, ApiError> {
    let Days { from, to, tenant } = Days::read(query.as_deref(), DEFAULT_DAYS, MAX_DAYS, true)?;
    let filter = AuditFilter { tenant, from, to };
    let audit = state.deps.admin.audit(&filter).await?;
    if !audit.holds() {
        tracing::error!(breaches = audit.breaches.len(), %from, %to, "an audit found jobs that do not add up");
    }
    Ok(Json(AuditObject::of(&filter, &audit)))
}
