//! The audit, of one moment: one transaction that sees what was committed when it began.

use contract::audit::{MAX_AUDITED_BATCHES, MAX_BREACHES};
use contract::{
    Audit, AuditFilter, AuditedBatch, Auditor, BatchId, BatchState, Day, JobId, JobState, Tally, TenantId, Timestamp,
    TracedJob,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::fault::Fault;
use super::ledger::sum;
use super::row::{column, word};

/// One more than are named tells whether there are more.
const MOST: i64 = MAX_BREACHES as i64 + 1;

/// Holds what was accepted against what became of it.
pub(super) async fn run(pool: &SqlitePool, filter: &AuditFilter) -> Result<Audit, Fault> {
    // Deferred: it reads what was there at its first statement, to its last. It is rolled back when it is dropped.
    let mut tx = pool.begin().await?;
    let mut auditor = Auditor::default();
    for nth in 0..filter.to.count_from(filter.from) {
        slice(&mut tx, &mut auditor, filter, filter.from.plus(i32::try_from(nth).unwrap_or(i32::MAX))).await?;
    }
    batches(&mut tx, &mut auditor, filter).await?;
    let query = sqlx::query(include_str!("sql/audit_counters.sql")).bind(tenant(filter)).bind(MOST);
    for row in &query.fetch_all(&mut *tx).await? {
        auditor.counter(column(row, "name")?, column(row, "value")?, column(row, "n")?);
    }
    Ok(auditor.end())
}

fn tenant(filter: &AuditFilter) -> Option<&str> {
    filter.tenant.as_ref().map(TenantId::as_str)
}

/// What was accepted on a day.
async fn slice(
    conn: &mut SqliteConnection,
    auditor: &mut Auditor,
    filter: &AuditFilter,
    day: Day,
) -> Result<(), Fault> {
    let (from, to) = (day.start().0, day.plus(1).start().0);
    let query = sqlx::query(include_str!("sql/audit_rows.sql")).bind(from).bind(to).bind(tenant(filter));
    for row in &query.fetch_all(&mut *conn).await? {
        auditor.rows(day, TenantId(column(row, "tenant")?), word(row, "state")?, sum(row, "n")?);
    }
    let query = sqlx::query(include_str!("sql/audit_accepted.sql")).bind(from).bind(to).bind(tenant(filter));
    for row in &query.fetch_all(&mut *conn).await? {
        auditor.accepted(day, column::<Option<String>>(row, "tenant")?.map(TenantId), sum(row, "n")?);
    }
    if auditor.has_room() {
        let query = sqlx::query(include_str!("sql/audit_jobs.sql")).bind(from).bind(to).bind(tenant(filter)).bind(MOST);
        for row in &query.fetch_all(&mut *conn).await? {
            auditor.job(day, &traced(row)?);
        }
    }
    if filter.tenant.is_none() && auditor.has_room() {
        let query = sqlx::query(include_str!("sql/audit_orphans.sql")).bind(from).bind(to).bind(MOST);
        for row in &query.fetch_all(&mut *conn).await? {
            auditor.orphan(day, JobId(column::<Uuid>(row, "job")?));
        }
    }
    Ok(())
}

async fn batches(conn: &mut SqliteConnection, auditor: &mut Auditor, filter: &AuditFilter) -> Result<(), Fault> {
    let most = i64::try_from(MAX_AUDITED_BATCHES).unwrap_or(i64::MAX).saturating_add(1);
    let query = sqlx::query(include_str!("sql/audit_batches.sql"))
        .bind(filter.from.start().0)
        .bind(filter.to.plus(1).start().0)
        .bind(tenant(filter))
        .bind(most);
    let rows = query.fetch_all(&mut *conn).await?;
    auditor.more_batches = rows.len() > MAX_AUDITED_BATCHES;
    for row in rows.iter().take(MAX_AUDITED_BATCHES) {
        let id = BatchId(column::<Uuid>(row, "id")?);
        let (mut tally, mut refused) = (Tally::default(), 0);
        for count in &sqlx::query(include_str!("sql/audit_batch.sql")).bind(id.0).fetch_all(&mut *conn).await? {
            match column::<&str>(count, "state")? {
                "refused" => refused = sum(count, "n")?,
                "accepted" => tally.accepted = sum(count, "n")?,
                _ => tally.add(word::<JobState>(count, "state")?, sum(count, "n")?),
            }
        }
        auditor.batch(AuditedBatch {
            id,
            tenant: TenantId(column(row, "tenant")?),
            day: Day::of(Timestamp(column(row, "created_at")?)),
            state: word::<BatchState>(row, "state")?,
            total: sum(row, "total")?,
            refused,
            tally,
        });
    }
    Ok(())
}

fn traced(row: &SqliteRow) -> Result<TracedJob, Fault> {
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
