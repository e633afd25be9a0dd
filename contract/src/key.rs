//! API keys: whose a call is, and what it may do.
//!
//! A key is shown once, when it is made, as `psk_PREFIX_SECRET`. The store has the prefix, to find it by, and the
//! SHA-256 of the whole text. The secret has 192 random bits, so a plain hash is as good as a slow one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::{BadId, TenantId};
use crate::time::Timestamp;

/// What every key begins with, so that scanners find one that was published by mistake.
const MARK: &str = "psk_";
/// Hexadecimal digits of the prefix.
const PREFIX_DIGITS: usize = 12;
/// Hexadecimal digits of the secret part.
const SECRET_DIGITS: usize = 48;

/// Random bytes that make a key.
pub const KEY_RANDOM_BYTES: usize = (PREFIX_DIGITS + SECRET_DIGITS) / 2;

/// Identifies a key in lists and logs, where the key itself never is. Shown as `key_` and 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub Uuid);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_{}", self.0.simple())
    }
}

impl FromStr for KeyId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        crate::ids::tagged(text, "key_")
            .map(Self)
            .ok_or_else(|| BadId::new(text, "a key id (`key_` and 32 hexadecimal digits)"))
    }
}

impl Serialize for KeyId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Submitting and cancelling the tenant's jobs.
    Submit,
    /// Reading the tenant's jobs and results.
    Read,
    /// Running the installation: keys of all tenants, and its figures. Shows nobody's jobs.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 3] = [Scope::Submit, Scope::Read, Scope::Admin];

    /// The word used in JSON, settings and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Submit => "submit",
            Scope::Read => "read",
            Scope::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no scope: submit, read and admin are")]
pub struct BadScope(String);

impl FromStr for Scope {
    type Err = BadScope;

    fn from_str(text: &str) -> Result<Self, BadScope> {
        let found = Scope::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| BadScope(text.chars().take(40).collect()))
    }
}

/// The secret text of a key, in memory only: never logged, never stored.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(String);

impl KeyText {
    /// A new key out of 30 random bytes.
    pub fn new(random: [u8; KEY_RANDOM_BYTES]) -> Self {
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (prefix, secret) = hex.split_at(PREFIX_DIGITS);
        Self(format!("{MARK}{prefix}_{secret}"))
    }

    /// A text that has the form of a key.
    pub fn parse(text: &str) -> Option<Self> {
        let (prefix, secret) = text.strip_prefix(MARK)?.split_once('_')?;
        let is_hex = |part: &str, digits| {
            part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        (is_hex(prefix, PREFIX_DIGITS) && is_hex(secret, SECRET_DIGITS)).then(|| Self(text.to_owned()))
    }

    /// What it is found by: 12 hexadecimal digits.
    pub fn prefix(&self) -> &str {
        &self.0[MARK.len()..MARK.len() + PREFIX_DIGITS]
    }

    /// What the store has of it.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The text itself, to show it once.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}_***", self.prefix())
    }
}

/// A key to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Its id, made by the server.
    pub id: KeyId,
    /// Whose calls it makes.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// [`KeyText::prefix`].
    pub prefix: String,
    /// [`KeyText::hash`].
    pub hash: [u8; 32],
    /// What it may do; not empty.
    pub scopes: BTreeSet<Scope>,
    /// From now to its end; without one it is good until it is revoked.
    pub expires_in: Option<Duration>,
}

impl NewKey {
    /// A key as it is asked for, out of 30 random bytes; with the text that is shown once.
    pub fn make(asked: crate::openai::keys::ParsedKey, random: [u8; KEY_RANDOM_BYTES]) -> (Self, KeyText) {
        let text = KeyText::new(random);
        let crate::openai::keys::ParsedKey { tenant, name, scopes, expires_in } = asked;
        let (prefix, hash) = (text.prefix().to_owned(), text.hash());
        (Self { id: KeyId(Uuid::now_v7()), tenant, name, prefix, hash, scopes, expires_in }, text)
    }
}

/// A key as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its id.
    pub id: KeyId,
    /// Whose calls it makes.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// What it is found by, and recognised by people.
    pub prefix: String,
    /// What it may do.
    pub scopes: BTreeSet<Scope>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

impl Key {
    /// Whether it is good at this time of the store's clock.
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// A key that was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundKey {
    /// The key.
    pub key: Key,
    /// The hash of its text.
    pub hash: [u8; 32],
    /// The store's clock when it answered.
    pub now: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_shown() {
        let key = KeyText::new(std::array::from_fn(|nth| nth as u8));
        assert_eq!(key.reveal(), "psk_000102030405_060708090a0b0c0d0e0f101112131415161718191a1b1c1d");
        assert_eq!(key.prefix(), "000102030405");
        assert_eq!(KeyText::parse(key.reveal()), Some(key.clone()));
        assert_eq!(format!("{key:?}"), "psk_000102030405_***");
        for wrong in
            ["", "psk_", "psk_00_11", &key.reveal()[1..], &key.reveal().to_uppercase(), &format!("{}0", key.reveal())]
        {
            assert_eq!(KeyText::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_hash_is_sha_256_of_the_whole_text() {
        // printf %s psk_000102030405_060708090a0b0c0d0e0f101112131415161718191a1b1c1d | sha256sum
        let key = KeyText::new(std::array::from_fn(|nth| nth as u8));
        let hex: String = key.hash().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ad314e252315dbfd5ebb7953e85d498dd6a75e0b4f7ae2a4fab669fd64d27f14");
    }

    #[test]
    fn a_key_is_good_until_its_end() {
        let key = Key {
            id: KeyId(Uuid::nil()),
            tenant: TenantId::local(),
            name: "ci".into(),
            prefix: String::new(),
            scopes: [Scope::Read].into(),
            created_at: Timestamp(0),
            expires_at: Some(Timestamp(10)),
            revoked_at: None,
        };
        assert!(key.is_good(Timestamp(9)) && !key.is_good(Timestamp(10)));
        assert!(Key { expires_at: None, ..key.clone() }.is_good(Timestamp(i64::MAX)));
        assert!(!Key { revoked_at: Some(Timestamp(3)), ..key }.is_good(Timestamp(5)));
    }
}
