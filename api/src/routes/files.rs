//! Files: uploads straight to the object store, lists, contents.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use contract::batch::MAX_INPUT_BYTES;
use contract::openai::files::{
    FileDeleted, FileList, FileObject, FileUpload, MAX_FILES, MAX_LIFE_SECONDS, MIN_LIFE_SECONDS,
};
use contract::openai::{ErrorEnvelope, ParseCode, ParseError};
use contract::{FileDeletion, FileFilter, FileId, IdempotencyKey, Made, NewFile, Purpose, StoredFile, TenantId};
use futures::StreamExt;
use multer::{Field, Multipart};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, WriteMultipart};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::auth::Caller;
use crate::error::ApiError;
use crate::headers;
use crate::quota::Ask;
use crate::routes::jobs::PathText;
use crate::routes::list::{most, pairs};
use crate::state::AppState;

/// Pieces in which a file goes to the object store; two are on their way at once.
const PIECE: usize = 5 * 1024 * 1024;
/// Most bytes that come before they are the content of a part: boundaries, heads, and what is on its way.
const MAX_HELD_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of a part that is no file.
const MAX_WORD_BYTES: usize = 1_024;
/// Most characters of a file's name.
const MAX_NAME_CHARS: usize = 255;

/// Uploads a file.
///
/// The bytes go straight to the object store; nothing is kept of an upload that breaks off.
#[utoipa::path(post, path = "/v1/files", tag = "batches",
    request_body(content = FileUpload, content_type = "multipart/form-data"),
    params(("Idempotency-Key" = Option<String>, Header, description = "Up to 255 characters; a repeat gives the same file")),
    responses(
        (status = 200, description = "Kept", body = FileObject),
        (status = 400, description = "A part is wrong; `param` names it", body = ErrorEnvelope),
        (status = 408, description = "The body stopped coming", body = ErrorEnvelope),
        (status = 413, description = "The file is too large", body = ErrorEnvelope),
        (status = 415, description = "The body is no form", body = ErrorEnvelope),
        (status = 422, description = "The key was used with another file", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn upload(
    State(state): State<AppState>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let key = headers::idempotency_key(request.headers())?;
    let boundary = boundary(request.headers())?;
    state.quotas.admit(&caller.tenant, Ask::ONE)?;
    let (answer, waiting) = oneshot::channel();
    let worker_state = state.clone();
    // Whoever hangs up ends the body, but not what happens then: no bytes stay that no file names.
    state.tasks.spawn(async move {
        drop(answer.send(receive(&worker_state, &caller.tenant, key, boundary, request.into_body()).await));
    });
    let made = waiting.await.unwrap_or(Err(ApiError::Internal))?;
    let is_replayed = matches!(made, Made::Replayed(_));
    let mut response = Json(FileObject::of(&made.into_inner())).into_response();
    if is_replayed {
        response.headers_mut().insert(headers::REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Reads a form and keeps its file, with its bytes, or nothing.
async fn receive(
    state: &AppState,
    tenant: &TenantId,
    key: Option<String>,
    boundary: String,
    body: Body,
) -> Result<Made<StoredFile>, ApiError> {
    let pause = state.deps.limits.body_pause;
    let body = Box::pin(body.into_data_stream());
    let held = Arc::new(AtomicUsize::new(0));
    let counted = held.clone();
    // A client that stops in the middle of its file ends its upload, and not only its connection.
    let pieces = futures::stream::unfold(Some(body), move |body| {
        let held = counted.clone();
        async move {
            let mut body = body?;
            // The reader of the form takes whatever is ready before it hands anything on: once round, it has one piece.
            tokio::task::yield_now().await;
            match tokio::time::timeout(pause, body.next()).await {
                Err(_) => Some((Err(Broken::Stalled), None)),
                Ok(None) => None,
                Ok(Some(Err(_))) => Some((Err(Broken::Off), None)),
                // What is no part's content stays with the reader: a form has little of it.
                Ok(Some(Ok(piece))) if held.fetch_add(piece.len(), Ordering::Relaxed) > MAX_HELD_BYTES => {
                    Some((Err(Broken::NoParts), None))
                }
                Ok(Some(Ok(piece))) => Some((Ok(piece), Some(body))),
            }
        }
    });
    let id = FileId::new();
    let mut form = Form { state, id, held, parts: Parts::default() };
    let read = form.read(Multipart::new(pieces, boundary)).await;
    let Form { parts, .. } = form;
    let kept = match read.and_then(|()| parts.file(id, tenant, key)) {
        Ok(new) => keep(state, &new).await,
        Err(error) => Err(error),
    };
    let is_unnamed = match &kept {
        Ok(Made::New(_)) => false,
        // Nobody knows whether there is a file that names them.
        Err(ApiError::Store(error)) => error.surely_not_applied(),
        Ok(Made::Replayed(_)) | Err(_) => true,
    };
    if parts.content.is_some() && is_unnamed {
        remove(state, &id).await;
    }
    kept
}

async fn keep(state: &AppState, new: &NewFile) -> Result<Made<StoredFile>, ApiError> {
    state.deps.admin.add_file(new).await?.map_err(|_| ApiError::KeyReused)
}

/// Removes a file's bytes. What stays is only bytes.
async fn remove(state: &AppState, id: &FileId) {
    if let Err(error) = state.deps.objects.delete(&Key::from(id.object_key())).await
        && !matches!(error, object_store::Error::NotFound { .. })
    {
        tracing::warn!(file = %id, error = %error, "a file that nobody reads stays");
    }
}

fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // An empty one would end a part at each `--`.
    multer::parse_boundary(text).ok().filter(|boundary| !boundary.is_empty()).ok_or(ApiError::NoForm)
}

/// Why a body ended too early.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the body stopped coming")]
    Stalled,
    #[error("the body broke off")]
    Off,
    #[error("the body has no parts where its boundary says")]
    NoParts,
}

impl From<multer::Error> for ApiError {
    fn from(error: multer::Error) -> Self {
        match &error {
            multer::Error::StreamReadFailed(source) => match source.downcast_ref::<Broken>() {
                Some(Broken::Stalled) => ApiError::BodyStalled,
                Some(Broken::Off | Broken::NoParts) | None => ApiError::BodyBroken,
            },
            _ => ApiError::BodyBroken,
        }
    }
}

fn wrong(param: &str, problem: impl std::fmt::Display, code: ParseCode) -> ApiError {
    ApiError::Parameter(ParseError { param: Some(param.to_owned()), message: format!("`{param}` {problem}"), code })
}

/// What the parts of a form said.
#[derive(Default)]
struct Parts {
    filename: String,
    /// Size and hash of the file.
    content: Option<(u64, [u8; 32])>,
    purpose: Option<String>,
    anchor: Option<String>,
    seconds: Option<String>,
}

struct Form<'s> {
    state: &'s AppState,
    id: FileId,
    /// Bytes that came and are not yet taken as the content of a part.
    held: Arc<AtomicUsize>,
    parts: Parts,
}

impl Form<'_> {
    async fn read(&mut self, mut form: Multipart<'_>) -> Result<(), ApiError> {
        while let Some(part) = form.next_field().await? {
            let name = part.name().unwrap_or_default().to_owned();
            let twice = || wrong(&name, "is given twice", ParseCode::InvalidValue);
            let slot = match name.as_str() {
                "file" if self.parts.content.is_some() => return Err(twice()),
                "file" => {
                    self.file(part).await?;
                    continue;
                }
                "purpose" => &mut self.parts.purpose,
                "expires_after[anchor]" => &mut self.parts.anchor,
                "expires_after[seconds]" => &mut self.parts.seconds,
                _ => {
                    let shown: String = name.chars().take(80).collect();
                    return Err(wrong(&shown, "is not a part of this form: remove it", ParseCode::UnknownParameter));
                }
            };
            if slot.is_some() {
                return Err(twice());
            }
            *slot = Some(word(&name, part).await?);
        }
        Ok(())
    }

    async fn file(&mut self, mut part: Field<'_>) -> Result<(), ApiError> {
        // Some clients send a path.
        let filename = part.file_name().and_then(|path| path.rsplit(['/', '\\']).next());
        let filename = filename.filter(|name| !name.is_empty()).unwrap_or("upload.jsonl");
        self.parts.filename = filename.chars().take(MAX_NAME_CHARS).collect();
        let objects = &self.state.deps.objects;
        let upload = objects.put_multipart(&Key::from(self.id.object_key())).await.map_err(ApiError::Objects)?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PIECE);
        match pump(&mut part, &mut upload, &self.held).await {
            Ok(content) => {
                upload.finish().await.map_err(ApiError::Objects)?;
                self.parts.content = Some(content);
                Ok(())
            }
            Err(error) => {
                if let Err(error) = upload.abort().await {
                    tracing::debug!(error = %error, "a part of an upload that broke off stays");
                }
                Err(error)
            }
        }
    }
}

