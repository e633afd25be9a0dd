//! Bodies of the sequence routes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sequence::{Sequence, SequenceState};

/// A sequence as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SequenceObject {
    /// Its key: `sequence_key` of its jobs.
    #[schema(example = "order 17/4")]
    pub key: String,
    /// Always `sequence`.
    pub object: String,
    /// Where it stands.
    pub state: SequenceState,
    /// Since when it is blocked.
    #[schema(required)]
    pub blocked_at: Option<String>,
    /// By which job it is blocked.
    #[schema(required, example = "job_0193f0c0d0e070008000000000000001")]
    pub blocked_by: Option<String>,
    /// Jobs of it that have not ended.
    pub unfinished: u64,
    /// The first of them: its turn has come, or comes when the sequence is resumed.
    #[schema(required)]
    pub next_job: Option<String>,
}

impl SequenceObject {
    /// What is shown of a sequence.
    pub fn of(sequence: &Sequence) -> Self {
        Self {
            key: sequence.key.clone(),
            object: "sequence".to_owned(),
            state: sequence.state(),
            blocked_at: sequence.block.map(|block| block.at.rfc3339()),
            blocked_by: sequence.block.map(|block| block.job.to_string()),
            unfinished: sequence.unfinished,
            next_job: sequence.next.map(|(job, _)| job.to_string()),
        }
    }
}

/// A page of blocked sequences, by key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SequenceList {
    /// Always `list`.
    pub object: String,
    /// The sequences.
    pub data: Vec<SequenceObject>,
    /// Key of the last of them: `after` of the next page.
    #[schema(required)]
    pub last_key: Option<String>,
    /// Whether more follow.
    pub has_more: bool,
}

impl SequenceList {
    /// A page.
    pub fn new(sequences: &[Sequence], has_more: bool) -> Self {
        Self {
            object: "list".to_owned(),
            data: sequences.iter().map(SequenceObject::of).collect(),
            last_key: sequences.last().map(|last| last.key.clone()),
            has_more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::JobId;
    use crate::life::JobState;
    use crate::sequence::SequenceBlock;
    use crate::time::Timestamp;
    use serde_json::{Value, json};

    #[test]
    fn a_sequence_has_the_documented_shape() {
        let job = |n: u128| JobId(uuid::Uuid::from_u128(n));
        let block = SequenceBlock { job: job(1), at: Timestamp(1_764_439_454_120) };
        let mut sequence =
            Sequence { key: "a/b".into(), block: Some(block), unfinished: 2, next: Some((job(2), JobState::Queued)) };
        let shown = |sequence: &Sequence| serde_json::to_value(SequenceObject::of(sequence)).unwrap();
        let expected = json!({
            "key": "a/b", "object": "sequence", "state": "blocked", "blocked_at": "2025-11-29T18:04:14.12Z",
            "blocked_by": job(1).to_string(), "unfinished": 2, "next_job": job(2).to_string(),
        });
        assert_eq!(shown(&sequence), expected);
        sequence.block = None;
        assert_eq!((&shown(&sequence)["state"], &shown(&sequence)["blocked_by"]), (&json!("idle"), &Value::Null));
        sequence.next = Some((job(2), JobState::Running));
        assert_eq!(shown(&sequence)["state"], "running");
        let page = serde_json::to_value(SequenceList::new(&[sequence.clone()], true)).unwrap();
        assert_eq!(page, json!({"object": "list", "data": [shown(&sequence)], "last_key": "a/b", "has_more": true}));
    }
}
