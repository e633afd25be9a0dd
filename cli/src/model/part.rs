//! An unfinished download: bytes appended and hashed as they come, kept when broken off, renamed only when right.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cache::hex;
use super::catalogue::Entry;

/// The beginning of a model's file. Every source yields the same bytes, so one source can go on where another broke off.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
    total: u64,
}

impl Part {
    /// Opens what an earlier try left, or starts empty. Reads (hashes) all of it: run it where blocking is allowed.
    pub fn open(path: &Path, total: u64) -> io::Result<Self> {
        let file = File::options().create(true).truncate(false).read(true).append(true).open(path)?;
        let mut part = Self { path: path.to_owned(), file, hash: Sha256::new(), len: 0, total };
        if part.file.metadata()?.len() > total {
            part.reset()?;
        }
        let mut buffer = vec![0; 1 << 20];
        loop {
            match part.file.read(&mut buffer)? {
                0 => return Ok(part),
                n => {
                    part.hash.update(&buffer[..n]);
                    part.len += n as u64;
                }
            }
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are there.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether all bytes are there; whether they are right, [`Part::finish`] says.
    pub fn is_complete(&self) -> bool {
        self.len == self.total
    }

    /// Appends bytes; more than the file has are an error, not a longer file.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.len + bytes.len() as u64 > self.total {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("more than the expected {} bytes came", self.total),
            ));
        }
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Forgets everything.
    pub fn reset(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.hash = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// Makes the complete part the finished file, durably, if its hash is the entry's; else deletes it.
    /// Blocks on the disk.
    pub fn finish(self, entry: &Entry, target: &Path) -> io::Result<Finished> {
        let found = hex(&self.hash.finalize());
        if found != entry.sha256 {
            std::fs::remove_file(&self.path)?;
            return Ok(Finished::WrongHash { found });
        }
        self.file.sync_all()?;
        std::fs::rename(&self.path, target)?;
        if let Some(folder) = target.parent() {
            // The name is durable only with the folder; a system that cannot sync folders orders renames itself.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(Finished::Right)
    }
}

/// What became of a complete part.
#[derive(Debug, PartialEq, Eq)]
pub enum Finished {
    /// It is the model, in its place.
    Right,
    /// It was something else, and is gone.
    WrongHash {
        /// What it hashed to.
        found: String,
    },
}
