//! Schedules: batches that are made again and again, at the times of a cron expression.
//!
//! What follows from what is decided here, by pure functions of a schedule and the store's clock; the stores keep it.

mod cron;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::batch::{Batch, BatchId, NewBatch};
use crate::file::FileId;
use crate::ids::{BadId, TenantId, tagged};
use crate::job::IdempotencyKey;
use crate::request::Kind;
use crate::time::Timestamp;
use crate::webhook::Hook;

pub use cron::{BadCron, BadZone, Cron, Zone};

/// Most schedules of a tenant.
pub const MAX_SCHEDULES: u32 = 100;
/// A time that is later than this is one that was missed: longer than it takes another scheduler to go on.
pub const LATE: Duration = Duration::from_secs(60);

/// Identifies a schedule. Shown as `schedule_` and 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleId(pub Uuid);

impl ScheduleId {
    /// A new id, later in order than all that this process made before.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for ScheduleId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "schedule_{}", self.0.simple())
    }
}

impl FromStr for ScheduleId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        tagged(text, "schedule_")
            .map(Self)
            .ok_or_else(|| BadId::new(text, "a schedule id (`schedule_` and 32 hexadecimal digits)"))
    }
}

/// A word that is none of those a field knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not one of {known}")]
pub struct BadWord {
    word: String,
    known: &'static str,
}

/// What happens at a time at which an earlier run has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// The time is passed over, and counted.
    #[default]
    Skip,
    /// Another run beside it.
    Allow,
}

impl Overlap {
    /// The word used in JSON and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Overlap::Skip => "skip",
            Overlap::Allow => "allow",
        }
    }
}

impl FromStr for Overlap {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let found = [Overlap::Skip, Overlap::Allow].into_iter().find(|overlap| overlap.as_str() == word);
        found.ok_or_else(|| BadWord { word: word.chars().take(40).collect(), known: "skip and allow" })
    }
}

/// What happens when times were missed, since no scheduler was there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// One run for all of them, as soon as a scheduler is back.
    #[default]
    One,
    /// None: they are passed over, and counted as one.
    None,
}

impl CatchUp {
    /// The word used in JSON and the store.
    pub fn as_str(self) -> &'static str {
        match self {
            CatchUp::One => "one",
            CatchUp::None => "none",
        }
    }
}

impl FromStr for CatchUp {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let found = [CatchUp::One, CatchUp::None].into_iter().find(|catch_up| catch_up.as_str() == word);
        found.ok_or_else(|| BadWord { word: word.chars().take(40).collect(), known: "one and none" })
    }
}

/// What each batch of a schedule is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchTemplate {
    /// Its input.
    pub input: FileId,
    /// Which route its lines call.
    pub endpoint: Kind,
    /// From when it is made to its end.
    pub window: Duration,
    /// The same as the client wrote it.
    pub window_text: String,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// Life of its output files.
    pub output_life: Option<Duration>,
    /// How long after their end the payloads of its lines are kept; `None` as the setting says.
    pub keep: Option<Duration>,
    /// Where it alone is told of.
    pub webhook: Option<Hook>,
}

impl BatchTemplate {
    /// A batch made from it.
    pub fn batch(&self, id: BatchId, tenant: &TenantId, idempotency: Option<IdempotencyKey>) -> NewBatch {
        NewBatch {
            id,
            tenant: tenant.clone(),
            endpoint: self.endpoint,
            input: self.input,
            window: self.window,
            run_after: None,
            window_text: self.window_text.clone(),
            metadata: self.metadata.clone(),
            output_life: self.output_life,
            keep: self.keep,
            only: None,
            webhook: self.webhook.clone(),
            idempotency,
        }
    }
}

/// A schedule to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSchedule {
    /// Its id, made by the server.
    pub id: ScheduleId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// Its times.
    pub cron: Cron,
    /// Where the clock hangs that they are read from.
    pub zone: Zone,
    /// What happens at a time at which an earlier run has not ended.
    pub overlap: Overlap,
    /// What happens when times were missed.
    pub catch_up: CatchUp,
    /// Whether it runs at its times.
    pub enabled: bool,
    /// What its batches are made from.
    pub batch: BatchTemplate,
    /// A client's key that makes a repeat the same schedule.
    pub idempotency: Option<IdempotencyKey>,
}

impl NewSchedule {
    /// The schedule as it stands when it is made.
    pub fn made(&self, now: Timestamp) -> Schedule {
        Schedule {
            id: self.id,
            tenant: self.tenant.clone(),
            name: self.name.clone(),
            cron: self.cron.clone(),
            zone: self.zone,
            overlap: self.overlap,
            catch_up: self.catch_up,
            batch: self.batch.clone(),
            created_at: now,
            next_at: if self.enabled { self.cron.next(self.zone, now) } else { None },
            last_at: None,
            last_batch: None,
            last_error: None,
            runs: 0,
            skipped: 0,
            now,
        }
    }
}

