SELECT id
FROM files
WHERE emptied_at IS NULL AND expires_at <= ?1
  AND NOT EXISTS (
      SELECT 1 FROM batches
      WHERE input = files.id AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
  AND NOT EXISTS (SELECT 1 FROM schedules WHERE input = files.id AND next_at IS NOT NULL)
ORDER BY expires_at
LIMIT ?2
