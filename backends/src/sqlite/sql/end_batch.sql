UPDATE batches
SET state = ?2, output = ?3, error_file = ?4,
    completed_at = CASE WHEN ?2 = 'completed' THEN ?5 END,
    expired_at = CASE WHEN ?2 = 'expired' THEN ?5 END,
    cancelled_at = CASE WHEN ?2 = 'cancelled' THEN ?5 END
WHERE id = ?1 AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE batch = ?1 AND state IN ('queued', 'running'))