/// What is to be changed of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleChange {
    /// What people call it.
    pub name: Option<String>,
    /// Its times.
    pub cron: Option<Cron>,
    /// Where the clock hangs that they are read from.
    pub zone: Option<Zone>,
    /// What happens at a time at which an earlier run has not ended.
    pub overlap: Option<Overlap>,
    /// What happens when times were missed.
    pub catch_up: Option<CatchUp>,
    /// Whether it runs at its times.
    pub enabled: Option<bool>,
    /// What its batches are made from, as a whole.
    pub batch: Option<BatchTemplate>,
}

/// Why a schedule was not made, changed or run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleRefused {
    /// No such schedule of this tenant.
    NotFound,
    /// The idempotency key was used with another body.
    KeyReused,
    /// The tenant has [`MAX_SCHEDULES`] already.
    TooMany,
    /// Its file is gone, or is none for batches.
    NoFile,
}

/// A schedule as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its id.
    pub id: ScheduleId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What people call it.
    pub name: String,
    /// Its times.
    pub cron: Cron,
    /// Where the clock hangs that they are read from.
    pub zone: Zone,
    /// What happens at a time at which an earlier run has not ended.
    pub overlap: Overlap,
    /// What happens when times were missed.
    pub catch_up: CatchUp,
    /// What its batches are made from.
    pub batch: BatchTemplate,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it runs next; never, while it is disabled.
    pub next_at: Option<Timestamp>,
    /// When it ran last.
    pub last_at: Option<Timestamp>,
    /// The batch of that run.
    pub last_batch: Option<BatchId>,
    /// Why its last time brought no run.
    pub last_error: Option<String>,
    /// Batches made so far.
    pub runs: u64,
    /// Times passed over so far.
    pub skipped: u64,
    /// The store's clock when it answered.
    pub now: Timestamp,
}

/// What a schedule's time is decided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// A batch of it has not ended.
    pub has_open_run: bool,
    /// A batch of this very time was made before.
    pub was_run: bool,
    /// Its file has its bytes.
    pub has_file: bool,
}

/// What is to be done at a schedule's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// A batch is to be made.
    Run,
    /// The time is passed over, and was counted.
    Skip,
    /// There can be no batch, and that is noted.
    Fail(String),
    /// Nothing: that was done before.
    Pass,
}

/// What was done at a schedule's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// This batch was made.
    Run(Box<Batch>),
    /// The time was passed over, and counted.
    Skipped,
    /// There could be no batch, for this reason, which the schedule shows.
    Failed(String),
}

impl Schedule {
    /// Whether it runs at its times.
    pub fn is_enabled(&self) -> bool {
        self.next_at.is_some()
    }

    /// The schedule as it stands after a change: its next time is counted from now if its times are others than before.
    #[must_use]
    pub fn changed(&self, change: &ScheduleChange) -> Schedule {
        let mut changed = self.clone();
        let ScheduleChange { name, cron, zone, overlap, catch_up, enabled, batch } = change.clone();
        changed.name = name.unwrap_or(changed.name);
        changed.cron = cron.unwrap_or(changed.cron);
        changed.zone = zone.unwrap_or(changed.zone);
        changed.overlap = overlap.unwrap_or(changed.overlap);
        changed.catch_up = catch_up.unwrap_or(changed.catch_up);
        changed.batch = batch.unwrap_or(changed.batch);
        let has_other_times = (&changed.cron, changed.zone) != (&self.cron, self.zone);
        changed.next_at = match enabled.unwrap_or(self.is_enabled()) {
            false => None,
            true if self.is_enabled() && !has_other_times => self.next_at,
            true => changed.cron.next(changed.zone, self.now),
        };
        changed
    }

    /// Takes note of a run that begins now.
    pub fn ran(&mut self, batch: BatchId) {
        self.runs = self.runs.saturating_add(1);
        (self.last_at, self.last_batch, self.last_error) = (Some(self.now), Some(batch), None);
    }

    /// Its time `due` has come: decides what is to be done, takes note of it, and moves on to the first of its times that is
    /// still ahead, so that all that were missed are one.
    pub fn take_turn(&mut self, due: Timestamp, look: Look, batch: BatchId) -> Turn {
        // A clock that was put back must not bring the same time again.
        self.next_at = self.cron.next(self.zone, self.now.max(due));
        let is_missed = u128::from(self.now.millis_since(due)) > LATE.as_millis();
        if look.was_run {
            return Turn::Pass;
        }
        if (is_missed && self.catch_up == CatchUp::None) || (look.has_open_run && self.overlap == Overlap::Skip) {
            self.skipped = self.skipped.saturating_add(1);
            return Turn::Skip;
        }
        if !look.has_file {
            let why = format!(
                "{}: there was no run, since the file {} is gone; upload it again and give the schedule the new one",
                due.rfc3339(),
                self.batch.input
            );
            self.last_error = Some(why.clone());
            return Turn::Fail(why);
        }
        self.ran(batch);
        Turn::Run
    }
}

#[cfg(test)]
mod tests;
