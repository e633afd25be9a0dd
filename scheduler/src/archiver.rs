//! The archiver: rolls the records of ended jobs into segments, by size and age.
//!
//! A segment is whole and durable in the object store before any row points to it, and the switch of a row is a
//! compare-and-set: of two archivers one has it, and the other's line is nobody's. Killed between the two, it leaves a
//! segment without rows and the records where they were; the next archiver writes them again. Nothing is read from a
//! segment that no row points to. Its key was announced to the store before it was written, so that it is removed some
//! time later, with the payloads it holds. Nobody switches rows to a segment that is about as old as that.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use contract::ports::SEGMENT_GRACE;
use contract::record::{INLINE_BYTES, RecordError};
use contract::trajectory::{SegmentBuilder, frame_of, segment_key};
use contract::{Fingerprint, JobId, RecordLocation, SegmentPlace, StoreError, TrajectoryMode, Unarchived};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::time::Instant;
use uuid::Uuid;

use crate::Deps;
use crate::lead::{self, Lead};
use crate::patience::{Chain, Patience};

/// Records read from the store at a time: never fewer, and never more. They are in memory together, each at most
/// [`INLINE_BYTES`] long: the others are read one by one.
const PAGE: std::ops::RangeInclusive<usize> = 64..=4_096;
/// How long a record that cannot be archived is let lie.
const ASIDE: Duration = Duration::from_secs(600);
/// Objects deleted at the same time.
const DELETES: usize = 16;
/// Longest try to remove what was perhaps written for nobody.
const REMOVE: Duration = Duration::from_secs(2);

/// When records are rolled into a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Compressed bytes after which a segment is closed; its last record may go beyond. Also about the memory it takes.
    pub segment_bytes: usize,
    /// Age after which a record is archived, however small its segment then is.
    pub segment_age: Duration,
}

impl Default for ArchiveConfig {
    /// 8 MiB, 60 s.
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, segment_age: Duration::from_secs(60) }
    }
}

