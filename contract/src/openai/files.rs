//! Bodies of the file routes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::file::{FileFilter, Purpose, StoredFile};

/// Shortest life of a file that has an end, in seconds.
pub const MIN_LIFE_SECONDS: u64 = 3_600;
/// Longest life of a file that has an end, in seconds: also that of a batch's file whose upload names none.
pub const MAX_LIFE_SECONDS: u64 = 2_592_000;
/// Most files of one page.
pub const MAX_FILES: u32 = 10_000;

/// A file as clients see it. Times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileObject {
    /// Its id.
    #[schema(example = "file-0193f0c0d0e070008000000000000001")]
    pub id: String,
    /// Always `file`.
    pub object: String,
    /// Its size.
    pub bytes: u64,
    /// When it was made.
    pub created_at: i64,
    /// When it ends by itself.
    #[schema(required)]
    pub expires_at: Option<i64>,
    /// As the client calls it.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Always `processed`: there is nothing to wait for.
    pub status: String,
}

impl FileObject {
    /// What is shown of a file.
    pub fn of(file: &StoredFile) -> Self {
        Self {
            id: file.id.to_string(),
            object: "file".to_owned(),
            bytes: file.bytes,
            created_at: file.created_at.unix_seconds(),
            expires_at: file.expires_at.map(|at| at.unix_seconds()),
            filename: file.filename.clone(),
            purpose: file.purpose,
            status: "processed".to_owned(),
        }
    }
}

/// A page of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// Always `list`.
    pub object: String,
    /// The files.
    pub data: Vec<FileObject>,
    /// Id of the first of them.
    #[schema(required)]
    pub first_id: Option<String>,
    /// Id of the last of them: `after` of the next page.
    #[schema(required)]
    pub last_id: Option<String>,
    /// Whether more follow.
    pub has_more: bool,
}

impl FileList {
    /// A page.
    pub fn new(files: &[StoredFile], has_more: bool) -> Self {
        let id = |file: Option<&StoredFile>| file.map(|file| file.id.to_string());
        Self {
            object: "list".to_owned(),
            data: files.iter().map(FileObject::of).collect(),
            first_id: id(files.first()),
            last_id: id(files.last()),
            has_more,
        }
    }
}

/// What is left of a deleted file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileDeleted {
    /// Its id.
    pub id: String,
    /// Always `file`.
    pub object: String,
    /// Always true.
    pub deleted: bool,
}

/// The parts of an upload, as the description shows them; the route reads them one after the other.
#[derive(Debug, ToSchema)]
pub struct FileUpload {
    /// The file itself, in UTF-8; at most 200 MB for a batch.
    #[schema(value_type = String, format = Binary)]
    pub file: String,
    /// `batch`.
    pub purpose: Purpose,
    /// `created_at`, beside `expires_after[seconds]`.
    #[schema(rename = "expires_after[anchor]")]
    pub expires_after_anchor: Option<String>,
    /// Seconds until it ends by itself: 3,600 to 2,592,000; without it, 2,592,000 (30 days).
    #[schema(rename = "expires_after[seconds]")]
    pub expires_after_seconds: Option<u64>,
}

impl Default for FileFilter {
    /// The newest 10,000 files.
    fn default() -> Self {
        Self { purpose: None, after: None, ascending: false, limit: MAX_FILES }
    }
}
