//! The audit: every accepted job ended once, in one way, or is unfinished; and whatever contradicts that.
//!
//! What was accepted is counted from the events, what became of it from the rows: each is written by a statement of its
//! own, in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use utoipa::ToSchema;

use crate::batch::{BatchId, BatchState};
use crate::ids::{JobId, TenantId};
use crate::ledger::Day;
use crate::life::JobState;

/// Most breaches that are named.
pub const MAX_BREACHES: usize = 100;
/// Most batches of one audit.
pub const MAX_AUDITED_BATCHES: usize = 10_000;

/// What is audited: what was accepted from one day to another, both included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditFilter {
    /// Whose; `None` for all tenants.
    pub tenant: Option<TenantId>,
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
}

/// Jobs, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Tally {
    /// Events of acceptance.
    pub accepted: u64,
    /// Rows that ended with a result.
    pub succeeded: u64,
    /// Rows that failed.
    pub failed: u64,
    /// Rows that were cancelled.
    pub cancelled: u64,
    /// Rows whose deadline passed.
    pub expired: u64,
    /// Rows that wait or run.
    pub unfinished: u64,
}

impl Tally {
    /// Counts rows of a state.
    pub fn add(&mut self, state: JobState, n: u64) {
        match state {
            JobState::Succeeded => self.succeeded += n,
            JobState::Failed => self.failed += n,
            JobState::Cancelled => self.cancelled += n,
            JobState::Expired => self.expired += n,
            JobState::Queued | JobState::Running => self.unfinished += n,
        }
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.succeeded + self.failed + self.cancelled + self.expired + self.unfinished
    }

    /// Whether what was accepted is what there is.
    pub fn is_balanced(&self) -> bool {
        self.accepted == self.rows()
    }
}

/// What contradicts the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreachKind {
    /// A job's row without the event of its acceptance.
    NotAccepted,
    /// A job with several events of acceptance.
    AcceptedTwice,
    /// A job whose event of acceptance is of another time than its row.
    AcceptedAtAnotherTime,
    /// An event without its job's row.
    RowMissing,
    /// A job that has ended, without the event of its end.
    EndNotTold,
    /// A job with several events of an end.
    EndedTwice,
    /// A job that has not ended, with the event of an end.
    NotEnded,
    /// A job that ended in another way than its event says.
    EndedOtherwise,
    /// A batch that has ended, with jobs that have not.
    BatchUnfinished,
    /// A batch whose jobs and refused lines are not all of its lines, or more than those.
    BatchLines,
    /// A batch whose events of acceptance are not as many as its jobs.
    BatchAccepted,
    /// A counter that is not the number of the unfinished rows it counts.
    Counter,
}

/// One contradiction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// What kind.
    pub kind: BreachKind,
    /// Of what: the id of a job or batch, or the name of a counter.
    pub subject: String,
    /// Whose it is, where that is known.
    pub tenant: Option<TenantId>,
    /// The day of acceptance, where there is one.
    pub day: Option<Day>,
    /// What was found, for people.
    pub detail: String,
}

/// A job's row, and what its events say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedJob {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The state of its row.
    pub state: JobState,
    /// Its events of acceptance.
    pub accepted: u64,
    /// Those of them that are of another time than the row.
    pub elsewhere: u64,
    /// Its events of an end.
    pub ended: u64,
    /// The end that the first of them, in the order of the words, tells.
    pub ended_as: Option<JobState>,
}

impl TracedJob {
    /// What is wrong with it: the first thing by which the others can be explained.
    pub fn breach(&self, day: Day) -> Option<Breach> {
        let has_ended = self.state.is_terminal();
        let kind = match (self.accepted, self.ended) {
            (0, _) => BreachKind::NotAccepted,
            (2.., _) => BreachKind::AcceptedTwice,
            (_, 2..) => BreachKind::EndedTwice,
            (_, 0) if has_ended => BreachKind::EndNotTold,
            (_, 1) if !has_ended => BreachKind::NotEnded,
            (_, 1) if self.ended_as != Some(self.state) => BreachKind::EndedOtherwise,
            _ if self.elsewhere > 0 => BreachKind::AcceptedAtAnotherTime,
            _ => return None,
        };
        let told = self.ended_as.map(|state| format!(" ({state})")).unwrap_or_default();
        let detail = format!(
            "its row is {}; events: {} of acceptance, {} of an end{told}",
            self.state, self.accepted, self.ended
        );
        Some(Breach { kind, subject: self.job.to_string(), tenant: Some(self.tenant.clone()), day: Some(day), detail })
    }
}

/// A tenant's jobs of one day of acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedDay {
    /// Whose; `None` for events whose jobs have no rows.
    pub tenant: Option<TenantId>,
    /// The day.
    pub day: Day,
    /// What was found.
    pub tally: Tally,
}

