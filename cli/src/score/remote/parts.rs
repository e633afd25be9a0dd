//! A dataset in parts, each small enough for a batch, always cut at the same places; and which batches were made of them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use contract::Kind;
use contract::batch::MAX_LINES;
use contract::openai::batches::{endpoint, kind_of};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::lines::Dataset;
use super::super::reading::Reading;

/// Items of the first part: few, so that the server begins at once. Each further part has four times as many, up to what a
/// batch may have.
const FIRST_ITEMS: u64 = 256;
/// A part ends when its requests have so many bytes: its last line is on top, and all are far below what a file may have.
const PART_BYTES: u64 = 64 * 1_000_000;
/// Says how parts are cut and named: keys of another way must not meet.
pub const FORMAT: &str = "penstock score 1";

/// Most items of a part.
fn most_items(number: u32) -> u64 {
    let items = 4_u64.checked_pow(number).and_then(|times| times.checked_mul(FIRST_ITEMS));
    items.map_or(u64::from(MAX_LINES), |items| items.min(u64::from(MAX_LINES)))
}

/// The custom id of an item's request: unique, which the items' own need not be.
fn name_of(line: u64) -> String {
    format!("line-{line}")
}

/// The line of the input that a custom id stands for.
pub fn line_of(custom_id: &str) -> Option<u64> {
    custom_id.strip_prefix("line-")?.parse().ok()
}

/// Walks through the dataset ahead of the output.
pub struct Cutter {
    dataset: Dataset,
    number: u32,
    at: u64,
}

/// A part that was cut.
#[derive(Debug)]
pub struct Cut {
    /// Which, from 0.
    pub number: u32,
    /// Items of the dataset up to its end.
    pub end: u64,
    /// Its requests, one file for each route, with their number.
    pub files: Vec<(Kind, PathBuf, u64)>,
}

impl Cutter {
    /// At the beginning of a dataset.
    pub fn new(dataset: Dataset) -> Self {
        Self { dataset, number: 0, at: 0 }
    }

    /// The number of the next part.
    pub fn next_number(&self) -> u32 {
        self.number
    }

    /// Cuts the next part; its files come into the folder, unless the part is sent already. `None` at the end.
    ///
    /// # Errors
    /// The dataset cannot be read, or the folder not written.
    pub fn cut(&mut self, reading: &Reading, folder: &Path, is_sent: bool) -> anyhow::Result<Option<Cut>> {
        let number = self.number;
        let (mut files, mut bytes, mut items) = (BTreeMap::<&str, (Kind, Option<BufWriter<File>>, u64)>::new(), 0, 0);
        let path = |route: &str| folder.join(format!("part-{number:05}-{}.jsonl", word(route)));
        while items < most_items(number) && bytes < PART_BYTES {
            let Some(item) = self.dataset.next()? else { break };
            items += 1;
            let line = item.line;
            let (_, Ok(body)) = reading.read(item) else { continue };
            let route = endpoint(body.kind);
            let request = json!({"custom_id": name_of(line), "method": "POST", "url": route, "body": body.value});
            let mut request = serde_json::to_vec(&request)?;
            request.push(b'\n');
            bytes += request.len() as u64;
            if !files.contains_key(route) {
                let made = |path: PathBuf| {
                    File::create(&path)
                        .map(BufWriter::new)
                        .with_context(|| format!("{} cannot be made", path.display()))
                };
                let file = if is_sent { None } else { Some(made(path(route))?) };
                files.insert(route, (body.kind, file, 0));
            }
            if let Some((_, file, lines)) = files.get_mut(route) {
                *lines += 1;
                if let Some(file) = file {
                    file.write_all(&request).with_context(|| format!("{} cannot be written", path(route).display()))?;
                }
            }
        }
        if items == 0 {
            return Ok(None);
        }
        let mut cut = Vec::new();
        for (route, (kind, file, lines)) in files {
            if let Some(mut file) = file {
                file.flush().with_context(|| format!("{} cannot be written", path(route).display()))?;
            }
            cut.push((kind, path(route), lines));
        }
        self.number += 1;
        self.at += items;
        Ok(Some(Cut { number, end: self.at, files: cut }))
    }
}

/// A route as a word of a file's name.
fn word(route: &str) -> &'static str {
    kind_of(route).unwrap_or(Kind::Completion).as_str()
}

/// A batch that was made of a part, and how many lines it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its id.
    pub id: String,
    /// Its lines.
    pub lines: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    part: u32,
    batches: Vec<Made>,
}

/// Which batches were made of which part. Losing it costs uploads and nothing else: the keys give the same batches again.
pub struct Ledger {
    file: File,
    made: BTreeMap<u32, Vec<Made>>,
}

