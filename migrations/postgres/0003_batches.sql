-- Files and batches. The bytes of a file are in the object store under files/ID. A key of `idempotency` may stand for a
-- file or a batch as well: `job` is the id of what it made.
ALTER TABLE jobs ADD COLUMN custom_id text;
CREATE INDEX jobs_open_lines ON jobs (batch, line) WHERE batch IS NOT NULL AND finished_at IS NULL;


-- The order in which lines ended, for readers that go on from where they were: the number of the transaction. What is
-- below the oldest transaction that still writes is complete; commit order within that does not matter.
ALTER TABLE jobs ADD COLUMN ended_order bigint;
CREATE INDEX jobs_ended_lines ON jobs (batch, ended_order, line) WHERE ended_order IS NOT NULL;
CREATE FUNCTION order_line_end() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.ended_order := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END
$$;
CREATE TRIGGER jobs_line_ended BEFORE UPDATE OF finished_at ON jobs
FOR EACH ROW WHEN (NEW.batch IS NOT NULL AND NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
EXECUTE FUNCTION order_line_end();

CREATE TABLE files (
    id         uuid        PRIMARY KEY,
    tenant     text        NOT NULL,
    filename   text        NOT NULL,
    purpose    text        NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
    bytes      bigint      NOT NULL CHECK (bytes >= 0),
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    -- When its bytes were removed.
    emptied_at timestamptz
);
CREATE INDEX files_tenant ON files (tenant, id);
CREATE INDEX files_expiring ON files (expires_at) WHERE emptied_at IS NULL AND expires_at IS NOT NULL;

CREATE TABLE batches (
    id             uuid        PRIMARY KEY,
    tenant         text        NOT NULL,
    endpoint       text        NOT NULL CHECK (endpoint IN ('chat', 'completion')),
    model          text,
    input          uuid        NOT NULL,
    window_text    text        NOT NULL,
    metadata       jsonb       NOT NULL DEFAULT '{}',
    output_life_ms bigint      CHECK (output_life_ms > 0),
    state          text        NOT NULL CHECK (state IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed',
                                                         'expired', 'cancelling', 'cancelled')),
    errors         json        NOT NULL DEFAULT '[]',
    output         uuid,
    error_file     uuid,
    total          bigint      NOT NULL DEFAULT 0 CHECK (total >= 0),
    -- The next line to expand, and where it begins in the file.
    next_line      bigint      NOT NULL DEFAULT 0 CHECK (next_line >= 0 AND next_line <= total),
    next_byte      bigint      NOT NULL DEFAULT 0 CHECK (next_byte >= 0),
    created_at     timestamptz NOT NULL,
    -- The lines of its file that it is of, a bit each; NULL for all.
    only_lines     bytea,
    -- No line runs before this.
    run_after      timestamptz,
    in_progress_at timestamptz,
    expires_at     timestamptz NOT NULL,
    finalizing_at  timestamptz,
    completed_at   timestamptz,
    failed_at      timestamptz,
    expired_at     timestamptz,
    cancelling_at  timestamptz,
    cancelled_at   timestamptz
) WITH (fillfactor = 50);
CREATE INDEX batches_tenant ON batches (tenant, id);
CREATE INDEX batches_open ON batches (id) WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');

-- Lines that were refused as requests: no job was made of them.
CREATE TABLE refused_lines (
    batch       uuid    NOT NULL,
    line        bigint  NOT NULL CHECK (line >= 0),
    custom_id   text    NOT NULL,
    status      integer NOT NULL CHECK (status BETWEEN 400 AND 499),
    body        json    NOT NULL,
    ended_order bigint  NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    PRIMARY KEY (batch, line)
);
CREATE INDEX refused_lines_ended ON refused_lines (batch, ended_order, line);
