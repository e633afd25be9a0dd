-- Leases of one worker can run out at different times, and the last of them was not alone for that: what the worker lost
-- since this attempt began was beside it.
SELECT id, worker, EXISTS (
    SELECT 1 FROM events
    WHERE events.kind = 'lost' AND events.worker = jobs.worker AND events.at >= jobs.started_at AND events.job <> jobs.id
) AS lost_beside
FROM jobs
WHERE state = 'running' AND worker = ANY ($2) AND lease_until <= store_now($1) AND deadline > store_now($1)
ORDER BY array_position($2, worker), seq
