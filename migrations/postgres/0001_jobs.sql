-- Jobs of many processes. Times are the database's own, cut to milliseconds. Seeds are unsigned 64-bit numbers kept as
-- the signed number of the same bits. What is only kept and never searched is json, which keeps it as it was written and
-- may hold U+0000; jsonb cannot.

-- The clock: `fixed` where a test holds it still, else the time at which the transaction began.
CREATE FUNCTION store_now(fixed timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT coalesce(fixed, date_trunc('milliseconds', now())) $$;

CREATE FUNCTION millis(n bigint) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT n * interval '1 millisecond' $$;

CREATE TABLE jobs (
    id             uuid        PRIMARY KEY,
    -- Order of acceptance; ids come from the servers' clocks and may commit in another order.
    seq            bigint      GENERATED ALWAYS AS IDENTITY,
    tenant         text        NOT NULL,
    release        text        NOT NULL,
    route          text        NOT NULL,
    class          text        NOT NULL CHECK (class IN ('interactive', 'standard', 'bulk')),
    kind           text        NOT NULL CHECK (kind IN ('chat', 'completion')),
    state          text        NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'expired')),
    attempt        integer     NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    errors         integer     NOT NULL DEFAULT 0 CHECK (errors >= 0),
    losses         integer     NOT NULL DEFAULT 0 CHECK (losses >= 0),
    -- When a queued job wants a message; NULL while it is held behind another one.
    wake_at        timestamptz,
    -- Stands in indexes for `wake_at`, so that moving that time leaves them alone.
    held           boolean     NOT NULL GENERATED ALWAYS AS (state = 'queued' AND wake_at IS NULL) STORED,
    worker         text,
    lease_until    timestamptz,
    deadline       timestamptz NOT NULL,
    seed           bigint      NOT NULL,
    est_tokens     bigint      NOT NULL CHECK (est_tokens >= 0),
    request        json        NOT NULL,
    request_ref    text,
    record         bytea,
    record_ref     text,
    error          json,
    history        json        NOT NULL DEFAULT '[]',
    prompt_tokens  bigint      NOT NULL DEFAULT 0 CHECK (prompt_tokens >= 0),
    cached_tokens  bigint      NOT NULL DEFAULT 0 CHECK (cached_tokens >= 0),
    output_tokens  bigint      NOT NULL DEFAULT 0 CHECK (output_tokens >= 0),
    -- The attempt whose tokens were booked by ending the job.
    usage_attempt  integer,
    metadata       jsonb       NOT NULL DEFAULT '{}',
    webhook        jsonb,
    batch          uuid,
    line           bigint      CHECK (line >= 0),
    sequence_key   text,
    traceparent    text,
    accepted_at    timestamptz NOT NULL,
    started_at     timestamptz,
    first_token_at timestamptz,
    finished_at    timestamptz,
    expires_at     timestamptz,
    -- How much of the job is kept as its trajectory, and where it was archived (KEY#OFFSET+LENGTH). A full trajectory is
    -- the record itself: `record_ref` is then the same place.
    trajectory     text        NOT NULL CHECK (trajectory IN ('full', 'redacted', 'off')),
    segment        text,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK (state <> 'running' OR worker IS NOT NULL),
    CHECK ((state IN ('succeeded', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL)),
    CHECK ((state = 'succeeded') = (record IS NOT NULL OR record_ref IS NOT NULL)),
    CHECK (record IS NULL OR record_ref IS NULL),
    CHECK (wake_at IS NULL OR state = 'queued'),
    CHECK ((batch IS NULL) = (line IS NULL))
) WITH (
    -- Room on each page for the renewals and wake-ups of its rows, which then touch no index.
    fillfactor = 80,
    -- Every job leaves two dead rows behind, and the first rows of a queue are looked at all the time.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05
);
-- Records are compressed already.
ALTER TABLE jobs ALTER COLUMN record SET STORAGE EXTERNAL;

-- What an index is of is said in other words than what a query for other things asks of a state: so no query has the
-- choice between two, which it would make by statistics that are not there yet.
CREATE INDEX jobs_waiting ON jobs (release, class, tenant, seq) WHERE state = 'queued' AND NOT held;
CREATE INDEX jobs_unfinished ON jobs (release, class) WHERE finished_at IS NULL AND class IS NOT NULL;
-- Not of `lease_until`: a renewal would have to write every index, and what runs is never much.
CREATE INDEX jobs_worker ON jobs (worker) WHERE state = 'running';
CREATE INDEX jobs_deadline ON jobs (deadline) WHERE finished_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX jobs_sequence ON jobs (tenant, sequence_key, seq) WHERE sequence_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_tenant ON jobs (tenant, id);
CREATE UNIQUE INDEX jobs_line ON jobs (batch, line) WHERE batch IS NOT NULL;
CREATE INDEX jobs_unarchived ON jobs (finished_at) WHERE state = 'succeeded' AND segment IS NULL AND trajectory <> 'off';

-- Unfinished jobs: `queue:<release>:<class>` and `tenant:<id>` without batch lines, `lines:<tenant>` of batch lines.
CREATE TABLE counters (
    name  text   PRIMARY KEY,
    value bigint NOT NULL CHECK (value >= 0)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE idempotency (
    tenant     text        NOT NULL,
    key        text        NOT NULL,
    body_hash  bytea       NOT NULL CHECK (length(body_hash) = 32),
    job        uuid        NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);
CREATE INDEX idempotency_job ON idempotency (job);

-- One row per transition, written in its transaction.
CREATE TABLE events (
    job     uuid        NOT NULL,
    seq     bigint      GENERATED ALWAYS AS IDENTITY,
    kind    text        NOT NULL,
    state   text        NOT NULL,
    attempt integer     NOT NULL,
    worker  text,
    at      timestamptz NOT NULL,
    PRIMARY KEY (job, seq)
);
CREATE INDEX events_lost ON events (worker, at) WHERE kind = 'lost';

-- Tokens of attempts that gave no result, once each.
CREATE TABLE attempt_usage (
    job           uuid    NOT NULL,
    attempt       integer NOT NULL,
    prompt_tokens bigint  NOT NULL,
    cached_tokens bigint  NOT NULL,
    output_tokens bigint  NOT NULL,
    PRIMARY KEY (job, attempt)
);

-- Deleting a job deletes what belongs to it. Foreign keys would do the same, but look up and lock the job's row at
-- every event.
CREATE FUNCTION forget_jobs() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM events USING gone WHERE events.job = gone.id;
    DELETE FROM attempt_usage USING gone WHERE attempt_usage.job = gone.id;
    DELETE FROM idempotency USING gone WHERE idempotency.job = gone.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION forget_jobs();

-- The tenant that a queue served last: the next one in turn comes first.
CREATE TABLE turns (
    release text NOT NULL,
    class   text NOT NULL,
    tenant  text NOT NULL,
    PRIMARY KEY (release, class)
) WITH (fillfactor = 20);

-- Who does the work of which there may be one.
CREATE TABLE leaders (
    name   text        PRIMARY KEY,
    holder text        NOT NULL,
    until  timestamptz NOT NULL
) WITH (fillfactor = 20);

-- Models that workers serve or served, by the name clients use.
CREATE TABLE models (
    name       text        PRIMARY KEY,
    -- Order of the first offer of the name.
    seq        bigint      GENERATED ALWAYS AS IDENTITY,
    release    text        NOT NULL,
    served     json        NOT NULL,
    offered_at timestamptz NOT NULL
);
