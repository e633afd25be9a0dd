-- Who reads the batch's lines for its files finds them.
SELECT id, attempt, record_ref
FROM jobs
WHERE emptied_at IS NULL AND expires_at <= store_now($1)
  AND NOT EXISTS (
      SELECT FROM batches
      WHERE batches.id = jobs.batch AND batches.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
  )
ORDER BY expires_at
LIMIT $2
