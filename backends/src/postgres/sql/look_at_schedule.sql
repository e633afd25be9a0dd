-- A file may be past its time: while an enabled schedule uses it, it is not emptied.
SELECT EXISTS (SELECT FROM batches
               WHERE schedule = $1 AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')) AS has_open_run,
       EXISTS (SELECT FROM batches WHERE schedule = $1 AND due_at = $2) AS was_run,
       EXISTS (SELECT FROM files WHERE id = $3 AND tenant = $4 AND purpose = 'batch' AND emptied_at IS NULL) AS has_file
