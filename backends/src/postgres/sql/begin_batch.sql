UPDATE batches
SET state = 'in_progress', in_progress_at = store_now($1), model = $3, total = $4
WHERE id = $2 AND state = 'validating'
