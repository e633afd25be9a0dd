//! Leases: taking and renewing. Each is one statement that commits by itself and is not waited for until it is on the
//! disk: a lease that a crash forgets has handed out an attempt whose every later write is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use contract::{JobId, JobState, Lease, Leased, StoreError, TenantId, Wake, WorkerId};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::MESSAGE_LIFE_MS;
use super::db::{Db, Tx, Write, answer};
use super::fault::Fault;
use super::group::Grouped;
use super::millis;
use super::row::{attempt, column, json, number, time, word};

/// What some wake-ups name, for one worker.
pub(super) struct TakeLeases {
    pub(super) wakes: Vec<Wake>,
    pub(super) worker: WorkerId,
    pub(super) ttl: Duration,
}

/// The kind of write.
pub(super) struct Leases(pub(super) Db);

#[async_trait]
impl Grouped for Leases {
    type Call = TakeLeases;
    type Answer = Vec<Option<Leased>>;

    fn items(call: &TakeLeases) -> usize {
        call.wakes.len()
    }

    async fn write(&self, calls: &[TakeLeases]) -> Result<Vec<Result<Self::Answer, StoreError>>, StoreError> {
        // Asked for twice, a job goes to whoever asked first.
        let mut askers = BTreeMap::new();
        for (n, call) in calls.iter().enumerate() {
            for wake in &call.wakes {
                askers.entry((wake.job, wake.attempt)).or_insert(n);
            }
        }
        let group = LeaseGroup { calls, askers };
        let (mut leased, damaged) = self.0.once(&group).await?;
        if !damaged.is_empty() {
            // What became of it is logged; a lease that cannot be undone runs out.
            self.0.once(&Unlease { leases: damaged }).await?;
        }
        let one = |n: usize, wake: &Wake, leased: &mut HashMap<Wake, Leased>| {
            let is_mine = group.askers.get(&(wake.job, wake.attempt)) == Some(&n);
            if is_mine { leased.remove(wake) } else { None }
        };
        Ok(calls
            .iter()
            .enumerate()
            .map(|(n, call)| Ok(call.wakes.iter().map(|wake| one(n, wake, &mut leased)).collect()))
            .collect())
    }
}

struct LeaseGroup<'a> {
    calls: &'a [TakeLeases],
    /// Which call each wake-up is leased for.
    askers: BTreeMap<(JobId, u32), usize>,
}

#[async_trait]
impl Write for LeaseGroup<'_> {
    /// The leases by the wake-up that asked, and those of rows that cannot be read.
    type Answer = (HashMap<Wake, Leased>, Vec<Lease>);

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        // In the order of the jobs' ids, in which rows are locked.
        let call = |n: &usize| &self.calls[*n];
        let query = sqlx::query(include_str!("sql/lease.sql"))
            .bind(tx.fixed)
            .bind(self.askers.keys().map(|(job, _)| job.0).collect::<Vec<Uuid>>())
            .bind(self.askers.keys().map(|(_, n)| attempt(*n)).collect::<Vec<i32>>())
            .bind(self.askers.values().map(|n| call(n).worker.as_str()).collect::<Vec<&str>>())
            .bind(self.askers.values().map(|n| millis(call(n).ttl)).collect::<Vec<i64>>())
            .bind(JobState::Queued.as_str());
        let (mut leased, mut damaged) = (HashMap::new(), Vec::new());
        for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
            let lease = Lease { job: JobId(column(row, "id")?), attempt: number(row, "attempt")? };
            match read(row, lease) {
                Ok(answer) => {
                    leased.insert(Wake { job: lease.job, attempt: lease.attempt - 1 }, answer);
                }
                // One damaged row must not keep its neighbours from running: its message is dropped, the job shows
                // what is wrong to whoever reads it, and its deadline ends it.
                Err(fault) => {
                    tracing::error!(job.id = %lease.job, error = %fault, "a job cannot be leased because its row is damaged");
                    damaged.push(lease);
                }
            }
        }
        Ok((leased, damaged))
    }
}

fn read(row: &PgRow, lease: Lease) -> Result<Leased, Fault> {
    Ok(Leased {
        lease,
        tenant: TenantId(column(row, "tenant")?),
        class: word(row, "class")?,
        request: json("request", column::<&str>(row, "request")?)?,
        seed: column::<i64>(row, "seed")?.cast_unsigned(),
        losses: number(row, "losses")?,
        deadline_in: Duration::from_millis(time(row, "deadline")?.abs_diff(time(row, "now")?)),
        traceparent: column(row, "traceparent")?,
    })
}

/// Leases that were never handed out.
struct Unlease {
    leases: Vec<Lease>,
}

#[async_trait]
impl Write for Unlease {
    type Answer = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let query = sqlx::query(include_str!("sql/unlease.sql"))
            .bind(tx.fixed)
            .bind(self.leases.iter().map(|lease| lease.job.0).collect::<Vec<Uuid>>())
            .bind(self.leases.iter().map(|lease| attempt(lease.attempt)).collect::<Vec<i32>>())
            .bind(MESSAGE_LIFE_MS)
            .bind(JobState::Running.as_str());
        answer(query.execute(&mut *tx.conn)).await.map(|_| ())
    }
}

/// Leases to extend.
pub(super) struct Renew {
    pub(super) leases: Vec<Lease>,
    pub(super) ttl: Duration,
}

/// The kind of write.
pub(super) struct Renewals(pub(super) Db);

#[async_trait]
impl Grouped for Renewals {
    type Call = Renew;
    type Answer = Vec<Lease>;

    fn items(call: &Renew) -> usize {
        call.leases.len()
    }

    async fn write(&self, calls: &[Renew]) -> Result<Vec<Result<Vec<Lease>, StoreError>>, StoreError> {
        let live = self.0.once(&RenewGroup { calls }).await?;
        let lost = |call: &Renew| {
            call.leases.iter().filter(|lease| !live.contains(&(lease.job, lease.attempt))).copied().collect()
        };
        Ok(calls.iter().map(|call| Ok(lost(call))).collect())
    }
}

struct RenewGroup<'a> {
    calls: &'a [Renew],
}

#[async_trait]
impl Write for RenewGroup<'_> {
    /// The leases that are live.
    type Answer = BTreeSet<(JobId, u32)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        // In the order of the jobs' ids, in which rows are locked; asked for twice, the longer one counts.
        let mut leases: BTreeMap<(JobId, u32), i64> = BTreeMap::new();
        for call in self.calls {
            for lease in &call.leases {
                let ttl = leases.entry((lease.job, lease.attempt)).or_default();
                *ttl = millis(call.ttl).max(*ttl);
            }
        }
        let query = sqlx::query(include_str!("sql/renew.sql"))
            .bind(tx.fixed)
            .bind(leases.keys().map(|(job, _)| job.0).collect::<Vec<Uuid>>())
            .bind(leases.keys().map(|(_, n)| attempt(*n)).collect::<Vec<i32>>())
            .bind(leases.values().copied().collect::<Vec<i64>>())
            .bind(JobState::Running.as_str());
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok((JobId(column(row, "id")?), number(row, "attempt")?))).collect()
    }
}
