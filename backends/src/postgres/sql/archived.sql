UPDATE jobs
SET segment = asked.segment,
    record = CASE trajectory WHEN 'full' THEN NULL ELSE record END,
    record_ref = CASE trajectory WHEN 'full' THEN asked.segment ELSE record_ref END
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS asked (id, segment, n)
WHERE jobs.id = asked.id AND jobs.state = 'succeeded' AND jobs.segment IS NULL AND jobs.trajectory <> 'off'
RETURNING asked.n
