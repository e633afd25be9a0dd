//! Large things in local files, behind the `object_store` crate's own trait.

use std::path::{Path, PathBuf};

use object_store::local::LocalFileSystem;

/// The folder for objects could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// It is missing and could not be made.
    #[error("the folder {} for objects cannot be made", .path.display())]
    Make {
        /// Which folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It cannot be an object store.
    #[error("the folder {} cannot hold objects", .path.display())]
    Open {
        /// Which folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: object_store::Error,
    },
}

/// An object store in a folder, which is made if missing, as are the folders that keys ask for. An object is synced to
/// the disk before its `put` answers.
///
/// # Errors
/// [`ObjectsError`].
pub fn local_objects(folder: &Path) -> Result<LocalFileSystem, ObjectsError> {
    let failed = |source| ObjectsError::Make { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    LocalFileSystem::new_with_prefix(folder)
        .map(|store| store.with_fsync(true).with_automatic_cleanup(true))
        .map_err(|source| ObjectsError::Open { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use object_store::path::Path as Key;
    use object_store::{ObjectStoreExt, PutPayload};

    use super::*;

    #[tokio::test]
    async fn objects_round_trip_under_nested_keys() {
        let folder = tempfile::tempdir().unwrap();
        let store = local_objects(&folder.path().join("new/objects")).unwrap();
        let key = Key::from("records/job_1/2");
        store.put(&key, PutPayload::from_static(b"bytes")).await.unwrap();
        assert_eq!(store.get(&key).await.unwrap().bytes().await.unwrap(), "bytes");
        assert!(matches!(store.get(&Key::from("records/none")).await, Err(object_store::Error::NotFound { .. })));
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        std::fs::write(&path, "in the way").unwrap();
        assert!(local_objects(&path).unwrap_err().to_string().contains(path.to_str().unwrap()));
    }
}
