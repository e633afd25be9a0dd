-- Schedules: batches that are made again and again, at the times of a cron expression.
CREATE TABLE schedules (
    id             BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant         TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    cron           TEXT    NOT NULL,
    timezone       TEXT    NOT NULL,
    overlap        TEXT    NOT NULL CHECK (overlap IN ('skip', 'allow')),
    catch_up       TEXT    NOT NULL CHECK (catch_up IN ('one', 'none')),
    -- What its batches are made from, as in `batches`.
    input          BLOB    NOT NULL,
    endpoint       TEXT    NOT NULL CHECK (endpoint IN ('chat', 'completion')),
    window_ms      INTEGER NOT NULL CHECK (window_ms > 0),
    window_text    TEXT    NOT NULL,
    metadata       TEXT    NOT NULL,
    output_life_ms INTEGER CHECK (output_life_ms > 0),
    keep_ms        INTEGER CHECK (keep_ms > 0),
    webhook        TEXT,
    created_at     INTEGER NOT NULL,
    -- When it runs next. NULL: it is disabled.
    next_at        INTEGER,
    last_at        INTEGER,
    last_batch     BLOB,
    last_error     TEXT,
    runs           INTEGER NOT NULL DEFAULT 0 CHECK (runs >= 0),
    skipped        INTEGER NOT NULL DEFAULT 0 CHECK (skipped >= 0)
) STRICT;
CREATE INDEX schedules_tenant ON schedules (tenant, id);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_input ON schedules (input) WHERE next_at IS NOT NULL;

-- Which schedule made it, and at which of its times; at none, if it was made on demand.
ALTER TABLE batches ADD COLUMN schedule BLOB;
ALTER TABLE batches ADD COLUMN due_at INTEGER;
CREATE INDEX batches_schedule ON batches (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX batches_schedule_open ON batches (schedule)
WHERE schedule IS NOT NULL AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
-- No time of a schedule is run twice.
CREATE UNIQUE INDEX batches_schedule_due ON batches (schedule, due_at) WHERE due_at IS NOT NULL;
