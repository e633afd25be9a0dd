-- The usage ledger, and what the audit finds its way by.

-- Days are UTC, counted from 1970-01-01. A line is of the day of acceptance for `accepted`, of the end for the ends and
-- the tokens of results, and of the booking for wasted tokens: those of attempts that gave no result.
CREATE TABLE usage_days (
    tenant               TEXT    NOT NULL,
    day                  INTEGER NOT NULL,
    release              TEXT    NOT NULL,
    model                TEXT    NOT NULL,
    class                TEXT    NOT NULL,
    accepted             INTEGER NOT NULL DEFAULT 0,
    succeeded            INTEGER NOT NULL DEFAULT 0,
    failed               INTEGER NOT NULL DEFAULT 0,
    cancelled            INTEGER NOT NULL DEFAULT 0,
    expired              INTEGER NOT NULL DEFAULT 0,
    prompt_tokens        INTEGER NOT NULL DEFAULT 0,
    cached_tokens        INTEGER NOT NULL DEFAULT 0,
    output_tokens        INTEGER NOT NULL DEFAULT 0,
    wasted_prompt_tokens INTEGER NOT NULL DEFAULT 0,
    wasted_cached_tokens INTEGER NOT NULL DEFAULT 0,
    wasted_output_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, day, release, model, class)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_days_day ON usage_days (day, tenant);

-- Of the jobs that are there already, wasted tokens are of the day on which their job ended.
INSERT INTO usage_days (tenant, day, release, model, class, accepted, succeeded, failed, cancelled, expired,
                        prompt_tokens, cached_tokens, output_tokens, wasted_prompt_tokens, wasted_cached_tokens,
                        wasted_output_tokens)
SELECT tenant, at / 86400000, release, substr(route, 1, 200), class, sum(accepted), sum(state = 'succeeded'),
       sum(state = 'failed'), sum(state = 'cancelled'), sum(state = 'expired'), sum(prompt_tokens), sum(cached_tokens),
       sum(output_tokens), sum(wasted_prompt_tokens), sum(wasted_cached_tokens), sum(wasted_output_tokens)
FROM (
    SELECT tenant, accepted_at AS at, release, route, class, 1 AS accepted, '' AS state, 0 AS prompt_tokens,
           0 AS cached_tokens, 0 AS output_tokens, 0 AS wasted_prompt_tokens, 0 AS wasted_cached_tokens,
           0 AS wasted_output_tokens
    FROM jobs
    UNION ALL
    SELECT tenant, finished_at, release, route, class, 0, state, prompt_tokens, cached_tokens, output_tokens, 0, 0, 0
    FROM jobs WHERE state = 'succeeded'
    UNION ALL
    -- A job without a result has the tokens of all its attempts.
    SELECT tenant, coalesce(finished_at, accepted_at), release, route, class, 0,
           CASE WHEN finished_at IS NULL THEN '' ELSE state END, 0, 0, 0, prompt_tokens, cached_tokens, output_tokens
    FROM jobs WHERE state <> 'succeeded'
    UNION ALL
    SELECT jobs.tenant, jobs.finished_at, jobs.release, jobs.route, jobs.class, 0, '', 0, 0, 0,
           attempt_usage.prompt_tokens, attempt_usage.cached_tokens, attempt_usage.output_tokens
    FROM attempt_usage JOIN jobs ON jobs.id = attempt_usage.job WHERE jobs.state = 'succeeded'
)
GROUP BY tenant, at / 86400000, release, substr(route, 1, 200), class;

CREATE TRIGGER usage_accepted AFTER INSERT ON jobs BEGIN
    INSERT INTO usage_days (tenant, day, release, model, class, accepted)
    VALUES (new.tenant, new.accepted_at / 86400000, new.release, substr(new.route, 1, 200), new.class, 1)
    ON CONFLICT (tenant, day, release, model, class) DO UPDATE SET accepted = accepted + 1;
END;

-- A result has the tokens of its own attempt; any other end adds those of the attempt that ends with it.
CREATE TRIGGER usage_ended AFTER UPDATE OF finished_at ON jobs
WHEN new.finished_at IS NOT NULL AND old.finished_at IS NULL BEGIN
    INSERT INTO usage_days (tenant, day, release, model, class, succeeded, failed, cancelled, expired, prompt_tokens,
                            cached_tokens, output_tokens, wasted_prompt_tokens, wasted_cached_tokens,
                            wasted_output_tokens)
    VALUES (new.tenant, new.finished_at / 86400000, new.release, substr(new.route, 1, 200), new.class,
            new.state = 'succeeded', new.state = 'failed', new.state = 'cancelled', new.state = 'expired',
            iif(new.state = 'succeeded', new.prompt_tokens, 0), iif(new.state = 'succeeded', new.cached_tokens, 0),
            iif(new.state = 'succeeded', new.output_tokens, 0),
            iif(new.state = 'succeeded', 0, new.prompt_tokens - old.prompt_tokens),
            iif(new.state = 'succeeded', 0, new.cached_tokens - old.cached_tokens),
            iif(new.state = 'succeeded', 0, new.output_tokens - old.output_tokens))
    ON CONFLICT (tenant, day, release, model, class) DO UPDATE
    SET succeeded = succeeded + excluded.succeeded, failed = failed + excluded.failed,
        cancelled = cancelled + excluded.cancelled, expired = expired + excluded.expired,
        prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        cached_tokens = cached_tokens + excluded.cached_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        wasted_prompt_tokens = wasted_prompt_tokens + excluded.wasted_prompt_tokens,
        wasted_cached_tokens = wasted_cached_tokens + excluded.wasted_cached_tokens,
        wasted_output_tokens = wasted_output_tokens + excluded.wasted_output_tokens;
END;

-- When they were booked.
ALTER TABLE attempt_usage ADD COLUMN at INTEGER;
CREATE TRIGGER usage_wasted AFTER INSERT ON attempt_usage BEGIN
    INSERT INTO usage_days (tenant, day, release, model, class, wasted_prompt_tokens, wasted_cached_tokens,
                            wasted_output_tokens)
    SELECT tenant, new.at / 86400000, release, substr(route, 1, 200), class, new.prompt_tokens, new.cached_tokens,
           new.output_tokens
    FROM jobs
    WHERE id = new.job
    ON CONFLICT (tenant, day, release, model, class) DO UPDATE
    SET wasted_prompt_tokens = wasted_prompt_tokens + excluded.wasted_prompt_tokens,
        wasted_cached_tokens = wasted_cached_tokens + excluded.wasted_cached_tokens,
        wasted_output_tokens = wasted_output_tokens + excluded.wasted_output_tokens;
END;

CREATE INDEX jobs_accepted ON jobs (accepted_at);
CREATE INDEX events_at ON events (at);
CREATE INDEX batches_created ON batches (created_at);
