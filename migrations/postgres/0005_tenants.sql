-- Tenants of which something was said: limits (NULL: none) and weights. All others have no limits and weight 1.
CREATE TABLE tenants (
    tenant              text        PRIMARY KEY,
    requests_per_minute bigint      CHECK (requests_per_minute > 0),
    tokens_per_minute   bigint      CHECK (tokens_per_minute > 0),
    concurrent_requests bigint      CHECK (concurrent_requests > 0),
    queued_jobs         bigint      CHECK (queued_jobs > 0),
    weight              bigint      NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    created_at          timestamptz NOT NULL,
    changed_at          timestamptz NOT NULL
);

-- Whose turn it is in a queue, in its own time (`backends/src/fair.rs`): the queue's clock, and where the next job of
-- each tenant stands. Only hints: without them everybody starts anew.
DROP TABLE turns;
CREATE TABLE turns (
    release text   NOT NULL,
    class   text   NOT NULL,
    clock   bigint NOT NULL,
    PRIMARY KEY (release, class)
) WITH (fillfactor = 20);
CREATE TABLE shares (
    release text   NOT NULL,
    class   text   NOT NULL,
    tenant  text   NOT NULL,
    next    bigint NOT NULL,
    PRIMARY KEY (release, class, tenant)
) WITH (fillfactor = 50);
