-- The state is a parameter (`queued`), so that jobs are found by their ids and by nothing else.
WITH woken AS (
    UPDATE jobs SET wake_at = store_now($1)
    FROM unnest($2::uuid[]) AS asked (id)
    WHERE jobs.id = asked.id AND jobs.state = $3 AND jobs.wake_at > store_now($1)
    RETURNING jobs.id
)
SELECT woken.id
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS soon
CROSS JOIN woken
