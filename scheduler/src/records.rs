//! Records of jobs, wherever they are.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use contract::record::RecordError;
use contract::{Job, JobId, Record, RecordLocation, SegmentPlace, StoreError};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::Deps;

/// Objects read at the same time.
const READS: usize = 16;
/// Compressed bytes of records that are fetched together. Those in rows are not counted: they came with their page.
const HELD: u64 = 8 * 1024 * 1024;

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
    decode(job.id, &bytes).map(Some)
}

/// The records of jobs, in their order. Those that lie in the same segment are read together: one by one, the requests
/// would take longer than the jobs did.
///
/// # Errors
/// [`RecordFault`].
pub(crate) async fn records(deps: &Deps, jobs: &[&Job]) -> Result<Vec<Option<Record>>, RecordFault> {
    let mut segments: BTreeMap<&str, Vec<(usize, &SegmentPlace)>> = BTreeMap::new();
    let mut alone = Vec::new();
    for (nth, job) in jobs.iter().enumerate() {
        match &job.record {
            Some(RecordLocation::Archived(place)) => segments.entry(&place.key).or_default().push((nth, place)),
            Some(RecordLocation::Inline(_) | RecordLocation::Staged(_)) => alone.push((nth, *job)),
            None => {}
        }
    }
    let mut records: Vec<Option<Record>> = jobs.iter().map(|_| None).collect();
    // Futures in a vector and no `map` of the stream: a closure that borrows makes the whole step not `Send`.
    let reads: Vec<_> = segments.into_iter().map(|(key, members)| frames(deps, key, members)).collect();
    let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
    while let Some(frames) = reads.try_next().await? {
        for (nth, frame) in frames {
            records[nth] = Some(decode(jobs[nth].id, &frame)?);
        }
    }
    let reads: Vec<_> = alone.iter().map(|(_, job)| record(deps, job)).collect();
    let mut reads = futures::stream::iter(reads).buffered(READS);
    for (nth, _) in &alone {
        records[*nth] = reads.try_next().await?.flatten();
    }
    Ok(records)
}

/// How many of these jobs, from the first, have records that may be fetched together: at least one, if there is one.
pub(crate) fn held_together<'a>(jobs: impl Iterator<Item = Option<&'a Job>>) -> usize {
    let mut bytes = 0;
    let mut n = 0;
    for job in jobs {
        bytes += match job.and_then(|job| job.record.as_ref()) {
            Some(RecordLocation::Archived(place)) => u64::from(place.length),
            // Too large for a row: how large is not known here.
            Some(RecordLocation::Staged(_)) => HELD / READS as u64,
            Some(RecordLocation::Inline(_)) | None => 0,
        };
        if n > 0 && bytes > HELD {
            break;
        }
        n += 1;
    }
    n
}

/// Frames of one segment, each with what it came with.
async fn frames(
    deps: &Deps,
    key: &str,
    members: Vec<(usize, &SegmentPlace)>,
) -> object_store::Result<Vec<(usize, Bytes)>> {
    let ranges: Vec<_> = members.iter().map(|(_, place)| range(place)).collect();
    let frames = deps.objects.get_ranges(&Path::from(key), &ranges).await?;
    Ok(members.into_iter().map(|(nth, _)| nth).zip(frames).collect())
}

async fn read(deps: &Deps, location: &RecordLocation) -> object_store::Result<Bytes> {
    match location {
        RecordLocation::Inline(bytes) => Ok(Bytes::from(bytes.clone())),
        RecordLocation::Staged(key) => deps.objects.get(&Path::from(key.as_str())).await?.bytes().await,
        RecordLocation::Archived(place) => deps.objects.get_range(&Path::from(place.key.as_str()), range(place)).await,
    }
}

fn range(place: &SegmentPlace) -> Range<u64> {
    place.offset..place.offset.saturating_add(u64::from(place.length))
}

fn decode(job: JobId, bytes: &[u8]) -> Result<Record, RecordFault> {
    Record::decode(bytes).map_err(|source| RecordFault::Damaged { job, source })
}
