//! The models that are served.

use axum::Json;
use axum::extract::{Path, State};
use contract::ServedModel;
use contract::openai::ErrorEnvelope;
use contract::openai::bodies::{ModelBody, ModelList};

use crate::error::ApiError;
use crate::routes::jobs::PathText;
use crate::state::AppState;

fn shown(state: &AppState, model: &ServedModel) -> ModelBody {
    ModelBody {
        id: model.name.clone(),
        object: "model".to_owned(),
        created: state.started_at,
        owned_by: "penstock".to_owned(),
        release: model.release.to_string(),
        max_model_len: model.context_tokens,
        chat: model.has_chat_template,
        tools: model.manifest.reading.calls.is_some(),
    }
}

/// The models that requests can name.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, description = "The models", body = ModelList)))]
pub(super) async fn list(State(state): State<AppState>) -> Json<ModelList> {
    let data = state.models().iter().map(|model| shown(&state, model)).collect();
    Json(ModelList { object: "list".to_owned(), data })
}

/// One model.
#[utoipa::path(get, path = "/v1/models/{model}", tag = "openai",
    params(("model" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The model", body = ModelBody),
        (status = 404, description = "No such model", body = ErrorEnvelope),
    ))]
pub(super) async fn get(State(state): State<AppState>, path: PathText) -> Result<Json<ModelBody>, ApiError> {
    let Ok(Path(name)) = path else {
        return Err(ApiError::ModelNotFound { name: "(not UTF-8)".to_owned() });
    };
    Ok(Json(shown(&state, &state.model(&name)?)))
}
