//! API keys: making, listing, revoking.

use std::str::FromStr;

use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use contract::key::KEY_RANDOM_BYTES;
use contract::openai::ErrorEnvelope;
use contract::openai::keys::{KeyList, KeyObject, KeyRequest, NewKeyObject, parse_key};
use contract::{Key, KeyId, NewKey, TenantId};

use crate::error::ApiError;
use crate::routes::jobs::PathText;
use crate::routes::list::pairs;
use crate::state::AppState;
use crate::{body, headers};

/// Makes a key.
///
/// `key` of the answer is shown this once: only a hash of it is kept. From the first key on, every call needs one.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = KeyRequest,
    responses(
        (status = 201, description = "Made", body = NewKeyObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 413, description = "The body is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is not declared as JSON", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn create(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    if headers::idempotency_key(request.headers())?.is_some() {
        let problem = "is not for keys, which are shown once: revoke the one you did not see, and make another";
        return Err(ApiError::Header { name: "Idempotency-Key", problem });
    }
    let asked = parse_key(&body::json(request, &state.deps.limits).await?)?;
    let mut random = [0; KEY_RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|_| ApiError::Internal)?;
    let (new, text) = NewKey::make(asked, random);
    let key = state.deps.admin.add_key(&new).await?;
    state.keyring.forget();
    tracing::info!(key.id = %key.id, tenant = %key.tenant, "a key was made");
    let shown = NewKeyObject { about: KeyObject::of(&key), key: text.reveal().to_owned() };
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

/// Lists keys, newest first; of each only what people know it by.
#[utoipa::path(get, path = "/v1/keys", tag = "keys",
    params(("tenant" = Option<String>, Query, description = "Only keys of this tenant")),
    responses(
        (status = 200, description = "The keys", body = KeyList),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(State(state): State<AppState>, RawQuery(query): RawQuery) -> Result<Json<KeyList>, ApiError> {
    let mut tenant = None;
    for (name, value) in pairs(query.as_deref())? {
        match name.as_str() {
            "tenant" if value.contains('\0') => return Err(ApiError::query("tenant", "has a NUL, as no tenant does")),
            "tenant" => tenant = Some(TenantId(value)),
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    let keys = state.deps.admin.keys(tenant.as_ref()).await?;
    Ok(Json(KeyList { object: "list".to_owned(), data: keys.iter().map(KeyObject::of).collect() }))
}

/// Revokes a key: within two seconds no server takes it any more. Asking again gives the same answer.
#[utoipa::path(post, path = "/v1/keys/{id}/revoke", tag = "keys",
    params(("id" = String, Path, description = "The key's id, not the key")),
    responses(
        (status = 200, description = "Revoked, now or before", body = KeyObject),
        (status = 404, description = "No such key", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn revoke(State(state): State<AppState>, path: PathText) -> Result<Json<KeyObject>, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::KeyNotFound { id: "(not UTF-8)".to_owned() }) };
    let not_found = || ApiError::KeyNotFound { id: text.chars().take(80).collect() };
    let id = KeyId::from_str(&text).map_err(|_| not_found())?;
    let key: Key = state.deps.admin.revoke_key(&id).await?.ok_or_else(not_found)?;
    state.keyring.forget();
    tracing::info!(key.id = %key.id, tenant = %key.tenant, "a key was revoked");
    Ok(Json(KeyObject::of(&key)))
}
