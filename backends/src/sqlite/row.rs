//! The part of a job's row that transitions are decided on, and how columns are read without trusting them.

use std::str::FromStr;

use contract::{Class, Fingerprint, JobError, JobId, Life, QueueId, Usage};
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row as _, Sqlite, SqliteConnection, Type};
use uuid::Uuid;

use super::fault::Fault;

/// A job as transitions see it.
pub(super) struct JobRow {
    pub(super) seq: i64,
    pub(super) id: JobId,
    pub(super) tenant: String,
    pub(super) queue: QueueId,
    pub(super) life: Life,
    pub(super) wake_at: Option<i64>,
    pub(super) worker: Option<String>,
    pub(super) deadline: i64,
    pub(super) started_at: Option<i64>,
    pub(super) error: Option<String>,
    pub(super) history: String,
    pub(super) usage: Usage,
    pub(super) is_line: bool,
    pub(super) sequence_key: Option<String>,
}

/// Reads a job's row by its id; `None` if there is none.
pub(super) async fn load(conn: &mut SqliteConnection, id: JobId) -> Result<Option<JobRow>, Fault> {
    let row = sqlx::query(include_str!("sql/load.sql")).bind(id.0).fetch_optional(conn).await?;
    row.as_ref().map(JobRow::read).transpose()
}

impl JobRow {
    /// Reads the columns that `load.sql` and `load_lease.sql` select.
    pub(super) fn read(row: &SqliteRow) -> Result<Self, Fault> {
        let id = JobId(column::<Uuid>(row, "id")?);
        let read = || -> Result<Self, Fault> {
            Ok(Self {
                seq: column(row, "seq")?,
                id,
                tenant: column(row, "tenant")?,
                queue: QueueId { release: Fingerprint(column(row, "release")?), class: word::<Class>(row, "class")? },
                life: Life {
                    state: word(row, "state")?,
                    attempt: number(row, "attempt")?,
                    errors: number(row, "errors")?,
                    losses: number(row, "losses")?,
                },
                wake_at: column(row, "wake_at")?,
                worker: column(row, "worker")?,
                deadline: column(row, "deadline")?,
                started_at: column(row, "started_at")?,
                error: column(row, "error")?,
                history: column(row, "history")?,
                usage: usage(row)?,
                is_line: column::<Option<Uuid>>(row, "batch")?.is_some(),
                sequence_key: column(row, "sequence_key")?,
            })
        };
        read().map_err(|fault| of_job(id, fault))
    }

    /// The counters that this job has room in while it is unfinished.
    pub(super) fn counters(&self) -> Counters {
        Counters::of(&self.queue, &self.tenant, self.is_line)
    }
}

/// Names of the counters that an unfinished job is counted in.
pub(super) enum Counters {
    /// A job of its own.
    Job {
        /// `queue:<release>:<class>`, which has a bound.
        queue: String,
        /// `tenant:<id>`, which may have one.
        tenant: String,
    },
    /// A batch line: `lines:<tenant>`.
    Line(String),
}

impl Counters {
    /// The names for a job of that queue and tenant.
    pub(super) fn of(queue: &QueueId, tenant: &str, is_line: bool) -> Self {
        if is_line {
            Counters::Line(format!("lines:{tenant}"))
        } else {
            Counters::Job {
                queue: format!("queue:{}:{}", queue.release, queue.class),
                tenant: format!("tenant:{tenant}"),
            }
        }
    }
}

/// Adds which job it was.
pub(super) fn of_job(id: JobId, fault: Fault) -> Fault {
    match fault {
        Fault::Corrupt(what) => Fault::Corrupt(format!("{id}: {what}")),
        database => database,
    }
}

/// One column as the type it is written as.
pub(super) fn column<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
    row: &'r SqliteRow,
    name: &'static str,
) -> Result<T, Fault> {
    row.try_get(name).map_err(|err| Fault::Corrupt(format!("column {name}: {err}")))
}

/// A count.
pub(super) fn number(row: &SqliteRow, name: &'static str) -> Result<u32, Fault> {
    let value: i64 = column(row, name)?;
    u32::try_from(value).map_err(|_| Fault::Corrupt(format!("column {name}: {value} is not a count")))
}

/// A column that holds one of a few words.
pub(super) fn word<T: FromStr<Err: std::fmt::Display>>(row: &SqliteRow, name: &'static str) -> Result<T, Fault> {
    let text: String = column(row, name)?;
    text.parse().map_err(|err: T::Err| Fault::Corrupt(format!("column {name}: {err}")))
}

/// The three token counts.
pub(super) fn usage(row: &SqliteRow) -> Result<Usage, Fault> {
    Ok(Usage {
        prompt_tokens: number(row, "prompt_tokens")?,
        cached_tokens: number(row, "cached_tokens")?,
        output_tokens: number(row, "output_tokens")?,
    })
}

/// JSON of something this build writes.
pub(super) fn json<T: serde::de::DeserializeOwned>(name: &'static str, text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|err| Fault::Corrupt(format!("column {name}: {err}")))
}

/// The JSON of something that is kept.
pub(super) fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|err| Fault::Corrupt(format!("{what} has no JSON form: {err}")))
}

/// A job's error as it is kept.
pub(super) fn error_json(error: &JobError) -> Result<String, Fault> {
    to_json("the error", error)
}