/// Why a turn did not succeed. Nothing is lost: the records stay where they are.
#[derive(Debug, thiserror::Error)]
enum ArchiveError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the object store cannot be used")]
    Objects(#[from] object_store::Error),
    #[error("a record could not be read on another thread")]
    Thread(#[from] tokio::task::JoinError),
}

/// A segment in the object store whose rows are to be switched.
struct Written {
    key: Path,
    members: Vec<Unarchived>,
    places: Vec<(JobId, SegmentPlace)>,
    announced: Announced,
    /// An earlier try was not answered: rows may point here already.
    perhaps_switched: bool,
}

/// When a segment was announced, or shortly before.
#[derive(Clone, Copy)]
struct Announced {
    steady: Instant,
    wall: SystemTime,
}

impl Announced {
    fn now() -> Self {
        Self { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// Whether its segment may be removed before a row is switched to it. By both clocks: one stands still while the
    /// machine sleeps, the other one can be set.
    fn is_old(&self) -> bool {
        let limit = SEGMENT_GRACE / 2;
        self.steady.elapsed() >= limit || !self.wall.elapsed().is_ok_and(|age| age < limit)
    }
}

/// What a turn left to do.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    /// More records wait than one turn takes.
    More,
    /// Nothing that is due.
    Nothing,
    /// Another scheduler leads.
    NotOurs,
}

/// The loop's state.
pub(crate) struct Archiver {
    deps: Deps,
    lead: Lead,
    patience: Patience,
    /// Records of one turn, so that they are about a segment.
    page: usize,
    /// Records that cannot be archived, and until when they are let lie.
    aside: HashMap<JobId, Instant>,
    /// The store did not answer its switch.
    unswitched: Option<Written>,
}

impl Archiver {
    pub(crate) fn new(deps: Deps) -> Self {
        let lead = Lead::new(deps.store.clone(), lead::ARCHIVER, deps.holder.clone());
        let page = PAGE.start() * 8;
        Self { deps, lead, patience: Patience::new("archiver"), page, aside: HashMap::new(), unswitched: None }
    }

    pub(crate) async fn run(mut self) -> Infallible {
        // A record is at most a quarter older than it should be.
        let every = (self.deps.archive.segment_age / 4).clamp(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            match self.turn().await {
                Ok(Left::More) => self.patience.succeeded(),
                Ok(Left::Nothing) => {
                    self.patience.succeeded();
                    tokio::time::sleep(every).await;
                }
                // Whoever only looks on knows nothing of the backends.
                Ok(Left::NotOurs) => tokio::time::sleep(every).await,
                Err(err) => tokio::time::sleep(self.patience.failed(&err)).await,
            }
        }
    }

    async fn turn(&mut self) -> Result<Left, ArchiveError> {
        if !self.lead.is_ours().await? {
            return Ok(Left::NotOurs);
        }
        if let Some(written) = self.unswitched.take() {
            self.switch(written).await?;
        }
        self.aside.retain(|_, until| Instant::now() < *until);
        let limit = self.page + self.aside.len();
        let rows = self.deps.store.unarchived(u32::try_from(limit).unwrap_or(u32::MAX)).await?;
        let is_full = rows.len() >= limit;
        let rows: Vec<Unarchived> = rows.into_iter().filter(|row| !self.aside.contains_key(&row.job)).collect();
        let n_bytes: usize = rows.iter().map(inline_bytes).sum();
        if !is_full && n_bytes < self.deps.archive.segment_bytes && !self.is_due(rows.first()) {
            return Ok(Left::Nothing);
        }
        if let Some(mean) = n_bytes.checked_div(rows.len()) {
            self.page = (self.deps.archive.segment_bytes / mean.max(1)).clamp(*PAGE.start(), *PAGE.end());
        }
        let mut by_release: BTreeMap<Fingerprint, Vec<Unarchived>> = BTreeMap::new();
        for row in rows {
            by_release.entry(row.release.clone()).or_default().push(row);
        }
        let mut n_written = 0;
        for (release, rows) in by_release {
            // A full page that makes no whole segment is one all the same, or the next turn would read it again.
            let whatever_size = is_full && n_written == 0;
            n_written += self.archive(&release, rows, whatever_size).await?;
        }
        Ok(if is_full { Left::More } else { Left::Nothing })
    }

    /// Whether this record has waited for as long as one may.
    fn is_due(&self, oldest: Option<&Unarchived>) -> bool {
        oldest.is_some_and(|row| row.ended_for >= self.deps.archive.segment_age)
    }

    /// Writes rows of one release, first ended first, to segments; those that make no whole segment and are young are
    /// left, except with `whatever_size`. Answers how many segments it wrote.
    async fn archive(
        &mut self,
        release: &Fingerprint,
        rows: Vec<Unarchived>,
        whatever_size: bool,
    ) -> Result<usize, ArchiveError> {
        let mut n_written = 0;
        let mut open = SegmentBuilder::new(segment_key(release, Uuid::now_v7()));
        let mut members: Vec<Unarchived> = Vec::new();
        for row in rows {
            let Some(frame) = self.frame(&row).await? else { continue };
            open.push(row.job, &frame);
            members.push(row);
            if open.n_bytes() >= self.deps.archive.segment_bytes {
                let next = SegmentBuilder::new(segment_key(release, Uuid::now_v7()));
                let whole = std::mem::replace(&mut open, next);
                if !self.write(whole, std::mem::take(&mut members)).await? {
                    return Ok(n_written);
                }
                n_written += 1;
            }
        }
        let is_due = self.is_due(members.first()) || (whatever_size && n_written == 0);
        if is_due && !members.is_empty() && self.write(open, members).await? {
            n_written += 1;
        }
        Ok(n_written)
    }

    /// The line of one row; `None` when there is none now, which other rows do not wait for.
    async fn frame(&mut self, row: &Unarchived) -> Result<Option<Bytes>, ArchiveError> {
        let framed = match &row.record {
            RecordLocation::Inline(encoded) => frame(encoded, row),
            RecordLocation::Staged(key) => {
                let path = Path::from(key.as_str());
                let get = async { self.deps.objects.get(&path).await?.bytes().await };
                let encoded = match self.lead.while_ours(get).await? {
                    Some(Ok(encoded)) => encoded,
                    Some(Err(object_store::Error::NotFound { .. })) => return self.not_there(row, key).await,
                    Some(Err(err)) => return Err(err.into()),
                    // The others will not be written either.
                    None => return Ok(None),
                };
                // Large: unpacking it takes a while, and other loops share this thread.
                let row = row.clone();
                tokio::task::spawn_blocking(move || frame(&encoded, &row)).await?
            }
            // Switched, and yet among those that are not: the store's own contradiction.
            RecordLocation::Archived(_) => Err(RecordError::Foreign),
        };
        match framed {
            Ok(frame) => Ok(frame),
            Err(err) => {
                self.set_aside(row.job, &err);
                Ok(None)
            }
        }
    }

    /// A staged record that is gone was archived by somebody else since its row was read, or is lost.
    async fn not_there(&mut self, row: &Unarchived, key: &str) -> Result<Option<Bytes>, ArchiveError> {
        let now = self.deps.store.get(&row.tenant, &row.job).await?;
        if now.is_some_and(|job| job.segment.is_none() && job.record.as_ref() == Some(&row.record)) {
            self.set_aside(row.job, &std::io::Error::other(format!("the object store does not have {key}")));
        }
        Ok(None)
    }

    fn set_aside(&mut self, job: JobId, err: &dyn std::error::Error) {
        tracing::error!(job.id = %job, error = %Chain(err), "a record cannot be archived; it stays as it is");
        self.aside.insert(job, Instant::now() + ASIDE);
    }

    /// Stores a segment and switches its rows; false when the lead was lost, so that nothing was written.
    async fn write(&mut self, segment: SegmentBuilder, members: Vec<Unarchived>) -> Result<bool, ArchiveError> {
        let (name, bytes, places) = segment.finish();
        let (key, n_bytes) = (Path::from(name.as_str()), bytes.len());
        let announced = Announced::now();
        let put = async {
            self.deps.admin.announce_segment(&name).await?;
            // The client tries for longer than a lead is good.
            self.deps.objects.put(&key, PutPayload::from(bytes)).await?;
            Ok::<_, ArchiveError>(())
        };
        let Some(stored) = self.lead.while_ours(put).await? else {
            // It may be there by now, and no row will ever point to it. If it stays, its announcement ends it.
            if tokio::time::timeout(REMOVE, self.remove(&key)).await.is_err() {
                tracing::debug!(%key, "a segment that nobody reads stays for a while");
            }
            return Ok(false);
        };
        stored?;
        tracing::info!(segment = %key, records = members.len(), bytes = n_bytes, "wrote a segment of trajectories");
        self.switch(Written { key, members, places, announced, perhaps_switched: false }).await?;
        Ok(true)
    }

    /// Makes the rows point to the segment; kept for the next turn when the store does not answer. Not to one that may
    /// be removed by then: its records are written again.
    async fn switch(&mut self, mut written: Written) -> Result<(), ArchiveError> {
        if written.announced.is_old() {
            tracing::info!(segment = %written.key, "a segment waited for too long; other rows get a new one");
            let switched = vec![false; written.members.len()];
            return self.settle(written, switched).await;
        }
        match self.deps.store.archived(&written.places).await {
            Ok(switched) => self.settle(written, switched).await,
            Err(err @ StoreError::Corrupt(_)) => {
                // No other try mends that, and the records behind these must not wait for it.
                for member in &written.members {
                    self.set_aside(member.job, &err);
                }
                Ok(())
            }
            Err(err) => {
                written.perhaps_switched |= !err.surely_not_applied();
                self.unswitched = Some(written);
                Err(err.into())
            }
        }
    }

    /// Removes what nobody reads any more. Best effort: a segment that stays is removed once its announcement is old.
    async fn settle(&self, written: Written, switched: Vec<bool>) -> Result<(), ArchiveError> {
        let mut garbage = Vec::new();
        let mut n_ours = 0;
        for ((member, (_, place)), switched) in written.members.iter().zip(&written.places).zip(switched) {
            // Not now, but perhaps by the try that was not answered: only the row knows.
            let is_ours = switched || (written.perhaps_switched && self.points_to(member, place).await?);
            n_ours += usize::from(is_ours);
            if let (true, TrajectoryMode::Full, RecordLocation::Staged(key)) =
                (is_ours, member.trajectory, &member.record)
            {
                // A reader that still holds the old location finds nothing there and reads the row again.
                garbage.push(Path::from(key.as_str()));
            }
        }
        if n_ours < written.members.len() {
            tracing::info!(segment = %written.key, ours = n_ours, of = written.members.len(), "another archiver was first");
        }
        if n_ours == 0 {
            garbage.push(written.key);
        }
        let deletes =
            futures::stream::iter(garbage).for_each_concurrent(DELETES, |key| async move { self.remove(&key).await });
        deletes.await;
        Ok(())
    }

    async fn remove(&self, key: &Path) {
        if let Err(err) = self.deps.objects.delete(key).await
            && !matches!(err, object_store::Error::NotFound { .. })
        {
            tracing::debug!(%key, error = &err as &dyn std::error::Error, "an object that nobody reads stays");
        }
    }

    async fn points_to(&self, member: &Unarchived, place: &SegmentPlace) -> Result<bool, StoreError> {
        let job = self.deps.store.get(&member.tenant, &member.job).await?;
        Ok(job.is_some_and(|job| job.segment.as_ref() == Some(place)))
    }
}

/// Bytes of a row's record that are in memory, or would be at least.
fn inline_bytes(row: &Unarchived) -> usize {
    match &row.record {
        RecordLocation::Inline(bytes) => bytes.len(),
        RecordLocation::Staged(_) | RecordLocation::Archived(_) => INLINE_BYTES,
    }
}

fn frame(encoded: &[u8], row: &Unarchived) -> Result<Option<Bytes>, RecordError> {
    let frame = frame_of(encoded, &row.job, &row.release, row.trajectory)?;
    Ok(frame.map(|frame| Bytes::from(frame.into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_old_by_any_clock_that_says_so() {
        let now = Announced::now();
        assert!(!now.is_old());
        assert!(Announced { wall: now.wall - SEGMENT_GRACE / 2, ..now }.is_old(), "the machine slept");
        assert!(Announced { wall: now.wall + SEGMENT_GRACE, ..now }.is_old(), "the clock was set back");
    }
}
