-- Below the oldest transaction that still writes, no line is missing any more. The numbers of a database that was restored
-- from a dump begin anew, so those of a batch that has ended are all taken.
SELECT CASE WHEN state IN ('completed', 'expired', 'cancelled') THEN 9223372036854775807
            ELSE pg_snapshot_xmin(pg_current_snapshot())::text::bigint
       END AS horizon,
       coalesce((SELECT ended_order FROM jobs WHERE jobs.id = $2 AND batch = $1 AND ended_order IS NOT NULL),
                (SELECT ended_order FROM refused_lines WHERE batch = $1 AND line = $3)) AS ended_order,
       coalesce((SELECT line FROM jobs WHERE jobs.id = $2 AND batch = $1), $3) AS line
FROM batches
WHERE id = $1