/// Size and hash of what went through.
async fn pump(
    part: &mut Field<'_>,
    upload: &mut WriteMultipart,
    held: &AtomicUsize,
) -> Result<(u64, [u8; 32]), ApiError> {
    let (mut bytes, mut hash) = (0, Sha256::new());
    while let Some(piece) = part.chunk().await? {
        held.fetch_sub(piece.len(), Ordering::Relaxed);
        bytes += piece.len() as u64;
        if bytes > MAX_INPUT_BYTES {
            return Err(ApiError::BodyTooLarge { limit: usize::try_from(MAX_INPUT_BYTES).unwrap_or(usize::MAX) });
        }
        hash.update(&piece);
        upload.wait_for_capacity(2).await.map_err(ApiError::Objects)?;
        upload.write(&piece);
    }
    Ok((bytes, hash.finalize().into()))
}

/// A part that is a word.
async fn word(name: &str, mut part: Field<'_>) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = part.chunk().await? {
        if bytes.len() + piece.len() > MAX_WORD_BYTES {
            return Err(wrong(name, "is too long", ParseCode::InvalidValue));
        }
        bytes.extend_from_slice(&piece);
    }
    String::from_utf8(bytes).map_err(|_| wrong(name, "is not UTF-8", ParseCode::InvalidValue))
}

