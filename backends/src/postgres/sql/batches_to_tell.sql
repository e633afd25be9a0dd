-- Those that run, were not looked at for a while, and whose progress somebody asks for by name.
SELECT id, tenant, endpoint, model, input, window_text, metadata::text AS metadata, output_life_ms, keep_ms, state,
       errors::text AS errors, output, error_file, total, next_line, next_byte, created_at, in_progress_at, expires_at,
       run_after, schedule, finalizing_at, completed_at, failed_at, expired_at, cancelling_at, cancelled_at, store_now($1) AS now
FROM batches
WHERE state IN ('in_progress', 'finalizing')
  AND (progress_at IS NULL OR progress_at <= store_now($1) - millis($2))
  AND (webhook -> 'events' ? 'batch.progress'
       OR EXISTS (SELECT FROM webhooks
                  WHERE webhooks.tenant = batches.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
                    AND 'batch.progress' = ANY (webhooks.events)))
ORDER BY id
LIMIT $3
