DELETE FROM files
WHERE id = $1 AND tenant = $2
  AND NOT EXISTS (
      SELECT FROM batches
      WHERE input = $1 AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
  AND NOT EXISTS (SELECT FROM schedules WHERE input = $1 AND next_at IS NOT NULL)
