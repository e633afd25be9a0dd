UPDATE batches
SET state = $3, output = $4, error_file = $5,
    completed_at = CASE WHEN $3 = 'completed' THEN store_now($1) END,
    expired_at = CASE WHEN $3 = 'expired' THEN store_now($1) END,
    cancelled_at = CASE WHEN $3 = 'cancelled' THEN store_now($1) END
WHERE id = $2 AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  AND NOT EXISTS (SELECT FROM jobs WHERE batch = $2 AND finished_at IS NULL)
RETURNING id, tenant, endpoint, model, input, window_text, metadata::text AS metadata, output_life_ms, keep_ms, state,
          errors::text AS errors, output, error_file, total, next_line, next_byte, created_at, in_progress_at, expires_at,
          run_after, schedule, finalizing_at, completed_at, failed_at, expired_at, cancelling_at, cancelled_at, store_now($1) AS now
