-- Jobs, batches and schedules of embeddings.

-- SQLite changes no CHECK by ALTER TABLE. The alternative to this, which its documentation gives for constraints that the rows
-- fit already, would be to write the tables anew with all their indexes and triggers.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema
SET sql = replace(sql, 'IN (''chat'', ''completion'')', 'IN (''chat'', ''completion'', ''embedding'')')
WHERE type = 'table' AND name IN ('jobs', 'batches', 'schedules');
PRAGMA writable_schema = RESET;
-- A change by the usual way, so that every connection reads the schema anew.
CREATE TABLE embeddings_are_allowed (x INTEGER) STRICT;
DROP TABLE embeddings_are_allowed;
