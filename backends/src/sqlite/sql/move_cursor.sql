UPDATE batches SET next_line = ?4, next_byte = ?5
WHERE id = ?1 AND state = 'in_progress' AND next_line = ?2 AND next_byte = ?3
