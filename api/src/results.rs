//! From the store's rows to results: records wherever they are, waits with the store behind the bus.

use bytes::Bytes;
use contract::openai::native::{JobObject, job_object};
use contract::{Job, JobId, JobState, Record, RecordLocation, SegmentPlace, TenantId};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::state::AppState;

/// Failed reads of the store in a row after which a waiter gives up.
const PATIENCE: u32 = 5;

/// A job, and its record once it succeeded.
pub(crate) struct Finished {
    pub job: Job,
    pub record: Option<Record>,
}

impl Finished {
    pub fn object(&self) -> JobObject {
        job_object(&self.job, self.record.as_ref())
    }

    /// The record of a job that succeeded.
    ///
    /// # Errors
    /// Why it did not.
    pub fn record(&self) -> Result<&Record, ApiError> {
        if self.record.is_none() && self.job.is_gone() {
            return Err(ApiError::emptied(&self.job));
        }
        match (self.job.state, &self.record) {
            (JobState::Succeeded, Some(record)) => Ok(record),
            (JobState::Failed, _) => {
                Err(self.job.error.clone().map_or(ApiError::JobFailedSilently, ApiError::JobFailed))
            }
            (JobState::Cancelled, _) => Err(ApiError::JobCancelled),
            (JobState::Expired, _) => Err(ApiError::Expired),
            // A succeeded row without a record, or no end at all: not what the store promises.
            (JobState::Succeeded | JobState::Queued | JobState::Running, _) => Err(ApiError::Internal),
        }
    }
}

/// One job of this tenant.
pub(crate) async fn job(state: &AppState, tenant: &TenantId, id: &JobId) -> Result<Job, ApiError> {
    let found = state.deps.store.get(tenant, id).await?;
    found.ok_or_else(|| ApiError::JobNotFound { id: id.to_string() })
}

/// A job whose payload is kept, or has not ended.
///
/// # Errors
/// 410 with what is left of one whose payload's time is over.
pub(crate) fn kept(job: Job) -> Result<Job, ApiError> {
    if job.is_gone() { Err(ApiError::emptied(&job)) } else { Ok(job) }
}

/// Reads the job's record, if it has one and its time is not over.
pub(crate) async fn finished(state: &AppState, job: Job) -> Result<Finished, ApiError> {
    if job.is_gone() {
        return Ok(Finished { job, record: None });
    }
    with_record(state, job).await
}

/// Reads the job's record, if it has one. One whose time is over may have it still.
pub(crate) async fn with_record(state: &AppState, job: Job) -> Result<Finished, ApiError> {
    let Some(location) = &job.record else { return Ok(Finished { job, record: None }) };
    match read(state, location).await {
        // Archived since the row was read: what was staged is in a segment now.
        Err(ApiError::Objects(object_store::Error::NotFound { .. })) => {
            let job = self::job(state, &job.tenant, &job.id).await?;
            let Some(location) = &job.record else { return Ok(Finished { job, record: None }) };
            match read(state, location).await {
                // Its objects go before its row says so.
                Err(ApiError::Objects(object_store::Error::NotFound { .. })) if job.is_gone() => {
                    Ok(Finished { job, record: None })
                }
                record => Ok(Finished { record: Some(record?), job }),
            }
        }
        record => Ok(Finished { record: Some(record?), job }),
    }
}

/// One record, wherever it is.
async fn read(state: &AppState, location: &RecordLocation) -> Result<Record, ApiError> {
    let objects = &state.deps.objects;
    let bytes = match location {
        RecordLocation::Inline(bytes) => return Ok(Record::decode(bytes)?),
        RecordLocation::Staged(key) => {
            let object = objects.get(&Path::from(key.as_str())).await.map_err(ApiError::Objects)?;
            object.bytes().await.map_err(ApiError::Objects)?
        }
        RecordLocation::Archived(place) => frame(state, place).await?,
    };
    Ok(Record::decode(&bytes)?)
}

/// One frame of a segment.
pub(crate) async fn frame(state: &AppState, place: &SegmentPlace) -> Result<Bytes, ApiError> {
    let range = place.offset..place.offset.saturating_add(u64::from(place.length));
    let key = Path::from(place.key.as_str());
    state.deps.objects.get_range(&key, range).await.map_err(ApiError::Objects)
}

/// Waits until the job has ended or `until` is over, and returns it as it then is. With `until` the wait also ends
/// when the server begins to drain; without, when the grace is over.
pub(crate) async fn wait(
    state: &AppState,
    tenant: &TenantId,
    id: JobId,
    until: Option<Instant>,
) -> Result<Job, ApiError> {
    // Subscribe before the query, or an end in between is lost.
    let mut waiter = state.waiters.wait_for(id);
    let mut failures = 0;
    loop {
        let known = match self::job(state, tenant, &id).await {
            Ok(job) if job.state.is_terminal() => return Ok(job),
            Ok(job) => {
                failures = 0;
                Some(job)
            }
            Err(error @ ApiError::Store(_)) => {
                failures += 1;
                if failures == PATIENCE {
                    return Err(error);
                }
                None
            }
            Err(error) => return Err(error),
        };
        let over = async {
            match until {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = state.draining.cancelled() => {}
                },
                None => state.closing.cancelled().await,
            }
        };
        tokio::select! {
            () = waiter.signalled() => {}
            () = tokio::time::sleep(state.deps.limits.poll) => {}
            () = over => return match (until, known) {
                (Some(_), Some(job)) => Ok(job),
                (Some(_), None) => self::job(state, tenant, &id).await,
                (None, _) => Err(ApiError::ShuttingDown),
            },
        }
    }
}
