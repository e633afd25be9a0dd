//! Reads a finished job's record from wherever it is.

use anyhow::Context;
use contract::{Record, RecordLocation};
use object_store::{ObjectStore, ObjectStoreExt};

/// The record at `location`.
///
/// # Errors
/// The object store does not have it, or its bytes are damaged.
pub async fn read(location: &RecordLocation, objects: &dyn ObjectStore) -> anyhow::Result<Record> {
    match location {
        RecordLocation::Inline(bytes) => Ok(Record::decode(bytes)?),
        RecordLocation::Staged(key) => {
            let object = objects.get(&key.as_str().into()).await;
            let bytes = object.with_context(|| format!("the record {key} cannot be read"))?.bytes().await?;
            Ok(Record::decode(&bytes)?)
        }
        RecordLocation::Archived(place) => {
            let range = place.offset..place.offset.saturating_add(u64::from(place.length));
            let bytes = objects.get_range(&place.key.as_str().into(), range).await;
            Ok(Record::decode(&bytes.with_context(|| format!("the record at {place} cannot be read"))?)?)
        }
    }
}
