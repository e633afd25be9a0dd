//! The record: one document per finished job, from which results and trajectories are views.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zstd::bulk::{Compressor, Decompressor};

use crate::ids::{Fingerprint, JobId, TenantId};
use crate::outcome::{FinishReason, Usage};
use crate::reading::{Piece, Reading};
use crate::request::{Kind, Request};

/// Largest encoded record that is kept in the job's row; a larger one is staged in the object store.
pub const INLINE_BYTES: usize = 16 * 1024;

/// Largest document that [`Record::decode`] will unpack.
const MAX_DECODED_BYTES: usize = 256 * 1024 * 1024;

/// Where a job's encoded record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordLocation {
    /// In the row: at most [`INLINE_BYTES`] bytes.
    Inline(Vec<u8>),
    /// Under this key of the object store.
    Staged(String),
    /// In a segment of archived records.
    Archived(SegmentPlace),
}

/// Where one record is within a segment: an object of many records, each a zstd frame of its own that holds one line of
/// JSON. Read together the frames are one `.jsonl.zst` file; a range of it is one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPlace {
    /// The segment's key in the object store.
    pub key: String,
    /// First byte of the frame.
    pub offset: u64,
    /// Bytes of the frame, at least 1.
    pub length: u32,
}

impl std::fmt::Display for SegmentPlace {
    /// `KEY#OFFSET+LENGTH`, as the store keeps it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}+{}", self.key, self.offset, self.length)
    }
}

/// A text that is no [`SegmentPlace`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no place in a segment: KEY#OFFSET+LENGTH")]
pub struct BadSegmentPlace(String);

impl std::str::FromStr for SegmentPlace {
    type Err = BadSegmentPlace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (key, range) = text.rsplit_once('#')?;
            let (offset, length) = range.split_once('+')?;
            Some(Self { key: key.to_owned(), offset: offset.parse().ok()?, length: length.parse().ok()? })
        };
        parse()
            .filter(|place| !place.key.is_empty() && place.length > 0)
            .ok_or_else(|| BadSegmentPlace(text.to_owned()))
    }
}

impl RecordLocation {
    /// Where a record is that is not in its row, from the text the store keeps: a key, or a place in a segment. Keys
    /// have no `#`.
    ///
    /// # Errors
    /// [`BadSegmentPlace`] when there is a `#` and the rest is no range.
    pub fn from_reference(text: String) -> Result<Self, BadSegmentPlace> {
        if text.contains('#') { Ok(Self::Archived(text.parse()?)) } else { Ok(Self::Staged(text)) }
    }
}

/// How much of a job is kept as its trajectory, decided when it is accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TrajectoryMode {
    /// All of the record: prompt and output with their token ids.
    #[default]
    Full,
    /// Without what was said: no text and no token ids, only their counts and hash, the parameters, times and usage.
    Redacted,
    /// Nothing: only the result is kept.
    Off,
}

impl TrajectoryMode {
    /// The word in settings, the store and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            TrajectoryMode::Full => "full",
            TrajectoryMode::Redacted => "redacted",
            TrajectoryMode::Off => "off",
        }
    }
}

/// How much of a tenant's jobs is kept as trajectories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trajectories {
    /// Of tenants that are not named.
    pub default: TrajectoryMode,
    /// By tenant.
    pub tenants: BTreeMap<TenantId, TrajectoryMode>,
    /// How long payloads of jobs are kept after the end, where a job does not say; `None` is for ever.
    pub keep: Option<Duration>,
}

impl Trajectories {
    /// What applies to a tenant.
    pub fn of(&self, tenant: &TenantId) -> TrajectoryMode {
        self.tenants.get(tenant).copied().unwrap_or(self.default)
    }
}

/// A word that names no [`TrajectoryMode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no trajectory mode: full, redacted or off")]
pub struct UnknownTrajectoryMode(String);

