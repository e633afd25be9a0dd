-- Whether a new job of the sequence is held: it comes behind another one, or the sequence is blocked.
SELECT 1
FROM jobs
WHERE tenant = ?1 AND sequence_key = ?2 AND sequence_key IS NOT NULL AND state IN ('queued', 'running')
UNION ALL
SELECT 1
FROM blocked_sequences
WHERE tenant = ?1 AND sequence_key = ?2
LIMIT 1
