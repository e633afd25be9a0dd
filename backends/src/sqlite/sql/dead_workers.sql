-- Workers with a lease that ran out, longest ago first, and how many jobs each holds, live leases included.
SELECT dead.worker AS worker, (SELECT count(*) FROM jobs WHERE state = 'running' AND worker = dead.worker) AS held
FROM (
    SELECT worker, min(lease_until) AS oldest
    FROM jobs
    WHERE state = 'running' AND lease_until <= ?1
    GROUP BY worker
) AS dead
ORDER BY dead.oldest
