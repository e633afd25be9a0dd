//! How long what clients sent and got is kept: the payload of a job is its request, its result, its trajectory and its
//! metadata. Afterwards there is only what there is to know of the job itself.

use std::time::Duration;

use crate::ids::{JobId, TenantId};
use crate::record::{Trajectories, TrajectoryMode};

/// Shortest time that a client can ask for, in seconds.
pub const MIN_KEEP_SECONDS: u64 = 60;
/// Longest time that a client can ask for, in seconds: ten years of 365 days.
pub const MAX_KEEP_SECONDS: u64 = 10 * 365 * 24 * 3_600;
/// How long the payload of a job that is not to be stored stays after its end, so that whoever waits for it gets it.
pub const UNSTORED_GRACE: Duration = Duration::from_secs(300);

/// What a client wants of its payload's keeping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// What the server's policy says.
    #[default]
    AsSet,
    /// So long after the end.
    For(Duration),
    /// Only for the run: no trajectory, and [`UNSTORED_GRACE`] after the end nothing at all.
    RunOnly,
}

impl Trajectories {
    /// How much of a job is kept as its trajectory, and for how long after its end its payload; `None` is for ever.
    pub fn kept(&self, tenant: &TenantId, storage: Storage) -> (TrajectoryMode, Option<Duration>) {
        match storage {
            Storage::AsSet => (self.of(tenant), self.keep),
            Storage::For(keep) => (self.of(tenant), Some(keep)),
            Storage::RunOnly => (TrajectoryMode::Off, Some(UNSTORED_GRACE)),
        }
    }
}

/// The object store's key of the record that an attempt staged.
pub fn record_key(job: &JobId, attempt: u32) -> String {
    format!("records/{job}/{attempt}.json.zst")
}

/// A job whose payload's time is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredJob {
    /// The job.
    pub job: JobId,
    /// Its attempts: each may have left an object, also one that was not the last.
    pub attempts: u32,
    /// The object that its record is in, if that is its own.
    pub staged: Option<String>,
}

impl ExpiredJob {
    /// Keys of the objects that may hold something of it. Most do not exist.
    pub fn objects(&self) -> Vec<String> {
        let mut keys: Vec<String> = (1..=self.attempts).map(|attempt| record_key(&self.job, attempt)).collect();
        keys.extend(self.staged.iter().filter(|staged| !keys.contains(staged)).cloned().collect::<Vec<_>>());
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_wins_over_the_policy() {
        let tenant = TenantId::local();
        let day = Duration::from_secs(86_400);
        let policy = Trajectories { keep: Some(day), ..Trajectories::default() };
        assert_eq!(policy.kept(&tenant, Storage::AsSet), (TrajectoryMode::Full, Some(day)));
        let minute = Duration::from_secs(60);
        assert_eq!(policy.kept(&tenant, Storage::For(minute)), (TrajectoryMode::Full, Some(minute)));
        let five_minutes = Duration::from_secs(300);
        assert_eq!(policy.kept(&tenant, Storage::RunOnly), (TrajectoryMode::Off, Some(five_minutes)));
        assert_eq!(Trajectories::default().kept(&tenant, Storage::AsSet), (TrajectoryMode::Full, None));
    }

    #[test]
    fn every_attempt_may_have_left_an_object() {
        let id = "job_0193f0c0d0e070008000000000000001";
        let job: JobId = id.parse().unwrap();
        let keys =
            |attempts, staged: Option<&str>| ExpiredJob { job, attempts, staged: staged.map(str::to_owned) }.objects();
        let own = |attempt: u32| format!("records/{id}/{attempt}.json.zst");
        assert_eq!(keys(0, None), [""; 0]);
        assert_eq!(keys(2, None), [own(1), own(2)]);
        assert_eq!(keys(2, Some(&own(2))), [own(1), own(2)]);
        assert_eq!(keys(1, Some("elsewhere")), [own(1), "elsewhere".to_owned()]);
    }
}
