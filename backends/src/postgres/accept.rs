//! Accepting jobs: room in the counters, idempotency keys, rows and events of a whole group in one transaction.
//!
//! The short way, for jobs without keys, batch lines and sequences while there is room: write the rows, then take the
//! room if all of it is there. If it is not, or a row exists already, the transaction is rolled back and the group goes
//! the careful way: lock the counters first, look at what exists, decide job by job, write.
//!
//! While queues or tenants are full, a call is first held against the committed counters, beside the groups: one that finds no
//! room at all is refused without a wait for anybody's lock or a sync of the log. Keys and batch lines are for a group.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use contract::{Accepted, JobId, NewJob, QueueId, Refused, StoreError, Timestamp};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::db::{Db, Tx, Write, answer};
use super::fault::Fault;
use super::group::Grouped;
use super::row::{column, counters, escaped, time, to_json};
use super::{KEY_LIFE_MS, MESSAGE_LIFE_MS, lock_sequences, millis};

/// What one caller is told.
pub(super) type Answers = Vec<Result<Accepted, Refused>>;

/// The kind of write.
pub(super) struct Accept {
    db: Db,
    /// The last group met a full queue or tenant: the short way would only be walked for nothing.
    was_full: AtomicBool,
    nearly_full: NearlyFull,
}

impl Accept {
    pub(super) fn new(db: Db, nearly_full: NearlyFull) -> Self {
        Self { db, was_full: AtomicBool::new(false), nearly_full }
    }
}

/// Whether a queue or a tenant was full lately, so that a glance at the counters is worth a statement.
#[derive(Clone, Default)]
pub(super) struct NearlyFull(Arc<AtomicBool>);

impl NearlyFull {
    /// The refusals of a call that finds no room at all for any of its jobs; `None` if only a group can tell.
    ///
    /// # Errors
    /// The counters could not be read.
    pub(super) async fn refusals(&self, db: &Db, jobs: &[NewJob]) -> Result<Option<Answers>, StoreError> {
        // A key may be in use, and then its job is the answer, room or not; lines have no bound.
        let may_be_refused = |job: &NewJob| job.idempotency.is_none() && job.batch_line.is_none();
        if !self.0.load(Ordering::Relaxed) || !jobs.iter().all(may_be_refused) {
            return Ok(None);
        }
        let values = db.read(&Glance { jobs }).await?;
        let mut is_nearly_full = false;
        let mut refusals = Vec::with_capacity(jobs.len());
        for job in jobs {
            let value = |name: &str| values.get(name).and_then(|value| u64::try_from(*value).ok()).unwrap_or(0);
            let mut is_refused = false;
            for (name, bound, refused) in bounds(job) {
                // Not at the first free seat: at the bound, room comes and goes with every job that ends.
                is_nearly_full |= value(&name) >= bound - bound / 8;
                if value(&name) >= bound && !is_refused {
                    is_refused = true;
                    refusals.push(Err(refused));
                }
            }
        }
        if !is_nearly_full {
            self.0.store(false, Ordering::Relaxed);
        }
        Ok((refusals.len() == jobs.len()).then_some(refusals))
    }
}

/// The committed values of the bounded counters of some jobs that are in no batch; none if one of the jobs exists.
struct Glance<'a> {
    jobs: &'a [NewJob],
}

#[async_trait]
impl Write for Glance<'_> {
    type Answer = HashMap<String, i64>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<HashMap<String, i64>, Fault> {
        let names: BTreeSet<String> = self.jobs.iter().flat_map(bounds).map(|(name, ..)| name).collect();
        let query = sqlx::query(include_str!("sql/glance.sql"))
            .bind(names.into_iter().collect::<Vec<String>>())
            .bind(self.jobs.iter().map(|job| job.id.0).collect::<Vec<Uuid>>());
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        rows.iter().map(|row| Ok((column(row, "name")?, column(row, "value")?))).collect()
    }
}

fn queue_of(job: &NewJob) -> QueueId {
    QueueId { release: job.release.clone(), class: job.class }
}

