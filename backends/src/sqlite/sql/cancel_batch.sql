UPDATE batches SET state = 'cancelling', cancelling_at = ?3
WHERE id = ?1 AND tenant = ?2 AND state IN ('validating', 'in_progress')
