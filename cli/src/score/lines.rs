//! Reads a dataset line by line, in constant memory. A bad line is an answer of its own, with its number; the rest goes on.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use super::template::Template;

/// Longest line of a JSONL file, in bytes.
pub const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Whether the first line of a file ends in CRLF.
fn ends_in_crlf(path: &Path) -> anyhow::Result<bool> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut line = Vec::new();
    BufReader::new(file).take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
    Ok(line.ends_with(b"\r\n"))
}

/// What a CSV reader may have taken of the file beyond the record it is at.
const READ_AHEAD: u64 = 64 * 1024;

/// A file of which a CSV reader takes no more than a record's worth at a time: an unclosed quote would make one record of
/// all the rest.
pub struct Bounded {
    file: File,
    read: u64,
    may_read: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.read >= self.may_read.get() {
            let what = format!("it is longer than {MAX_LINE_BYTES} bytes; is a quote left open?");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
        }
        let taken = self.file.read(buffer)?;
        self.read += taken as u64;
        Ok(taken)
    }
}

/// One item of the dataset.
#[derive(Debug)]
pub struct Item {
    /// Its line in the file, from 1 (of a CSV record: the line it begins on).
    pub line: u64,
    /// Bytes of the file up to its end.
    pub end: u64,
    /// What it says, or what is wrong with it.
    pub content: Result<Value, String>,
}

/// The items of a dataset file.
pub enum Dataset {
    /// One JSON object a line; blank lines are passed over.
    Jsonl(Jsonl),
    /// Records under a header line, rendered into a prompt.
    Csv(Box<Csv>),
}

/// See [`Dataset::Jsonl`].
pub struct Jsonl {
    reader: BufReader<File>,
    line: u64,
    at: u64,
}

/// See [`Dataset::Csv`].
pub struct Csv {
    reader: csv::Reader<Bounded>,
    may_read: Rc<Cell<u64>>,
    crlf: bool,
    header: csv::StringRecord,
    template: Template,
    /// Columns that items have beside the prompt.
    kept: Vec<(String, usize)>,
}

impl Dataset {
    /// Opens a dataset: CSV when the name ends in `.csv` (or `.tsv`) and then with a template, else JSONL.
    ///
    /// # Errors
    /// The file cannot be read; a CSV file without a template or the other way round; a template that names a column
    /// that the file does not have.
    pub fn open(path: &Path, template: Option<&str>) -> anyhow::Result<Self> {
        if path.is_dir() {
            bail!("{} is a folder; give a JSONL or CSV file", path.display());
        }
        let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let extension = path.extension().and_then(|ext| ext.to_str()).map(str::to_ascii_lowercase);
        let delimiter = match extension.as_deref() {
            Some("csv") => b',',
            Some("tsv") => b'\t',
            _ if template.is_some() => {
                bail!("--template is for CSV input (a file named .csv or .tsv), and {} is not", path.display())
            }
            _ => return Ok(Dataset::Jsonl(Jsonl { reader: BufReader::with_capacity(1 << 16, file), line: 0, at: 0 })),
        };
        let Some(template) = template else {
            bail!(
                "{} is CSV: say with --template how a record becomes a prompt, as in --template \"Classify: {{{{text}}}}\"",
                path.display()
            )
        };
        let crlf = ends_in_crlf(path)?;
        let may_read = Rc::new(Cell::new(MAX_LINE_BYTES as u64 + READ_AHEAD));
        let bounded = Bounded { file, read: 0, may_read: Rc::clone(&may_read) };
        let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(bounded);
        let header =
            reader.headers().with_context(|| format!("the header line of {} cannot be read", path.display()))?;
        let header: csv::StringRecord = header.iter().map(|name| name.trim().trim_start_matches('\u{feff}')).collect();
        let template = Template::parse(template, &header)?;
        Ok(Dataset::Csv(Box::new(Csv { reader, may_read, crlf, header, template, kept: Vec::new() })))
    }

