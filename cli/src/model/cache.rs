//! The cache folder: where a model's file, its unfinished part and its lock lie.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::catalogue::Entry;
use super::progress::Progress;

/// The folder with the models.
#[derive(Debug, Clone)]
pub struct Cache {
    models: PathBuf,
}

impl Cache {
    /// The user's own.
    pub fn of_user() -> Self {
        Self::at(&crate::folders::cache())
    }

    /// Below another folder.
    pub fn at(root: &Path) -> Self {
        Self { models: root.join("models") }
    }

    /// Where the model's finished file lies, or will.
    pub fn file(&self, entry: &Entry) -> PathBuf {
        self.models.join(format!("{}.gguf", entry.name))
    }

    /// Where its unfinished download lies.
    pub fn part(&self, entry: &Entry) -> PathBuf {
        self.models.join(format!("{}.gguf.part", entry.name))
    }

    /// A folder for what a download needs beside the part. On the same disk, because the usual temporary folder is often
    /// small or in memory.
    pub fn scratch(&self, entry: &Entry) -> PathBuf {
        self.models.join(format!("{}.wheels", entry.name))
    }

    /// Waits until no other process fetches this model; the lock ends with the returned file, or with the process.
    pub async fn lock(&self, entry: &Entry, progress: &Progress) -> anyhow::Result<File> {
        std::fs::create_dir_all(&self.models).with_context(|| {
            format!("could not create the cache folder {} (PENSTOCK_CACHE names another)", self.models.display())
        })?;
        // Never removed: a lock file that comes and goes lets two processes lock two files of one name.
        let path = self.models.join(format!("{}.lock", entry.name));
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        let file = open().with_context(|| format!("could not open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("could not lock {}", path.display()));
            }
            Err(TryLockError::WouldBlock) => {
                progress.say(&format!("waiting for another process that fetches {}", entry.name))
            }
        }
        let waited = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await?;
        waited.with_context(|| format!("could not lock {}", path.display()))
    }
}

/// SHA-256 of a file in lower-case hexadecimal, read in pieces; `seen` is told the bytes read so far.
pub fn sha256_of(path: &Path, mut seen: impl FnMut(u64)) -> io::Result<String> {
    let (mut file, mut hash, mut total) = (File::open(path)?, Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            n => {
                hash.update(&buffer[..n]);
                total += n as u64;
                seen(total);
            }
        }
    }
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
