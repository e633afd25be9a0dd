//! One way for jobs to leave a state: lock their rows, decide by the contract's state machine, then write all of it with
//! events, counters and successors of sequences in one statement or two, in the same transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contract::{
    Budgets, ErrorCode, JobError, JobId, JobState, Lease, Life, RecordLocation, Transition, Usage, transition,
};
use serde_json::Value;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::transition::{Change, EndedAttempt, backoff_ms, event_kind, usage_after};

use super::db::{Tx, answer};
use super::fault::Fault;
use super::lock_sequences;
use super::row::{JobRow, at, attempt, column, json as parse, of_job, time, to_json};

/// A change that was decided and is yet to be written.
struct Decided {
    before: JobRow,
    next: Life,
    kind: &'static str,
    /// Milliseconds until a job that is queued again is due.
    wait_ms: Option<i64>,
    inline: Option<Vec<u8>>,
    reference: Option<String>,
    error: Option<String>,
    /// `None`: as it was.
    history: Option<String>,
    usage: Usage,
    usage_attempt: Option<i32>,
    first_token_at: Option<i64>,
}

impl Decided {
    /// Tokens that an end without a result adds to what was booked before.
    fn wasted(&self, tokens: impl Fn(Usage) -> u32) -> i64 {
        if self.next.state == JobState::Succeeded {
            return 0;
        }
        i64::from(tokens(self.usage)) - i64::from(tokens(self.before.usage))
    }
}

/// Locked rows, and what was decided about them. Each job changes at most once.
pub(super) struct Rows {
    rows: HashMap<JobId, Result<JobRow, Fault>>,
    /// The store's clock.
    pub(super) now: i64,
    decided: Vec<Decided>,
}

/// How rows are locked that others may have.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Busy {
    /// Their turn is waited for.
    Wait,
    /// They are left out.
    Skip,
}

impl Rows {
    /// Locks the rows of some jobs, in the order of their ids, after the sequences they belong to.
    pub(super) async fn lock(tx: &mut Tx<'_>, ids: &BTreeSet<JobId>, busy: Busy) -> Result<Self, Fault> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let found = select(tx, &ids, busy, false).await?;
        let sequences = found.iter().map(sequence).collect::<Result<BTreeSet<_>, _>>()?;
        let sequences: BTreeSet<(String, String)> = sequences.into_iter().flatten().collect();
        if sequences.is_empty() {
            return Self::read(&found);
        }
        // Sequences are locked before rows, and which they are is known only now.
        answer(sqlx::raw_sql("ROLLBACK; BEGIN").execute(&mut *tx.conn)).await?;
        lock_sequences(tx, &sequences).await?;
        Self::read(&select(tx, &ids, busy, true).await?)
    }

    fn read(found: &[PgRow]) -> Result<Self, Fault> {
        let mut rows = HashMap::with_capacity(found.len());
        let mut now = 0;
        for row in found {
            now = time(row, "now")?;
            rows.insert(JobId(column(row, "id")?), JobRow::read(row));
        }
        Ok(Self { rows, now, decided: Vec::new() })
    }

    /// A job as it stands after what was decided so far.
    pub(super) fn get(&self, id: &JobId) -> Result<Option<&JobRow>, Fault> {
        self.rows.get(id).map(|row| row.as_ref().map_err(Clone::clone)).transpose()
    }

    /// The row that a lease is the live lease of.
    pub(super) fn held(&self, lease: &Lease) -> Result<Option<&JobRow>, Fault> {
        let row = self.get(&lease.job)?;
        Ok(row.filter(|row| row.life.state == JobState::Running && row.life.attempt == lease.attempt))
    }

    /// Takes a job through a transition. `None` when its state does not allow it, or there is no such row.
    pub(super) fn change(&mut self, id: &JobId, change: &Change<'_>) -> Result<Option<Life>, Fault> {
        let Some(row) = self.get(id)? else { return Ok(None) };
        let Some(decided) = decide(row, self.now, change).map_err(|fault| of_job(*id, fault))? else {
            return Ok(None);
        };
        let next = decided.next;
        if let Some(Ok(row)) = self.rows.get_mut(id) {
            row.life = next;
        }
        self.decided.push(decided);
        Ok(Some(next))
    }

    /// How much was decided.
    pub(super) fn decided(&self) -> usize {
        self.decided.len()
    }

    /// Takes back all but the first `decided` decisions.
    pub(super) fn take_back(&mut self, decided: usize) {
        for taken in self.decided.drain(decided..) {
            self.rows.insert(taken.before.id, Ok(taken.before));
        }
    }

    /// Writes what was decided.
    pub(super) async fn write(self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        if self.decided.is_empty() {
            return Ok(());
        }
        let mut decided = self.decided;
        decided.sort_unstable_by_key(|change| change.before.id);
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        let mut sequences = BTreeSet::new();
        for change in decided.iter().filter(|change| change.next.state.is_terminal()) {
            for name in change.before.counters() {
                *counts.entry(name).or_default() -= 1;
            }
            sequences.extend(change.before.sequence_key.clone().map(|key| (change.before.tenant.clone(), key)));
        }
        write_changes(tx, decided, counts).await?;
        if !sequences.is_empty() {
            let (tenants, keys): (Vec<String>, Vec<String>) = sequences.into_iter().unzip();
            let query = sqlx::query(include_str!("sql/wake_successors.sql")).bind(tx.fixed).bind(tenants).bind(keys);
            answer(query.execute(&mut *tx.conn)).await?;
        }
        Ok(())
    }
}

