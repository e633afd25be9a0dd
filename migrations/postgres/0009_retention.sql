-- How long payloads of jobs are kept: their requests, results, trajectories and metadata. `expires_at` is set when a job
-- ends; jobs from before this are kept for ever, as they were accepted.
ALTER TABLE jobs ADD COLUMN keep_ms bigint CHECK (keep_ms > 0);
-- When it was removed. The record of one that succeeded is then empty, which is no record, and not NULL: the check that
-- every success has one holds.
ALTER TABLE jobs ADD COLUMN emptied_at timestamptz CHECK (emptied_at IS NULL OR finished_at IS NOT NULL);
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE batch IS NULL AND emptied_at IS NULL AND expires_at IS NOT NULL;
-- Lines wait for their batch, however many they are: they are looked for batch by batch.
CREATE INDEX jobs_expiring_lines ON jobs (batch, expires_at)
WHERE batch IS NOT NULL AND emptied_at IS NULL AND expires_at IS NOT NULL;
ALTER TABLE batches ADD COLUMN keep_ms bigint CHECK (keep_ms > 0);

-- Segments of trajectories, and the jobs in each whose payload is kept. With the last of them a segment goes.
CREATE TABLE segments (
    key          text        PRIMARY KEY,
    jobs         bigint      NOT NULL CHECK (jobs >= 0),
    -- When it was said that it will be written; NULL from its first job on.
    announced_at timestamptz CHECK (announced_at IS NULL OR jobs = 0)
);
CREATE INDEX segments_unkept ON segments (key) WHERE jobs = 0 AND announced_at IS NULL;
CREATE INDEX segments_announced ON segments (announced_at) WHERE announced_at IS NOT NULL;
INSERT INTO segments (key, jobs)
SELECT split_part(segment, '#', 1), count(*) FROM jobs WHERE segment IS NOT NULL GROUP BY 1;
