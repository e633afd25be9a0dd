//! Records of jobs, wherever they are.

use bytes::Bytes;
use contract::record::RecordError;
use contract::{Job, JobId, Record, RecordLocation, StoreError};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::Deps;

/// Why a record could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordFault {
    #[error("the store")]
    Store(#[from] StoreError),
    #[error("the object store")]
    Objects(#[from] object_store::Error),
    #[error("the record of {job}")]
    Damaged {
        job: JobId,
        #[source]
        source: RecordError,
    },
    #[error("{0} has no record")]
    Missing(JobId),
}

/// The record of a job; `None` when it has none, since it did not succeed.
///
/// # Errors
/// [`RecordFault`].
pub(crate) async fn record(deps: &Deps, job: &Job) -> Result<Option<Record>, RecordFault> {
    let Some(location) = &job.record else { return Ok(None) };
    let bytes = match read(deps, location).await {
        // Archived since the row was read: what was staged is in a segment now.
        Err(object_store::Error::NotFound { .. }) => {
            let now = deps.store.get(&job.tenant, &job.id).await?.and_then(|job| job.record);
            read(deps, &now.ok_or(RecordFault::Missing(job.id))?).await?
        }
        bytes => bytes?,
    };
    Record::decode(&bytes).map(Some).map_err(|source| RecordFault::Damaged { job: job.id, source })
}

async fn read(deps: &Deps, location: &RecordLocation) -> object_store::Result<Bytes> {
    match location {
        RecordLocation::Inline(bytes) => Ok(Bytes::from(bytes.clone())),
        RecordLocation::Staged(key) => deps.objects.get(&Path::from(key.as_str())).await?.bytes().await,
        RecordLocation::Archived(place) => {
            let range = place.offset..place.offset.saturating_add(u64::from(place.length));
            deps.objects.get_range(&Path::from(place.key.as_str()), range).await
        }
    }
}
