//! Bodies of the key routes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::{Fields, text, wrong_value};
use super::tenants::tenant_field;
use super::{MAX_STRING_BYTES, ParseError};
use crate::ids::TenantId;
use crate::key::{Key, Scope};
use crate::time::Timestamp;

/// Most characters of a key's name.
const MAX_NAME_CHARS: usize = 100;
/// Longest life of a key that has an end: ten years.
const MAX_LIFE_SECONDS: i64 = 10 * 365 * 24 * 3_600;

/// What `POST /v1/keys` takes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyRequest {
    /// Whose calls it makes: 1 to 64 letters, digits, `.`, `_` and `-`. Default: `local`.
    #[schema(example = "acme", max_length = 64)]
    pub tenant: Option<String>,
    /// What people call it, up to 100 characters.
    #[schema(example = "nightly scoring", max_length = 100)]
    pub name: Option<String>,
    /// What it may do. Default: `submit` and `read`.
    #[schema(min_items = 1, max_items = 3)]
    pub scopes: Option<Vec<Scope>>,
    /// Seconds until it ends by itself. Default: never.
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_in_seconds: Option<u64>,
}

/// A key that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedKey {
    /// Whose calls it makes.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: BTreeSet<Scope>,
    /// When it ends.
    pub expires_in: Option<Duration>,
}

/// Reads the body of `POST /v1/keys`.
///
/// # Errors
/// The first field that is wrong.
pub fn parse_key(body: &Value) -> Result<ParsedKey, ParseError> {
    let mut fields = Fields::of(body, "")?;
    let tenant = tenant_field(&mut fields)?;
    let name = fields.string("name", MAX_STRING_BYTES)?.unwrap_or_default();
    if name.chars().count() > MAX_NAME_CHARS {
        return Err(wrong_value("name", format_args!("has more than {MAX_NAME_CHARS} characters")));
    }
    let scopes = match fields.list("scopes", Scope::ALL.len())? {
        None => [Scope::Submit, Scope::Read].into(),
        Some([]) => return Err(wrong_value("scopes", "is empty: such a key could do nothing")),
        Some(words) => {
            let scope = |(nth, word): (usize, &Value)| {
                let param = format!("scopes[{nth}]");
                let word = text(word, &param, MAX_STRING_BYTES)?;
                word.parse::<Scope>().map_err(|err| wrong_value(param, format_args!("is wrong: {err}")))
            };
            words.iter().enumerate().map(scope).collect::<Result<_, _>>()?
        }
    };
    let seconds = fields.integer("expires_in_seconds", 1, MAX_LIFE_SECONDS)?;
    fields.finish()?;
    Ok(ParsedKey {
        tenant,
        name: name.to_owned(),
        scopes,
        expires_in: seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
    })
}

/// A key as it is shown: never the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeyObject {
    /// Its id, by which it is revoked.
    #[schema(example = "key_0193f0c0d0e070008000000000000001")]
    pub id: String,
    /// Always `key`.
    pub object: String,
    /// Whose calls it makes.
    pub tenant: String,
    /// What people call it.
    pub name: String,
    /// What the key begins with.
    #[schema(example = "psk_4f1d09a7c2be")]
    pub prefix: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: String,
    /// When it ends by itself.
    #[schema(required)]
    pub expires_at: Option<String>,
    /// When it was revoked.
    #[schema(required)]
    pub revoked_at: Option<String>,
}

impl KeyObject {
    /// What is shown of a key.
    pub fn of(key: &Key) -> Self {
        Self {
            id: key.id.to_string(),
            object: "key".to_owned(),
            tenant: key.tenant.to_string(),
            name: key.name.clone(),
            prefix: format!("psk_{}", key.prefix),
            scopes: key.scopes.iter().copied().collect(),
            created_at: key.created_at.rfc3339(),
            expires_at: key.expires_at.map(Timestamp::rfc3339),
            revoked_at: key.revoked_at.map(Timestamp::rfc3339),
        }
    }
}

/// A key right after it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct NewKeyObject {
    /// What is shown of it from now on.
    #[serde(flatten)]
    pub about: KeyObject,
    /// The key itself, this once.
    #[schema(example = "psk_4f1d09a7c2be_0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071")]
    pub key: String,
}

/// Keys, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeyList {
    /// Always `list`.
    pub object: String,
    /// The keys.
    pub data: Vec<KeyObject>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_those_of_a_client() {
        let key = parse_key(&json!({})).unwrap();
        assert_eq!((key.tenant, key.name.as_str(), key.expires_in), (TenantId::local(), "", None));
        assert_eq!(key.scopes, [Scope::Submit, Scope::Read].into());
        let key = parse_key(&json!({"tenant": "a.B_9-", "scopes": ["admin"], "expires_in_seconds": 60})).unwrap();
        assert_eq!((key.scopes, key.expires_in), ([Scope::Admin].into(), Some(Duration::from_secs(60))));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (json!({"tenant": ""}), "tenant"),
            (json!({"tenant": "a b"}), "tenant"),
            (json!({"tenant": "x".repeat(65)}), "tenant"),
            (json!({"tenant": 3}), "tenant"),
            (json!({"name": "x".repeat(101)}), "name"),
            (json!({"scopes": []}), "scopes"),
            (json!({"scopes": ["read", "root"]}), "scopes[1]"),
            (json!({"scopes": ["read", 1]}), "scopes[1]"),
            (json!({"expires_in_seconds": 0}), "expires_in_seconds"),
            (json!({"expires_in_seconds": 1e12}), "expires_in_seconds"),
            (json!({"scope": "read"}), "scope"),
        ] {
            assert_eq!(parse_key(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