    /// Items have what is in the column `name`, too; of JSONL they have all fields anyway.
    ///
    /// # Errors
    /// A CSV file has no such column, and `must` be it.
    pub fn keep(&mut self, name: &str, must: bool) -> anyhow::Result<()> {
        let Dataset::Csv(csv) = self else { return Ok(()) };
        match csv.header.iter().position(|column| column == name) {
            Some(idx) => csv.kept.push((name.to_owned(), idx)),
            None if must => {
                let known: Vec<&str> = csv.header.iter().collect();
                bail!("the file has no column `{name}`; it has {}", known.join(", "));
            }
            None => {}
        }
        Ok(())
    }

    /// JSONL from something that is read once, such as a pipe.
    pub fn of_lines(file: File) -> Self {
        Dataset::Jsonl(Jsonl { reader: BufReader::with_capacity(1 << 16, file), line: 0, at: 0 })
    }

    /// The next item, or `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn next(&mut self) -> anyhow::Result<Option<Item>> {
        match self {
            Dataset::Jsonl(jsonl) => jsonl.next(),
            Dataset::Csv(csv) => csv.next(),
        }
    }
}

impl Jsonl {
    fn next(&mut self) -> anyhow::Result<Option<Item>> {
        loop {
            let mut bytes = Vec::new();
            let taken = (&mut self.reader).take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes)?;
            if taken == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.at += taken as u64;
            let whole = bytes.last() == Some(&b'\n');
            if !whole && taken > MAX_LINE_BYTES {
                self.skip_line()?;
                let content = Err(format!("the line is longer than {MAX_LINE_BYTES} bytes"));
                return Ok(Some(Item { line: self.line, end: self.at, content }));
            }
            let first = self.line == 1;
            let text = if first { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes) } else { &bytes };
            if text.trim_ascii().is_empty() {
                continue;
            }
            let content = contract::openai::json::parse(text.trim_ascii())
                .map_err(|err| format!("not valid JSON: {} (column {})", err.message, err.column));
            return Ok(Some(Item { line: self.line, end: self.at, content }));
        }
    }

    fn skip_line(&mut self) -> std::io::Result<()> {
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let (used, done) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(idx) => (idx + 1, true),
                None => (buffer.len(), false),
            };
            self.reader.consume(used);
            self.at += used as u64;
            if done {
                return Ok(());
            }
        }
    }
}

impl Csv {
    fn next(&mut self) -> anyhow::Result<Option<Item>> {
        let mut record = csv::StringRecord::new();
        self.may_read.set(self.reader.position().byte() + MAX_LINE_BYTES as u64 + READ_AHEAD);
        let line = self.reader.position().line();
        let content = match self.reader.read_record(&mut record) {
            Ok(false) => return Ok(None),
            Ok(true) => Ok(self.object(&record)),
            Err(err) if err.is_io_error() => {
                return Err(err).with_context(|| format!("the record that begins on line {line} cannot be read"));
            }
            Err(err) => Err(self.explain(&err)),
        };
        // The reader counts a record of a file with CRLF line ends from the line feed before it.
        let line = record.position().map_or(line, csv::Position::line) + u64::from(self.crlf);
        Ok(Some(Item { line, end: self.reader.position().byte(), content }))
    }

    fn object(&self, record: &csv::StringRecord) -> Value {
        let mut object = Map::new();
        for (name, idx) in &self.kept {
            object.insert(name.clone(), record.get(*idx).unwrap_or_default().into());
        }
        object.insert("prompt".to_owned(), self.template.render(record).into());
        let id = self.header.iter().position(|name| name == "custom_id").and_then(|idx| record.get(idx));
        if let Some(id) = id {
            object.insert("custom_id".to_owned(), id.into());
        }
        Value::Object(object)
    }

    fn explain(&self, err: &csv::Error) -> String {
        match err.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("the record has {len} columns and the header {expected_len}")
            }
            csv::ErrorKind::Utf8 { err, .. } => {
                let name = self.header.get(err.field()).unwrap_or("?");
                format!("column `{name}` is not UTF-8")
            }
            _ => err.to_string(),
        }
    }
}
