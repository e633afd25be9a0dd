SELECT id
FROM files
WHERE emptied_at IS NULL AND expires_at <= store_now($1)
  AND NOT EXISTS (
      SELECT FROM batches
      WHERE input = files.id AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
  AND NOT EXISTS (SELECT FROM schedules WHERE input = files.id AND next_at IS NOT NULL)
ORDER BY expires_at
LIMIT $2
