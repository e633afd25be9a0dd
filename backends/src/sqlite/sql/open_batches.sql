-- What waits for its time or for its jobs has no work now.
SELECT id, tenant, endpoint, model, input, window_text, metadata, output_life_ms, keep_ms, state, errors, output, error_file,
       total,
       next_line, next_byte, created_at, in_progress_at, expires_at, run_after, schedule, finalizing_at, completed_at, failed_at, expired_at,
       cancelling_at, cancelled_at
FROM batches
WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  AND NOT (state = 'in_progress' AND run_after IS NOT NULL AND run_after > ?2)
  AND NOT (state = 'in_progress' AND next_line = total AND expires_at > ?2
           AND EXISTS (SELECT 1 FROM jobs WHERE jobs.batch = batches.id AND jobs.state IN ('queued', 'running')))
ORDER BY id
LIMIT ?1
