SELECT 1
FROM jobs
WHERE id = ?1 AND emptied_at IS NULL AND expires_at <= ?2
  AND NOT EXISTS (
      SELECT 1 FROM batches
      WHERE batches.id = jobs.batch AND batches.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
