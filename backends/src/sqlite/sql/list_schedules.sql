SELECT id, tenant, name, cron, timezone, overlap, catch_up, input, endpoint, window_ms, window_text, metadata,
       output_life_ms, keep_ms, webhook, created_at, next_at, last_at, last_batch, last_error, runs, skipped
FROM schedules
WHERE tenant = ?1 AND (?2 IS NULL OR id < ?2)
ORDER BY id DESC
LIMIT ?3
