-- A trajectory that is off is archived by nobody.
UPDATE jobs
SET emptied_at = ?2, request = '{}', request_ref = NULL, record = CASE state WHEN 'succeeded' THEN x'' END,
    record_ref = NULL, segment = NULL, trajectory = 'off', metadata = '{}', sequence_key = NULL, webhook = NULL,
    traceparent = NULL
WHERE id = ?1
