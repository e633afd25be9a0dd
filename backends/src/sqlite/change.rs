//! One way for a job to leave a state: decide by the contract's state machine, write under the guard, and with it the
//! event, the history, the counters and the successor of a sequence, all in the same transaction.

use std::hash::{BuildHasher, RandomState};

use contract::{
    Budgets, ErrorCode, JobError, JobState, Life, RecordLocation, Timestamp, Transition, Usage, transition,
};
use serde_json::{Value, json};

use super::fault::Fault;
use super::row::{Counters, JobRow, error_json, json as parse, of_job, to_json};
use super::writer::Tx;

/// Entries of a job's history that are kept; older ones go.
const HISTORY: usize = 32;
/// Longest wait after the first transient failure; it doubles with each one more.
const BACKOFF_BASE_MS: u64 = 1_000;
/// No wait is longer.
const BACKOFF_CAP_MS: u64 = 60_000;

/// What comes with a transition.
pub(super) struct Change<'a> {
    /// What happens to the job.
    pub(super) transition: Transition,
    /// Why, where an error says it.
    pub(super) error: Option<&'a JobError>,
    /// Tokens the attempt used, if the transition tells.
    pub(super) usage: Option<Usage>,
    /// The result.
    pub(super) record: Option<&'a RecordLocation>,
    /// When the first token came.
    pub(super) first_token_at: Option<i64>,
    /// How long a job that is handed back waits.
    pub(super) delay_ms: i64,
}

impl Change<'_> {
    /// A transition that brings nothing along.
    pub(super) fn bare(transition: Transition) -> Self {
        Self { transition, error: None, usage: None, record: None, first_token_at: None, delay_ms: 0 }
    }
}

/// Takes a queued or running job through a transition. `None` when its state does not allow it: nothing was written.
pub(super) async fn change(tx: &mut Tx<'_>, row: &JobRow, change: &Change<'_>) -> Result<Option<Life>, Fault> {
    let Ok(next) = transition(row.life, change.transition, Budgets::default()) else { return Ok(None) };
    let quarantined = JobError::new(
        ErrorCode::Quarantined,
        format!("{} workers died while they ran this job, the last one while it ran nothing else", next.losses),
    );
    let lost_for_good = matches!(change.transition, Transition::WorkerLost { .. }) && next.state == JobState::Failed;
    let error = if lost_for_good { Some(&quarantined) } else { change.error };
    let error_text = match (next.state, error) {
        (JobState::Succeeded, _) => None,
        (_, Some(error)) => Some(error_json(error)?),
        (_, None) => row.error.clone(),
    };
    let history = history(row, tx.now, next, change, error).map_err(|fault| of_job(row.id, fault))?;
    let written = if next.state.is_terminal() {
        end(tx, row, next, change, error_text, history).await?
    } else {
        let wake_at = tx.now.saturating_add(match change.transition {
            Transition::FailedForNow => backoff_ms(next.errors),
            Transition::HandedBack => change.delay_ms,
            _ => 0,
        });
        requeue(tx, row, next, wake_at, error_text, history).await?
    };
    if !written {
        return Ok(None);
    }
    event(tx, row, change.transition, next).await?;
    if next.state.is_terminal() {
        give_room_back(tx, row).await?;
        wake_successor(tx, row).await?;
    }
    Ok(Some(next))
}

