//! Takes payloads of jobs away once their time is over: first the objects, then what the rows have, and a segment once
//! no job of it is kept, or when its archiver was killed before it switched a row to it. A kill in between costs
//! another look.

use std::collections::HashSet;

use contract::ExpiredJob;
use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::Deps;
use crate::retention::RetentionError;

/// Jobs of one look.
pub(crate) const JOBS: u32 = 500;
/// Segments of one look: of those that no job of is kept, and as many of those that never had one.
const SEGMENTS: u32 = 100;
/// Objects deleted at the same time, where that is one by one.
const DELETES: usize = 16;

/// Empties jobs whose time is over, one page of them; answers whether there may be more.
pub(crate) async fn empty(deps: &Deps) -> Result<bool, RetentionError> {
    let expired = deps.admin.expired_jobs(JOBS).await?;
    let (failed, fault) = delete(deps, expired.iter().flat_map(ExpiredJob::objects).collect()).await;
    let is_free = |job: &&ExpiredJob| failed.is_empty() || !job.objects().iter().any(|key| failed.contains(key));
    let jobs: Vec<_> = expired.iter().filter(is_free).map(|job| job.job).collect();
    if !jobs.is_empty() {
        let emptied = deps.admin.empty_jobs(&jobs).await?;
        tracing::info!(jobs = emptied, "payloads whose time was over are removed");
    }
    let mut keys = deps.admin.unkept_segments(SEGMENTS).await?;
    let unswitched = deps.admin.unswitched_segments(SEGMENTS).await?;
    let is_full = [keys.len(), unswitched.len()].contains(&(SEGMENTS as usize));
    keys.extend(unswitched);
    let (failed, segment_fault) = delete(deps, keys.clone()).await;
    let gone: Vec<String> = keys.into_iter().filter(|key| !failed.contains(key)).collect();
    if !gone.is_empty() {
        deps.admin.forget_segments(&gone).await?;
        tracing::info!(segments = gone.len(), "segments of trajectories that nobody keeps are removed");
    }
    match fault.or(segment_fault) {
        Some(fault) => Err(fault.into()),
        None => Ok(expired.len() == JOBS as usize || is_full),
    }
}

/// Deletes objects. Those that are perhaps still there, and why; what never was there is gone too.
async fn delete(deps: &Deps, keys: Vec<String>) -> (HashSet<String>, Option<object_store::Error>) {
    if keys.is_empty() {
        return (HashSet::new(), None);
    }
    // Many in one request, where the object store can. It does not say of which an error is.
    let paths = stream::iter(keys.clone().into_iter().map(|key| Ok(Path::from(key)))).boxed();
    let outcomes: Vec<_> = deps.objects.delete_stream(paths).collect().await;
    if outcomes.iter().all(is_gone) {
        return (HashSet::new(), None);
    }
    let objects = &deps.objects;
    let deletes = stream::iter(keys).map(|key| async move { (objects.delete(&Path::from(key.as_str())).await, key) });
    let outcomes: Vec<_> = deletes.buffer_unordered(DELETES).collect().await;
    let (mut failed, mut fault) = (HashSet::new(), None);
    for (outcome, key) in outcomes {
        if !is_gone(&outcome) {
            failed.insert(key);
            fault = outcome.err();
        }
    }
    (failed, fault)
}

fn is_gone<T>(outcome: &object_store::Result<T>) -> bool {
    matches!(outcome, Ok(_) | Err(object_store::Error::NotFound { .. }))
}
