UPDATE batches SET state = 'in_progress', in_progress_at = ?2, model = ?3, total = ?4
WHERE id = ?1 AND state = 'validating'
