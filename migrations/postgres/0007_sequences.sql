-- Sequences that a failure blocks. A block is written by a trigger, in the transaction in which the job ends, so that
-- whoever wakes the next job of the sequence afterwards sees it. Whoever ends a job has its sequence locked.
ALTER TABLE jobs ADD COLUMN on_failure text NOT NULL DEFAULT 'skip' CHECK (on_failure IN ('skip', 'block'));

CREATE TABLE blocked_sequences (
    tenant       text        NOT NULL,
    sequence_key text        NOT NULL,
    -- The job that failed or expired, and its place in the order of acceptance.
    job          uuid        NOT NULL,
    seq          bigint      NOT NULL,
    at           timestamptz NOT NULL,
    PRIMARY KEY (tenant, sequence_key)
);

CREATE FUNCTION block_sequence() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO blocked_sequences AS blocked (tenant, sequence_key, job, seq, at)
    VALUES (NEW.tenant, NEW.sequence_key, NEW.id, NEW.seq, NEW.finished_at)
    -- The first block stays; of several at one time, that of the job accepted first.
    ON CONFLICT (tenant, sequence_key) DO UPDATE SET job = excluded.job, seq = excluded.seq
    WHERE blocked.at = excluded.at AND excluded.seq < blocked.seq;
    RETURN NULL;
END
$$;
CREATE TRIGGER jobs_blocking AFTER UPDATE OF finished_at ON jobs
FOR EACH ROW WHEN (NEW.on_failure = 'block' AND NEW.state IN ('failed', 'expired') AND NEW.sequence_key IS NOT NULL
                   AND OLD.finished_at IS NULL)
EXECUTE FUNCTION block_sequence();
