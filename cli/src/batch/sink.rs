//! Where results go: a file that an earlier call may have begun, or the standard output.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::view::line_id;

/// Read at once when the last line of a file is looked for.
const BLOCK: u64 = 64 * 1024;

/// The open end of the results.
pub struct Sink {
    out: Out,
    /// The id of the last line that is there: the next page comes after it.
    pub after: Option<String>,
    /// Lines written by this process.
    pub written: u64,
    /// A reader that has seen enough (`| head`) wants no more.
    pub is_closed: bool,
}

enum Out {
    File(BufWriter<File>, PathBuf),
    Stdout,
}

impl Sink {
    /// The standard output.
    pub fn stdout() -> Self {
        Self { out: Out::Stdout, after: None, written: 0, is_closed: false }
    }

    /// A file; where it has lines, after the last whole one. A torn last line is cut off.
    ///
    /// # Errors
    /// The file cannot be used, or what it holds is no results of a batch.
    pub fn file(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("{} cannot be written", path.display());
        if path.is_dir() {
            bail!("{} is a folder; name a file with -o", path.display());
        }
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let mut file = file.with_context(cannot)?;
        let end = end_of_lines(&mut file, u64::MAX).with_context(cannot)?;
        let mut after = None;
        if end > 0 {
            let begin = end_of_lines(&mut file, end - 1).with_context(cannot)?;
            let mut line = Vec::new();
            file.seek(SeekFrom::Start(begin)).with_context(cannot)?;
            (&mut file).take(end - begin).read_to_end(&mut line).with_context(cannot)?;
            after = line_id(&line);
        }
        // What this program did not write is not cut.
        let length = file.metadata().with_context(cannot)?.len();
        if length > 0 && after.is_none() && !(end == 0 && begins_like_a_result(&mut file)?) {
            bail!(
                "{} holds something else than results of a batch: name another file with -o, or remove it",
                path.display()
            );
        }
        file.set_len(end).with_context(cannot)?;
        file.seek(SeekFrom::Start(end)).with_context(cannot)?;
        Ok(Self { out: Out::File(BufWriter::new(file), path.to_owned()), after, written: 0, is_closed: false })
    }

    /// Appends a line, given without its end.
    ///
    /// # Errors
    /// The disk is full, or gone; the line has no id.
    pub fn write(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let id = line_id(line).context("the server sent a result without an id")?;
        let wrote = match &mut self.out {
            Out::File(file, _) => file.write_all(line).and_then(|()| file.write_all(b"\n")),
            Out::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(line).and_then(|()| out.write_all(b"\n"))
            }
        };
        self.settle(wrote)?;
        self.after = Some(id);
        self.written += 1;
        Ok(())
    }

    /// Hands what was written to the system, so that a kill of this process loses none of it.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        let wrote = match &mut self.out {
            Out::File(file, _) => file.flush(),
            Out::Stdout => std::io::stdout().lock().flush(),
        };
        self.settle(wrote)
    }

    fn settle(&mut self, wrote: std::io::Result<()>) -> anyhow::Result<()> {
        match (wrote, &self.out) {
            (Err(error), Out::Stdout) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            (wrote, Out::Stdout) => wrote.context("could not write to the standard output"),
            (wrote, Out::File(_, path)) => wrote.with_context(|| format!("{} cannot be written", path.display())),
        }
    }
}

/// Where the last line end before this place is over; 0 where there is none.
fn end_of_lines(file: &mut File, before: u64) -> std::io::Result<u64> {
    let mut at = file.metadata()?.len().min(before);
    let mut block = Vec::new();
    while at > 0 {
        let begin = at.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(begin))?;
        block.clear();
        file.take(at - begin).read_to_end(&mut block)?;
        if let Some(idx) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + idx as u64 + 1);
        }
        at = begin;
    }
    Ok(0)
}

/// Whether a file without a whole line may be the beginning of a result.
fn begins_like_a_result(file: &mut File) -> anyhow::Result<bool> {
    const BEGIN: &[u8] = b"{\"id\":\"";
    let mut begin = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(BEGIN.len() as u64).read_to_end(&mut begin)?;
    Ok(BEGIN.starts_with(&begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out.jsonl");
        std::fs::write(&path, content).unwrap();
        (temp, path)
    }

    #[test]
    fn a_file_goes_on_after_its_last_whole_line() {
        let long = format!("{{\"id\":\"job_2\",\"text\":\"{}\"}}", "x".repeat(3 * BLOCK as usize));
        for (content, whole, after) in [
            (String::new(), 0, None),
            ("{\"id\":\"job_1\"}\n".to_owned(), 15, Some("job_1")),
            ("{\"id\":\"job_1\"}\n{\"id\":\"jo".to_owned(), 15, Some("job_1")),
            (format!("{{\"id\":\"job_1\"}}\n{long}\n{long}"), 15 + long.len() + 1, Some("job_2")),
            (format!("{{\"id\":\"job_1\"}}\n{long}"), 15, Some("job_1")),
            ("{\"id\":\"job_1".to_owned(), 0, None),
        ] {
            let (_temp, path) = file(content.as_bytes());
            let mut sink = Sink::file(&path).unwrap();
            assert_eq!(sink.after.as_deref(), after);
            sink.write(b"{\"id\":\"job_9\"}").unwrap();
            sink.flush().unwrap();
            assert_eq!(sink.after.as_deref(), Some("job_9"));
            let now = std::fs::read_to_string(&path).unwrap();
            assert_eq!(now, format!("{}{{\"id\":\"job_9\"}}\n", &content[..whole]));
        }
    }

    #[test]
    fn a_foreign_file_is_left_as_it_is() {
        for content in ["precious", "precious\n", "{\"name\": 1}\n", "{\"id\":\"job_1\"}\nprecious\n"] {
            let (_temp, path) = file(content.as_bytes());
            let refused = Sink::file(&path).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("something else than results"), "{content:?}: {refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
