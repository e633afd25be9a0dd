-- Who reads a batch's lines for its files finds them. Lines are looked for batch by batch, the one whose first line
-- expired first before the others: a batch costs two looks at the index, however many lines wait for its end.
WITH RECURSIVE kept (batch) AS (
    SELECT min(batch)
    FROM jobs INDEXED BY jobs_expiring_lines
    WHERE batch IS NOT NULL AND emptied_at IS NULL AND expires_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(jobs.batch)
        FROM jobs INDEXED BY jobs_expiring_lines
        WHERE jobs.batch > kept.batch AND emptied_at IS NULL AND expires_at IS NOT NULL
    )
    FROM kept
    WHERE kept.batch IS NOT NULL
),
firsts (batch, expires_at) AS MATERIALIZED (
    SELECT batch, (
        SELECT min(jobs.expires_at)
        FROM jobs INDEXED BY jobs_expiring_lines
        WHERE jobs.batch = kept.batch AND emptied_at IS NULL AND jobs.expires_at IS NOT NULL
    )
    FROM kept
    WHERE batch IS NOT NULL
      AND NOT EXISTS (
          SELECT 1 FROM batches
          WHERE batches.id = kept.batch AND batches.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
      )
),
-- Each has a line to give, so as many of them as are asked for are enough.
ended (batch) AS MATERIALIZED (
    SELECT batch FROM firsts WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2
)
SELECT id, attempt, record_ref
FROM (
    SELECT * FROM (
        SELECT id, attempt, record_ref, expires_at
        FROM jobs INDEXED BY jobs_expiring
        WHERE batch IS NULL AND emptied_at IS NULL AND expires_at <= ?1
        ORDER BY expires_at
        LIMIT ?2
    )
    UNION ALL
    SELECT * FROM (
        SELECT jobs.id, jobs.attempt, jobs.record_ref, jobs.expires_at
        FROM ended CROSS JOIN jobs INDEXED BY jobs_expiring_lines
        WHERE jobs.batch = ended.batch AND jobs.emptied_at IS NULL AND jobs.expires_at <= ?1
        LIMIT ?2
    )
)
ORDER BY expires_at
LIMIT ?2
