-- Gives back one row for each counter that had the room. A counter that is missing is at 0.
INSERT INTO counters AS c (name, value)
SELECT name, claim FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS claims (name, claim, bound)
WHERE claim <= bound
ORDER BY name
ON CONFLICT (name) DO UPDATE SET value = c.value + excluded.value
WHERE c.value + excluded.value <= (
    SELECT bound FROM unnest($1::text[], $3::bigint[]) AS bounds (name, bound) WHERE bounds.name = c.name
)
RETURNING name