/// One batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedBatch {
    /// The batch.
    pub id: BatchId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The day on which it was accepted.
    pub day: Day,
    /// Where it stands.
    pub state: BatchState,
    /// Its lines, as it says.
    pub total: u64,
    /// Lines that were refused as requests.
    pub refused: u64,
    /// Its jobs.
    pub tally: Tally,
}

impl AuditedBatch {
    /// What is wrong with it.
    pub fn breaches(&self) -> Vec<Breach> {
        let (jobs, lines) = (self.tally.rows(), self.tally.rows() + self.refused);
        let mut found = Vec::new();
        if !self.tally.is_balanced() {
            let detail = format!("{} events of acceptance, {jobs} jobs", self.tally.accepted);
            found.push((BreachKind::BatchAccepted, detail));
        }
        if self.state.is_terminal() && self.tally.unfinished > 0 {
            let detail = format!("it is {}, and {} of its jobs are not", self.state.as_str(), self.tally.unfinished);
            found.push((BreachKind::BatchUnfinished, detail));
        }
        // One that did not complete need not have made jobs of all its lines.
        if lines > self.total || self.state == BatchState::Completed && lines < self.total {
            let detail = format!("{jobs} jobs and {} refused lines, of {} lines", self.refused, self.total);
            found.push((BreachKind::BatchLines, detail));
        }
        let breach = |(kind, detail)| Breach {
            kind,
            subject: self.id.to_string(),
            tenant: Some(self.tenant.clone()),
            day: Some(self.day),
            detail,
        };
        found.into_iter().map(breach).collect()
    }
}

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audit {
    /// By day of acceptance and tenant.
    pub days: Vec<AuditedDay>,
    /// Batches by the time of their acceptance.
    pub batches: Vec<AuditedBatch>,
    /// There are more batches than [`MAX_AUDITED_BATCHES`]; the rest was not looked at.
    pub more_batches: bool,
    /// The first [`MAX_BREACHES`] contradictions.
    pub breaches: Vec<Breach>,
    /// There are more of them.
    pub more_breaches: bool,
}

impl Audit {
    /// Whether the claim holds for all that was asked for.
    pub fn holds(&self) -> bool {
        let is_balanced = self.days.iter().all(|day| day.tally.is_balanced());
        is_balanced && self.breaches.is_empty() && !self.more_breaches && !self.more_batches
    }
}

/// Puts together what a store finds.
#[derive(Debug, Default)]
pub struct Auditor {
    days: BTreeMap<(Day, Option<TenantId>), Tally>,
    batches: Vec<AuditedBatch>,
    breaches: Vec<Breach>,
    orphans: BTreeSet<JobId>,
    more_breaches: bool,
    /// There are more batches than one audit looks at.
    pub more_batches: bool,
}

impl Auditor {
    /// Whether more breaches would be named.
    pub fn has_room(&self) -> bool {
        self.breaches.len() < MAX_BREACHES
    }

    /// Events of acceptance of a day; `tenant` is `None` where their jobs have no rows.
    pub fn accepted(&mut self, day: Day, tenant: Option<TenantId>, n: u64) {
        self.days.entry((day, tenant)).or_default().accepted += n;
    }

    /// Rows that were accepted on a day.
    pub fn rows(&mut self, day: Day, tenant: TenantId, state: JobState, n: u64) {
        self.days.entry((day, Some(tenant))).or_default().add(state, n);
    }

    /// A row that its events may contradict.
    pub fn job(&mut self, day: Day, job: &TracedJob) {
        self.breaches.extend(job.breach(day));
        self.shorten();
    }

    /// An event of a day whose job has no row.
    pub fn orphan(&mut self, day: Day, job: JobId) {
        if self.orphans.insert(job) {
            self.breaches.push(Breach {
                kind: BreachKind::RowMissing,
                subject: job.to_string(),
                tenant: None,
                day: Some(day),
                detail: "there are events of it, and no row".to_owned(),
            });
            self.shorten();
        }
    }

    /// A batch.
    pub fn batch(&mut self, batch: AuditedBatch) {
        self.breaches.extend(batch.breaches());
        self.batches.push(batch);
        self.shorten();
    }

