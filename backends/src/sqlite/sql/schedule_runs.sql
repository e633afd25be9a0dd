SELECT id, tenant, endpoint, model, input, window_text, metadata, output_life_ms, keep_ms, state, errors, output, error_file, total,
       next_line, next_byte, created_at, in_progress_at, expires_at, run_after, schedule, finalizing_at, completed_at, failed_at, expired_at,
       cancelling_at, cancelled_at
FROM batches
WHERE schedule = ?1 AND (?2 IS NULL OR id < ?2)
ORDER BY id DESC
LIMIT ?3
