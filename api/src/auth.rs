//! Whose call it is, and what it may do.
//!
//! An installation without keys belongs to whoever can reach it: every call is the local tenant's, with all scopes. From
//! the first key on, every route but those that say how the server is needs one.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use contract::{AdminStore, FoundKey, KeyId, KeyText, Scope, StoreError, TenantId, Timestamp};

use crate::error::ApiError;
use crate::state::AppState;

/// How long what the store said of a key is believed: a key that was revoked elsewhere works for so long.
const BELIEVED: Duration = Duration::from_secs(2);
/// Most answers that are remembered.
const REMEMBERED: usize = 10_000;

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Whose jobs these are.
    pub tenant: TenantId,
    /// By which key; none where none is needed.
    pub key: Option<KeyId>,
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        // A route that `needs` calls open has no caller to ask for.
        parts.extensions.get::<Caller>().cloned().ok_or(ApiError::Internal)
    }
}

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: it says how the server is, to whoever asks.
    Nothing,
    /// A key, whatever it may do.
    AnyKey,
    /// A key with this scope.
    Scope(Scope),
}

/// What a route asks, by its pattern. One that nobody thought of asks for the most.
pub(crate) fn needs(method: &Method, route: &str) -> Needs {
    let reads = method == Method::GET || method == Method::HEAD;
    match route {
        "/" | "/livez" | "/readyz" | "/openapi.json" => Needs::Nothing,
        "/v1/models" | "/v1/models/{model}" => Needs::AnyKey,
        "/v1/jobs/{id}" | "/v1/jobs/{id}/events" | "/v1/jobs/{id}/trajectory" => Needs::Scope(Scope::Read),
        "/v1/files" | "/v1/files/{id}" | "/v1/files/{id}/content" | "/v1/batches" | "/v1/batches/{id}" if reads => {
            Needs::Scope(Scope::Read)
        }
        "/v1/batches/{id}/results" | "/v1/batches/{id}/progress" => Needs::Scope(Scope::Read),
        "/v1/files" | "/v1/files/{id}" | "/v1/batches" | "/v1/batches/{id}/cancel" | "/v1/batches/{id}/resubmit" => {
            Needs::Scope(Scope::Submit)
        }
        "/v1/webhooks" | "/v1/webhooks/{id}" | "/v1/webhooks/deliveries" | "/v1/webhooks/deliveries/{id}" if reads => {
            Needs::Scope(Scope::Read)
        }
        // A secret makes deliveries: reading it is more than reading.
        "/v1/webhooks"
        | "/v1/webhooks/{id}"
        | "/v1/webhooks/{id}/secret"
        | "/v1/webhooks/{id}/rotate"
        | "/v1/webhooks/secret"
        | "/v1/webhooks/secret/rotate"
        | "/v1/webhooks/deliveries/{id}/redeliver" => Needs::Scope(Scope::Submit),
        "/v1/limits" => Needs::Scope(Scope::Read),
        "/v1/schedules" | "/v1/schedules/{id}" | "/v1/schedules/{id}/runs" if reads => Needs::Scope(Scope::Read),
        "/v1/schedules" | "/v1/schedules/{id}" | "/v1/schedules/{id}/run" => Needs::Scope(Scope::Submit),
        "/v1/jobs" if reads => Needs::Scope(Scope::Read),
        "/v1/sequences" | "/v1/sequences/{key}" => Needs::Scope(Scope::Read),
        "/v1/sequences/{key}/resume" => Needs::Scope(Scope::Submit),
        // Of the caller's tenant; of all tenants it is for operators, as the audit is.
        "/v1/usage" => Needs::Scope(Scope::Read),
        "/v1/jobs"
        | "/v1/jobs:batch"
        | "/v1/jobs/{id}/cancel"
        | "/v1/chat/completions"
        | "/v1/completions"
        | "/v1/embeddings" => Needs::Scope(Scope::Submit),
        _ => Needs::Scope(Scope::Admin),
    }
}

/// Finds out who calls, and refuses who may not.
pub(crate) async fn authenticate(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    // Without a route there is nothing to protect.
    let Some(route) = request.extensions().get::<MatchedPath>() else { return next.run(request).await };
    let needs = needs(request.method(), route.as_str());
    if needs == Needs::Nothing {
        return next.run(request).await;
    }
    match state.keyring.caller(request.headers(), needs).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller.clone());
            let mut response = next.run(request).await;
            // For the log.
            response.extensions_mut().insert(caller);
            response
        }
        Err(error) => error.into_response(),
    }
}

