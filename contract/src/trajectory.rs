//! Trajectories: what is kept of jobs for whoever learns from them, checks them or runs them again.
//!
//! A full trajectory is the job's [`Record`]; a redacted one is [`RedactedRecord`], without what was said. Both are one
//! line of JSON. A segment is an object of many such lines, each a zstd frame of its own, so that the whole object is a
//! `.jsonl.zst` file and any range that the store names is one line.
//!
//! Whoever reads segments without the store may meet a job in two of them: an archiver that died after it wrote a
//! segment left one that no row points to, and the next one wrote those records again. Both lines say the same; the
//! job's row (`segment`) tells which of them counts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::constraint::RuleKind;
use crate::ids::{Fingerprint, JobId};
use crate::outcome::{FinishReason, Usage};
use crate::record::{AttemptTimings, Record, RecordError, SegmentPlace, TrajectoryMode, output_hash, pack, unpack};
use crate::request::{Kind, Request, Sampling};

/// The version of both documents.
const VERSION: u32 = 1;

/// One line of a segment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Trajectory {
    /// All of the record.
    Full(Box<Record>),
    /// Without what was said.
    Redacted(Box<RedactedRecord>),
}

/// What tells the documents apart.
#[derive(Deserialize)]
struct Probe {
    v: u32,
    #[serde(default)]
    redacted: bool,
}

impl Trajectory {
    /// What is kept of `record` under `mode`; `None` when nothing is.
    pub fn of(record: Record, mode: TrajectoryMode) -> Option<Self> {
        match mode {
            TrajectoryMode::Full => Some(Trajectory::Full(Box::new(record))),
            TrajectoryMode::Redacted => Some(Trajectory::Redacted(Box::new(RedactedRecord::of(&record)))),
            TrajectoryMode::Off => None,
        }
    }

    /// Reads one line, with or without its line break.
    ///
    /// # Errors
    /// [`RecordError`] when it is no trajectory of a version this build reads.
    pub fn from_json(line: &[u8]) -> Result<Self, RecordError> {
        let probe: Probe = serde_json::from_slice(line).map_err(RecordError::Parse)?;
        match probe {
            Probe { v: VERSION, redacted: false } => {
                serde_json::from_slice(line).map(|record| Trajectory::Full(Box::new(record)))
            }
            Probe { v: VERSION, redacted: true } => {
                serde_json::from_slice(line).map(|record| Trajectory::Redacted(Box::new(record)))
            }
            Probe { v, .. } => return Err(RecordError::Version(v)),
        }
        .map_err(RecordError::Parse)
    }

    /// Reads one frame of a segment.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are damaged.
    pub fn from_frame(frame: &[u8]) -> Result<Self, RecordError> {
        Self::from_json(&unpack(frame)?)
    }

    /// The frame of a segment: a line of JSON, its line break included, compressed with zstd.
    ///
    /// # Errors
    /// As [`Record::encode`].
    pub fn to_frame(&self) -> Result<Vec<u8>, RecordError> {
        pack(self)
    }

    /// The job.
    pub fn job(&self) -> JobId {
        match self {
            Trajectory::Full(record) => record.job,
            Trajectory::Redacted(record) => record.job,
        }
    }

    /// The release that answered.
    pub fn release(&self) -> &Fingerprint {
        match self {
            Trajectory::Full(record) => &record.release,
            Trajectory::Redacted(record) => &record.release,
        }
    }
}

/// A record without what was said: no text and no token id of prompt or answer, and none of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RedactedRecord {
    /// Version of this document: 1.
    pub v: u32,
    /// True: what tells it from a whole record.
    pub redacted: bool,
    /// The job.
    pub job: JobId,
    /// The attempt that gave this result.
    pub attempt: u32,
    /// The release that answered.
    pub release: Fingerprint,
    /// Chat or completion.
    pub kind: Kind,
    /// Parameters as they were honoured.
    pub request: RedactedRequest,
    /// The seed used, given or drawn at acceptance.
    pub seed: u64,
    /// The answers.
    pub choices: Vec<RedactedChoice>,
    /// Tokens used.
    pub usage: Usage,
    /// Times of the attempt.
    pub timings: AttemptTimings,
}