/// The bounds of a job: which counter each holds, and what is said where there is no room. None of a batch line.
fn bounds(job: &NewJob) -> Vec<(String, u64, Refused)> {
    let queue = queue_of(job);
    let names: Result<[String; 2], _> = counters(&queue, job.tenant.as_str(), job.batch_line.is_some()).try_into();
    let Ok([of_queue, of_tenant]) = names else { return Vec::new() };
    let mut bounds = vec![(of_queue, job.bound, Refused::QueueFull { queue, bound: job.bound })];
    bounds.extend(job.tenant_bound.map(|bound| (of_tenant, bound, Refused::TenantFull { bound })));
    bounds
}

#[async_trait]
impl Grouped for Accept {
    type Call = Vec<NewJob>;
    type Answer = Answers;

    fn items(call: &Vec<NewJob>) -> usize {
        call.len()
    }

    async fn write(&self, calls: &[Vec<NewJob>]) -> Result<Vec<Result<Answers, StoreError>>, StoreError> {
        let jobs: Vec<&NewJob> = calls.iter().flatten().collect();
        let group = AcceptGroup { jobs, try_short: !self.was_full.load(Ordering::Relaxed) };
        let answers = self.db.transact(&group).await?;
        // A tenant that is full does not send the groups of the others the careful way.
        let is_full = answers.iter().any(|answer| matches!(answer, Err(Refused::QueueFull { .. })));
        self.was_full.store(is_full, Ordering::Relaxed);
        if is_full || answers.iter().any(|answer| matches!(answer, Err(Refused::TenantFull { .. }))) {
            self.nearly_full.0.store(true, Ordering::Relaxed);
        }
        let mut answers = answers.into_iter();
        Ok(calls.iter().map(|call| Ok(answers.by_ref().take(call.len()).collect())).collect())
    }
}

struct AcceptGroup<'a> {
    jobs: Vec<&'a NewJob>,
    try_short: bool,
}

#[async_trait]
impl Write for AcceptGroup<'_> {
    type Answer = Answers;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Answers, Fault> {
        let is_plain =
            |job: &&NewJob| job.idempotency.is_none() && job.batch_line.is_none() && job.sequence_key.is_none();
        if self.try_short && tx.tries == 0 && self.jobs.iter().all(is_plain) && self.have_distinct_ids() {
            let jobs: Vec<(&NewJob, bool)> = self.jobs.iter().map(|job| (*job, false)).collect();
            let at = insert(tx, &jobs).await?;
            if take_all_room(tx, &self.jobs).await? {
                return Ok(self.jobs.iter().map(|job| Ok(accepted(job, false, Some(at)))).collect());
            }
            // Nothing of it may stay.
            answer(sqlx::raw_sql("ROLLBACK; BEGIN").execute(&mut *tx.conn)).await?;
        }
        self.accept_carefully(tx).await
    }

    fn wrote_nothing(answers: &Answers) -> bool {
        answers.iter().all(|answer| !matches!(answer, Ok(Accepted { replayed: false, .. })))
    }
}

/// All of these or none.
pub(super) struct AcceptAll<'a> {
    pub(super) jobs: &'a [NewJob],
}

#[async_trait]
impl Write for AcceptAll<'_> {
    type Answer = Result<Vec<Accepted>, (usize, Refused)>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, Fault> {
        let group = AcceptGroup { jobs: self.jobs.iter().collect(), try_short: false };
        let answers = group.accept_carefully(tx).await?;
        let first_refusal =
            |(nth, answer): (usize, Result<Accepted, Refused>)| answer.map_err(|refused| (nth, refused));
        Ok(answers.into_iter().enumerate().map(first_refusal).collect())
    }

    fn wrote_nothing(answer: &Self::Answer) -> bool {
        match answer {
            // What was written for the others is rolled back.
            Err(_) => true,
            Ok(accepted) => accepted.iter().all(|accepted| accepted.replayed),
        }
    }
}

fn accepted(job: &NewJob, held: bool, at: Option<Timestamp>) -> Accepted {
    Accepted { job: job.id, replayed: false, held, at }
}

