SELECT $2::text AS key, blocked.job, blocked.at, next.id AS next, next.state,
       (SELECT count(*) FROM jobs
        WHERE jobs.tenant = $1 AND jobs.sequence_key = $2 AND jobs.sequence_key IS NOT NULL
          AND jobs.finished_at IS NULL) AS unfinished
FROM (SELECT) AS asked
LEFT JOIN blocked_sequences AS blocked ON blocked.tenant = $1 AND blocked.sequence_key = $2
LEFT JOIN LATERAL (
    SELECT id, state
    FROM jobs
    WHERE jobs.tenant = $1 AND jobs.sequence_key = $2 AND jobs.sequence_key IS NOT NULL AND jobs.finished_at IS NULL
    ORDER BY jobs.seq
    LIMIT 1
) AS next ON true
