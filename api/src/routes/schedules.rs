//! Schedules: batches that are made again and again, at the times of a cron expression.

use std::str::FromStr;

use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use contract::openai::ErrorEnvelope;
use contract::openai::batches::{BatchList, BatchObject};
use contract::openai::canonical::body_hash;
use contract::openai::schedules::{
    ScheduleChangeRequest, ScheduleDeleted, ScheduleList, ScheduleObject, ScheduleRequest, parse_schedule,
    parse_schedule_change,
};
use contract::schedule::MAX_SCHEDULES;
use contract::{
    BatchId, BatchTemplate, IdempotencyKey, Made, NewSchedule, Schedule, ScheduleId, ScheduleRefused, TenantId,
};
use serde_json::json;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::quota::Ask;
use crate::routes::batches::check_input;
use crate::routes::jobs::PathText;
use crate::routes::list::{most, pairs};
use crate::routes::webhooks::check_url;
use crate::state::AppState;
use crate::{body, headers};

const ROUTE: &str = "/v1/schedules";
const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;

/// Makes a schedule: at each of its times, a batch is made of its file.
///
/// A time at which an earlier run has not ended is passed over and counted, unless `overlap` is `allow`. If no scheduler
/// was there at several times, one run is made for all of them, unless `catch_up` is `none`. The file stays while an
/// enabled schedule uses it, also past its own end. Where the clock is put forward, a daily time that does not exist is
/// run at the first moment after the gap; where it is put back, one that comes twice is run once.
#[utoipa::path(post, path = "/v1/schedules", tag = "schedules", request_body = ScheduleRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same schedule")),
    responses(
        (status = 201, description = "Made", body = ScheduleObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
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
    let mut asked = parse_schedule(&value)?;
    check_hook(&state, &mut asked.batch)?;
    let idempotency = key.map(|key| IdempotencyKey { key, body_hash: body_hash(ROUTE, &value) });
    if let Some(earlier) = replay(&state, &caller, idempotency.as_ref()).await? {
        return Ok(created(&earlier, true));
    }
    check_input(&state, &caller.tenant, &asked.batch.input, "batch.input_file_id").await?;
    let new = NewSchedule {
        id: ScheduleId::new(),
        tenant: caller.tenant,
        name: asked.name,
        cron: asked.cron,
        zone: asked.zone,
        overlap: asked.overlap,
        catch_up: asked.catch_up,
        enabled: asked.enabled,
        batch: asked.batch,
        idempotency,
    };
    let made = state.deps.admin.add_schedule(&new).await?.map_err(|refused| match refused {
        // Gone since it was looked at.
        ScheduleRefused::NoFile => ApiError::query("batch.input_file_id", "names a file that is gone: upload it again"),
        other => refusal(other, &new.id),
    })?;
    let is_replayed = matches!(made, Made::Replayed(_));
    Ok(created(&made.into_inner(), is_replayed))
}

fn created(schedule: &Schedule, is_replayed: bool) -> Response {
    replayed((StatusCode::CREATED, Json(ScheduleObject::of(schedule))).into_response(), is_replayed)
}

fn replayed(mut response: Response, is_replayed: bool) -> Response {
    if is_replayed {
        response.headers_mut().insert(headers::REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// What an earlier call with the same key made, whatever became of its file since.
async fn replay(state: &AppState, caller: &Caller, key: Option<&IdempotencyKey>) -> Result<Option<Schedule>, ApiError> {
    let Some(key) = key else { return Ok(None) };
    let admin = &state.deps.admin;
    let made = admin.made_before(&caller.tenant, key).await?.map_err(|_| ApiError::KeyReused)?;
    let Some(made) = made else { return Ok(None) };
    admin.schedule(&caller.tenant, &ScheduleId(made)).await?.ok_or(ApiError::KeyReused).map(Some)
}

fn check_hook(state: &AppState, batch: &mut BatchTemplate) -> Result<(), ApiError> {
    if let Some(hook) = &mut batch.webhook {
        hook.url = check_url(state, &hook.url, "batch.webhook.url")?;
    }
    Ok(())
}

fn refusal(refused: ScheduleRefused, id: &ScheduleId) -> ApiError {
    match refused {
        ScheduleRefused::NotFound => ApiError::ScheduleNotFound { id: id.to_string() },
        ScheduleRefused::KeyReused => ApiError::KeyReused,
        ScheduleRefused::TooMany => {
            ApiError::query("name", format_args!("is one too many: a tenant has at most {MAX_SCHEDULES} schedules"))
        }
        ScheduleRefused::NoFile => ApiError::ScheduleFileGone,
    }
}

/// Reads a schedule's id from the path; what is no id is no schedule.
fn schedule_id(path: PathText) -> Result<ScheduleId, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::ScheduleNotFound { id: "(not UTF-8)".to_owned() }) };
    ScheduleId::from_str(&text).map_err(|_| ApiError::ScheduleNotFound { id: text.chars().take(80).collect() })
}

async fn find(state: &AppState, tenant: &TenantId, id: &ScheduleId) -> Result<Schedule, ApiError> {
    let schedule = state.deps.admin.schedule(tenant, id).await?;
    schedule.ok_or_else(|| ApiError::ScheduleNotFound { id: id.to_string() })
}

/// Lists schedules, newest first.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules",
    params(
        ("after" = Option<String>, Query, description = "Only schedules older than this one"),
        ("limit" = Option<u32>, Query, description = "Most schedules of the page; default 20", minimum = 1, maximum = 100),
    ),
    responses(
        (status = 200, description = "A page", body = ScheduleList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<ScheduleList>, ApiError> {
    let (after, limit) = page(query.as_deref())?;
    let (schedules, has_more) = state.deps.admin.schedules(&caller.tenant, after, limit).await?;
    Ok(Json(ScheduleList::new(&schedules, has_more)))
}

/// Reads `after` and `limit`.
fn page<Id: FromStr<Err: std::fmt::Display>>(query: Option<&str>) -> Result<(Option<Id>, u32), ApiError> {
    let (mut after, mut limit) = (None, DEFAULT_LIMIT);
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "after" => {
                let id = Id::from_str(&value);
                after = Some(id.map_err(|problem| ApiError::query("after", format_args!("is wrong: {problem}")))?);
            }
            "limit" => limit = most(&value, MAX_LIMIT)?,
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    Ok((after, limit))
}

/// One schedule.
#[utoipa::path(get, path = "/v1/schedules/{id}", tag = "schedules",
    params(("id" = String, Path, description = "The schedule's id")),
    responses(
        (status = 200, description = "The schedule", body = ScheduleObject),
        (status = 404, description = "No such schedule", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<ScheduleObject>, ApiError> {
    Ok(Json(ScheduleObject::of(&find(&state, &caller.tenant, &schedule_id(path)?).await?)))
}

/// Changes a schedule. What runs of it goes on as it is.
#[utoipa::path(post, path = "/v1/schedules/{id}", tag = "schedules", request_body = ScheduleChangeRequest,
    params(("id" = String, Path, description = "The schedule's id")),
    responses(
        (status = 200, description = "The schedule as it is now", body = ScheduleObject),
        (status = 400, description = "A field is wrong; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such schedule", body = ErrorEnvelope),
        (status = 409, description = "It cannot be enabled, since its file is gone", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn change(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    request: Request,
) -> Result<Json<ScheduleObject>, ApiError> {
    let id = schedule_id(path)?;
    let mut change = parse_schedule_change(&body::json(request, &state.deps.limits).await?)?;
    let before = find(&state, &caller.tenant, &id).await?;
    if let Some(batch) = &mut change.batch {
        check_hook(&state, batch)?;
        // The file it has may be past its own end.
        if batch.input != before.batch.input {
            check_input(&state, &caller.tenant, &batch.input, "batch.input_file_id").await?;
        }
    }
    let changed = state.deps.admin.change_schedule(&caller.tenant, &id, &change).await?;
    Ok(Json(ScheduleObject::of(&changed.map_err(|refused| refusal(refused, &id))?)))
}

/// Deletes a schedule. Its batches stay, and what runs of it goes on.
#[utoipa::path(delete, path = "/v1/schedules/{id}", tag = "schedules",
    params(("id" = String, Path, description = "The schedule's id")),
    responses(
        (status = 200, description = "Deleted", body = ScheduleDeleted),
        (status = 404, description = "No such schedule", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<ScheduleDeleted>, ApiError> {
    let id = schedule_id(path)?;
    if !state.deps.admin.delete_schedule(&caller.tenant, &id).await? {
        return Err(ApiError::ScheduleNotFound { id: id.to_string() });
    }
    Ok(Json(ScheduleDeleted { id: id.to_string(), object: "schedule".to_owned(), deleted: true }))
}

/// Runs a schedule now, whether it is enabled, and whatever of it runs: makes a batch of its file. Its next time stays.
#[utoipa::path(post, path = "/v1/schedules/{id}/run", tag = "schedules",
    params(
        ("id" = String, Path, description = "The schedule's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same batch"),
    ),
    responses(
        (status = 200, description = "The batch", body = BatchObject),
        (status = 404, description = "No such schedule", body = ErrorEnvelope),
        (status = 409, description = "Its file is gone", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another body", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn run(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = schedule_id(path)?;
    let key = headers::idempotency_key(&headers)?
        .map(|key| IdempotencyKey { key, body_hash: body_hash(&format!("{ROUTE}/{id}/run"), &json!({})) });
    state.quotas.admit(&caller.tenant, Ask::ONE)?;
    let made = state.deps.admin.run_schedule(&caller.tenant, &id, BatchId::new(), key.as_ref()).await?;
    let made = made.map_err(|refused| refusal(refused, &id))?;
    let is_replayed = matches!(made, Made::Replayed(_));
    Ok(replayed(Json(BatchObject::of(&made.into_inner())).into_response(), is_replayed))
}

/// The batches of a schedule, newest first.
#[utoipa::path(get, path = "/v1/schedules/{id}/runs", tag = "schedules",
    params(
        ("id" = String, Path, description = "The schedule's id"),
        ("after" = Option<String>, Query, description = "Only batches older than this one"),
        ("limit" = Option<u32>, Query, description = "Most batches of the page; default 20", minimum = 1, maximum = 100),
    ),
    responses(
        (status = 200, description = "A page", body = BatchList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 404, description = "No such schedule", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn runs(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
    RawQuery(query): RawQuery,
) -> Result<Json<BatchList>, ApiError> {
    let id = schedule_id(path)?;
    let (after, limit) = page(query.as_deref())?;
    let runs = state.deps.admin.schedule_runs(&caller.tenant, &id, after, limit).await?;
    let (batches, has_more) = runs.ok_or_else(|| ApiError::ScheduleNotFound { id: id.to_string() })?;
    Ok(Json(BatchList::new(&batches, has_more)))
}
