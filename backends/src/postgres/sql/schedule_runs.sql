SELECT id, tenant, endpoint, model, input, window_text, metadata::text AS metadata, output_life_ms, keep_ms, state,
       errors::text AS errors, output, error_file, total, next_line, next_byte, created_at, in_progress_at, expires_at,
       run_after, schedule, finalizing_at, completed_at, failed_at, expired_at, cancelling_at, cancelled_at, store_now($1) AS now
FROM batches
WHERE schedule = $2 AND ($3::uuid IS NULL OR id < $3)
ORDER BY id DESC
LIMIT $4