impl Parts {
    /// The file that the form asks for.
    fn file(&self, id: FileId, tenant: &TenantId, key: Option<String>) -> Result<NewFile, ApiError> {
        let missing = |param| wrong(param, "is required", ParseCode::MissingRequiredParameter);
        let (bytes, hash) = self.content.ok_or_else(|| missing("file"))?;
        match self.purpose.as_deref() {
            Some("batch") => {}
            None => return Err(missing("purpose")),
            Some(_) => return Err(wrong("purpose", "must be batch", ParseCode::InvalidValue)),
        }
        if bytes > MAX_INPUT_BYTES {
            return Err(ApiError::BodyTooLarge { limit: usize::try_from(MAX_INPUT_BYTES).unwrap_or(usize::MAX) });
        }
        let life = match (self.anchor.as_deref(), self.seconds.as_deref()) {
            (None, None) => MAX_LIFE_SECONDS,
            (Some("created_at"), Some(text)) => {
                let seconds = text.trim().parse().ok().filter(|n| (MIN_LIFE_SECONDS..=MAX_LIFE_SECONDS).contains(n));
                let problem =
                    format_args!("must be a number from {MIN_LIFE_SECONDS} to {MAX_LIFE_SECONDS}").to_string();
                seconds.ok_or_else(|| wrong("expires_after[seconds]", problem, ParseCode::InvalidValue))?
            }
            (Some("created_at"), None) => return Err(missing("expires_after[seconds]")),
            (Some(_), _) => return Err(wrong("expires_after[anchor]", "must be created_at", ParseCode::InvalidValue)),
            (None, Some(_)) => return Err(missing("expires_after[anchor]")),
        };
        let idempotency = key.map(|key| {
            let mut body = Sha256::new();
            for part in [b"/v1/files".as_slice(), self.filename.as_bytes(), &life.to_le_bytes(), &hash] {
                body.update((part.len() as u64).to_le_bytes());
                body.update(part);
            }
            IdempotencyKey { key, body_hash: body.finalize().into() }
        });
        Ok(NewFile {
            id,
            tenant: tenant.clone(),
            filename: self.filename.clone(),
            purpose: Purpose::Batch,
            bytes,
            expires_in: Some(Duration::from_secs(life)),
            idempotency,
        })
    }
}

fn filter(query: Option<&str>) -> Result<FileFilter, ApiError> {
    let mut filter = FileFilter::default();
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "purpose" => {
                let purpose = Purpose::from_str(&value);
                filter.purpose =
                    Some(purpose.map_err(|problem| ApiError::query("purpose", format_args!("is wrong: {problem}")))?);
            }
            "after" => {
                let after = FileId::from_str(&value);
                filter.after =
                    Some(after.map_err(|problem| ApiError::query("after", format_args!("is wrong: {problem}")))?);
            }
            "order" => {
                filter.ascending = match value.as_str() {
                    "asc" => true,
                    "desc" => false,
                    _ => return Err(ApiError::query("order", "must be asc or desc")),
                }
            }
            "limit" => filter.limit = most(&value, MAX_FILES)?,
            _ => return Err(ApiError::query(name, "is not a parameter of this route: remove it")),
        }
    }
    Ok(filter)
}

