-- How much of a job is kept as its trajectory, and where it was archived (KEY#OFFSET+LENGTH). A full trajectory is the
-- record itself: `record_ref` is then the same place.
ALTER TABLE jobs ADD COLUMN trajectory TEXT NOT NULL DEFAULT 'full' CHECK (trajectory IN ('full', 'redacted', 'off'));
ALTER TABLE jobs ADD COLUMN segment TEXT;

CREATE INDEX jobs_unarchived ON jobs (finished_at)
WHERE state = 'succeeded' AND segment IS NULL AND trajectory <> 'off';

-- Models that workers serve or served, by the name clients use.
CREATE TABLE models (
    name       TEXT PRIMARY KEY,
    release    TEXT    NOT NULL,
    served     TEXT    NOT NULL,
    -- Order of the first offer of the name.
    seq        INTEGER NOT NULL,
    offered_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