impl std::str::FromStr for TrajectoryMode {
    type Err = UnknownTrajectoryMode;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "full" => Ok(TrajectoryMode::Full),
            "redacted" => Ok(TrajectoryMode::Redacted),
            "off" => Ok(TrajectoryMode::Off),
            other => Err(UnknownTrajectoryMode(other.chars().take(40).collect())),
        }
    }
}

/// The log-probability of one token, by the model's own distribution (before temperature and filters).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token's text; replacement characters where its bytes are no whole characters.
    pub token: String,
    /// Its bytes; absent for tokens that stand for no text.
    pub bytes: Option<Vec<u8>>,
    /// Natural logarithm of its probability; always finite, at least -9999.
    pub logprob: f32,
    /// The most likely tokens at this position, best first; as many as asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TopLogprob>,
}

/// One of the most likely tokens at a position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// The token's text.
    pub token: String,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// One generated answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChoiceRecord {
    /// Ids of the generated tokens, the ending one included.
    pub output_ids: Vec<u32>,
    /// The text as the model wrote it, with its marks of calls and thoughts: [`Record::read`] tells them apart.
    pub text: String,
    /// Length of the visible text in bytes after each token: `ends[i]` belongs to `output_ids[i]`. A stream is rebuilt
    /// from it exactly as it was sent. Text that was held back at the end belongs to the last token.
    pub ends: Vec<u32>,
    /// One entry per token, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Why it ends.
    pub finish_reason: FinishReason,
    /// The stop string or stop token id that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<serde_json::Value>,
}

/// Milliseconds of one attempt, measured by the worker's monotonic clock from the lease on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptTimings {
    /// Lease to the start in the engine (rendering, tokenising, waiting for room).
    pub prepared_ms: u64,
    /// Lease to the first token.
    pub first_token_ms: u64,
    /// Lease to the last token.
    pub finished_ms: u64,
}

/// Everything that is kept of a finished job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this document: 1.
    pub v: u32,
    /// The job.
    pub job: JobId,
    /// The attempt that gave this result.
    pub attempt: u32,
    /// The release that answered.
    pub release: Fingerprint,
    /// Chat or completion.
    pub kind: Kind,
    /// Parameters as they were honoured; the input itself is in `prompt_ids` and `prompt_text`.
    pub request: Request,
    /// The seed used, given or drawn at acceptance.
    pub seed: u64,
    /// The prompt as the model saw it.
    pub prompt_text: String,
    /// Its token ids.
    pub prompt_ids: Vec<u32>,
    /// The answers, as many as were asked for.
    pub choices: Vec<ChoiceRecord>,
    /// Tokens used.
    pub usage: Usage,
    /// Times of the attempt.
    pub timings: AttemptTimings,
    /// How the texts of the answers are read.
    #[serde(default, skip_serializing_if = "Reading::is_plain")]
    pub reading: Reading,
}