/// The parameters of a request without its texts and token ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RedactedRequest {
    /// The model name the client used.
    pub model: String,
    /// How tokens were chosen, but for `logit_bias`.
    pub sampling: Sampling,
    /// How many token ids `logit_bias` had.
    #[serde(default, skip_serializing_if = "is_none_given")]
    pub n_logit_bias: u32,
    /// Most tokens to generate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// No end before this many tokens.
    pub min_tokens: u32,
    /// Whether it went on after end-of-text tokens.
    pub ignore_eos: bool,
    /// How many stop strings were given.
    pub n_stop: u32,
    /// Whether the one that ended the answer was shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_stop: bool,
    /// How many stop token ids were given.
    pub n_stop_token_ids: u32,
    /// How many of the likeliest tokens were asked for beside each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u8>,
    /// What kind of rule the answer kept to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<RuleKind>,
    /// How many functions the model could call.
    #[serde(default, skip_serializing_if = "is_none_given")]
    pub n_tools: u32,
}

/// What is left of one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactedChoice {
    /// Tokens generated.
    pub n_output: u32,
    /// SHA-256 over the output's token ids, as [`output_hash`] makes it: says whether two answers are the same. Of an
    /// answer of a few tokens it says more: whoever has the model can try them all.
    pub output_hash: String,
    /// Why it ends.
    pub finish_reason: FinishReason,
}

impl RedactedRecord {
    /// The redacted view of a record.
    pub fn of(record: &Record) -> Self {
        let Request {
            model,
            input: _,
            sampling,
            max_tokens,
            min_tokens,
            ignore_eos,
            stop,
            include_stop,
            stop_token_ids,
            logprobs,
            constraint,
            tools,
        } = &record.request;
        let request = RedactedRequest {
            model: model.clone(),
            sampling: Sampling { logit_bias: BTreeMap::new(), ..sampling.clone() },
            n_logit_bias: count(sampling.logit_bias.len()),
            max_tokens: *max_tokens,
            min_tokens: *min_tokens,
            ignore_eos: *ignore_eos,
            n_stop: count(stop.len()),
            include_stop: *include_stop,
            n_stop_token_ids: count(stop_token_ids.len()),
            logprobs: *logprobs,
            constraint: constraint.as_ref().map(|constraint| constraint.rule.kind()),
            n_tools: count(tools.as_ref().map_or(0, |tools| tools.offered.len())),
        };
        let choices = record.choices.iter().map(|choice| RedactedChoice {
            n_output: count(choice.output_ids.len()),
            output_hash: output_hash(&choice.output_ids),
            finish_reason: choice.finish_reason,
        });
        Self {
            v: VERSION,
            redacted: true,
            job: record.job,
            attempt: record.attempt,
            release: record.release.clone(),
            kind: record.kind,
            request,
            seed: record.seed,
            choices: choices.collect(),
            usage: record.usage,
            timings: record.timings,
        }
    }
}

fn is_none_given(n: &u32) -> bool {
    *n == 0
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A job's trajectory as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TrajectoryObject {
    /// Always `trajectory`.
    #[schema(example = "trajectory")]
    pub object: &'static str,
    /// The job's id.
    #[schema(value_type = String)]
    pub job: JobId,
    /// `full` or `redacted`.
    pub mode: TrajectoryMode,
    /// Where it was archived; null as long as it is only beside the job.
    #[schema(required, value_type = Option<Object>)]
    pub segment: Option<SegmentPlace>,
    /// The record: with mode `full` prompt and output with their token ids, parameters, seed, usage and times; with mode
    /// `redacted` (then it says `"redacted": true`) counts and the output's hash in place of what was said.
    #[schema(value_type = Object)]
    pub record: Trajectory,
}

