-- The oldest unfinished job of the sequence, if it is held; if it is not, the sequence is on its way. Nothing, while
-- the sequence is blocked.
UPDATE jobs
SET wake_at = ?3
WHERE seq = (
    SELECT min(seq)
    FROM jobs
    WHERE tenant = ?1 AND sequence_key = ?2 AND sequence_key IS NOT NULL AND state IN ('queued', 'running')
)
  AND state = 'queued' AND wake_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM blocked_sequences WHERE tenant = ?1 AND sequence_key = ?2)
RETURNING release, class
