-- Changes that another transaction moves are passed over.
WITH gone AS (
    DELETE FROM usage_changes
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_changes LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
),
folded AS (
    INSERT INTO usage_days AS days (tenant, day, release, model, class, accepted, succeeded, failed, cancelled, expired,
                                    prompt_tokens, cached_tokens, output_tokens, wasted_prompt_tokens,
                                    wasted_cached_tokens, wasted_output_tokens)
    SELECT tenant, day, release, model, class, sum(accepted), sum(succeeded), sum(failed), sum(cancelled), sum(expired),
           sum(prompt_tokens), sum(cached_tokens), sum(output_tokens), sum(wasted_prompt_tokens),
           sum(wasted_cached_tokens), sum(wasted_output_tokens)
    FROM gone
    GROUP BY tenant, day, release, model, class
    ORDER BY tenant, day, release, model, class
    ON CONFLICT (tenant, day, release, model, class) DO UPDATE
    SET accepted = days.accepted + excluded.accepted, succeeded = days.succeeded + excluded.succeeded,
        failed = days.failed + excluded.failed, cancelled = days.cancelled + excluded.cancelled,
        expired = days.expired + excluded.expired, prompt_tokens = days.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = days.cached_tokens + excluded.cached_tokens,
        output_tokens = days.output_tokens + excluded.output_tokens,
        wasted_prompt_tokens = days.wasted_prompt_tokens + excluded.wasted_prompt_tokens,
        wasted_cached_tokens = days.wasted_cached_tokens + excluded.wasted_cached_tokens,
        wasted_output_tokens = days.wasted_output_tokens + excluded.wasted_output_tokens
)
SELECT count(*) AS n FROM gone
