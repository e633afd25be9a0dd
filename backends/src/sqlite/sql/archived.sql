UPDATE jobs
SET segment = ?2,
    record = CASE trajectory WHEN 'full' THEN NULL ELSE record END,
    record_ref = CASE trajectory WHEN 'full' THEN ?2 ELSE record_ref END
WHERE id = ?1 AND state = 'succeeded' AND segment IS NULL AND trajectory <> 'off'
