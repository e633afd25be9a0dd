//! The part of a job's row that transitions are decided on, and how columns are written, and read without trusting them.

use std::borrow::Cow;
use std::str::FromStr;

use contract::{Class, Fingerprint, JobId, JobState, Life, QueueId, Usage};
use sqlx::postgres::PgRow;
use sqlx::{Decode, Postgres, Row as _, Type};
use time::OffsetDateTime;
use uuid::Uuid;

use super::fault::Fault;

/// A job as transitions see it.
#[derive(Clone)]
pub(super) struct JobRow {
    pub(super) id: JobId,
    pub(super) tenant: String,
    pub(super) queue: QueueId,
    pub(super) life: Life,
    pub(super) worker: Option<String>,
    pub(super) lease_until: Option<i64>,
    pub(super) deadline: i64,
    pub(super) started_at: Option<i64>,
    pub(super) error: Option<String>,
    pub(super) history: String,
    pub(super) usage: Usage,
    pub(super) is_line: bool,
    /// As the column has it.
    pub(super) sequence_key: Option<String>,
}

impl JobRow {
    /// Reads the columns that `lock_jobs.sql` selects.
    pub(super) fn read(row: &PgRow) -> Result<Self, Fault> {
        let id = JobId(column::<Uuid>(row, "id")?);
        let read = || -> Result<Self, Fault> {
            Ok(Self {
                id,
                tenant: column(row, "tenant")?,
                queue: queue(row)?,
                life: Life {
                    state: word::<JobState>(row, "state")?,
                    attempt: number(row, "attempt")?,
                    errors: number(row, "errors")?,
                    losses: number(row, "losses")?,
                },
                worker: column(row, "worker")?,
                lease_until: column::<Option<OffsetDateTime>>(row, "lease_until")?.map(millis_of),
                deadline: time(row, "deadline")?,
                started_at: column::<Option<OffsetDateTime>>(row, "started_at")?.map(millis_of),
                error: column(row, "error")?,
                history: column(row, "history")?,
                usage: usage(row)?,
                is_line: column(row, "is_line")?,
                sequence_key: column(row, "sequence_key")?,
            })
        };
        read().map_err(|fault| of_job(id, fault))
    }

    /// The names of the counters that this job has room in while it is unfinished.
    pub(super) fn counters(&self) -> Vec<String> {
        counters(&self.queue, &self.tenant, self.is_line)
    }
}

/// The names of the counters that an unfinished job is counted in: of one that is no batch line, its queue's and its
/// tenant's.
pub(super) fn counters(queue: &QueueId, tenant: &str, is_line: bool) -> Vec<String> {
    if is_line {
        vec![format!("lines:{tenant}")]
    } else {
        vec![format!("queue:{}:{}", queue.release, queue.class), format!("tenant:{tenant}")]
    }
}

/// Adds which job it was.
pub(super) fn of_job(id: JobId, fault: Fault) -> Fault {
    match fault {
        Fault::Corrupt(what) => Fault::Corrupt(format!("{id}: {what}")),
        other => other,
    }
}

/// One column as the type it is written as.
pub(super) fn column<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    name: &'static str,
) -> Result<T, Fault> {
    row.try_get(name).map_err(|err| Fault::Corrupt(format!("column {name}: {err}")))
}

/// A column of an attempt, errors or losses.
pub(super) fn number(row: &PgRow, name: &'static str) -> Result<u32, Fault> {
    let value: i32 = column(row, name)?;
    u32::try_from(value).map_err(|_| Fault::Corrupt(format!("column {name}: {value} is not a count")))
}

/// A column that holds a count of 32 bits.
pub(super) fn count(row: &PgRow, name: &'static str) -> Result<u32, Fault> {
    let value: i64 = column(row, name)?;
    u32::try_from(value).map_err(|_| Fault::Corrupt(format!("column {name}: {value} is not a count")))
}

/// A column that holds one of a few words.
pub(super) fn word<T: FromStr<Err: std::fmt::Display>>(row: &PgRow, name: &'static str) -> Result<T, Fault> {
    let text: &str = column(row, name)?;
    text.parse().map_err(|err: T::Err| Fault::Corrupt(format!("column {name}: {err}")))
}

/// The queue of a row.
pub(super) fn queue(row: &PgRow) -> Result<QueueId, Fault> {
    Ok(QueueId { release: Fingerprint(column(row, "release")?), class: word::<Class>(row, "class")? })
}

/// The three token counts.
pub(super) fn usage(row: &PgRow) -> Result<Usage, Fault> {
    Ok(Usage {
        prompt_tokens: count(row, "prompt_tokens")?,
        cached_tokens: count(row, "cached_tokens")?,
        output_tokens: count(row, "output_tokens")?,
    })
}

/// A point in time, in milliseconds since the Unix epoch.
pub(super) fn time(row: &PgRow, name: &'static str) -> Result<i64, Fault> {
    column::<OffsetDateTime>(row, name).map(millis_of)
}

/// Milliseconds since the Unix epoch, rounded down.
pub(super) fn millis_of(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).unwrap_or(i64::MAX)
}

/// The point in time that is so many milliseconds after the Unix epoch, moved into the years 1 to 9999.
pub(super) fn at(millis: i64) -> OffsetDateTime {
    let clamped = millis.clamp(-62_135_596_800_000, 253_402_300_799_999);
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(clamped) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// An attempt as the columns have it; one that no row can have becomes one that no row has.
pub(super) fn attempt(attempt: u32) -> i32 {
    i32::try_from(attempt).unwrap_or(i32::MAX)
}

/// JSON of something this build writes.
pub(super) fn json<T: serde::de::DeserializeOwned>(name: &'static str, text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|err| Fault::Corrupt(format!("column {name}: {err}")))
}

/// The JSON of something that is kept.
pub(super) fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|err| Fault::Corrupt(format!("{what} has no JSON form: {err}")))
}

/// Stands for the escape itself, and for U+0000, which Postgres keeps in no text and no jsonb.
const ESCAPE: char = '\u{f8ff}';

/// A client's own text as a column can hold it.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => escaped.extend([ESCAPE, '0']),
            ESCAPE => escaped.extend([ESCAPE, '1']),
            other => escaped.push(other),
        }
    }
    Cow::Owned(escaped)
}

/// The text that was [`escaped`].
pub(super) fn unescaped(text: String) -> String {
    if !text.contains(ESCAPE) {
        return text;
    }
    let mut unescaped = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == ESCAPE) {
            (_, true) if chars.next() == Some('0') => unescaped.push('\0'),
            (c, _) => unescaped.push(c),
        }
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_survives_escaping() {
        for text in ["", "plain", "a\0b", "\u{f8ff}", "\0\u{f8ff}0\0\0", "\u{f8ff}1"] {
            let escaped = escaped(text);
            assert!(!escaped.contains('\0'));
            assert_eq!(unescaped(escaped.into_owned()), text);
        }
    }

    #[test]
    fn times_keep_their_milliseconds() {
        for millis in [0, 1, -1, 1_764_439_454_123] {
            assert_eq!(millis_of(at(millis)), millis);
        }
        assert_eq!(at(i64::MAX), at(253_402_300_799_999));
    }
}
