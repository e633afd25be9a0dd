-- Once per attempt that was, and not again what the end of the job booked. A result shows the tokens of its own attempt.
WITH job AS (
    SELECT id, state, tenant, release, route, class FROM jobs
    WHERE id = $1 AND $2 BETWEEN 1 AND attempt AND usage_attempt IS DISTINCT FROM $2
    FOR UPDATE
),
booked AS (
    INSERT INTO attempt_usage (job, attempt, prompt_tokens, cached_tokens, output_tokens)
    SELECT id, $2, $3, $4, $5 FROM job
    ON CONFLICT (job, attempt) DO NOTHING
    RETURNING job
),
summed AS (
    INSERT INTO usage_changes (tenant, day, release, model, class, wasted_prompt_tokens, wasted_cached_tokens,
                               wasted_output_tokens)
    SELECT tenant, (store_now($6) AT TIME ZONE 'UTC')::date, release, left(route, 200), class, $3, $4, $5
    FROM booked, job
)
UPDATE jobs
SET prompt_tokens = least(prompt_tokens + $3, 4294967295),
    cached_tokens = least(cached_tokens + $4, 4294967295),
    output_tokens = least(output_tokens + $5, 4294967295)
FROM booked
WHERE jobs.id = booked.job AND jobs.state <> 'succeeded'