impl AcceptGroup<'_> {
    fn have_distinct_ids(&self) -> bool {
        self.jobs.iter().map(|job| job.id).collect::<BTreeSet<_>>().len() == self.jobs.len()
    }

    async fn accept_carefully(&self, tx: &mut Tx<'_>) -> Result<Answers, Fault> {
        let sequences: BTreeSet<(String, String)> = self.jobs.iter().filter_map(|job| sequence(job)).collect();
        lock_sequences(tx, &sequences).await?;
        let mut ledger = Ledger {
            room: lock_counters(tx, &self.jobs).await?,
            taken: BTreeMap::new(),
            known: self.known(tx).await?,
            keys: self.keys(tx).await?,
            busy: busy_sequences(tx, &sequences).await?,
        };
        let mut answers = Vec::with_capacity(self.jobs.len());
        let mut new = Vec::new();
        for job in &self.jobs {
            let verdict = ledger.judge(job);
            if let Ok(Accepted { replayed: false, held, .. }) = verdict {
                new.push((*job, held));
            }
            answers.push(verdict);
        }
        if !new.is_empty() {
            let at = Some(insert(tx, &new).await?);
            for accepted in answers.iter_mut().flatten().filter(|accepted| !accepted.replayed) {
                accepted.at = at;
            }
            keep_keys(tx, &new).await?;
            let (names, values): (Vec<String>, Vec<i64>) = ledger.taken.into_iter().unzip();
            let query = sqlx::query(include_str!("sql/count.sql")).bind(names).bind(values);
            answer(query.execute(&mut *tx.conn)).await?;
        }
        Ok(answers)
    }

    /// Jobs that exist, by their ids and by their batch lines.
    async fn known(&self, tx: &mut Tx<'_>) -> Result<Known, Fault> {
        let ids: Vec<Uuid> = self.jobs.iter().map(|job| job.id.0).collect();
        let (batches, lines): (Vec<Uuid>, Vec<i64>) =
            self.jobs.iter().filter_map(|job| job.batch_line).map(|(batch, line)| (batch, i64::from(line))).unzip();
        let rows = sqlx::query(include_str!("sql/find_existing.sql")).bind(ids).bind(batches).bind(lines);
        let mut known = Known::default();
        for row in &answer(rows.fetch_all(&mut *tx.conn)).await? {
            let id = JobId(column(row, "id")?);
            known.ids.insert(id);
            if let Some(batch) = column::<Option<Uuid>>(row, "batch")? {
                known.lines.insert((batch, column(row, "line")?), id);
            }
        }
        Ok(known)
    }

    /// Idempotency keys that are in use.
    async fn keys(&self, tx: &mut Tx<'_>) -> Result<Keys, Fault> {
        let (tenants, keys): (Vec<&str>, Vec<String>) =
            self.jobs.iter().filter_map(|job| key_of(job)).map(|(tenant, key, _)| (tenant, key)).unzip();
        if keys.is_empty() {
            return Ok(Keys::new());
        }
        let rows =
            sqlx::query(include_str!("sql/find_keys.sql")).bind(tx.fixed).bind(tenants).bind(keys).bind(KEY_LIFE_MS);
        let rows = answer(rows.fetch_all(&mut *tx.conn)).await?;
        let read = |row: &PgRow| {
            let of = (column(row, "tenant")?, column(row, "key")?);
            Ok((of, (column(row, "body_hash")?, JobId(column(row, "job")?))))
        };
        rows.iter().map(read).collect()
    }
}

type Keys = HashMap<(String, String), (Vec<u8>, JobId)>;

#[derive(Default)]
struct Known {
    ids: BTreeSet<JobId>,
    lines: HashMap<(Uuid, i64), JobId>,
}

/// What a group is judged by: what there was, and what the jobs before in the group added.
struct Ledger {
    /// The locked counters.
    room: BTreeMap<String, i64>,
    /// What is added to them.
    taken: BTreeMap<String, i64>,
    known: Known,
    keys: Keys,
    /// Sequences with an unfinished job, and blocked ones.
    busy: BTreeSet<(String, String)>,
}

