-- Moves counters that the transaction holds.
UPDATE counters
SET value = value + (SELECT delta FROM unnest($1, $2::bigint[]) AS d (name, delta) WHERE d.name = counters.name)
WHERE name = ANY ($1::text[])
