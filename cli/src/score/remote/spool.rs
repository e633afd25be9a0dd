//! Answers that came before their turn: on disk, with no more than their places in memory.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The answers of one part, by the line of the input.
pub struct Spool {
    file: File,
    path: PathBuf,
    end: u64,
    places: HashMap<u64, (u64, usize)>,
}

impl Spool {
    /// An empty one in this file, which goes away with it.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path);
        let file = file.with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self { file, path: path.to_owned(), end: 0, places: HashMap::new() })
    }

    /// Keeps the answer of a line; a second one is passed over.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn put(&mut self, line: u64, answer: &[u8]) -> anyhow::Result<()> {
        if self.places.contains_key(&line) {
            return Ok(());
        }
        let wrote = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(answer));
        wrote.with_context(|| format!("{} cannot be written", self.path.display()))?;
        self.places.insert(line, (self.end, answer.len()));
        self.end += answer.len() as u64;
        Ok(())
    }

    /// The answer of a line, if it came.
    ///
    /// # Errors
    /// The disk is gone.
    pub fn get(&mut self, line: u64) -> anyhow::Result<Option<Vec<u8>>> {
        let Some((at, length)) = self.places.get(&line).copied() else { return Ok(None) };
        let mut answer = vec![0; length];
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(&mut answer));
        read.with_context(|| format!("{} cannot be read", self.path.display()))?;
        Ok(Some(answer))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // What stays is overwritten by the next run, and goes with the folder.
        let _removed = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_in_any_order_and_the_file_goes_away() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("spool");
        let mut spool = Spool::new(&path).unwrap();
        for (line, answer) in [(9, "nine"), (2, "two"), (9, "again"), (5, "")] {
            spool.put(line, answer.as_bytes()).unwrap();
        }
        assert_eq!(spool.get(2).unwrap().unwrap(), b"two");
        assert_eq!(spool.get(9).unwrap().unwrap(), b"nine");
        assert_eq!(spool.get(5).unwrap().unwrap(), b"");
        assert!(spool.get(1).unwrap().is_none());
        drop(spool);
        assert!(!path.exists());
    }
}
