//! Webhooks: addresses that are told of what happens, their secrets, and the log of what was sent.

use std::str::FromStr;

use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use contract::openai::canonical::body_hash;
use contract::openai::webhooks::{
    DeliveryList, DeliveryObject, NewWebhookObject, RotateRequest, WebhookChangeRequest, WebhookDeleted, WebhookList,
    WebhookObject, WebhookRequest, WebhookSecrets, parse_rotate, parse_webhook, parse_webhook_change,
};
use contract::openai::{ErrorEnvelope, ParseCode, ParseError};
use contract::webhook::{MAX_WEBHOOKS, SECRET_BYTES, WebhookRefused};
use contract::{
    DeliveryFilter, DeliveryId, DeliveryState, IdempotencyKey, Made, NewWebhook, Secret, TenantId, Webhook,
    WebhookChange, WebhookId,
};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::routes::jobs::PathText;
use crate::routes::list::{most, pairs};
use crate::state::AppState;
use crate::{body, headers};

const ROUTE: &str = "/v1/webhooks";
const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;

/// The address as it is kept, so that one address has one spelling; refused if it must not be called. `param` is the field
/// that has it.
///
/// # Errors
/// What is wrong with the address.
pub(crate) fn check_url(state: &AppState, url: &str, param: &str) -> Result<String, ApiError> {
    let wrong = |problem| {
        let message = format!("`{param}` cannot be called: {problem}");
        ApiError::Parameter(ParseError { param: Some(param.to_owned()), message, code: ParseCode::InvalidValue })
    };
    state.deps.guard.check_url(url).map(String::from).map_err(wrong)
}

fn new_secret() -> Result<Secret, ApiError> {
    let mut random = [0; SECRET_BYTES];
    getrandom::fill(&mut random).map_err(|_| ApiError::Internal)?;
    Ok(Secret::new(random))
}

