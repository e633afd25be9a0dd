//! The audit, of one moment: one transaction that sees what was committed when it began.

use async_trait::async_trait;
use contract::audit::{MAX_AUDITED_BATCHES, MAX_BREACHES};
use contract::{
    Audit, AuditFilter, AuditedBatch, Auditor, BatchId, BatchState, Day, JobId, JobState, Tally, TenantId, Timestamp,
    TracedJob,
};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::db::{Tx, Write, answer};
use super::fault::Fault;
use super::ledger::sum;
use super::row::{at, column, time as moment, word};

/// What this transaction reads is found by times, a stretch of pages at once, and there is much of it: unlike those that
/// take single rows, it is planned by what is known of the tables.
const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; \
                     SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = on; \
                     SET LOCAL enable_bitmapscan = on; SET LOCAL enable_hashjoin = on; \
                     SET LOCAL enable_mergejoin = on; SET LOCAL work_mem = '64MB'";
/// Each statement reads an hour, so that none takes longer than statements may.
const SLICE_MS: i64 = 3_600 * 1_000;
/// One more than are named tells whether there are more.
const MOST: i64 = MAX_BREACHES as i64 + 1;

/// Holds what was accepted against what became of it.
pub(super) struct Run<'a> {
    pub(super) filter: &'a AuditFilter,
}

#[async_trait]
impl Write for Run<'_> {
    type Answer = Audit;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Audit, Fault> {
        answer(sqlx::raw_sql(BEGIN).execute(&mut *tx.conn)).await?;
        let mut auditor = Auditor::default();
        let (mut from, end) = (self.filter.from.start().0, self.filter.to.plus(1).start().0);
        while from < end {
            self.slice(tx, &mut auditor, from).await?;
            from += SLICE_MS;
        }
        self.batches(tx, &mut auditor).await?;
        let query = sqlx::query(include_str!("sql/audit_counters.sql")).bind(self.tenant()).bind(MOST);
        for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
            auditor.counter(column(row, "name")?, column(row, "value")?, column(row, "n")?);
        }
        Ok(auditor.end())
    }

    fn wrote_nothing(_: &Audit) -> bool {
        true
    }
}

impl Run<'_> {
    fn tenant(&self) -> Option<&str> {
        self.filter.tenant.as_ref().map(TenantId::as_str)
    }

    /// What was accepted in the hour from `from` on.
    async fn slice(&self, tx: &mut Tx<'_>, auditor: &mut Auditor, from: i64) -> Result<(), Fault> {
        let (day, to) = (Day::of(Timestamp(from)), from + SLICE_MS);
        let query = sqlx::query(include_str!("sql/audit_rows.sql")).bind(at(from)).bind(at(to)).bind(self.tenant());
        for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
            auditor.rows(day, TenantId(column(row, "tenant")?), word(row, "state")?, sum(row, "n")?);
        }
        let query = sqlx::query(include_str!("sql/audit_accepted.sql")).bind(at(from)).bind(at(to)).bind(self.tenant());
        for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
            auditor.accepted(day, column::<Option<String>>(row, "tenant")?.map(TenantId), sum(row, "n")?);
        }
        if auditor.has_room() {
            let query = sqlx::query(include_str!("sql/audit_jobs.sql")).bind(at(from)).bind(at(to)).bind(self.tenant());
            for row in &answer(query.bind(MOST).fetch_all(&mut *tx.conn)).await? {
                auditor.job(day, &traced(row)?);
            }
        }
        if self.filter.tenant.is_none() && auditor.has_room() {
            let query = sqlx::query(include_str!("sql/audit_orphans.sql")).bind(at(from)).bind(at(to)).bind(MOST);
            for row in &answer(query.fetch_all(&mut *tx.conn)).await? {
                auditor.orphan(day, JobId(column::<Uuid>(row, "job")?));
            }
        }
        Ok(())
    }

    async fn batches(&self, tx: &mut Tx<'_>, auditor: &mut Auditor) -> Result<(), Fault> {
        let most = i64::try_from(MAX_AUDITED_BATCHES).unwrap_or(i64::MAX).saturating_add(1);
        let query = sqlx::query(include_str!("sql/audit_batches.sql"))
            .bind(at(self.filter.from.start().0))
            .bind(at(self.filter.to.plus(1).start().0))
            .bind(self.tenant())
            .bind(most);
        let rows = answer(query.fetch_all(&mut *tx.conn)).await?;
        auditor.more_batches = rows.len() > MAX_AUDITED_BATCHES;
        for row in rows.iter().take(MAX_AUDITED_BATCHES) {
            let id = BatchId(column::<Uuid>(row, "id")?);
            let (mut tally, mut refused) = (Tally::default(), 0);
            let query = sqlx::query(include_str!("sql/audit_batch.sql")).bind(id.0);
            for count in &answer(query.fetch_all(&mut *tx.conn)).await? {
                match column::<&str>(count, "state")? {
                    "refused" => refused = sum(count, "n")?,
                    "accepted" => tally.accepted = sum(count, "n")?,
                    _ => tally.add(word::<JobState>(count, "state")?, sum(count, "n")?),
                }
            }
            auditor.batch(AuditedBatch {
                id,
                tenant: TenantId(column(row, "tenant")?),
                day: Day::of(Timestamp(moment(row, "created_at")?)),
                state: word::<BatchState>(row, "state")?,
                total: sum(row, "total")?,
                refused,
                tally,
            });
        }
        Ok(())
    }
}

fn traced(row: &PgRow) -> Result<TracedJob, Fault> {
    let ended_as: Option<&str> = column(row, "ended_as")?;
    Ok(TracedJob {
        job: JobId(column::<Uuid>(row, "id")?),
        tenant: TenantId(column(row, "tenant")?),
        state: word(row, "state")?,
        accepted: sum(row, "accepted")?,
        elsewhere: sum(row, "elsewhere")?,
        ended: sum(row, "ended")?,
        // A word that is no state is none that the row could have.
        ended_as: ended_as.and_then(|word| word.parse().ok()),
    })
}