impl TrajectoryObject {
    /// The object of one trajectory.
    pub fn new(record: Trajectory, segment: Option<SegmentPlace>) -> Self {
        let mode = match &record {
            Trajectory::Full(_) => TrajectoryMode::Full,
            Trajectory::Redacted(_) => TrajectoryMode::Redacted,
        };
        Self { object: "trajectory", job: record.job(), mode, segment, record }
    }
}

/// The key of a new segment: `trajectories/RELEASE12/YYYY/MM/DD/ID.jsonl.zst`, the day (UTC) being that of the id.
/// `id` is a UUIDv7; another version counts as made at the epoch.
pub fn segment_key(release: &Fingerprint, id: Uuid) -> String {
    let (seconds, _) = id.get_timestamp().map_or((0, 0), |at| at.to_unix());
    let made_at = i64::try_from(seconds).ok().and_then(|at| time::OffsetDateTime::from_unix_timestamp(at).ok());
    let day = made_at.unwrap_or(time::OffsetDateTime::UNIX_EPOCH).date();
    let (year, month, day) = (day.year(), u8::from(day.month()), day.day());
    format!("trajectories/{}/{year:04}/{month:02}/{day:02}/{}.jsonl.zst", release.short(), id.simple())
}

/// The frame of a stored record under `mode`, whose JSON is one line: for [`TrajectoryMode::Full`] the stored bytes
/// themselves. `None` for [`TrajectoryMode::Off`].
///
/// # Errors
/// [`RecordError`] when the stored bytes are damaged, or are another job's or release's.
pub fn frame_of<'a>(
    encoded: &'a [u8],
    job: &JobId,
    release: &Fingerprint,
    mode: TrajectoryMode,
) -> Result<Option<Cow<'a, [u8]>>, RecordError> {
    let json = unpack(encoded)?;
    let record = match Trajectory::from_json(&json)? {
        Trajectory::Full(record) if record.job == *job && record.release == *release => *record,
        _ => return Err(RecordError::Foreign),
    };
    // Records of earlier builds end without a line break.
    let is_line = json.iter().position(|byte| *byte == b'\n') == Some(json.len() - 1);
    if mode == TrajectoryMode::Full && is_line {
        return Ok(Some(Cow::Borrowed(encoded)));
    }
    Trajectory::of(record, mode).map(|kept| kept.to_frame().map(Cow::Owned)).transpose()
}

/// A segment while it grows.
#[derive(Debug, Clone)]
pub struct SegmentBuilder {
    key: String,
    bytes: Vec<u8>,
    places: Vec<(JobId, SegmentPlace)>,
}

impl SegmentBuilder {
    /// An empty segment that will be stored under `key`.
    pub fn new(key: String) -> Self {
        Self { key, bytes: Vec::new(), places: Vec::new() }
    }

    /// Appends a frame, which is not empty and below 4 GiB.
    ///
    /// # Panics
    /// When it is neither.
    pub fn push(&mut self, job: JobId, frame: &[u8]) {
        assert!(!frame.is_empty(), "a frame has bytes");
        let length = u32::try_from(frame.len()).expect("a frame is below 4 GiB");
        self.places.push((job, SegmentPlace { key: self.key.clone(), offset: self.bytes.len() as u64, length }));
        self.bytes.extend_from_slice(frame);
    }

