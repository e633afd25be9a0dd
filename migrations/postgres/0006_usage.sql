-- The usage ledger, and what the audit finds its way by.

-- Days are UTC. A line is of the day of acceptance for `accepted`, of the end for the ends and the tokens of results,
-- and of the booking for wasted tokens: those of attempts that gave no result.
CREATE TABLE usage_days (
    tenant               text   NOT NULL,
    day                  date   NOT NULL,
    release              text   NOT NULL,
    model                text   NOT NULL,
    class                text   NOT NULL,
    accepted             bigint NOT NULL DEFAULT 0,
    succeeded            bigint NOT NULL DEFAULT 0,
    failed               bigint NOT NULL DEFAULT 0,
    cancelled            bigint NOT NULL DEFAULT 0,
    expired              bigint NOT NULL DEFAULT 0,
    prompt_tokens        bigint NOT NULL DEFAULT 0,
    cached_tokens        bigint NOT NULL DEFAULT 0,
    output_tokens        bigint NOT NULL DEFAULT 0,
    wasted_prompt_tokens bigint NOT NULL DEFAULT 0,
    wasted_cached_tokens bigint NOT NULL DEFAULT 0,
    wasted_output_tokens bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, day, release, model, class)
) WITH (fillfactor = 50);
CREATE INDEX usage_days_day ON usage_days (day, tenant);

-- What was written since: in the transaction of the change it tells of, without an index and without a lock that others
-- wait for. The scheduler moves it into the days. A change is in one of the two tables at any moment.
CREATE TABLE usage_changes (LIKE usage_days INCLUDING DEFAULTS)
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Of the jobs that are there already, wasted tokens are of the day on which their job ended.
INSERT INTO usage_days (tenant, day, release, model, class, accepted, succeeded, failed, cancelled, expired,
                        prompt_tokens, cached_tokens, output_tokens, wasted_prompt_tokens, wasted_cached_tokens,
                        wasted_output_tokens)
SELECT tenant, day, release, left(route, 200), class, sum(accepted), sum((state = 'succeeded')::int),
       sum((state = 'failed')::int), sum((state = 'cancelled')::int), sum((state = 'expired')::int),
       sum(prompt_tokens), sum(cached_tokens), sum(output_tokens), sum(wasted_prompt_tokens), sum(wasted_cached_tokens),
       sum(wasted_output_tokens)
FROM (
    SELECT tenant, (accepted_at AT TIME ZONE 'UTC')::date AS day, release, route, class, 1 AS accepted, '' AS state,
           0 AS prompt_tokens, 0 AS cached_tokens, 0 AS output_tokens, 0 AS wasted_prompt_tokens,
           0 AS wasted_cached_tokens, 0 AS wasted_output_tokens
    FROM jobs
    UNION ALL
    SELECT tenant, (finished_at AT TIME ZONE 'UTC')::date, release, route, class, 0, state, prompt_tokens, cached_tokens,
           output_tokens, 0, 0, 0
    FROM jobs WHERE state = 'succeeded'
    UNION ALL
    -- A job without a result has the tokens of all its attempts.
    SELECT tenant, (coalesce(finished_at, accepted_at) AT TIME ZONE 'UTC')::date, release, route, class, 0,
           CASE WHEN finished_at IS NULL THEN '' ELSE state END, 0, 0, 0, prompt_tokens, cached_tokens, output_tokens
    FROM jobs WHERE state <> 'succeeded'
    UNION ALL
    SELECT jobs.tenant, (jobs.finished_at AT TIME ZONE 'UTC')::date, jobs.release, jobs.route, jobs.class, 0, '', 0, 0, 0,
           attempt_usage.prompt_tokens, attempt_usage.cached_tokens, attempt_usage.output_tokens
    FROM attempt_usage JOIN jobs ON jobs.id = attempt_usage.job WHERE jobs.state = 'succeeded'
) AS old
GROUP BY tenant, day, release, left(route, 200), class;

-- Rows lie in about the order of their times, so that a few pages are a day's. An index by tree would cost every insert.
CREATE INDEX jobs_accepted ON jobs USING brin (accepted_at) WITH (autosummarize = on);
CREATE INDEX events_at ON events USING brin (at) WITH (autosummarize = on);
CREATE INDEX batches_created ON batches (created_at);
