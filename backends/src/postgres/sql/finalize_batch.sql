UPDATE batches
SET state = 'finalizing', finalizing_at = store_now($1)
WHERE id = $2 AND state = 'in_progress' AND next_line = total
  AND NOT EXISTS (SELECT FROM jobs WHERE batch = $2 AND finished_at IS NULL)