    /// Bytes so far.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Its key, all its bytes, and where each job is in them.
    pub fn finish(self) -> (String, Vec<u8>, Vec<(JobId, SegmentPlace)>) {
        (self.key, self.bytes, self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::{Constraint, Rule};
    use crate::reading::Reading;
    use crate::record::ChoiceRecord;
    use crate::request::{Input, Message, Prompt, Role};
    use crate::tools::{Tool, ToolCall, ToolChoice, ToolUse};

    fn record(text: &str) -> Record {
        Record {
            v: 1,
            job: JobId::new(),
            attempt: 2,
            release: Fingerprint("ab".repeat(32)),
            kind: Kind::Chat,
            request: Request {
                model: "small".into(),
                input: Input::Chat(vec![
                    Message { name: Some("secret name".into()), ..Message::of(Role::User, "secret question") },
                    Message {
                        tool_calls: vec![ToolCall {
                            id: "secret id".into(),
                            name: "secret_tool".into(),
                            arguments: r#"{"a": "secret argument"}"#.into(),
                        }],
                        ..Message::of(Role::Assistant, "")
                    },
                ]),
                sampling: Sampling {
                    seed: Some(5),
                    logit_bias: BTreeMap::from([(456_789, 1.0)]),
                    presence_penalty: 0.5,
                    ..Sampling::default()
                },
                max_tokens: Some(9),
                min_tokens: 1,
                ignore_eos: false,
                stop: vec!["secret stop".into(), "\n".into()],
                include_stop: false,
                stop_token_ids: vec![987_654],
                logprobs: None,
                constraint: Some(Constraint {
                    field: "guided_choice".into(),
                    rule: Rule::Choice(vec!["secret choice".into()]),
                }),
                tools: Some(ToolUse {
                    offered: vec![Tool {
                        name: "secret_tool".into(),
                        description: Some("secret purpose".into()),
                        parameters: Some(r#"{"title": "secret schema"}"#.into()),
                        strict: false,
                    }],
                    choice: ToolChoice::Auto,
                    parallel: true,
                }),
            },
            seed: u64::MAX,
            prompt_text: "secret question, rendered".into(),
            prompt_ids: vec![123_456, 4],
            choices: vec![ChoiceRecord {
                output_ids: vec![1],
                text: text.into(),
                ends: vec![text.len() as u32],
                logprobs: None,
                finish_reason: FinishReason::Stop,
                stop_reason: Some("secret stop".into()),
            }],
            usage: Usage { prompt_tokens: 2, cached_tokens: 0, output_tokens: 1 },
            timings: AttemptTimings { prepared_ms: 1, first_token_ms: 2, finished_ms: 3 },
            reading: Reading::default(),
        }
    }

    #[test]
    fn a_redacted_line_holds_nothing_that_was_said() {
        let record = record("secret answer");
        let line = serde_json::to_string(&RedactedRecord::of(&record)).unwrap();
        for said in ["secret", "123456", "987654", "456789", "prompt_ids", "output_ids", "\"text\"", "stop_reason"] {
            assert!(!line.contains(said), "{said} is in {line}");
        }
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        // `printf '\x01\x00\x00\x00' | sha256sum`
        let hash = "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450";
        assert_eq!(value["choices"][0]["output_hash"], hash);
        assert_eq!(value["choices"][0]["n_output"], 1);
        assert_eq!((&value["seed"], &value["request"]["n_stop"]), (&u64::MAX.into(), &2.into()));
        assert_eq!(value["request"]["n_logit_bias"], 1);
        assert_eq!(value["request"]["sampling"]["presence_penalty"], 0.5);
        assert_eq!((&value["usage"]["prompt_tokens"], &value["timings"]["finished_ms"]), (&2.into(), &3.into()));
        assert_eq!((&value["request"]["constraint"], &value["request"]["n_tools"]), (&"choice".into(), &1.into()));
        assert_eq!((&value["redacted"], &value["release"]), (&true.into(), &"ab".repeat(32).into()));
    }

    #[test]
    fn lines_are_told_apart_and_never_taken_for_one_another() {
        let full = Trajectory::of(record("x"), TrajectoryMode::Full).unwrap();
        let redacted = Trajectory::of(record("x"), TrajectoryMode::Redacted).unwrap();
        assert_eq!(Trajectory::of(record("x"), TrajectoryMode::Off), None);
        for kept in [&full, &redacted] {
            assert_eq!(&Trajectory::from_frame(&kept.to_frame().unwrap()).unwrap(), kept);
        }
        assert!(Record::decode(&redacted.to_frame().unwrap()).is_err(), "half a record is none");
        assert!(matches!(Trajectory::from_json(br#"{"v":2,"redacted":true}"#), Err(RecordError::Version(2))));
        assert!(Trajectory::from_json(b"{}").is_err());
        assert!(Trajectory::from_json(br#"{"v":1}"#).is_err());
    }

    #[test]
    fn a_segment_is_one_file_of_lines_and_its_ranges_are_the_records() {
        let records = [record("one"), record("two\nlines"), record("\u{1f600}")];
        let mut segment = SegmentBuilder::new("k".into());
        for record in &records {
            let encoded = record.encode().unwrap();
            let frame = frame_of(&encoded, &record.job, &record.release, TrajectoryMode::Full).unwrap().unwrap();
            assert!(matches!(frame, Cow::Borrowed(_)), "a full trajectory is the record as it was stored");
            segment.push(record.job, &frame);
        }
        let n_bytes = segment.n_bytes();
        let (key, bytes, places) = segment.finish();
        assert_eq!((key.as_str(), bytes.len()), ("k", n_bytes));
        // Read as a whole, frames and all, by the library's own reader.
        let text = String::from_utf8(zstd::stream::decode_all(bytes.as_slice()).unwrap()).unwrap();
        assert!(text.ends_with('\n'));
        assert_eq!(text.lines().count(), records.len());
        for ((record, line), (job, place)) in records.iter().zip(text.lines()).zip(&places) {
            assert_eq!(Trajectory::from_json(line.as_bytes()).unwrap(), Trajectory::Full(Box::new(record.clone())));
            let range = place.offset as usize..place.offset as usize + place.length as usize;
            assert_eq!((job, &Record::decode(&bytes[range]).unwrap()), (&record.job, record));
        }
    }

    #[test]
    fn records_without_a_line_break_get_one_and_foreign_ones_are_refused() {
        let record = record("old");
        let old = zstd::bulk::compress(&serde_json::to_vec(&record).unwrap(), 3).unwrap();
        let frame = frame_of(&old, &record.job, &record.release, TrajectoryMode::Full).unwrap().unwrap();
        assert!(zstd::stream::decode_all(&*frame).unwrap().ends_with(b"}\n"));
        assert_eq!(Record::decode(&frame).unwrap(), record);
        let other = |job, release| frame_of(&old, &job, &release, TrajectoryMode::Full);
        assert!(matches!(other(JobId::new(), record.release.clone()), Err(RecordError::Foreign)));
        assert!(matches!(other(record.job, Fingerprint("cd".into())), Err(RecordError::Foreign)));
        assert!(frame_of(&old[..old.len() - 3], &record.job, &record.release, TrajectoryMode::Redacted).is_err());
    }

    #[test]
    fn keys_carry_release_and_day() {
        // 0x0194_2f2c_5c00 ms: `date -u -d @1735958223` is 2025-01-04.
        let id: Uuid = "01942f2c-5c00-7000-8000-000000000001".parse().unwrap();
        assert_eq!(
            segment_key(&Fingerprint("ab".repeat(32)), id),
            "trajectories/abababababab/2025/01/04/01942f2c5c0070008000000000000001.jsonl.zst"
        );
    }

    #[test]
    fn the_api_object_says_which_mode_it_is() {
        let full = Trajectory::of(record("x"), TrajectoryMode::Full).unwrap();
        let value = serde_json::to_value(TrajectoryObject::new(full, None)).unwrap();
        assert_eq!((&value["object"], &value["mode"]), (&"trajectory".into(), &"full".into()));
        assert!(value["segment"].is_null());
        assert_eq!(value["record"]["prompt_ids"], serde_json::json!([123_456, 4]));
        let mut record = record("x");
        record.request.input = Input::Completion(Prompt::Tokens(vec![7]));
        let value = serde_json::to_value(RedactedRecord::of(&record)).unwrap();
        assert!(value["request"].get("input").is_none());
    }
}
