UPDATE batches
SET state = 'failed', failed_at = store_now($1), errors = $3::json
WHERE id = $2 AND state = 'validating'
