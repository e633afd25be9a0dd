-- Changes no row when there is no room.
INSERT INTO counters (name, value)
SELECT ?1, 1 WHERE ?2 > 0
ON CONFLICT (name) DO UPDATE SET value = value + 1 WHERE value < ?2
