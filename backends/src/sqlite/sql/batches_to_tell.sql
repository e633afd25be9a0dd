-- Those that run, were not looked at for a while, and whose progress somebody asks for by name.
SELECT id, tenant, endpoint, model, input, window_text, metadata, output_life_ms, keep_ms, state, errors, output, error_file,
       total, next_line, next_byte, created_at, in_progress_at, expires_at, run_after, schedule, finalizing_at, completed_at,
       failed_at, expired_at, cancelling_at, cancelled_at
FROM batches
WHERE state IN ('in_progress', 'finalizing')
  AND (progress_at IS NULL OR progress_at <= ?1)
  AND (EXISTS (SELECT 1 FROM json_each(batches.webhook, '$.events') WHERE value = 'batch.progress')
       OR EXISTS (SELECT 1 FROM webhooks
                  WHERE webhooks.tenant = batches.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
                    AND EXISTS (SELECT 1 FROM json_each(webhooks.events) WHERE value = 'batch.progress')))
ORDER BY id
LIMIT ?2
