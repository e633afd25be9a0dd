WITH asked AS (
    SELECT *
    FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::integer[], $8::bigint[],
                $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[],
                $16::integer[], $17::timestamptz[], $18::text[], $19::text[], $22::bigint[], $23::bigint[], $24::bigint[])
      AS a (id, attempt, was, state, errors, losses, wait, record, record_ref, error, history, prompt_tokens,
            cached_tokens, output_tokens, usage_attempt, first_token_at, kind, worker, wasted_prompt_tokens,
            wasted_cached_tokens, wasted_output_tokens)
),
changed AS (
    UPDATE jobs
    SET state = asked.state,
        errors = asked.errors,
        losses = asked.losses,
        wake_at = store_now($1) + millis(asked.wait),
        worker = CASE asked.state WHEN 'queued' THEN NULL ELSE jobs.worker END,
        lease_until = NULL,
        finished_at = CASE asked.state WHEN 'queued' THEN NULL ELSE store_now($1) END,
        expires_at = CASE asked.state WHEN 'queued' THEN NULL ELSE store_now($1) + millis(jobs.keep_ms) END,
        record = asked.record,
        record_ref = asked.record_ref,
        error = asked.error::json,
        history = coalesce(asked.history::json, jobs.history),
        prompt_tokens = asked.prompt_tokens,
        cached_tokens = asked.cached_tokens,
        output_tokens = asked.output_tokens,
        usage_attempt = asked.usage_attempt,
        first_token_at = coalesce(asked.first_token_at, jobs.first_token_at)
    FROM asked
    WHERE jobs.id = asked.id AND jobs.attempt = asked.attempt AND jobs.state = asked.was
    RETURNING jobs.id, asked.kind, jobs.state, jobs.attempt, asked.worker, jobs.tenant, jobs.release,
              left(jobs.route, 200) AS model, jobs.class, jobs.prompt_tokens, jobs.cached_tokens, jobs.output_tokens,
              asked.wasted_prompt_tokens, asked.wasted_cached_tokens, asked.wasted_output_tokens
),
told AS (
    INSERT INTO events (job, kind, state, attempt, worker, at)
    SELECT id, kind, state, attempt, worker, store_now($1) FROM changed
),
summed AS (
    INSERT INTO usage_changes (tenant, day, release, model, class, succeeded, failed, cancelled, expired, prompt_tokens,
                               cached_tokens, output_tokens, wasted_prompt_tokens, wasted_cached_tokens,
                               wasted_output_tokens)
    SELECT tenant, (store_now($1) AT TIME ZONE 'UTC')::date, release, model, class,
           count(*) FILTER (WHERE state = 'succeeded'), count(*) FILTER (WHERE state = 'failed'),
           count(*) FILTER (WHERE state = 'cancelled'), count(*) FILTER (WHERE state = 'expired'),
           coalesce(sum(prompt_tokens) FILTER (WHERE state = 'succeeded'), 0),
           coalesce(sum(cached_tokens) FILTER (WHERE state = 'succeeded'), 0),
           coalesce(sum(output_tokens) FILTER (WHERE state = 'succeeded'), 0),
           sum(wasted_prompt_tokens), sum(wasted_cached_tokens), sum(wasted_output_tokens)
    FROM changed
    WHERE state <> 'queued'
    GROUP BY tenant, release, model, class
),
counted AS (
    -- By index, which is in key order.
    UPDATE counters
    SET value = value + (SELECT delta FROM unnest($20, $21::bigint[]) AS d (name, delta) WHERE d.name = counters.name)
    WHERE name = ANY ($20::text[])
    RETURNING 1
)
SELECT (SELECT count(*) FROM changed) AS changed, (SELECT count(*) FROM counted) AS counted
