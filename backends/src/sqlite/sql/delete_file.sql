DELETE FROM files
WHERE id = ?1 AND tenant = ?2
  AND NOT EXISTS (
      SELECT 1 FROM batches
      WHERE input = ?1 AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
  AND NOT EXISTS (SELECT 1 FROM schedules WHERE input = ?1 AND next_at IS NOT NULL)
