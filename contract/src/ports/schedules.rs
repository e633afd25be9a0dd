//! The part of the store that keeps schedules.

use async_trait::async_trait;

use super::StoreError;
use crate::batch::{Batch, BatchId};
use crate::file::Made;
use crate::ids::TenantId;
use crate::job::IdempotencyKey;
use crate::schedule::{Fired, NewSchedule, Schedule, ScheduleChange, ScheduleId, ScheduleRefused};
use crate::time::Timestamp;

/// Schedules, in the same place as the files and batches. Times are the store's clock.
#[async_trait]
pub trait ScheduleStore: Send + Sync {
    /// Makes a schedule; durable before this answers. With an idempotency key that was used before, nothing is written.
    /// Refused where its file is not there, whole and unexpired.
    async fn add_schedule(&self, schedule: &NewSchedule)
    -> Result<Result<Made<Schedule>, ScheduleRefused>, StoreError>;
    /// One schedule; `None` also when it is another tenant's.
    async fn schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Result<Option<Schedule>, StoreError>;
    /// Up to `limit` of a tenant's schedules older than `after`, newest first; and whether more follow.
    async fn schedules(
        &self,
        tenant: &TenantId,
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<(Vec<Schedule>, bool), StoreError>;
    /// Changes a schedule. Refused where that needs a file which is not there: it is given another one, or enabled.
    async fn change_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        change: &ScheduleChange,
    ) -> Result<Result<Schedule, ScheduleRefused>, StoreError>;
    /// Deletes a schedule; its batches stay. False if there is none.
    async fn delete_schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Result<bool, StoreError>;
    /// Makes a batch of a schedule now, enabled or not, whatever of it runs.
    async fn run_schedule(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        batch: BatchId,
        key: Option<&IdempotencyKey>,
    ) -> Result<Result<Made<Batch>, ScheduleRefused>, StoreError>;
    /// Up to `limit` batches of a schedule older than `after`, newest first, with their counts; and whether more follow.
    /// `None` when there is no such schedule of this tenant.
    async fn schedule_runs(
        &self,
        tenant: &TenantId,
        id: &ScheduleId,
        after: Option<BatchId>,
        limit: u32,
    ) -> Result<Option<(Vec<Batch>, bool)>, StoreError>;
    /// Up to `limit` schedules of all tenants whose time has come, and that time, first due first.
    async fn due_schedules(&self, limit: u32) -> Result<Vec<(ScheduleId, Timestamp)>, StoreError>;
    /// Does what is to be done at a schedule's time, and moves on to its next one, in one transaction. `None` where its
    /// next time is not this one, or has not come: somebody else was first, or it was changed.
    async fn fire_schedule(&self, id: &ScheduleId, due: Timestamp, batch: BatchId)
    -> Result<Option<Fired>, StoreError>;
}
