-- Sequences that a failure blocks. A block is written by a trigger, in the transaction in which the job ends, so that
-- whoever wakes the next job of the sequence afterwards sees it.
ALTER TABLE jobs ADD COLUMN on_failure TEXT NOT NULL DEFAULT 'skip' CHECK (on_failure IN ('skip', 'block'));

CREATE TABLE blocked_sequences (
    tenant       TEXT    NOT NULL,
    sequence_key TEXT    NOT NULL,
    -- The job that failed or expired, and its place in the order of acceptance.
    job          BLOB    NOT NULL CHECK (length(job) = 16),
    seq          INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (tenant, sequence_key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER jobs_blocking AFTER UPDATE OF finished_at ON jobs
WHEN new.on_failure = 'block' AND new.state IN ('failed', 'expired') AND new.sequence_key IS NOT NULL
     AND old.finished_at IS NULL BEGIN
    INSERT INTO blocked_sequences (tenant, sequence_key, job, seq, at)
    VALUES (new.tenant, new.sequence_key, new.id, new.seq, new.finished_at)
    -- The first block stays; of several at one time, that of the job accepted first.
    ON CONFLICT (tenant, sequence_key) DO UPDATE SET job = excluded.job, seq = excluded.seq
    WHERE blocked_sequences.at = excluded.at AND excluded.seq < blocked_sequences.seq;
END;
