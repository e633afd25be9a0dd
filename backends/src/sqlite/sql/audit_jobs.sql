-- Rows that their events contradict.
SELECT jobs.id, jobs.tenant, jobs.state, count(iif(events.kind = 'accepted', 1, NULL)) AS accepted,
       count(iif(events.kind = 'accepted' AND events.at <> jobs.accepted_at, 1, NULL)) AS elsewhere,
       count(iif(events.state NOT IN ('queued', 'running'), 1, NULL)) AS ended,
       min(iif(events.state NOT IN ('queued', 'running'), events.state, NULL)) AS ended_as
FROM jobs INDEXED BY jobs_accepted
LEFT JOIN events ON events.job = jobs.id
WHERE jobs.accepted_at >= ?1 AND jobs.accepted_at < ?2 AND (?3 IS NULL OR jobs.tenant = ?3)
GROUP BY jobs.id
HAVING accepted <> 1 OR elsewhere <> 0 OR ended <> (jobs.finished_at IS NOT NULL) OR ended_as <> jobs.state
ORDER BY jobs.id
LIMIT ?4
