-- Tenants of which something was said: limits (NULL: none) and weights. All others have no limits and weight 1.
CREATE TABLE tenants (
    tenant              TEXT    NOT NULL PRIMARY KEY,
    requests_per_minute INTEGER CHECK (requests_per_minute > 0),
    tokens_per_minute   INTEGER CHECK (tokens_per_minute > 0),
    concurrent_requests INTEGER CHECK (concurrent_requests > 0),
    queued_jobs         INTEGER CHECK (queued_jobs > 0),
    weight              INTEGER NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    created_at          INTEGER NOT NULL,
    changed_at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Whose turn it is in a queue, in its own time (`backends/src/fair.rs`): the queue's clock, and where the next job of
-- each tenant stands. Only hints: without them everybody starts anew.
DROP TABLE turns;
CREATE TABLE turns (
    release TEXT    NOT NULL,
    class   TEXT    NOT NULL,
    clock   INTEGER NOT NULL,
    PRIMARY KEY (release, class)
) STRICT, WITHOUT ROWID;
CREATE TABLE shares (
    release TEXT    NOT NULL,
    class   TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    next    INTEGER NOT NULL,
    PRIMARY KEY (release, class, tenant)
) STRICT, WITHOUT ROWID;
