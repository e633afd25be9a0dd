-- Schedules: batches that are made again and again, at the times of a cron expression.
CREATE TABLE schedules (
    id             uuid        PRIMARY KEY,
    tenant         text        NOT NULL,
    name           text        NOT NULL,
    cron           text        NOT NULL,
    timezone       text        NOT NULL,
    overlap        text        NOT NULL CHECK (overlap IN ('skip', 'allow')),
    catch_up       text        NOT NULL CHECK (catch_up IN ('one', 'none')),
    -- What its batches are made from: as in `batches`, but texts that are JSON, which may say any character.
    input          uuid        NOT NULL,
    endpoint       text        NOT NULL CHECK (endpoint IN ('chat', 'completion')),
    window_ms      bigint      NOT NULL CHECK (window_ms > 0),
    window_text    text        NOT NULL,
    metadata       text        NOT NULL,
    output_life_ms bigint      CHECK (output_life_ms > 0),
    keep_ms        bigint      CHECK (keep_ms > 0),
    webhook        text,
    created_at     timestamptz NOT NULL,
    -- When it runs next. NULL: it is disabled.
    next_at        timestamptz,
    last_at        timestamptz,
    last_batch     uuid,
    last_error     text,
    runs           bigint      NOT NULL DEFAULT 0 CHECK (runs >= 0),
    skipped        bigint      NOT NULL DEFAULT 0 CHECK (skipped >= 0)
);
CREATE INDEX schedules_tenant ON schedules (tenant, id);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_input ON schedules (input) WHERE next_at IS NOT NULL;

-- Which schedule made it, and at which of its times; at none, if it was made on demand.
ALTER TABLE batches ADD COLUMN schedule uuid;
ALTER TABLE batches ADD COLUMN due_at timestamptz;
CREATE INDEX batches_schedule ON batches (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX batches_schedule_open ON batches (schedule)
WHERE schedule IS NOT NULL AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling');
-- No time of a schedule is run twice.
CREATE UNIQUE INDEX batches_schedule_due ON batches (schedule, due_at) WHERE due_at IS NOT NULL;
