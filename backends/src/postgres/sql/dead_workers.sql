-- Workers with a lease that ran out, longest ago first, how many of their leases did, and how many jobs each holds, live
-- leases included.
SELECT worker, count(*) FILTER (WHERE lease_until <= store_now($1)) AS dead, count(*) AS held
FROM jobs
WHERE state = 'running'
GROUP BY worker
HAVING min(lease_until) <= store_now($1)
ORDER BY min(lease_until)