/// What is known of keys, for a moment.
pub(crate) struct Keyring {
    store: Arc<dyn AdminStore>,
    /// A key is needed even before the first one is made.
    required: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    has_keys: bool,
    has_keys_at: Option<Instant>,
    by_prefix: HashMap<String, (Instant, Option<Arc<FoundKey>>)>,
}

impl Keyring {
    pub fn new(store: Arc<dyn AdminStore>, required: bool) -> Self {
        Self { store, required, known: Mutex::default() }
    }

    async fn caller(&self, headers: &HeaderMap, needs: Needs) -> Result<Caller, ApiError> {
        let sent = headers.get(header::AUTHORIZATION);
        if !self.required && !self.has_keys().await? {
            // Client libraries send a key whether one is needed or not.
            return Ok(Caller { tenant: TenantId::local(), key: None });
        }
        let sent = sent.ok_or(ApiError::NoKey)?.to_str().unwrap_or_default();
        let text = sent.split_once(' ').filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let text = text.map(|(_, text)| text.trim()).ok_or(ApiError::NoKey)?;
        let key = KeyText::parse(text).ok_or(ApiError::UnknownKey)?;
        let (asked_at, found) = self.find(key.prefix()).await?;
        let found = found.filter(|found| found.hash == key.hash()).ok_or(ApiError::UnknownKey)?;
        let now = found.now.0.saturating_add(i64::try_from(asked_at.elapsed().as_millis()).unwrap_or(i64::MAX));
        if !found.key.is_good(Timestamp(now)) {
            return Err(ApiError::KeyEnded { revoked: found.key.revoked_at.is_some() });
        }
        may(&found.key.scopes, needs)?;
        Ok(Caller { tenant: found.key.tenant.clone(), key: Some(found.key.id) })
    }

    async fn has_keys(&self) -> Result<bool, StoreError> {
        {
            let mut known = self.known();
            let is_fresh = known.has_keys_at.is_some_and(|at| at.elapsed() < BELIEVED);
            // The first one of a while asks; the others go by what was known.
            if known.has_keys || is_fresh {
                return Ok(known.has_keys);
            }
            if known.has_keys_at.is_some() {
                known.has_keys_at = Some(Instant::now());
            }
        }
        let has_keys = self.store.has_keys().await?;
        let mut known = self.known();
        known.has_keys |= has_keys;
        known.has_keys_at = Some(Instant::now());
        Ok(has_keys)
    }

    async fn find(&self, prefix: &str) -> Result<(Instant, Option<Arc<FoundKey>>), StoreError> {
        let remembered = self.known().by_prefix.get(prefix).cloned();
        if let Some(remembered) = remembered.filter(|(at, _)| at.elapsed() < BELIEVED) {
            return Ok(remembered);
        }
        let asked_at = Instant::now();
        let answer = (asked_at, self.store.find_key(prefix).await?.map(Arc::new));
        let mut known = self.known();
        if known.by_prefix.len() >= REMEMBERED {
            known.by_prefix.retain(|_, (at, _)| at.elapsed() < BELIEVED);
        }
        if known.by_prefix.len() < REMEMBERED {
            known.by_prefix.insert(prefix.to_owned(), answer.clone());
        }
        Ok(answer)
    }

    /// What was known of keys may have changed by this process's own doing.
    pub fn forget(&self) {
        let mut known = self.known();
        known.by_prefix.clear();
        known.has_keys_at = None;
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may(scopes: &BTreeSet<Scope>, needs: Needs) -> Result<(), ApiError> {
    match needs {
        Needs::Scope(scope) if !scopes.contains(&scope) => Err(ApiError::NoScope { needed: scope }),
        Needs::Scope(_) | Needs::AnyKey | Needs::Nothing => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_was_thought_of() {
        let open = ["/", "/livez", "/readyz", "/openapi.json"];
        for (path, item) in crate::openapi().paths.paths {
            let is_open = needs(&Method::GET, &path) == Needs::Nothing;
            assert_eq!(is_open, open.contains(&path.as_str()), "{path}");
            if item.post.is_some() && !path.starts_with("/v1/keys") && !path.starts_with("/v1/tenants") {
                assert_eq!(needs(&Method::POST, &path), Needs::Scope(Scope::Submit), "{path}");
            }
        }
        assert_eq!(needs(&Method::GET, "/v1/whatever-comes"), Needs::Scope(Scope::Admin));
    }
}