impl Ledger {
    /// Reads what an earlier run noted; a torn last line is cut off.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("parts.jsonl");
        let cannot = || format!("{} cannot be used", path.display());
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = file.with_context(cannot)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(cannot)?;
        let (mut made, mut whole) = (BTreeMap::new(), 0);
        for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let Ok(entry) = serde_json::from_slice::<Entry>(line) else { break };
            made.insert(entry.part, entry.batches);
            whole += line.len() as u64;
        }
        file.set_len(whole).with_context(cannot)?;
        file.seek(SeekFrom::Start(whole)).with_context(cannot)?;
        Ok(Self { file, made })
    }

    /// The batches of a part, if all of them were made.
    pub fn batches(&self, part: u32) -> Option<&[Made]> {
        self.made.get(&part).map(Vec::as_slice)
    }

    /// Ids of all batches.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.made.values().flatten().map(|made| made.id.as_str())
    }

    /// Notes the batches of a part: all of them.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn note(&mut self, part: u32, batches: Vec<Made>) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&Entry { part, batches: batches.clone() })?;
        line.push(b'\n');
        self.file.write_all(&line).context("the list of parts cannot be written")?;
        self.made.insert(part, batches);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::request::Defaults;
    use super::*;

    fn reading() -> Reading {
        let defaults = Defaults { max_tokens: Some(4), ..Defaults::default() };
        Reading { model: "m".into(), release: "r".into(), any_model: false, defaults }
    }

    #[test]
    fn parts_begin_small_and_end_at_what_a_batch_may_have() {
        let sizes: Vec<_> = (0..6).map(most_items).collect();
        assert_eq!(sizes, [256, 1_024, 4_096, 16_384, 50_000, 50_000]);
        assert_eq!([31, 32, 1_000].map(most_items), [50_000; 3]);
    }

    #[test]
    fn a_dataset_is_cut_at_the_same_places_each_time_with_one_file_for_each_route() {
        let temp = tempfile::tempdir().unwrap();
        let input = temp.path().join("in.jsonl");
        let line = |n: u32| match n % 3 {
            0 => "{\"prompt\": \"x\", \"custom_id\": \"same\"}\n",
            1 => "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n",
            _ => "not json\n",
        };
        std::fs::write(&input, (0..300).map(line).collect::<String>()).unwrap();
        let cuts = |is_sent: bool| {
            let mut cutter = Cutter::new(Dataset::open(&input, None).unwrap());
            let mut cuts = Vec::new();
            while let Some(cut) = cutter.cut(&reading(), temp.path(), is_sent).unwrap() {
                cuts.push(cut);
            }
            cuts
        };
        let first = cuts(false);
        let shape = |cuts: &[Cut]| {
            let of =
                |cut: &Cut| (cut.number, cut.end, cut.files.iter().map(|(_, _, lines)| *lines).collect::<Vec<_>>());
            cuts.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(shape(&first), [(0, 256, vec![85, 86]), (1, 300, vec![15, 14])]);
        let content = std::fs::read_to_string(&first[1].files[1].1).unwrap();
        assert_eq!(
            content.lines().next().unwrap(),
            "{\"custom_id\":\"line-259\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"model\":\"m\",\"max_tokens\":4}}"
        );
        for (_, path, _) in first.iter().flat_map(|cut| &cut.files) {
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!(shape(&cuts(true)), shape(&first), "a part that is sent has the same end");
        assert!(first.iter().flat_map(|cut| &cut.files).all(|(_, path, _)| !path.exists()));
    }

    #[test]
    fn names_stand_for_lines() {
        assert_eq!(line_of(&name_of(17)), Some(17));
        assert_eq!(line_of("17"), None);
    }

    #[test]
    fn a_torn_note_is_cut_off() {
        let temp = tempfile::tempdir().unwrap();
        let made = |id: &str| vec![Made { id: id.to_owned(), lines: 3 }];
        let mut ledger = Ledger::open(temp.path()).unwrap();
        ledger.note(0, made("batch_0")).unwrap();
        ledger.note(1, vec![]).unwrap();
        let path = temp.path().join("parts.jsonl");
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"{\"part\":2,\"bat").unwrap();
        let mut ledger = Ledger::open(temp.path()).unwrap();
        assert_eq!(ledger.batches(0), Some(&made("batch_0")[..]));
        assert_eq!((ledger.batches(1), ledger.batches(2)), (Some(&[][..]), None));
        ledger.note(2, made("batch_2")).unwrap();
        assert_eq!(Ledger::open(temp.path()).unwrap().ids().collect::<Vec<_>>(), ["batch_0", "batch_2"]);
    }
}
