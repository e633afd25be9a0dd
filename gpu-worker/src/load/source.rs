//! A file's header as a stream of bounded little-endian fields.

use std::io::{BufReader, Read, Seek, SeekFrom};

use super::{
    LoadError,
    check::{MAX_HEADER_BYTES, MAX_NAME_BYTES},
};

/// The file as a stream of little-endian fields, with its limits.
pub(super) struct Source<R> {
    reader: BufReader<R>,
    /// Bytes read so far.
    pub(super) position: u64,
    /// Length of the whole file.
    pub(super) file_bytes: u64,
}

impl<R: Read + Seek> Source<R> {
    /// The file in `reader`, from its first byte.
    pub(super) fn new(mut reader: R) -> Result<Self, LoadError> {
        let file_bytes = reader.seek(SeekFrom::End(0)).map_err(LoadError::Io)?;
        reader.seek(SeekFrom::Start(0)).map_err(LoadError::Io)?;
        Ok(Self { reader: BufReader::with_capacity(1 << 16, reader), position: 0, file_bytes })
    }
}

impl<R: Read> Source<R> {
    /// Fails unless `bytes` more bytes are in the file and in the header's limit.
    fn need(&self, bytes: u64, what: &str) -> Result<(), LoadError> {
        let needed_bytes = self.position.saturating_add(bytes);
        if needed_bytes > self.file_bytes {
            return Err(LoadError::Truncated { what: what.to_owned(), needed_bytes, file_bytes: self.file_bytes });
        }
        if needed_bytes > MAX_HEADER_BYTES {
            return Err(LoadError::malformed(format!("{what} reaches past {MAX_HEADER_BYTES} header bytes")));
        }
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8], what: &str) -> Result<(), LoadError> {
        self.need(into.len() as u64, what)?;
        self.reader.read_exact(into).map_err(LoadError::Io)?;
        self.position += into.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things that take `each` bytes or more, refused when it exceeds `max` or what the file can hold.
    pub(super) fn count(&mut self, what: &str, max: u64, each: u64) -> Result<u64, LoadError> {
        let count = self.u64(what)?;
        if count > max {
            return Err(LoadError::malformed(format!("{what} is {count}, at most {max} are accepted")));
        }
        self.need(count.saturating_mul(each), what)?;
        Ok(count)
    }

    /// A length-prefixed string, read into `buffer`.
    pub(super) fn text<'a>(&mut self, buffer: &'a mut Vec<u8>, max: u64, what: &str) -> Result<&'a str, LoadError> {
        let length = self.u64(what)?;
        if length > max {
            return Err(LoadError::malformed(format!("{what} is {length} bytes long, at most {max} are accepted")));
        }
        self.need(length, what)?;
        buffer.resize(usize::try_from(length).expect("within MAX_HEADER_BYTES"), 0);
        self.fill(buffer, what)?;
        std::str::from_utf8(buffer).map_err(|err| LoadError::malformed(format!("{what} is not UTF-8: {err}")))
    }

    pub(super) fn name(&mut self, what: &str) -> Result<String, LoadError> {
        let mut buffer = Vec::new();
        let name = self.text(&mut buffer, MAX_NAME_BYTES, what)?;
        if name.is_empty() {
            return Err(LoadError::malformed(format!("{what} is empty")));
        }
        Ok(name.to_owned())
    }
}
