//! The routes, and their description generated from the code.

mod bulk;
mod completions;
mod events;
mod health;
mod jobs;
mod list;
mod models;
mod operations;
mod trajectory;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::ApiError;
use crate::frame;
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
        .routes(routes!(completions::chat))
        .routes(routes!(completions::completion))
        .routes(routes!(models::list))
        .routes(routes!(models::get))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(operations::stats))
        .routes(routes!(operations::page))
        .routes(routes!(openapi_json))
}

/// The description of all routes, as `GET /openapi.json` answers it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}

/// All routes over `state`.
pub(crate) fn app(state: AppState) -> Router {
    let (router, description) = described().split_for_parts();
    let json = description.to_pretty_json().unwrap_or_default();
    // Only the first call sets it; all calls would set the same.
    let _ = state.openapi.set(Bytes::from(json));
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
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
