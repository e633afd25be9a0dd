WITH asked AS (
    SELECT *
    FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::integer[], $8::bigint[],
                $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[],
                $16::integer[], $17::timestamptz[], $18::text[], $19::text[])
      AS a (id, attempt, was, state, errors, losses, wait, record, record_ref, error, history, prompt_tokens,
            cached_tokens, output_tokens, usage_attempt, first_token_at, kind, worker)
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
    RETURNING jobs.id, asked.kind, jobs.state, jobs.attempt, asked.worker
),
told AS (
    INSERT INTO events (job, kind, state, attempt, worker, at)
    SELECT id, kind, state, attempt, worker, store_now($1) FROM changed
),
counted AS (
    -- By index, which is in key order.
    UPDATE counters
    SET value = value + (SELECT delta FROM unnest($20, $21::bigint[]) AS d (name, delta) WHERE d.name = counters.name)
    WHERE name = ANY ($20::text[])
    RETURNING 1
)
SELECT (SELECT count(*) FROM changed) AS changed, (SELECT count(*) FROM counted) AS counted