/// Lists files, newest first unless asked otherwise.
#[utoipa::path(get, path = "/v1/files", tag = "batches",
    params(
        ("purpose" = Option<Purpose>, Query, description = "Only files for this"),
        ("order" = Option<String>, Query, description = "`desc` (newest first, the default) or `asc`"),
        ("after" = Option<String>, Query, description = "Only files after this one, in that order"),
        ("limit" = Option<u32>, Query, description = "Most files of the page", minimum = 1, maximum = 10_000),
    ),
    responses(
        (status = 200, description = "A page", body = FileList),
        (status = 400, description = "A parameter is wrong; `param` names it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<FileList>, ApiError> {
    let (files, has_more) = state.deps.admin.files(&caller.tenant, &filter(query.as_deref())?).await?;
    Ok(Json(FileList::new(&files, has_more)))
}

/// Reads a file's id from the path; what is no id is no file.
fn file_id(path: PathText) -> Result<FileId, ApiError> {
    let Ok(Path(text)) = path else { return Err(ApiError::FileNotFound { id: "(not UTF-8)".to_owned() }) };
    FileId::from_str(&text).map_err(|_| ApiError::FileNotFound { id: text.chars().take(80).collect() })
}

async fn find(state: &AppState, caller: &Caller, id: &FileId) -> Result<StoredFile, ApiError> {
    let file = state.deps.admin.file(&caller.tenant, id).await?;
    file.ok_or_else(|| ApiError::FileNotFound { id: id.to_string() })
}

/// One file, also after its time is over: then its content is gone.
#[utoipa::path(get, path = "/v1/files/{id}", tag = "batches",
    params(("id" = String, Path, description = "The file's id")),
    responses(
        (status = 200, description = "The file", body = FileObject),
        (status = 404, description = "No such file", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<FileObject>, ApiError> {
    Ok(Json(FileObject::of(&find(&state, &caller, &file_id(path)?).await?)))
}

/// The bytes of a file.
#[utoipa::path(get, path = "/v1/files/{id}/content", tag = "batches",
    params(("id" = String, Path, description = "The file's id")),
    responses(
        (status = 200, description = "The bytes", body = String, content_type = "application/octet-stream"),
        (status = 404, description = "No such file", body = ErrorEnvelope),
        (status = 410, description = "Its time is over", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn content(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Response, ApiError> {
    let file = find(&state, &caller, &file_id(path)?).await?;
    let gone = || ApiError::FileExpired { id: file.id.to_string() };
    if file.has_expired() {
        return Err(gone());
    }
    let object = match state.deps.objects.get(&Key::from(file.id.object_key())).await {
        Ok(object) => object,
        Err(object_store::Error::NotFound { .. }) => return Err(gone()),
        Err(error) => return Err(ApiError::Objects(error)),
    };
    let size = object.meta.size;
    let mut response = Body::from_stream(object.into_stream()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    Ok(response)
}

/// Deletes a file. Not while a batch that has not ended reads it, or an enabled schedule uses it.
#[utoipa::path(delete, path = "/v1/files/{id}", tag = "batches",
    params(("id" = String, Path, description = "The file's id")),
    responses(
        (status = 200, description = "Deleted", body = FileDeleted),
        (status = 404, description = "No such file", body = ErrorEnvelope),
        (status = 409, description = "A batch reads it, or an enabled schedule uses it", body = ErrorEnvelope),
        (status = 503, description = "The store cannot be used now", body = ErrorEnvelope),
    ))]
pub(super) async fn delete(
    State(state): State<AppState>,
    caller: Caller,
    path: PathText,
) -> Result<Json<FileDeleted>, ApiError> {
    let id = file_id(path)?;
    match state.deps.admin.delete_file(&caller.tenant, &id).await? {
        FileDeletion::Deleted => {}
        FileDeletion::InUse => return Err(ApiError::FileInUse { id: id.to_string() }),
        FileDeletion::NotFound => return Err(ApiError::FileNotFound { id: id.to_string() }),
    }
    remove(&state, &id).await;
    Ok(Json(FileDeleted { id: id.to_string(), object: "file".to_owned(), deleted: true }))
}
