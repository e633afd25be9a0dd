//! Where the embedded store lives while nothing of it is worth keeping: a folder of this run in the system's temporary
//! folder, removed at its end. What killed runs left is removed by the next one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// What the folders' names begin with.
const PREFIX: &str = "penstock-follow-";
/// Held by the run that a folder belongs to.
const LOCK: &str = "lock";
/// Folders that could be made and not be kept, before something is said to be wrong.
const TRIES: usize = 8;

/// A folder of its own.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    _lock: File,
}

impl Scratch {
    /// Makes a folder, and removes those of runs that are gone.
    ///
    /// # Errors
    /// The temporary folder cannot be used.
    pub fn make() -> io::Result<Self> {
        Self::make_in(&std::env::temp_dir())
    }

    fn make_in(base: &Path) -> io::Result<Self> {
        remove_stale(base);
        for _ in 0..TRIES {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
            let path = folder.path().join(LOCK);
            let lock = File::create(&path)?;
            // Another run may look for stale folders in the moment between, and take this one for such.
            if lock.try_lock().is_ok() && path.exists() {
                return Ok(Self { folder, _lock: lock });
            }
        }
        Err(io::Error::other("other runs remove the folders as they are made"))
    }

    /// The data folder of the store.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The whole of it, for whoever ends the process without a way back.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes what nobody holds. What cannot be looked at is somebody else's.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if !is_ours || path.is_symlink() {
            continue;
        }
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            // What stays is tried again by the next run.
            let _removed_or_left = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_run_goes_with_it_and_that_of_a_killed_one_with_the_next() {
        let base = tempfile::tempdir().unwrap();
        let killed = base.path().join(format!("{PREFIX}killed"));
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        fs::write(killed.join("jobs.db"), "x").unwrap();
        let foreign = base.path().join("somebody-else");
        fs::create_dir(&foreign).unwrap();

        let first = Scratch::make_in(base.path()).unwrap();
        assert!(!killed.exists());
        let second = Scratch::make_in(base.path()).unwrap();
        assert!(first.path().exists(), "a run that lives keeps its folder");
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
        assert!(foreign.exists());
    }
}
