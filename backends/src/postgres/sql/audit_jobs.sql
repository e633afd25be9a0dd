-- Rows that their events contradict. Found by their time before anything else: the way by `id` for the sake of the limit
-- would walk through the whole table where there are none.
WITH slice AS MATERIALIZED (
    SELECT id, tenant, state, accepted_at, (finished_at IS NOT NULL)::int AS ends
    FROM jobs
    WHERE accepted_at >= $1 AND accepted_at < $2 AND ($3::text IS NULL OR tenant = $3)
)
SELECT slice.id, slice.tenant, slice.state, told.accepted, told.elsewhere, told.ended, told.ended_as
FROM slice
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE events.kind = 'accepted') AS accepted,
           count(*) FILTER (WHERE events.kind = 'accepted' AND events.at <> slice.accepted_at) AS elsewhere,
           count(*) FILTER (WHERE events.state NOT IN ('queued', 'running')) AS ended,
           min(events.state) FILTER (WHERE events.state NOT IN ('queued', 'running')) AS ended_as
    FROM events
    WHERE events.job = slice.id
) AS told
WHERE told.accepted <> 1 OR told.elsewhere <> 0 OR told.ended <> slice.ends OR told.ended_as <> slice.state
ORDER BY slice.id
LIMIT $4
