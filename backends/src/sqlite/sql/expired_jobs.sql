-- Who reads the batch's lines for its files finds them.
SELECT id, attempt, record_ref
FROM jobs INDEXED BY jobs_expiring
WHERE emptied_at IS NULL AND expires_at <= ?1
  AND NOT EXISTS (
      SELECT 1 FROM batches
      WHERE batches.id = jobs.batch AND batches.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
ORDER BY expires_at
LIMIT ?2
