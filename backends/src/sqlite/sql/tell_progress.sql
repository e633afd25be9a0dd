INSERT INTO tell
SELECT tenant, webhook, 'batch.progress', NULL, id, told, progress_at FROM batches WHERE id = ?1
