UPDATE batches SET state = 'finalizing', finalizing_at = ?2
WHERE id = ?1 AND state = 'in_progress' AND next_line = total
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE batch = ?1 AND state IN ('queued', 'running'))