/// Writes the event of a transition that has just been written.
pub(super) async fn event(tx: &mut Tx<'_>, row: &JobRow, transition: Transition, next: Life) -> Result<(), Fault> {
    let kind = match transition {
        Transition::Leased => "leased",
        Transition::Succeeded => "succeeded",
        Transition::FailedForNow if next.state == JobState::Queued => "retried",
        Transition::FailedForNow | Transition::FailedForGood => "failed",
        Transition::WorkerLost { .. } => "lost",
        Transition::HandedBack => "handed_back",
        Transition::CancelAsked => "cancelled",
        Transition::DeadlinePassed => "expired",
    };
    sqlx::query(include_str!("sql/event.sql"))
        .bind(row.id.0)
        .bind(kind)
        .bind(next.state.as_str())
        .bind(i64::from(next.attempt))
        .bind(row.worker.as_deref())
        .bind(tx.now)
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

async fn end(
    tx: &mut Tx<'_>,
    row: &JobRow,
    next: Life,
    change: &Change<'_>,
    error: Option<String>,
    history: String,
) -> Result<bool, Fault> {
    let (inline, staged) = match change.record {
        None => (None, None),
        Some(RecordLocation::Inline(bytes)) => (Some(bytes.as_slice()), None),
        Some(RecordLocation::Staged(key)) => (None, Some(key.clone())),
        Some(RecordLocation::Archived(place)) => (None, Some(place.to_string())),
    };
    // A result has the tokens of the attempt that gave it; any other end, those of all attempts.
    let usage = match change.usage {
        Some(usage) if next.state == JobState::Succeeded => usage,
        Some(usage) => sum(row.usage, usage),
        None => row.usage,
    };
    let done = sqlx::query(include_str!("sql/end.sql"))
        .bind(row.seq)
        .bind(i64::from(row.life.attempt))
        .bind(row.life.state.as_str())
        .bind(next.state.as_str())
        .bind(i64::from(next.errors))
        .bind(i64::from(next.losses))
        .bind(tx.now)
        .bind(inline)
        .bind(staged)
        .bind(error)
        .bind(history)
        .bind(i64::from(usage.prompt_tokens))
        .bind(i64::from(usage.cached_tokens))
        .bind(i64::from(usage.output_tokens))
        .bind(change.usage.map(|_| i64::from(row.life.attempt)))
        .bind(change.first_token_at)
        .execute(&mut *tx.conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

async fn requeue(
    tx: &mut Tx<'_>,
    row: &JobRow,
    next: Life,
    wake_at: i64,
    error: Option<String>,
    history: String,
) -> Result<bool, Fault> {
    let done = sqlx::query(include_str!("sql/requeue.sql"))
        .bind(row.seq)
        .bind(i64::from(row.life.attempt))
        .bind(i64::from(next.errors))
        .bind(i64::from(next.losses))
        .bind(wake_at)
        .bind(error)
        .bind(history)
        .execute(&mut *tx.conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

async fn give_room_back(tx: &mut Tx<'_>, row: &JobRow) -> Result<(), Fault> {
    let (names, expected) = match row.counters() {
        Counters::Job { queue, tenant } => ((queue, Some(tenant)), 2),
        Counters::Line(lines) => ((lines, None), 1),
    };
    let done =
        sqlx::query(include_str!("sql/count_down.sql")).bind(&names.0).bind(&names.1).execute(&mut *tx.conn).await?;
    if done.rows_affected() != expected {
        return Err(Fault::Corrupt(format!("{}: a counter of it is missing ({})", row.id, names.0)));
    }
    Ok(())
}

async fn wake_successor(tx: &mut Tx<'_>, row: &JobRow) -> Result<(), Fault> {
    if let Some(key) = &row.sequence_key {
        sqlx::query(include_str!("sql/wake_successor.sql"))
            .bind(&row.tenant)
            .bind(key)
            .bind(tx.now)
            .execute(&mut *tx.conn)
            .await?;
    }
    Ok(())
}

/// The job's history with the attempt that ends now, unless it ends with a result.
fn history(row: &JobRow, now: i64, next: Life, change: &Change<'_>, error: Option<&JobError>) -> Result<String, Fault> {
    if row.life.state != JobState::Running || next.state == JobState::Succeeded {
        return Ok(row.history.clone());
    }
    let mut entries: Vec<Value> = parse("history", &row.history)?;
    let why = match (change.transition, error) {
        (Transition::WorkerLost { .. }, _) => "worker_lost".to_owned(),
        (Transition::HandedBack, _) => "handed_back".to_owned(),
        (Transition::CancelAsked, _) => "cancelled".to_owned(),
        (Transition::DeadlinePassed, _) => "expired".to_owned(),
        (_, Some(error)) => error.to_string(),
        (_, None) => "failed".to_owned(),
    };
    entries.push(json!({
        "attempt": row.life.attempt,
        "worker": row.worker,
        "started_at": row.started_at.map(|at| Timestamp(at).rfc3339()),
        "ended_at": Timestamp(now).rfc3339(),
        "why": why,
    }));
    let surplus = entries.len().saturating_sub(HISTORY);
    entries.drain(..surplus);
    to_json("the history", &entries)
}

/// Full jitter: anything from nothing to a bound that doubles with each failure.
fn backoff_ms(errors: u32) -> i64 {
    let bound = BACKOFF_BASE_MS.saturating_mul(1 << errors.saturating_sub(1).min(16)).min(BACKOFF_CAP_MS);
    // The standard library's own random keys: spread is all that is needed here.
    let draw = RandomState::new().hash_one(errors) % (bound + 1);
    i64::try_from(draw).unwrap_or(0)
}

/// Tokens of two attempts together.
fn sum(a: Usage, b: Usage) -> Usage {
    Usage {
        prompt_tokens: a.prompt_tokens.saturating_add(b.prompt_tokens),
        cached_tokens: a.cached_tokens.saturating_add(b.cached_tokens),
        output_tokens: a.output_tokens.saturating_add(b.output_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_stay_under_a_minute() {
        for (errors, bound) in [(1, 1_000), (2, 2_000), (3, 4_000), (7, 60_000), (u32::MAX, 60_000)] {
            let draws: Vec<i64> = (0..200).map(|_| backoff_ms(errors)).collect();
            assert!(draws.iter().all(|&ms| (0..=bound).contains(&ms)), "{errors}: {draws:?}");
            // Full jitter: the lower half is drawn as well as the upper one.
            assert!(draws.iter().any(|&ms| ms < bound / 2) && draws.iter().any(|&ms| ms > bound / 2), "{errors}");
        }
    }
}
