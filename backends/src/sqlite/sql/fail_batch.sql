UPDATE batches SET state = 'failed', failed_at = ?2, errors = ?3
WHERE id = ?1 AND state = 'validating'