/// A document that is no record of a version this build reads.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not a zstd frame, or longer unpacked than a record can be.
    #[error("the stored record could not be unpacked")]
    Unpack(#[source] io::Error),
    /// Not the JSON of a record.
    #[error("the stored record could not be read")]
    Parse(#[source] serde_json::Error),
    /// Written by a later build.
    #[error("the stored record has version {0}, and this build reads version 1: use a newer one")]
    Version(u32),
    /// A record, but not the one that was looked for.
    #[error("the stored record is another job's or another release's")]
    Foreign,
}

/// A document as it is stored: one line of JSON, its line break included, as one zstd frame.
pub(crate) fn pack(document: &impl Serialize) -> Result<Vec<u8>, RecordError> {
    let mut json = serde_json::to_vec(document).map_err(RecordError::Parse)?;
    // Frames one after another are then a file of lines.
    json.push(b'\n');
    // A context is megabytes that are cheap to use again and dear to make anew for a record of a kilobyte.
    PACKER
        .with_borrow_mut(|packer| packer.as_mut().map_err(|_| memory_is_out())?.compress(&json))
        .map_err(RecordError::Unpack)
}

/// The JSON of a stored document, at most [`MAX_DECODED_BYTES`].
pub(crate) fn unpack(bytes: &[u8]) -> Result<Vec<u8>, RecordError> {
    let bound = Decompressor::upper_bound(bytes).unwrap_or(MAX_DECODED_BYTES).min(MAX_DECODED_BYTES);
    UNPACKER
        .with_borrow_mut(|unpacker| unpacker.as_mut().map_err(|_| memory_is_out())?.decompress(bytes, bound))
        .map_err(RecordError::Unpack)
}

thread_local! {
    static PACKER: RefCell<io::Result<Compressor<'static>>> = RefCell::new(Compressor::new(3));
    static UNPACKER: RefCell<io::Result<Decompressor<'static>>> = RefCell::new(Decompressor::new());
}

fn memory_is_out() -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

impl Record {
    /// The stored form: one line of JSON, compressed with zstd.
    ///
    /// # Errors
    /// [`RecordError`] if a number is not finite (JSON has none such) or memory is out.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        pack(self)
    }

    /// Reads the stored form back.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: Self = serde_json::from_slice(&unpack(bytes)?).map_err(RecordError::Parse)?;
        if record.v == 1 { Ok(record) } else { Err(RecordError::Version(record.v)) }
    }

    /// An answer read: its message, its calls, its thoughts.
    pub fn read(&self, choice: &ChoiceRecord) -> Piece {
        let names = self.request.tools.as_ref().map(|tools| tools.names());
        self.reading.read(&names.unwrap_or_default(), &choice.text)
    }

    /// Where each token of the stream stands, in the order in which they are streamed: its choice, and its place there.
    /// The first token of each choice, then the second of each that has one, and so on.
    pub fn stream_order(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let longest = self.choices.iter().map(|choice| choice.output_ids.len()).max().unwrap_or(0);
        let having = |nth| {
            let has = move |(_, choice): &(usize, &ChoiceRecord)| nth < choice.output_ids.len();
            self.choices.iter().enumerate().filter(has).map(move |(choice, _)| (choice, nth))
        };
        (0..longest).flat_map(having)
    }

    /// The output ids of all choices in the order in which they are streamed.
    pub fn streamed_ids(&self) -> Vec<u32> {
        self.stream_order().map(|(choice, nth)| self.choices[choice].output_ids[nth]).collect()
    }

    /// SHA-256 over the output ids in the order of the stream, little-endian: what the last event of a stream carries, so
    /// that a reader who spliced two attempts knows whether they agreed.
    pub fn output_hash(&self) -> String {
        output_hash(&self.streamed_ids())
    }
}

/// SHA-256 (hexadecimal) over token ids as little-endian 32-bit numbers.
pub fn output_hash(ids: &[u32]) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.to_le_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_are_an_error() {
        assert!(Record::decode(b"").is_err());
        assert!(Record::decode(b"not zstd at all").is_err());
        let no_record = zstd::bulk::compress(b"{}", 3).unwrap();
        assert!(matches!(Record::decode(&no_record), Err(RecordError::Parse(_))));
    }

    #[test]
    fn places_in_segments_are_read_back() {
        let place = SegmentPlace { key: "trajectories/2026/11/29/a.jsonl.zst".into(), offset: 7, length: 300 };
        assert_eq!(place.to_string(), "trajectories/2026/11/29/a.jsonl.zst#7+300");
        assert_eq!(place.to_string().parse(), Ok(place.clone()));
        assert_eq!(RecordLocation::from_reference(place.to_string()), Ok(RecordLocation::Archived(place)));
        assert_eq!(RecordLocation::from_reference("records/x".into()), Ok(RecordLocation::Staged("records/x".into())));
        for wrong in ["a#1", "a#1+", "#1+2", "a#1+0", "a#-1+2", "a#1+4294967296"] {
            assert!(RecordLocation::from_reference(wrong.into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_hash_is_sha256_of_the_ids() {
        // `printf '\x01\x00\x00\x00' | sha256sum`
        assert_eq!(output_hash(&[1]), "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450");
    }
}
