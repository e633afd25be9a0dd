//! Files: what is uploaded for batches, and what batches leave. The bytes are in the object store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::{BadId, TenantId, tagged};
use crate::job::IdempotencyKey;
use crate::time::Timestamp;

/// Identifies a file. Shown as `file-` and 32 hexadecimal digits, as OpenAI's are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub Uuid);

impl FileId {
    /// A new id, later in order than all that this process made before.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Where its bytes are in the object store.
    pub fn object_key(&self) -> String {
        format!("files/{}", self.0.simple())
    }
}

impl Default for FileId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file-{}", self.0.simple())
    }
}

impl FromStr for FileId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        tagged(text, "file-").map(Self).ok_or_else(|| BadId::new(text, "a file id (`file-` and 32 hexadecimal digits)"))
    }
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The input of batches: uploaded.
    Batch,
    /// Results or errors of a batch: made here.
    BatchOutput,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Purpose; 2] = [Purpose::Batch, Purpose::BatchOutput];

    /// The word used in JSON and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::Batch => "batch",
            Purpose::BatchOutput => "batch_output",
        }
    }
}

/// A word that is no purpose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no purpose: batch and batch_output are")]
pub struct BadPurpose(String);

impl FromStr for Purpose {
    type Err = BadPurpose;

    fn from_str(word: &str) -> Result<Self, BadPurpose> {
        let found = Purpose::ALL.into_iter().find(|purpose| purpose.as_str() == word);
        found.ok_or_else(|| BadPurpose(word.chars().take(40).collect()))
    }
}

/// A file to keep, whose bytes are in the object store already, under [`FileId::object_key`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Its id, made by the server.
    pub id: FileId,
    /// Whose it is.
    pub tenant: TenantId,
    /// As the client calls it.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Its size.
    pub bytes: u64,
    /// From now to its end; without one it stays until it is deleted.
    pub expires_in: Option<Duration>,
    /// A client's key that makes a repeat the same file.
    pub idempotency: Option<IdempotencyKey>,
}

/// A file as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Its id.
    pub id: FileId,
    /// Whose it is.
    pub tenant: TenantId,
    /// As the client calls it.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Its size.
    pub bytes: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// The store's clock when it answered.
    pub now: Timestamp,
}

impl StoredFile {
    /// Whether its time is over. Its bytes may be gone then.
    pub fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|end| end <= self.now)
    }
}

/// Which files to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFilter {
    /// Only files of this purpose.
    pub purpose: Option<Purpose>,
    /// Only those that come after this one in the order asked for: the cursor.
    pub after: Option<FileId>,
    /// Oldest first, instead of newest first.
    pub ascending: bool,
    /// Most files to return, at least 1.
    pub limit: u32,
}

/// The answer to a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDeletion {
    /// It is forgotten, by this call.
    Deleted,
    /// A batch that has not ended reads it, or an enabled schedule uses it.
    InUse,
    /// No such file of this tenant.
    NotFound,
}

/// Something that was made, by this call or by an earlier one with the same idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made<T> {
    /// By this call.
    New(T),
    /// By an earlier one; nothing was written.
    Replayed(T),
}

impl<T> Made<T> {
    /// What was made.
    pub fn into_inner(self) -> T {
        match self {
            Made::New(made) | Made::Replayed(made) => made,
        }
    }
}

/// The idempotency key was used before with another body. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the idempotency key was used before with another body")]
pub struct KeyReused;
