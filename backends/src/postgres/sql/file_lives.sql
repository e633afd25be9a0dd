-- Until the end of the transaction nobody deletes it.
SELECT count(*) = 1 AS lives
FROM (
    SELECT id FROM files
    WHERE id = $2 AND tenant = $3 AND purpose = 'batch' AND emptied_at IS NULL
      AND (expires_at IS NULL OR expires_at > store_now($1))
    FOR SHARE
) AS file
