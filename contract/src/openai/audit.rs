//! The body of the audit's route.

use serde::Serialize;
use utoipa::ToSchema;

use crate::audit::{Audit, AuditFilter, AuditedBatch, AuditedDay, Breach, BreachKind, Tally};
use crate::ids::TenantId;

/// A tenant's jobs of one day of acceptance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditedDayObject {
    /// The day of acceptance.
    #[schema(example = "2026-11-29")]
    pub day: String,
    /// Whose; null for events whose jobs have no rows.
    #[schema(required)]
    pub tenant: Option<String>,
    /// What was found.
    #[serde(flatten)]
    pub tally: Tally,
    /// Whether what was accepted is what ended and what is unfinished.
    pub balanced: bool,
}

/// A batch that was accepted on one of the days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditedBatchObject {
    /// The batch.
    pub id: String,
    /// The day of its acceptance.
    pub day: String,
    /// Whose.
    pub tenant: String,
    /// Where it stands.
    pub status: String,
    /// Its lines.
    pub lines: u64,
    /// Lines that were refused as requests.
    pub refused: u64,
    /// Its jobs.
    #[serde(flatten)]
    pub tally: Tally,
    /// Whether nothing contradicts it.
    pub balanced: bool,
}

/// A contradiction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct BreachObject {
    /// What kind.
    pub kind: BreachKind,
    /// Of what: the id of a job or batch, or the name of a counter.
    pub subject: String,
    /// Whose, where that is known.
    #[schema(required)]
    pub tenant: Option<String>,
    /// The day of acceptance, where there is one.
    #[schema(required)]
    pub day: Option<String>,
    /// What was found.
    pub detail: String,
}

/// Whether every job that was accepted is there once, and ended once or is unfinished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditObject {
    /// Always `audit`.
    pub object: String,
    /// The first day of acceptance.
    pub from: String,
    /// The last one.
    pub to: String,
    /// Whether it holds for all that was asked for.
    pub holds: bool,
    /// By day and tenant.
    pub days: Vec<AuditedDayObject>,
    /// Batches, by the time of their acceptance; at most 10,000.
    pub batches: Vec<AuditedBatchObject>,
    /// There are more batches, which were not looked at: ask for fewer days.
    pub more_batches: bool,
    /// What contradicts it: the first hundred.
    pub breaches: Vec<BreachObject>,
    /// There are more of those.
    pub more_breaches: bool,
}

impl AuditObject {
    /// What is shown of an audit.
    pub fn of(filter: &AuditFilter, audit: &Audit) -> Self {
        Self {
            object: "audit".to_owned(),
            from: filter.from.to_string(),
            to: filter.to.to_string(),
            holds: audit.holds(),
            days: audit.days.iter().map(day).collect(),
            batches: audit.batches.iter().map(batch).collect(),
            more_batches: audit.more_batches,
            breaches: audit.breaches.iter().map(breach).collect(),
            more_breaches: audit.more_breaches,
        }
    }
}

fn day(day: &AuditedDay) -> AuditedDayObject {
    AuditedDayObject {
        day: day.day.to_string(),
        tenant: day.tenant.as_ref().map(TenantId::to_string),
        tally: day.tally,
        balanced: day.tally.is_balanced(),
    }
}

fn batch(batch: &AuditedBatch) -> AuditedBatchObject {
    AuditedBatchObject {
        id: batch.id.to_string(),
        day: batch.day.to_string(),
        tenant: batch.tenant.to_string(),
        status: batch.state.as_str().to_owned(),
        lines: batch.total,
        refused: batch.refused,
        tally: batch.tally,
        balanced: batch.breaches().is_empty(),
    }
}

fn breach(breach: &Breach) -> BreachObject {
    BreachObject {
        kind: breach.kind,
        subject: breach.subject.clone(),
        tenant: breach.tenant.as_ref().map(TenantId::to_string),
        day: breach.day.map(|day| day.to_string()),
        detail: breach.detail.clone(),
    }
}
