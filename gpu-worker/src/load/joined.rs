//! Several files read as one, so that a tensor's place is one number however the model is cut into files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Files one after the other.
#[derive(Debug, Default)]
pub(super) struct Joined {
    files: Vec<File>,
    /// Where each file ends in the whole.
    ends: Vec<u64>,
    position: u64,
}

impl Joined {
    /// Appends a file of `bytes` bytes; answers where it begins.
    pub(super) fn push(&mut self, file: File, bytes: u64) -> u64 {
        let start = self.ends.last().copied().unwrap_or(0);
        self.files.push(file);
        self.ends.push(start.saturating_add(bytes));
        start
    }
}

impl Read for Joined {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let nth = self.ends.partition_point(|end| *end <= self.position);
        let Some(file) = self.files.get_mut(nth) else { return Ok(0) };
        let start = nth.checked_sub(1).map_or(0, |before| self.ends[before]);
        let left = usize::try_from(self.ends[nth] - self.position).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        file.seek(SeekFrom::Start(self.position - start))?;
        // A file that has shrunk reads as the end of all: nothing is taken from the next one in its place.
        let n_read = file.read(&mut buffer[..wanted])?;
        self.position += n_read as u64;
        Ok(n_read)
    }
}

impl Seek for Joined {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let end = self.ends.last().copied().unwrap_or(0);
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => end.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_read_as_one_from_any_place() {
        let folder = tempfile::tempdir().unwrap();
        let mut joined = Joined::default();
        for (name, text) in [("a", "abc"), ("b", ""), ("c", "defgh")] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            joined.push(File::open(path).unwrap(), text.len() as u64);
        }
        for start in 0..=9 {
            joined.seek(SeekFrom::Start(start)).unwrap();
            let mut text = String::new();
            joined.read_to_string(&mut text).unwrap();
            assert_eq!(text, "abcdefgh"[8.min(start as usize)..], "from {start}");
        }
        std::fs::write(folder.path().join("a"), "a").unwrap();
        joined.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        joined.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a", "what a shrunken file lacks is not taken from the next");
    }
}