/// Makes a webhook.
///
/// From now on the tenant's jobs and batches are told of at this address; jobs that were accepted before are not, and
/// lines of batches are their batch's affair. What is sent is signed (Standard Webhooks) with the `secret` of the answer.
#[utoipa::path(post, path = "/v1/webhooks", tag = "webhooks", request_body = WebhookRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same webhook")),
    responses(
        (status = 201, description = "Made", body = NewWebhookObject),
        (status = 400, description = "A field is wrong, or the address must not be called; `param` names it", body = ErrorEnvelope),
        (status = 408, description = "The body stopped coming", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let key = headers::idempotency_key(request.headers())?;
    let value = body::json(request, &state.deps.limits).await?;
    let asked = parse_webhook(&value)?;
    let url = check_url(&state, &asked.url, "url")?;
    let new = NewWebhook {
        id: WebhookId::new(),
        tenant: caller.tenant,
        url: Some(url),
        events: asked.events,
        description: asked.description,
        secret: new_secret()?,
        idempotency: key.map(|key| IdempotencyKey { key, body_hash: body_hash(ROUTE, &value) }),
    };
    let made = state.deps.admin.add_webhook(&new).await?.map_err(|refused| match refused {
        WebhookRefused::KeyReused => ApiError::KeyReused,
        WebhookRefused::TooMany => {
            ApiError::query("url", format_args!("is one too many: a tenant has at most {MAX_WEBHOOKS} webhooks"))
        }
    })?;
    let is_replayed = matches!(made, Made::Replayed(_));
    let webhook = made.into_inner();
    let shown = NewWebhookObject { about: WebhookObject::of(&webhook), secret: WebhookSecrets::of(&webhook).secret };
    let mut response = (StatusCode::CREATED, Json(shown)).into_response();
    if is_replayed {
        response.headers_mut().insert(headers::REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Lists webhooks, newest first.
#[utoipa::path(get, path = "/v1/webhooks", tag = "webhooks",
    responses(
        (status = 200, description = "The webhooks", body = WebhookList),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(State(state): State<AppState>, caller: Caller) -> Result<Json<WebhookList>, ApiError> {
    let webhooks = state.deps.admin.webhooks(&caller.tenant).await?;
    Ok(Json(WebhookList { object: "list".to_owned(), data: webhooks.iter().map(WebhookObject::of).collect() }))
}

/// Reads a webhook's id from the path; what is no id is no webhook.
fn webhook_id(path: PathText) -> Result<WebhookId, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::WebhookNotFound { id: "(not UTF-8)".to_owned() }) };
    WebhookId::from_str(&text).map_err(|_| ApiError::WebhookNotFound { id: text.chars().take(80).collect() })
}

fn not_found(id: &WebhookId) -> impl FnOnce() -> ApiError {
    let id = id.to_string();
    move || ApiError::WebhookNotFound { id }
}

/// One that has an address: the row of a tenant's own secret is no webhook of theirs.
async fn find(state: &AppState, caller: &Caller, id: &WebhookId) -> Result<Webhook, ApiError> {
    let webhook = state.deps.admin.webhook(&caller.tenant, id).await?;
    webhook.filter(|webhook| webhook.url.is_some()).ok_or_else(not_found(id))
}

/// One webhook.
#[utoipa::path(get, path = "/v1/webhooks/{id}", tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses(
        (status = 200, description = "The webhook", body = WebhookObject),
        (status = 404, description = "No such webhook", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<WebhookObject>, ApiError> {
    Ok(Json(WebhookObject::of(&find(&state, &caller, &webhook_id(path)?).await?)))
}

/// Changes a webhook. What waits for it goes to the address of its time.
#[utoipa::path(post, path = "/v1/webhooks/{id}", tag = "webhooks", request_body = WebhookChangeRequest,
    params(("id" = String, Path, description = "The webhook's id")),
    responses(
        (status = 200, description = "The webhook as it is now", body = WebhookObject),
        (status = 400, description = "A field is wrong, or the address must not be called; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such webhook", body = ErrorEnvelope),
        (status = 408, description = "The body stopped coming", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn change(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    request: Request,
) -> Result<Json<WebhookObject>, ApiError> {
    let id = webhook_id(path)?;
    let mut change = parse_webhook_change(&body::json(request, &state.deps.limits).await?)?;
    if let Some(url) = &mut change.url {
        *url = check_url(&state, url, "url")?;
    }
    find(&state, &caller, &id).await?;
    let changed = state.deps.admin.change_webhook(&caller.tenant, &id, &change).await?;
    Ok(Json(WebhookObject::of(&changed.ok_or_else(not_found(&id))?)))
}

/// Deletes a webhook. What waits for it is given up.
#[utoipa::path(delete, path = "/v1/webhooks/{id}", tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses(
        (status = 200, description = "Deleted", body = WebhookDeleted),
        (status = 404, description = "No such webhook", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<WebhookDeleted>, ApiError> {
    let id = webhook_id(path)?;
    if !state.deps.admin.delete_webhook(&caller.tenant, &id).await? {
        return Err(not_found(&id)());
    }
    Ok(Json(WebhookDeleted { id: id.to_string(), object: "webhook".to_owned(), deleted: true }))
}

/// The secrets that sign for a webhook.
#[utoipa::path(get, path = "/v1/webhooks/{id}/secret", tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses(
        (status = 200, description = "The newest, and earlier ones that still sign", body = WebhookSecrets),
        (status = 404, description = "No such webhook", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn secret(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<WebhookSecrets>, ApiError> {
    Ok(Json(WebhookSecrets::of(&find(&state, &caller, &webhook_id(path)?).await?)))
}

/// Makes a new secret for a webhook. For a time the earlier ones sign beside it.
#[utoipa::path(post, path = "/v1/webhooks/{id}/rotate", tag = "webhooks", request_body = Option<RotateRequest>,
    params(("id" = String, Path, description = "The webhook's id")),
    responses(
        (status = 200, description = "The new secret, and those that still sign", body = WebhookSecrets),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such webhook", body = ErrorEnvelope),
        (status = 408, description = "The body stopped coming", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn rotate(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    request: Request,
) -> Result<Json<WebhookSecrets>, ApiError> {
    let id = webhook_id(path)?;
    find(&state, &caller, &id).await?;
    rotated(&state, &caller.tenant, &id, request).await
}

async fn rotated(
    state: &AppState,
    tenant: &TenantId,
    id: &WebhookId,
    request: Request,
) -> Result<Json<WebhookSecrets>, ApiError> {
    let overlap = parse_rotate(&body::optional_json(request, &state.deps.limits).await?)?;
    let change = WebhookChange { secret: Some((new_secret()?, overlap)), ..WebhookChange::default() };
    let changed = state.deps.admin.change_webhook(tenant, id, &change).await?;
    Ok(Json(WebhookSecrets::of(&changed.ok_or_else(not_found(id))?)))
}

/// The row of a tenant's own secret, made when it is first needed.
async fn own_secret(state: &AppState, tenant: &TenantId) -> Result<Webhook, ApiError> {
    let new = NewWebhook {
        id: WebhookId::new(),
        tenant: tenant.clone(),
        url: None,
        events: Vec::new(),
        description: String::new(),
        secret: new_secret()?,
        idempotency: None,
    };
    Ok(state.deps.admin.add_webhook(&new).await?.map_err(|_| ApiError::Internal)?.into_inner())
}

/// The secrets that sign for addresses named by jobs and batches. The first call makes one.
#[utoipa::path(get, path = "/v1/webhooks/secret", tag = "webhooks",
    responses(
        (status = 200, description = "The newest, and earlier ones that still sign", body = WebhookSecrets),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn tenant_secret(
    State(state): State<AppState>,
    caller: Caller,
) -> Result<Json<WebhookSecrets>, ApiError> {
    Ok(Json(WebhookSecrets::of(&own_secret(&state, &caller.tenant).await?)))
}

/// Makes a new secret for addresses named by jobs and batches. For a time the earlier ones sign beside it.
#[utoipa::path(post, path = "/v1/webhooks/secret/rotate", tag = "webhooks", request_body = Option<RotateRequest>,
    responses(
        (status = 200, description = "The new secret, and those that still sign", body = WebhookSecrets),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 408, description = "The body stopped coming", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn rotate_tenant_secret(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Json<WebhookSecrets>, ApiError> {
    let own = own_secret(&state, &caller.tenant).await?;
    rotated(&state, &caller.tenant, &own.id, request).await
}

/// What was sent and what waits, newest first. Kept for 30 days after its end.
#[utoipa::path(get, path = "/v1/webhooks/deliveries", tag = "webhooks",
    params(
        ("webhook" = Option<String>, Query, description = "Only those of this webhook"),
        ("status" = Option<DeliveryState>, Query, description = "Only those that stand so"),
        ("after" = Option<String>, Query, description = "Only older ones than this"),
        ("limit" = Option<u32>, Query, description = "Most deliveries of the page; default 20", minimum = 1, maximum = 100),
    ),
    responses(
        (status = 200, description = "A page", body = DeliveryList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn deliveries(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<DeliveryList>, ApiError> {
    let mut filter = DeliveryFilter { limit: DEFAULT_LIMIT, ..DeliveryFilter::default() };
    for (name, value) in pairs(query.as_deref())? {
        let wrong = |problem: &dyn std::fmt::Display| ApiError::query(&name, format_args!("is wrong: {problem}"));
        match name.as_str() {
            "webhook" => filter.webhook = Some(value.parse().map_err(|problem| wrong(&problem))?),
            "status" => filter.state = Some(value.parse().map_err(|problem| wrong(&problem))?),
            "after" => filter.after = Some(value.parse().map_err(|problem| wrong(&problem))?),
            "limit" => filter.limit = most(&value, MAX_LIMIT)?,
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    let (deliveries, has_more) = state.deps.admin.deliveries(&caller.tenant, &filter).await?;
    Ok(Json(DeliveryList {
        object: "list".to_owned(),
        last_id: deliveries.last().map(|delivery| delivery.id.to_string()),
        data: deliveries.iter().map(|delivery| DeliveryObject::of(delivery, None)).collect(),
        has_more,
    }))
}

/// Reads a delivery's id from the path; what is no id is no delivery.
fn delivery_id(path: PathText) -> Result<DeliveryId, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::DeliveryNotFound { id: "(not UTF-8)".to_owned() }) };
    DeliveryId::from_str(&text).map_err(|_| ApiError::DeliveryNotFound { id: text.chars().take(80).collect() })
}

/// One delivery with its attempts.
#[utoipa::path(get, path = "/v1/webhooks/deliveries/{id}", tag = "webhooks",
    params(("id" = String, Path, description = "The delivery's id")),
    responses(
        (status = 200, description = "The delivery", body = DeliveryObject),
        (status = 404, description = "No such delivery", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn delivery(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<DeliveryObject>, ApiError> {
    let id = delivery_id(path)?;
    let found = state.deps.admin.delivery(&caller.tenant, &id).await?;
    let (delivery, attempts) = found.ok_or_else(|| ApiError::DeliveryNotFound { id: id.to_string() })?;
    Ok(Json(DeliveryObject::of(&delivery, Some(&attempts))))
}

/// Sends a delivery again, with the same id, whether it was delivered or not; for as long as a new one.
#[utoipa::path(post, path = "/v1/webhooks/deliveries/{id}/redeliver", tag = "webhooks",
    params(("id" = String, Path, description = "The delivery's id")),
    responses(
        (status = 200, description = "It waits", body = DeliveryObject),
        (status = 404, description = "No such delivery", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn redeliver(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<DeliveryObject>, ApiError> {
    let id = delivery_id(path)?;
    let delivery = state.deps.admin.redeliver(&caller.tenant, &id).await?;
    let delivery = delivery.ok_or_else(|| ApiError::DeliveryNotFound { id: id.to_string() })?;
    Ok(Json(DeliveryObject::of(&delivery, None)))
}
