//! Lines of an object, one after the other, with little of it in memory.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

/// Longest line: what a request's body may have, and some more for what is around it.
pub(crate) const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

/// One line, without its break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawLine {
    /// Its bytes.
    pub(crate) bytes: Bytes,
    /// Where the next line begins.
    pub(crate) next: u64,
}

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// A line has no end in sight.
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The object cannot be read.
    #[error("the file cannot be read")]
    Objects(#[from] object_store::Error),
}

/// Reads an object line by line.
pub(crate) struct Lines {
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    /// Bytes that were read, from `offset` on.
    buffer: BytesMut,
    /// How far `buffer` was searched for a break.
    searched: usize,
    offset: u64,
    ended: bool,
}

impl Lines {
    /// The lines of an object from this byte on, at which one begins.
    ///
    /// # Errors
    /// The object cannot be read.
    pub(crate) async fn open(objects: &dyn ObjectStore, key: &str, offset: u64) -> Result<Self, LineError> {
        let options = GetOptions { range: (offset > 0).then_some(GetRange::Offset(offset)), ..GetOptions::default() };
        let stream = match objects.get_opts(&Path::from(key), options).await {
            Ok(object) => object.into_stream(),
            // Where the file ends there is no range.
            Err(_) if offset > 0 && objects.head_size(key).await? <= offset => futures::stream::empty().boxed(),
            Err(err) => return Err(err.into()),
        };
        Ok(Self { stream, buffer: BytesMut::new(), searched: 0, offset, ended: false })
    }

    /// The next line; `None` after the last. A last one without a break is one too.
    ///
    /// # Errors
    /// [`LineError`]; then there is no more.
    pub(crate) async fn next(&mut self) -> Result<Option<RawLine>, LineError> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let length = self.searched + at;
                let mut bytes = self.buffer.split_to(length + 1).freeze();
                bytes.truncate(length);
                return Ok(Some(self.line(bytes, length + 1)));
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_LINE_BYTES {
                return Err(LineError::TooLong);
            }
            if self.ended {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                let bytes = self.buffer.split().freeze();
                let length = bytes.len();
                return Ok(Some(self.line(bytes, length)));
            }
            match self.stream.next().await {
                Some(piece) => self.buffer.extend_from_slice(&piece?),
                None => self.ended = true,
            }
        }
    }

    fn line(&mut self, mut bytes: Bytes, taken: usize) -> RawLine {
        if bytes.last() == Some(&b'\r') {
            bytes.truncate(bytes.len() - 1);
        }
        self.searched = 0;
        self.offset += taken as u64;
        RawLine { bytes, next: self.offset }
    }
}

trait HeadSize {
    async fn head_size(&self, key: &str) -> object_store::Result<u64>;
}

impl HeadSize for dyn ObjectStore + '_ {
    async fn head_size(&self, key: &str) -> object_store::Result<u64> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        Ok(self.get_opts(&Path::from(key), options).await?.meta.size)
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    async fn lines(text: &str, offset: u64) -> Vec<(String, u64)> {
        let objects = InMemory::new();
        objects.put(&Path::from("f"), text.to_owned().into()).await.unwrap();
        let mut reader = Lines::open(&objects, "f", offset).await.unwrap();
        let mut found = Vec::new();
        while let Some(line) = reader.next().await.unwrap() {
            found.push((String::from_utf8(line.bytes.to_vec()).unwrap(), line.next));
        }
        found
    }

    fn owned(lines: &[(&str, u64)]) -> Vec<(String, u64)> {
        lines.iter().map(|(text, next)| ((*text).to_owned(), *next)).collect()
    }

    #[tokio::test]
    async fn lines_come_with_where_the_next_begins() {
        assert_eq!(lines("a\nbb\r\n\nc", 0).await, owned(&[("a", 2), ("bb", 6), ("", 7), ("c", 8)]));
        assert_eq!(lines("a\nbb\r\n\nc", 6).await, owned(&[("", 7), ("c", 8)]));
        assert_eq!(lines("a\n", 2).await, []);
        assert_eq!(lines("", 0).await, []);
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_refused() {
        let objects = InMemory::new();
        objects.put(&Path::from("f"), vec![b'x'; MAX_LINE_BYTES + 1].into()).await.unwrap();
        let mut reader = Lines::open(&objects, "f", 0).await.unwrap();
        assert!(matches!(reader.next().await, Err(LineError::TooLong)));
    }
}
