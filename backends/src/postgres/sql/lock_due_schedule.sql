-- Whoever comes second waits here, and finds that the next time is another one. By its id: many may be due at one time.
SELECT id, tenant, name, cron, timezone, overlap, catch_up, input, endpoint, window_ms, window_text, metadata,
       output_life_ms, keep_ms, webhook, created_at, next_at, last_at, last_batch, last_error, runs, skipped, store_now($1) AS now
FROM schedules
WHERE id = $2 AND next_at IS NOT DISTINCT FROM $3 AND $3 <= store_now($1)
FOR UPDATE