    /// A counter, and the number of unfinished rows that it should be.
    pub fn counter(&mut self, name: String, value: i64, rows: i64) {
        if value != rows {
            let tenant = ["tenant:", "lines:"].iter().find_map(|prefix| name.strip_prefix(prefix));
            self.breaches.push(Breach {
                kind: BreachKind::Counter,
                tenant: tenant.map(TenantId::from),
                day: None,
                detail: format!("it is {value}, and {rows} rows are unfinished"),
                subject: name,
            });
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        self.more_breaches |= self.breaches.len() > MAX_BREACHES;
        self.breaches.truncate(MAX_BREACHES);
    }

    /// The whole.
    pub fn end(self) -> Audit {
        let line = |((day, tenant), tally)| AuditedDay { tenant, day, tally };
        Audit {
            days: self.days.into_iter().map(line).collect(),
            batches: self.batches,
            more_batches: self.more_batches,
            breaches: self.breaches,
            more_breaches: self.more_breaches,
        }
    }
}

impl BreachKind {
    /// The word in JSON and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            BreachKind::NotAccepted => "not_accepted",
            BreachKind::AcceptedTwice => "accepted_twice",
            BreachKind::AcceptedAtAnotherTime => "accepted_at_another_time",
            BreachKind::RowMissing => "row_missing",
            BreachKind::EndNotTold => "end_not_told",
            BreachKind::EndedTwice => "ended_twice",
            BreachKind::NotEnded => "not_ended",
            BreachKind::EndedOtherwise => "ended_otherwise",
            BreachKind::BatchUnfinished => "batch_unfinished",
            BreachKind::BatchLines => "batch_lines",
            BreachKind::BatchAccepted => "batch_accepted",
            BreachKind::Counter => "counter",
        }
    }
}

impl fmt::Display for BreachKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(state: JobState, accepted: u64, ended: u64, ended_as: Option<JobState>) -> TracedJob {
        TracedJob { job: JobId::new(), tenant: TenantId::local(), state, accepted, elsewhere: 0, ended, ended_as }
    }

    #[test]
    fn a_job_is_accepted_once_and_ends_once_as_its_event_says() {
        use BreachKind as B;
        use JobState as S;
        let day = Day(20_000);
        for (job, kind) in [
            (traced(S::Queued, 1, 0, None), None),
            (traced(S::Running, 1, 0, None), None),
            (traced(S::Succeeded, 1, 1, Some(S::Succeeded)), None),
            (traced(S::Queued, 0, 0, None), Some(B::NotAccepted)),
            (traced(S::Expired, 2, 1, Some(S::Expired)), Some(B::AcceptedTwice)),
            (traced(S::Failed, 1, 0, None), Some(B::EndNotTold)),
            (traced(S::Failed, 1, 2, Some(S::Failed)), Some(B::EndedTwice)),
            (traced(S::Queued, 1, 2, Some(S::Failed)), Some(B::EndedTwice)),
            (traced(S::Running, 1, 1, Some(S::Failed)), Some(B::NotEnded)),
            (traced(S::Succeeded, 1, 1, Some(S::Cancelled)), Some(B::EndedOtherwise)),
            (TracedJob { elsewhere: 1, ..traced(S::Queued, 1, 0, None) }, Some(B::AcceptedAtAnotherTime)),
        ] {
            assert_eq!(job.breach(day).map(|breach| breach.kind), kind, "{job:?}");
        }
    }

    #[test]
    fn a_completed_batch_has_answered_every_line() {
        use BreachKind as B;
        let batch = |state, total, refused, accepted, succeeded, unfinished| AuditedBatch {
            id: BatchId::new(),
            tenant: TenantId::local(),
            day: Day(0),
            state,
            total,
            refused,
            tally: Tally { accepted, succeeded, unfinished, ..Tally::default() },
        };
        for (batch, kinds) in [
            (batch(BatchState::Completed, 5, 2, 3, 3, 0), vec![]),
            (batch(BatchState::InProgress, 5, 0, 3, 2, 1), vec![]),
            (batch(BatchState::Cancelled, 5, 0, 3, 3, 0), vec![]),
            (batch(BatchState::Completed, 5, 1, 3, 3, 0), vec![B::BatchLines]),
            (batch(BatchState::InProgress, 5, 3, 3, 3, 0), vec![B::BatchLines]),
            (batch(BatchState::Completed, 3, 0, 4, 3, 0), vec![B::BatchAccepted]),
            (batch(BatchState::Expired, 3, 0, 3, 2, 1), vec![B::BatchUnfinished]),
        ] {
            assert_eq!(batch.breaches().iter().map(|breach| breach.kind).collect::<Vec<_>>(), kinds, "{batch:?}");
        }
    }

    #[test]
    fn a_hundred_breaches_are_named() {
        let mut auditor = Auditor::default();
        for _ in 0..100 {
            auditor.orphan(Day(0), JobId::new());
        }
        assert!(!auditor.more_breaches && !auditor.has_room());
        auditor.counter("tenant:acme".into(), 3, 2);
        let audit = auditor.end();
        assert_eq!((audit.breaches.len(), audit.more_breaches, audit.holds()), (100, true, false));
    }

    #[test]
    fn a_line_that_does_not_add_up_is_no_proof() {
        let mut auditor = Auditor::default();
        auditor.accepted(Day(0), Some(TenantId::local()), 2);
        auditor.rows(Day(0), TenantId::local(), JobState::Failed, 1);
        auditor.counter("tenant:local".into(), 1, 1);
        assert!(!auditor.end().holds());
    }
}
