-- Who reads a batch's lines for its files finds them. Lines are looked for batch by batch, the one whose first line
-- expired first before the others: a batch costs one look at the index, however many lines wait for its end.
WITH RECURSIVE kept (batch, expires_at) AS (
    (
        SELECT batch, expires_at
        FROM jobs
        WHERE batch IS NOT NULL AND emptied_at IS NULL AND expires_at IS NOT NULL
        ORDER BY batch, expires_at
        LIMIT 1
    )
    UNION ALL
    SELECT following.batch, following.expires_at
    FROM kept CROSS JOIN LATERAL (
        SELECT jobs.batch, jobs.expires_at
        FROM jobs
        WHERE jobs.batch > kept.batch AND jobs.batch IS NOT NULL AND emptied_at IS NULL AND jobs.expires_at IS NOT NULL
        ORDER BY jobs.batch, jobs.expires_at
        LIMIT 1
    ) AS following
),
-- Each has a line to give, so as many of them as are asked for are enough.
ended AS (
    SELECT batch
    FROM kept
    WHERE expires_at <= store_now($1)
      -- Not a join: without statistics that goes through all open batches for each.
      AND (
          SELECT batches.state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
          FROM batches
          WHERE batches.id = kept.batch
      ) IS NOT TRUE
    ORDER BY expires_at
    LIMIT $2
)
SELECT id, attempt, record_ref
FROM (
    (
        SELECT id, attempt, record_ref, expires_at
        FROM jobs
        WHERE batch IS NULL AND emptied_at IS NULL AND expires_at <= store_now($1)
        ORDER BY expires_at
        LIMIT $2
    )
    UNION ALL
    (
        SELECT lines.id, lines.attempt, lines.record_ref, lines.expires_at
        FROM ended CROSS JOIN LATERAL (
            SELECT id, attempt, record_ref, expires_at
            FROM jobs
            WHERE jobs.batch = ended.batch AND emptied_at IS NULL AND expires_at <= store_now($1)
            ORDER BY expires_at
            LIMIT $2
        ) AS lines
        LIMIT $2
    )
) AS found
ORDER BY expires_at
LIMIT $2
