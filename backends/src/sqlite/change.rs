//! One way for a job to leave a state: decide by the contract's state machine, write under the guard, and with it the
//! event, the history, the counters and the successor of a sequence, all in the same transaction.

use contract::{Budgets, ErrorCode, JobError, JobState, Life, RecordLocation, Transition, transition};
use serde_json::Value;

use crate::transition::{Change, EndedAttempt, backoff_ms, event_kind, usage_after};

use super::fault::Fault;
use super::row::{Counters, JobRow, error_json, json as parse, of_job, to_json};
use super::writer::Tx;

/// Takes a queued or running job through a transition. `None` when its state does not allow it: nothing was written.
pub(super) async fn change(tx: &mut Tx<'_>, row: &JobRow, change: &Change<'_>) -> Result<Option<Life>, Fault> {
    let next = change_alone(tx, row, change).await?;
    if let (Some(Life { state, .. }), Some(key)) = (next, &row.sequence_key)
        && state.is_terminal()
    {
        wake_successor(tx, &row.tenant, key).await?;
    }
    Ok(next)
}

/// As [`change`], but the successor is the caller's to wake: who ends several jobs of a sequence at once knows only then
/// whether it is blocked.
pub(super) async fn change_alone(tx: &mut Tx<'_>, row: &JobRow, change: &Change<'_>) -> Result<Option<Life>, Fault> {
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
    }
    Ok(Some(next))
}

/// Writes the event of a transition that has just been written.
pub(super) async fn event(tx: &mut Tx<'_>, row: &JobRow, transition: Transition, next: Life) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/event.sql"))
        .bind(row.id.0)
        .bind(event_kind(transition, next))
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
    let usage = usage_after(row.usage, change.usage, next);
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

/// The next job of a sequence is due, unless the sequence is blocked.
pub(super) async fn wake_successor(tx: &mut Tx<'_>, tenant: &str, key: &str) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/wake_successor.sql"))
        .bind(tenant)
        .bind(key)
        .bind(tx.now)
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

/// The job's history with the attempt that ends now, unless it ends with a result.
fn history(row: &JobRow, now: i64, next: Life, change: &Change<'_>, error: Option<&JobError>) -> Result<String, Fault> {
    if row.life.state != JobState::Running || next.state == JobState::Succeeded {
        return Ok(row.history.clone());
    }
    let mut entries: Vec<Value> = parse("history", &row.history)?;
    let ended = EndedAttempt {
        attempt: row.life.attempt,
        worker: row.worker.as_deref(),
        started_at: row.started_at,
        ended_at: now,
        transition: change.transition,
        error,
    };
    ended.enter(&mut entries);
    to_json("the history", &entries)
}
