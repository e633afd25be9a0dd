SELECT blocked.sequence_key AS key, blocked.job, blocked.at, next.id AS next, next.state,
       (SELECT count(*) FROM jobs
        WHERE jobs.tenant = ?1 AND jobs.sequence_key = blocked.sequence_key AND jobs.sequence_key IS NOT NULL
          AND jobs.state IN ('queued', 'running')) AS unfinished
FROM blocked_sequences AS blocked
LEFT JOIN jobs AS next ON next.seq = (
    SELECT min(jobs.seq) FROM jobs
    WHERE jobs.tenant = ?1 AND jobs.sequence_key = blocked.sequence_key AND jobs.sequence_key IS NOT NULL
      AND jobs.state IN ('queued', 'running')
)
WHERE blocked.tenant = ?1 AND blocked.sequence_key > ?2
ORDER BY blocked.sequence_key
LIMIT ?3