impl Ledger {
    /// The verdict on one job, which is entered if it is accepted. Whatever can end without a new row comes first.
    fn judge(&mut self, job: &NewJob) -> Result<Accepted, Refused> {
        let replay = |job| Ok(Accepted { job, replayed: true, held: false, at: None });
        let key = key_of(job).map(|(tenant, key, hash)| ((tenant.to_owned(), key), hash));
        if let Some((key, hash)) = &key
            && let Some((known_hash, known)) = self.keys.get(key)
        {
            return if known_hash == hash { replay(*known) } else { Err(Refused::KeyReused) };
        }
        let line = job.batch_line.map(|(batch, line)| (batch, i64::from(line)));
        if self.known.ids.contains(&job.id) {
            return replay(job.id);
        }
        if let Some(known) = line.and_then(|line| self.known.lines.get(&line)) {
            return replay(*known);
        }
        let is_full =
            |(name, bound, _): &(String, u64, Refused)| self.value(name) >= i64::try_from(*bound).unwrap_or(i64::MAX);
        if let Some((_, _, refused)) = bounds(job).into_iter().find(is_full) {
            return Err(refused);
        }
        for name in counters(&queue_of(job), job.tenant.as_str(), job.batch_line.is_some()) {
            *self.taken.entry(name).or_default() += 1;
        }
        self.known.ids.insert(job.id);
        if let Some(line) = line {
            self.known.lines.insert(line, job.id);
        }
        if let Some((key, hash)) = key {
            self.keys.insert(key, (hash.to_vec(), job.id));
        }
        let held = sequence(job).is_some_and(|sequence| !self.busy.insert(sequence));
        // When, the insert tells.
        Ok(accepted(job, held, None))
    }

    fn value(&self, name: &str) -> i64 {
        let [before, added] = [&self.room, &self.taken].map(|counts| counts.get(name).copied().unwrap_or(0));
        before.saturating_add(added)
    }
}

/// A job's tenant, idempotency key as its column has it, and body hash.
fn key_of(job: &NewJob) -> Option<(&str, String, &[u8; 32])> {
    let idempotency = job.idempotency.as_ref()?;
    Some((job.tenant.as_str(), escaped(&idempotency.key).into_owned(), &idempotency.body_hash))
}

/// A job's tenant and sequence key as its column has it.
fn sequence(job: &NewJob) -> Option<(String, String)> {
    Some((job.tenant.0.clone(), escaped(job.sequence_key.as_deref()?).into_owned()))
}

/// How much room each counter must give, and the smallest of the bounds, as arrays in key order.
fn claims(jobs: &[&NewJob]) -> (Vec<String>, Vec<i64>, Vec<i64>) {
    let mut claims: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for job in jobs {
        let bounds: BTreeMap<String, u64> = bounds(job).into_iter().map(|(name, bound, _)| (name, bound)).collect();
        for name in counters(&queue_of(job), job.tenant.as_str(), job.batch_line.is_some()) {
            let bound = bounds.get(&name).map_or(i64::MAX, |bound| i64::try_from(*bound).unwrap_or(i64::MAX));
            let claim = claims.entry(name).or_insert((0, i64::MAX));
            *claim = (claim.0 + 1, claim.1.min(bound));
        }
    }
    let mut arrays = (Vec::new(), Vec::new(), Vec::new());
    for (name, (claim, bound)) in claims {
        arrays.0.push(name);
        arrays.1.push(claim);
        arrays.2.push(bound);
    }
    arrays
}

/// Takes the room of all the jobs; false when a counter lacks it, and then some may be taken.
async fn take_all_room(tx: &mut Tx<'_>, jobs: &[&NewJob]) -> Result<bool, Fault> {
    let (names, values, bounds) = claims(jobs);
    let wanted = names.len();
    let rows = sqlx::query(include_str!("sql/take_room.sql")).bind(names).bind(values).bind(bounds);
    Ok(answer(rows.fetch_all(&mut *tx.conn)).await?.len() == wanted)
}

/// The values of the counters of some jobs, which nobody else changes until the end of the transaction.
async fn lock_counters(tx: &mut Tx<'_>, jobs: &[&NewJob]) -> Result<BTreeMap<String, i64>, Fault> {
    let (names, ..) = claims(jobs);
    let rows = sqlx::query(include_str!("sql/lock_counters.sql")).bind(names);
    let rows = answer(rows.fetch_all(&mut *tx.conn)).await?;
    rows.iter().map(|row| Ok((column(row, "name")?, column(row, "value")?))).collect()
}

/// Which of the sequences have an unfinished job or are blocked.
async fn busy_sequences(
    tx: &mut Tx<'_>,
    sequences: &BTreeSet<(String, String)>,
) -> Result<BTreeSet<(String, String)>, Fault> {
    if sequences.is_empty() {
        return Ok(BTreeSet::new());
    }
    let (tenants, keys): (Vec<String>, Vec<String>) = sequences.iter().cloned().unzip();
    let rows = sqlx::query(include_str!("sql/busy_sequences.sql")).bind(tenants).bind(keys);
    let rows = answer(rows.fetch_all(&mut *tx.conn)).await?;
    rows.iter().map(|row| Ok((column(row, "tenant")?, column(row, "key")?))).collect()
}

