-- Webhooks. What they are told of is written by triggers, in the transaction that makes it so.
CREATE TABLE webhooks (
    id           BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant       TEXT    NOT NULL,
    -- NULL for the one row of a tenant that only holds the secrets for addresses named by jobs and batches.
    url          TEXT,
    -- A JSON list: of what it is told; empty for everything.
    events       TEXT    NOT NULL DEFAULT '[]',
    description  TEXT    NOT NULL DEFAULT '',
    secrets      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    disabled_at  INTEGER,
    disabled_why TEXT
) STRICT;
CREATE INDEX webhooks_tenant ON webhooks (tenant, id);
CREATE UNIQUE INDEX webhooks_secret ON webhooks (tenant) WHERE url IS NULL;

CREATE TABLE deliveries (
    seq         INTEGER PRIMARY KEY,
    id          BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
    tenant      TEXT    NOT NULL,
    webhook     BLOB,
    url         TEXT    NOT NULL,
    -- What shares its fate: the webhook, or the server of the address.
    destination TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    job         BLOB,
    batch       BLOB,
    sequence    INTEGER NOT NULL CHECK (sequence > 0),
    at          INTEGER NOT NULL,
    state       TEXT    NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'failed')),
    attempts    INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- Attempts since it was last asked for.
    tries       INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_at     INTEGER,
    retry_until INTEGER NOT NULL,
    ended_at    INTEGER,
    CHECK ((job IS NULL) <> (batch IS NULL)),
    CHECK ((state = 'waiting') = (next_at IS NOT NULL)),
    CHECK ((state = 'waiting') = (ended_at IS NULL))
) STRICT;
CREATE INDEX deliveries_due ON deliveries (destination, next_at) WHERE state = 'waiting';
CREATE INDEX deliveries_tenant ON deliveries (tenant, seq);
CREATE INDEX deliveries_webhook ON deliveries (webhook, seq) WHERE webhook IS NOT NULL;
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE delivery_attempts (
    delivery BLOB    NOT NULL,
    n        INTEGER NOT NULL CHECK (n > 0),
    at       INTEGER NOT NULL,
    status   INTEGER,
    error    TEXT,
    took_ms  INTEGER NOT NULL CHECK (took_ms >= 0),
    PRIMARY KEY (delivery, n)
) STRICT, WITHOUT ROWID;

-- Whether anybody may have to be told of the job: it names an address, or its tenant had a webhook when it was accepted.
-- Jobs of which nobody is told cost nothing more than a look at this.
ALTER TABLE jobs ADD COLUMN told INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN webhook TEXT;

-- Events to be told of: what is inserted here becomes deliveries, and nothing is kept here.
CREATE VIEW tell (tenant, hook, event, job, batch, sequence, at) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0;
CREATE TRIGGER tell_all INSTEAD OF INSERT ON tell BEGIN
    INSERT INTO deliveries (id, tenant, webhook, url, destination, event, job, batch, sequence, at, next_at, retry_until)
    SELECT randomblob(16), new.tenant, NULL, new.hook ->> '$.url',
           -- To the first slash behind `https://` or `http://` and one more letter.
           new.tenant || ' ' || substr(new.hook ->> '$.url', 1, CASE instr(substr(new.hook ->> '$.url', 9), '/')
               WHEN 0 THEN length(new.hook ->> '$.url') ELSE instr(substr(new.hook ->> '$.url', 9), '/') + 7 END),
           new.event,
           new.job, new.batch, new.sequence, new.at, new.at, new.at + 259200000
    WHERE new.hook IS NOT NULL
      AND (json_array_length(new.hook, '$.events') = 0
           OR EXISTS (SELECT 1 FROM json_each(new.hook, '$.events') WHERE value = new.event))
    UNION ALL
    SELECT randomblob(16), new.tenant, webhooks.id, webhooks.url, lower(substr(hex(webhooks.id), 1, 8) || '-' || substr(hex(webhooks.id), 9, 4) || '-' ||
                                                               substr(hex(webhooks.id), 13, 4) || '-' ||
                                                               substr(hex(webhooks.id), 17, 4) || '-' ||
                                                               substr(hex(webhooks.id), 21)), new.event, new.job, new.batch,
           new.sequence, new.at, new.at, new.at + 259200000
    FROM webhooks
    WHERE webhooks.tenant = new.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
      AND (json_array_length(webhooks.events) = 0
           OR EXISTS (SELECT 1 FROM json_each(webhooks.events) WHERE value = new.event));
END;
CREATE TRIGGER jobs_started AFTER UPDATE OF state ON jobs
WHEN new.told AND new.state = 'running' AND new.attempt = 1 AND old.attempt = 0 BEGIN
    INSERT INTO tell VALUES (new.tenant, new.webhook, 'job.started', new.id, NULL, 1, new.started_at);
END;
CREATE TRIGGER jobs_ended AFTER UPDATE OF finished_at ON jobs
WHEN new.told AND new.finished_at IS NOT NULL AND old.finished_at IS NULL BEGIN
    INSERT INTO tell VALUES (new.tenant, new.webhook, 'job.' || new.state, new.id, NULL, 2, new.finished_at);
END;
CREATE TRIGGER batches_ended AFTER UPDATE OF state ON batches
WHEN new.state IN ('completed', 'failed', 'expired', 'cancelled')
     AND old.state NOT IN ('completed', 'failed', 'expired', 'cancelled') BEGIN
    INSERT INTO tell VALUES (new.tenant, new.webhook, 'batch.' || new.state, NULL, new.id, 1,
                             coalesce(new.completed_at, new.failed_at, new.expired_at, new.cancelled_at));
END;
