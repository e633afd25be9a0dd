SELECT ?2 AS key, blocked.job, blocked.at, next.id AS next, next.state,
       (SELECT count(*) FROM jobs
        WHERE jobs.tenant = ?1 AND jobs.sequence_key = ?2 AND jobs.sequence_key IS NOT NULL
          AND jobs.state IN ('queued', 'running')) AS unfinished
FROM (SELECT 1) AS asked
LEFT JOIN blocked_sequences AS blocked ON blocked.tenant = ?1 AND blocked.sequence_key = ?2
LEFT JOIN jobs AS next ON next.seq = (
    SELECT min(jobs.seq) FROM jobs
    WHERE jobs.tenant = ?1 AND jobs.sequence_key = ?2 AND jobs.sequence_key IS NOT NULL
      AND jobs.state IN ('queued', 'running')
)