async fn keep_keys(tx: &mut Tx<'_>, new: &[(&NewJob, bool)]) -> Result<(), Fault> {
    let mut keys: Vec<_> = new
        .iter()
        .filter_map(|(job, _)| key_of(job).map(|(tenant, key, hash)| (tenant, key, hash, job.id.0)))
        .collect();
    if keys.is_empty() {
        return Ok(());
    }
    keys.sort_unstable();
    let query = sqlx::query(include_str!("sql/keep_keys.sql"))
        .bind(tx.fixed)
        .bind(keys.iter().map(|key| key.0).collect::<Vec<&str>>())
        .bind(keys.iter().map(|key| key.1.as_str()).collect::<Vec<&str>>())
        .bind(keys.iter().map(|key| key.2.as_slice()).collect::<Vec<&[u8]>>())
        .bind(keys.iter().map(|key| key.3).collect::<Vec<Uuid>>())
        .bind(KEY_LIFE_MS);
    let kept = answer(query.execute(&mut *tx.conn)).await?.rows_affected();
    if kept == keys.len() as u64 { Ok(()) } else { Err(Fault::Overtaken) }
}

/// Writes rows and events of at least one job, and answers the time in them. With each job, whether it is held.
async fn insert(tx: &mut Tx<'_>, jobs: &[(&NewJob, bool)]) -> Result<Timestamp, Fault> {
    fn each<'j, T>(jobs: &[(&'j NewJob, bool)], column: impl Fn(&'j NewJob) -> T) -> Vec<T> {
        jobs.iter().map(|(job, _)| column(job)).collect()
    }
    let mut requests = Vec::with_capacity(jobs.len());
    let mut metadata = Vec::with_capacity(jobs.len());
    let mut waits = Vec::with_capacity(jobs.len());
    for (job, held) in jobs {
        requests.push(to_json("the request", &job.request)?);
        let pairs: BTreeMap<_, _> = job.metadata.iter().map(|(key, value)| (escaped(key), escaped(value))).collect();
        metadata.push(to_json("the metadata", &pairs)?);
        waits.push(match (held, job.published_by_caller) {
            (true, _) => None,
            (false, true) => Some(MESSAGE_LIFE_MS.max(millis(job.delay))),
            (false, false) => Some(millis(job.delay)),
        });
    }
    let webhooks =
        jobs.iter().map(|(job, _)| job.webhook.as_ref().map(|hook| to_json("the webhook", hook)).transpose());
    let webhooks = webhooks.collect::<Result<Vec<_>, _>>()?;
    let query = sqlx::query(include_str!("sql/insert_jobs.sql"))
        .bind(tx.fixed)
        .bind(each(jobs, |job| job.id.0))
        .bind(each(jobs, |job| job.tenant.as_str()))
        .bind(each(jobs, |job| job.release.as_str()))
        .bind(each(jobs, |job| job.route.as_str()))
        .bind(each(jobs, |job| job.class.as_str()))
        .bind(each(jobs, |job| job.request.kind().as_str()))
        .bind(waits)
        .bind(each(jobs, |job| millis(job.delay.saturating_add(job.deadline_in))))
        .bind(each(jobs, |job| job.seed.cast_signed()))
        .bind(each(jobs, |job| i64::from(job.request.estimated_tokens())))
        .bind(requests)
        .bind(metadata)
        .bind(each(jobs, |job| job.batch_line.map(|(batch, _)| batch)))
        .bind(each(jobs, |job| job.batch_line.map(|(_, line)| i64::from(line))))
        .bind(each(jobs, |job| job.sequence_key.as_deref().map(escaped).map(|key| key.into_owned())))
        .bind(each(jobs, |job| job.traceparent.as_deref()))
        .bind(each(jobs, |job| job.trajectory.as_str()))
        .bind(each(jobs, |job| job.custom_id.as_deref().map(escaped).map(|id| id.into_owned())))
        .bind(webhooks)
        .bind(each(jobs, |job| job.keep.map(millis)))
        .bind(each(jobs, |job| job.on_failure.as_str()));
    let row = answer(query.fetch_one(&mut *tx.conn)).await?;
    Ok(Timestamp(time(&row, "at")?))
}
