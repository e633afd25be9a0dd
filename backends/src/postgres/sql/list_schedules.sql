SELECT id, tenant, name, cron, timezone, overlap, catch_up, input, endpoint, window_ms, window_text, metadata,
       output_life_ms, keep_ms, webhook, created_at, next_at, last_at, last_batch, last_error, runs, skipped, store_now($1) AS now
FROM schedules
WHERE tenant = $2 AND ($3::uuid IS NULL OR id < $3)
ORDER BY id DESC
LIMIT $4
