-- Times are milliseconds since the Unix epoch. Seeds are unsigned 64-bit numbers kept as the signed number of the same
-- bits. JSON is kept as text.

CREATE TABLE jobs (
    -- Order of acceptance; ids come from the servers' clocks and may commit in another order.
    seq            INTEGER PRIMARY KEY,
    id             BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
    tenant         TEXT    NOT NULL,
    release        TEXT    NOT NULL,
    route          TEXT    NOT NULL,
    class          TEXT    NOT NULL CHECK (class IN ('interactive', 'standard', 'bulk')),
    kind           TEXT    NOT NULL CHECK (kind IN ('chat', 'completion')),
    state          TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'expired')),
    attempt        INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    errors         INTEGER NOT NULL DEFAULT 0 CHECK (errors >= 0),
    losses         INTEGER NOT NULL DEFAULT 0 CHECK (losses >= 0),
    -- When a queued job wants a message; NULL while it is held behind another one.
    wake_at        INTEGER,
    worker         TEXT,
    lease_until    INTEGER,
    deadline       INTEGER NOT NULL,
    seed           INTEGER NOT NULL,
    est_tokens     INTEGER NOT NULL CHECK (est_tokens >= 0),
    request        TEXT    NOT NULL,
    request_ref    TEXT,
    record         BLOB,
    record_ref     TEXT,
    error          TEXT,
    history        TEXT    NOT NULL DEFAULT '[]',
    prompt_tokens  INTEGER NOT NULL DEFAULT 0,
    cached_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens  INTEGER NOT NULL DEFAULT 0,
    -- The attempt whose tokens were booked by ending the job.
    usage_attempt  INTEGER,
    metadata       TEXT    NOT NULL DEFAULT '{}',
    webhook        TEXT,
    batch          BLOB    CHECK (batch IS NULL OR length(batch) = 16),
    line           INTEGER CHECK (line >= 0),
    sequence_key   TEXT,
    traceparent    TEXT,
    accepted_at    INTEGER NOT NULL,
    started_at     INTEGER,
    first_token_at INTEGER,
    finished_at    INTEGER,
    expires_at     INTEGER,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK (state <> 'running' OR worker IS NOT NULL),
    CHECK ((state IN ('succeeded', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL)),
    CHECK ((state = 'succeeded') = (record IS NOT NULL OR record_ref IS NOT NULL)),
    CHECK (record IS NULL OR record_ref IS NULL),
    CHECK (wake_at IS NULL OR state = 'queued'),
    CHECK ((batch IS NULL) = (line IS NULL))
) STRICT;

-- What may get a message, oldest first within a tenant. `wake_at` and `state` are there so that rows are counted, and
-- those not due yet passed over, without reading them.
CREATE INDEX jobs_waiting ON jobs (release, class, tenant, seq, wake_at, state)
WHERE state = 'queued' AND wake_at IS NOT NULL;
CREATE INDEX jobs_unfinished ON jobs (release, class, state) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running';
CREATE INDEX jobs_worker ON jobs (worker) WHERE state = 'running';
CREATE INDEX jobs_deadline ON jobs (deadline) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_sequence ON jobs (tenant, sequence_key, seq) WHERE sequence_key IS NOT NULL AND state IN ('queued', 'running');
CREATE INDEX jobs_tenant ON jobs (tenant, id);
CREATE UNIQUE INDEX jobs_line ON jobs (batch, line) WHERE batch IS NOT NULL;

-- Unfinished jobs: `queue:<release>:<class>` and `tenant:<id>` without batch lines, `lines:<tenant>` of batch lines.
CREATE TABLE counters (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL CHECK (value >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    body_hash  BLOB    NOT NULL CHECK (length(body_hash) = 32),
    job        BLOB    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (created_at);
CREATE INDEX idempotency_job ON idempotency (job);

-- One row per transition, written in its transaction.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job     BLOB    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    kind    TEXT    NOT NULL,
    state   TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    worker  TEXT,
    at      INTEGER NOT NULL
) STRICT;
CREATE INDEX events_job ON events (job, seq);
CREATE INDEX events_lost ON events (worker, at) WHERE kind = 'lost';

-- Tokens of attempts that gave no result, once each.
CREATE TABLE attempt_usage (
    job           BLOB    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt       INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    PRIMARY KEY (job, attempt)
) STRICT, WITHOUT ROWID;

-- The tenant that a queue served last: the next one in turn comes first.
CREATE TABLE turns (
    release TEXT NOT NULL,
    class   TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    PRIMARY KEY (release, class)
) STRICT, WITHOUT ROWID;

-- Who does the work of which there may be one.
CREATE TABLE leaders (
    name   TEXT    PRIMARY KEY,
    holder TEXT    NOT NULL,
    until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
