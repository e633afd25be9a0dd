-- The state is a parameter (`succeeded`), so that jobs are found by their ids and by nothing else.
WITH switched AS (
    UPDATE jobs
    SET segment = asked.segment,
        record = CASE trajectory WHEN 'full' THEN NULL ELSE record END,
        record_ref = CASE trajectory WHEN 'full' THEN asked.segment ELSE record_ref END
    FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS asked (id, segment, n)
    WHERE jobs.id = asked.id AND jobs.state = $3 AND jobs.segment IS NULL AND jobs.trajectory <> 'off'
    RETURNING asked.n, asked.segment
),
counted AS (
    INSERT INTO segments (key, jobs)
    SELECT split_part(segment, '#', 1) AS key, count(*) FROM switched GROUP BY 1 ORDER BY 1
    ON CONFLICT (key) DO UPDATE SET jobs = segments.jobs + excluded.jobs, announced_at = NULL
)
SELECT n FROM switched
