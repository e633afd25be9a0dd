//! Tenants: their limits and weights, for operators; and for a tenant itself, where it stands.

use axum::Json;
use axum::extract::{Path, Request, State};
use contract::TenantId;
use contract::openai::ErrorEnvelope;
use contract::openai::tenants::{LimitsObject, TenantList, TenantObject, TenantRequest, parse_tenant, tenant_name};

use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::routes::jobs::PathText;
use crate::state::AppState;

/// Reads a tenant's name from the path.
fn name(path: PathText) -> Result<TenantId, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::query("tenant", "is not UTF-8")) };
    Ok(tenant_name(&text)?)
}

/// Lists the tenants of which something was said, by name. All others have no limits and weight 1.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants",
    responses(
        (status = 200, description = "The tenants", body = TenantList),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<TenantList>, ApiError> {
    let tenants = state.deps.admin.tenants().await?;
    Ok(Json(TenantList { object: "list".to_owned(), data: tenants.iter().map(TenantObject::of).collect() }))
}

/// One tenant's limits and weight; one of which nothing was said has the defaults.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path, description = "Its name, as its keys have it")),
    responses(
        (status = 200, description = "The tenant", body = TenantObject),
        (status = 400, description = "That can be no tenant's name", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(State(state): State<AppState>, path: PathText) -> Result<Json<TenantObject>, ApiError> {
    let id = name(path)?;
    let tenant = state.deps.admin.tenant(&id).await?;
    Ok(Json(tenant.as_ref().map_or_else(|| TenantObject::unset(&id), TenantObject::of)))
}

/// Sets a tenant's limits and weight.
///
/// What is left out stays as it is; `null` means no limit. Within two seconds every server goes by it.
#[utoipa::path(post, path = "/v1/tenants/{tenant}", tag = "tenants", request_body = TenantRequest,
    params(("tenant" = String, Path, description = "Its name, as its keys have it")),
    responses(
        (status = 200, description = "The tenant as it is now", body = TenantObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn set(
    State(state): State<AppState>,
    path: PathText,
    request: Request,
) -> Result<Json<TenantObject>, ApiError> {
    let id = name(path)?;
    let change = parse_tenant(&body::json(request, &state.deps.limits).await?)?;
    let tenant = state.deps.admin.set_tenant(&id, &change).await?;
    state.quotas.forget(&id);
    tracing::info!(tenant = %id, "a tenant's limits were set");
    Ok(Json(TenantObject::of(&tenant)))
}

/// Takes a tenant back to the defaults: no limits, weight 1. Asking again gives the same answer.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path, description = "Its name, as its keys have it")),
    responses(
        (status = 200, description = "The tenant as it is now", body = TenantObject),
        (status = 400, description = "That can be no tenant's name", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn reset(State(state): State<AppState>, path: PathText) -> Result<Json<TenantObject>, ApiError> {
    let id = name(path)?;
    if state.deps.admin.delete_tenant(&id).await? {
        state.quotas.forget(&id);
        tracing::info!(tenant = %id, "a tenant's limits were taken back");
    }
    Ok(Json(TenantObject::unset(&id)))
}

/// The caller's own limits, and what is left of them.
///
/// Requests, tokens and calls under way are counted by each API process for itself, unfinished jobs by the store.
#[utoipa::path(get, path = "/v1/limits", tag = "tenants",
    responses(
        (status = 200, description = "The limits", body = LimitsObject),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn limits(State(state): State<AppState>, caller: Caller) -> Result<Json<LimitsObject>, ApiError> {
    state.quotas.learn(&caller.tenant).await?;
    let unfinished = state.deps.admin.unfinished_jobs(&caller.tenant).await?;
    Ok(Json(state.quotas.standing(&caller.tenant, unfinished)))
}