async fn select(tx: &mut Tx<'_>, ids: &[Uuid], busy: Busy, sequences_too: bool) -> Result<Vec<PgRow>, Fault> {
    let sql = match busy {
        Busy::Wait => include_str!("sql/lock_jobs.sql"),
        Busy::Skip => include_str!("sql/lock_free_jobs.sql"),
    };
    let query = sqlx::query(sql).bind(tx.fixed).bind(ids).bind(sequences_too);
    answer(query.fetch_all(&mut *tx.conn)).await
}

/// The sequence of a row that was read without a lock because it has one.
fn sequence(row: &PgRow) -> Result<Option<(String, String)>, Fault> {
    let key: Option<String> = column(row, "sequence_key")?;
    key.map(|key| Ok((column(row, "tenant")?, key))).transpose()
}

async fn write_changes(tx: &mut Tx<'_>, decided: Vec<Decided>, counts: BTreeMap<String, i64>) -> Result<(), Fault> {
    fn each<'d, T>(decided: &'d [Decided], column: impl Fn(&'d Decided) -> T) -> Vec<T> {
        decided.iter().map(column).collect()
    }
    let (names, deltas): (Vec<String>, Vec<i64>) = counts.into_iter().unzip();
    let (rows, counters) = (decided.len(), names.len());
    let query = sqlx::query(include_str!("sql/change.sql"))
        .bind(tx.fixed)
        .bind(each(&decided, |change| change.before.id.0))
        .bind(each(&decided, |change| attempt(change.before.life.attempt)))
        .bind(each(&decided, |change| change.before.life.state.as_str()))
        .bind(each(&decided, |change| change.next.state.as_str()))
        .bind(each(&decided, |change| attempt(change.next.errors)))
        .bind(each(&decided, |change| attempt(change.next.losses)))
        .bind(each(&decided, |change| change.wait_ms))
        .bind(each(&decided, |change| change.inline.as_deref()))
        .bind(each(&decided, |change| change.reference.as_deref()))
        .bind(each(&decided, |change| change.error.as_deref()))
        .bind(each(&decided, |change| change.history.as_deref()))
        .bind(each(&decided, |change| i64::from(change.usage.prompt_tokens)))
        .bind(each(&decided, |change| i64::from(change.usage.cached_tokens)))
        .bind(each(&decided, |change| i64::from(change.usage.output_tokens)))
        .bind(each(&decided, |change| change.usage_attempt))
        .bind(each(&decided, |change| change.first_token_at.map(at)))
        .bind(each(&decided, |change| change.kind))
        .bind(each(&decided, |change| change.before.worker.as_deref()))
        .bind(names)
        .bind(deltas)
        .bind(each(&decided, |change| change.wasted(|usage| usage.prompt_tokens)))
        .bind(each(&decided, |change| change.wasted(|usage| usage.cached_tokens)))
        .bind(each(&decided, |change| change.wasted(|usage| usage.output_tokens)));
    let done = answer(query.fetch_one(&mut *tx.conn)).await?;
    let (changed, counted): (i64, i64) = (column(&done, "changed")?, column(&done, "counted")?);
    if usize::try_from(changed) != Ok(rows) {
        return Err(Fault::Corrupt(format!("{changed} of {rows} locked jobs could be changed")));
    }
    if usize::try_from(counted) != Ok(counters) {
        return Err(Fault::Corrupt("a counter of a job is missing".to_owned()));
    }
    Ok(())
}

fn decide(row: &JobRow, now: i64, change: &Change<'_>) -> Result<Option<Decided>, Fault> {
    let Ok(next) = transition(row.life, change.transition, Budgets::default()) else { return Ok(None) };
    let quarantined = JobError::new(
        ErrorCode::Quarantined,
        format!("{} workers died while they ran this job, the last one while it ran nothing else", next.losses),
    );
    let lost_for_good = matches!(change.transition, Transition::WorkerLost { .. }) && next.state == JobState::Failed;
    let error = if lost_for_good { Some(&quarantined) } else { change.error };
    let error_text = match (next.state, error) {
        (JobState::Succeeded, _) => None,
        (_, Some(error)) => Some(to_json("the error", error)?),
        (_, None) => row.error.clone(),
    };
    let (inline, reference) = match change.record {
        None => (None, None),
        Some(RecordLocation::Inline(bytes)) => (Some(bytes.clone()), None),
        Some(RecordLocation::Staged(key)) => (None, Some(key.clone())),
        Some(RecordLocation::Archived(place)) => (None, Some(place.to_string())),
    };
    let wait_ms = (next.state == JobState::Queued).then(|| match change.transition {
        Transition::FailedForNow => backoff_ms(next.errors),
        Transition::HandedBack => change.delay_ms,
        _ => 0,
    });
    Ok(Some(Decided {
        next,
        kind: event_kind(change.transition, next),
        wait_ms,
        inline,
        reference,
        error: error_text,
        history: history(row, now, next, change.transition, error)?,
        usage: usage_after(row.usage, change.usage, next),
        usage_attempt: change.usage.map(|_| attempt(row.life.attempt)),
        first_token_at: change.first_token_at,
        before: row.clone(),
    }))
}

/// The job's history with the attempt that ends now; `None` when it stays as it is: no attempt ends, or it ends with a
/// result.
fn history(
    row: &JobRow,
    now: i64,
    next: Life,
    transition: Transition,
    error: Option<&JobError>,
) -> Result<Option<String>, Fault> {
    if row.life.state != JobState::Running || next.state == JobState::Succeeded {
        return Ok(None);
    }
    let mut entries: Vec<Value> = parse("history", &row.history)?;
    let ended = EndedAttempt {
        attempt: row.life.attempt,
        worker: row.worker.as_deref(),
        started_at: row.started_at,
        ended_at: now,
        transition,
        error,
    };
    ended.enter(&mut entries);
    to_json("the history", &entries).map(Some)
}
