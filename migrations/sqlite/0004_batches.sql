-- Files and batches. The bytes of a file are in the object store under files/ID.
ALTER TABLE jobs ADD COLUMN custom_id TEXT;
CREATE INDEX jobs_open_lines ON jobs (batch, line) WHERE batch IS NOT NULL AND state IN ('queued', 'running');

-- The order in which lines ended, for readers that go on from where they were.
ALTER TABLE jobs ADD COLUMN ended_order INTEGER;
CREATE INDEX jobs_ended_lines ON jobs (batch, ended_order) WHERE ended_order IS NOT NULL;

-- A key may stand for a file or a batch as well: `job` is the id of what it made.
CREATE TABLE idempotency_of_all (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    body_hash  BLOB    NOT NULL CHECK (length(body_hash) = 32),
    job        BLOB    NOT NULL CHECK (length(job) = 16),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
INSERT INTO idempotency_of_all SELECT tenant, key, body_hash, job, created_at FROM idempotency;
DROP TABLE idempotency;
ALTER TABLE idempotency_of_all RENAME TO idempotency;
CREATE INDEX idempotency_age ON idempotency (created_at);
CREATE INDEX idempotency_job ON idempotency (job);
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs BEGIN
    DELETE FROM idempotency WHERE job = old.id;
END;

CREATE TABLE files (
    id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant     TEXT    NOT NULL,
    filename   TEXT    NOT NULL,
    purpose    TEXT    NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
    bytes      INTEGER NOT NULL CHECK (bytes >= 0),
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    -- When its bytes were removed.
    emptied_at INTEGER
) STRICT;
CREATE INDEX files_tenant ON files (tenant, id);
CREATE INDEX files_expiring ON files (expires_at) WHERE emptied_at IS NULL AND expires_at IS NOT NULL;

CREATE TABLE batches (
    id             BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant         TEXT    NOT NULL,
    endpoint       TEXT    NOT NULL CHECK (endpoint IN ('chat', 'completion')),
    model          TEXT,
    input          BLOB    NOT NULL,
    window_text    TEXT    NOT NULL,
    metadata       TEXT    NOT NULL DEFAULT '{}',
    output_life_ms INTEGER CHECK (output_life_ms > 0),
    state          TEXT    NOT NULL CHECK (state IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed',
                                                     'expired', 'cancelling', 'cancelled')),
    errors         TEXT    NOT NULL DEFAULT '[]',
    output         BLOB,
    error_file     BLOB,
    total          INTEGER NOT NULL DEFAULT 0 CHECK (total >= 0),
    -- The next line to expand, and where it begins in the file.
    next_line      INTEGER NOT NULL DEFAULT 0 CHECK (next_line >= 0 AND next_line <= total),
    next_byte      INTEGER NOT NULL DEFAULT 0 CHECK (next_byte >= 0),
    created_at     INTEGER NOT NULL,
    -- The lines of its file that it is of, a bit each; NULL for all.
    only_lines     BLOB,
    -- No line runs before this.
    run_after      INTEGER,
    in_progress_at INTEGER,
    expires_at     INTEGER NOT NULL,
    finalizing_at  INTEGER,
    completed_at   INTEGER,
    failed_at      INTEGER,
    expired_at     INTEGER,
    cancelling_at  INTEGER,
    cancelled_at   INTEGER
) STRICT;
CREATE INDEX batches_tenant ON batches (tenant, id);
CREATE INDEX batches_open ON batches (id) WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling');

-- Lines that were refused as requests: no job was made of them.
CREATE TABLE refused_lines (
    batch       BLOB    NOT NULL,
    line        INTEGER NOT NULL CHECK (line >= 0),
    custom_id   TEXT    NOT NULL,
    status      INTEGER NOT NULL CHECK (status BETWEEN 400 AND 499),
    body        TEXT    NOT NULL,
    ended_order INTEGER NOT NULL,
    PRIMARY KEY (batch, line)
) STRICT, WITHOUT ROWID;
CREATE INDEX refused_lines_ended ON refused_lines (batch, ended_order);

-- The last number given out in a batch: one writer writes all.
CREATE VIEW last_ended AS
SELECT id AS batch,
       max(coalesce((SELECT max(ended_order) FROM jobs WHERE jobs.batch = batches.id AND ended_order IS NOT NULL), 0),
           coalesce((SELECT max(ended_order) FROM refused_lines WHERE refused_lines.batch = batches.id), 0)) AS ended_order
FROM batches;
CREATE TRIGGER jobs_line_ended AFTER UPDATE OF finished_at ON jobs
WHEN new.batch IS NOT NULL AND new.finished_at IS NOT NULL AND old.finished_at IS NULL BEGIN
    UPDATE jobs SET ended_order = 1 + coalesce((SELECT ended_order FROM last_ended WHERE batch = new.batch), 0)
    WHERE seq = new.seq;
END;
