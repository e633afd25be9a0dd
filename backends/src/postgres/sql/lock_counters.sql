-- Counters that are missing are made; the others are locked by writing what they are. Both in key order.
INSERT INTO counters AS c (name, value)
SELECT name, 0 FROM unnest($1::text[]) AS names (name) ORDER BY name
ON CONFLICT (name) DO UPDATE SET value = c.value
RETURNING name, value
