//! The routes, and their description generated from the code.

mod audit;
mod batch_results;
mod batches;
mod bulk;
mod completions;
mod events;
mod files;
mod health;
mod jobs;
mod keys;
mod list;
mod models;
mod operations;
mod schedules;
mod sequences;
mod tenants;
mod trajectory;
mod usage;
pub(crate) mod webhooks;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::OpenApi;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{self, Needs};
use crate::error::ApiError;
use crate::frame;
use crate::quota;
use crate::state::AppState;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Penstock",
        description = "Jobs for language models: submit and come back, wait, stream, or call it like OpenAI's API. \
                       Every error has OpenAI's envelope. Every response carries `x-request-id` and \
                       `penstock-release`; those about a job also `penstock-job` and `server-timing`.",
    ),
    tags(
        (name = "jobs", description = "The native way: durable jobs."),
        (name = "openai", description = "Compatible with OpenAI's clients: each call is an interactive job that \
                                         somebody waits for. Hanging up cancels it, except with an idempotency key."),
        (name = "batches", description = "OpenAI's Files and Batches: a file of requests, one job a line."),
        (name = "schedules", description = "Batches that are made again and again, at the times of a cron expression."),
        (name = "keys", description = "API keys, for operators (scope `admin`)."),
        (name = "tenants", description = "Limits and weights: those of all tenants, for operators (scope `admin`), and a \
                                          tenant's own."),
        (name = "operations", description = "Health and figures."),
    ),
    components(schemas(
        contract::openai::bodies::ChatChunk,
        contract::openai::native::StartedData,
        contract::openai::native::TokenData,
        contract::openai::native::EndedData,
    )),
)]
struct Description;

fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(jobs::create, list::list))
        .routes(routes!(bulk::create))
        .routes(routes!(jobs::get))
        .routes(routes!(events::events))
        .routes(routes!(trajectory::trajectory))
        .routes(routes!(jobs::cancel))
        .routes(routes!(sequences::list))
        .routes(routes!(sequences::get))
        .routes(routes!(sequences::resume))
        .routes(routes!(completions::chat))
        .routes(routes!(completions::completion))
        .routes(routes!(completions::embedding))
        .routes(routes!(models::list))
        .routes(routes!(models::get))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(files::upload, files::list))
        .routes(routes!(files::get, files::delete))
        .routes(routes!(files::content))
        .routes(routes!(batches::create, batches::list))
        .routes(routes!(batches::get))
        .routes(routes!(batches::cancel))
        .routes(routes!(batches::progress))
        .routes(routes!(batches::resubmit))
        .routes(routes!(batch_results::results))
        .routes(routes!(schedules::create, schedules::list))
        .routes(routes!(schedules::get, schedules::change, schedules::delete))
        .routes(routes!(schedules::run))
        .routes(routes!(schedules::runs))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::tenant_secret))
        .routes(routes!(webhooks::rotate_tenant_secret))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::delivery))
        .routes(routes!(webhooks::redeliver))
        .routes(routes!(webhooks::get, webhooks::change, webhooks::delete))
        .routes(routes!(webhooks::secret))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::get, tenants::set, tenants::reset))
        .routes(routes!(tenants::limits))
        .routes(routes!(usage::own))
        .routes(routes!(usage::of_tenants))
        .routes(routes!(audit::audit))
        .routes(routes!(operations::stats))
        .routes(routes!(operations::page))
        .routes(routes!(openapi_json))
}

/// The description of all routes, as `GET /openapi.json` answers it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = described().into_openapi();
    describe_keys(&mut description);
    description
}

/// Says which routes need a key, and what they answer without one, and to bodies that cannot be read.
fn describe_keys(description: &mut utoipa::openapi::OpenApi) {
    const BEARER: &str = "key";
    let scheme = Http::builder().scheme(HttpAuthScheme::Bearer).description(Some(
        "A key (`psk_…`). None is needed until the first one is made, except where the server's settings say so.",
    ));
    let components = description.components.get_or_insert_default();
    components.security_schemes.insert(BEARER.to_owned(), RefOr::T(SecurityScheme::Http(scheme.build())));
    let envelope = |what: String| {
        let schema = Ref::from_schema_name("ErrorEnvelope");
        let content = ContentBuilder::new().schema(Some(schema)).build();
        RefOr::T(ResponseBuilder::new().description(what).content("application/json", content).build())
    };
    for (path, item) in &mut description.paths.paths {
        let operations =
            [(Method::GET, &mut item.get), (Method::POST, &mut item.post), (Method::DELETE, &mut item.delete)];
        for (method, operation) in operations.into_iter().filter_map(|(method, slot)| Some((method, slot.as_mut()?))) {
            describe_idempotency_key(operation);
            let needs = auth::needs(&method, path);
            if needs == Needs::Nothing {
                continue;
            }
            operation.security = Some(vec![SecurityRequirement::new::<_, _, String>(BEARER, [])]);
            let responses = &mut operation.responses.responses;
            responses.insert("401".to_owned(), envelope("A key is needed, or this one is not good".to_owned()));
            if operation.request_body.is_some() {
                for (status, what) in [
                    ("408", "The body stopped coming"),
                    ("413", "The body is too large"),
                    ("415", "The body is not declared as JSON"),
                ] {
                    responses.entry(status.to_owned()).or_insert_with(|| envelope(what.to_owned()));
                }
            }
            if quota::is_limited(&method, path) {
                responses.entry("429".to_owned()).or_insert_with(|| {
                    envelope(
                        "The tenant has used up a limit; `retry-after` and the headers say when to come back"
                            .to_owned(),
                    )
                });
            }
            if let Needs::Scope(scope) = needs {
                responses.insert("403".to_owned(), envelope(format!("The key lacks the scope `{scope}`")));
            }
        }
    }
}

/// Says how long the key can be, on whichever route it is.
fn describe_idempotency_key(operation: &mut utoipa::openapi::path::Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && parameter.name == "Idempotency-Key"
        {
            let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(255));
            parameter.schema = Some(text.build().into());
        }
    }
}

/// All routes over `state`.
pub(crate) fn app(state: AppState) -> Router {
    let (router, mut description) = described().split_for_parts();
    describe_keys(&mut description);
    let json = description.to_pretty_json().unwrap_or_default();
    // Only the first call sets it; all calls would set the same.
    let _ = state.openapi.set(Bytes::from(json));
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(state.clone(), quota::tell))
        .layer(axum::middleware::from_fn_with_state(state.clone(), auth::authenticate))
        .layer(axum::middleware::from_fn_with_state(state.clone(), frame::frame))
        .with_state(state)
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::RouteNotFound { path: uri.path().chars().take(200).collect() }
}

async fn no_method(method: Method) -> ApiError {
    ApiError::MethodNotAllowed { method: method.as_str().chars().take(40).collect() }
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
async fn openapi_json(State(state): State<AppState>) -> Response {
    let json = state.openapi.get().cloned().unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}
