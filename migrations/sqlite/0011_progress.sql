-- The progress of batches, told to who asks for it by name.
-- Events of a batch that were told.
ALTER TABLE batches ADD COLUMN told INTEGER NOT NULL DEFAULT 0 CHECK (told >= 0);
-- When progress was last looked at, and how many lines had ended then.
ALTER TABLE batches ADD COLUMN progress_at INTEGER;
ALTER TABLE batches ADD COLUMN progress_done INTEGER NOT NULL DEFAULT 0;

-- What a delivery tells, when that is not read from its subject: JSON, as it is sent.
ALTER TABLE deliveries ADD COLUMN data TEXT;
CREATE INDEX deliveries_progress ON deliveries (batch) WHERE event = 'batch.progress' AND state = 'waiting';

DROP TRIGGER tell_all;
CREATE TRIGGER tell_all INSTEAD OF INSERT ON tell BEGIN
    INSERT INTO deliveries (id, tenant, webhook, url, destination, event, job, batch, sequence, at, next_at, retry_until)
    SELECT randomblob(16), new.tenant, NULL, new.hook ->> '$.url',
           -- To the first slash behind `https://` or `http://` and one more letter.
           new.tenant || ' ' || substr(new.hook ->> '$.url', 1, CASE instr(substr(new.hook ->> '$.url', 9), '/')
               WHEN 0 THEN length(new.hook ->> '$.url') ELSE instr(substr(new.hook ->> '$.url', 9), '/') + 7 END),
           new.event,
           new.job, new.batch, new.sequence, new.at, new.at, new.at + 259200000
    WHERE new.hook IS NOT NULL
      AND (json_array_length(new.hook, '$.events') = 0 AND new.event <> 'batch.progress'
           OR EXISTS (SELECT 1 FROM json_each(new.hook, '$.events') WHERE value = new.event))
    UNION ALL
    SELECT randomblob(16), new.tenant, webhooks.id, webhooks.url, lower(substr(hex(webhooks.id), 1, 8) || '-' || substr(hex(webhooks.id), 9, 4) || '-' ||
                                                               substr(hex(webhooks.id), 13, 4) || '-' ||
                                                               substr(hex(webhooks.id), 17, 4) || '-' ||
                                                               substr(hex(webhooks.id), 21)), new.event, new.job, new.batch,
           new.sequence, new.at, new.at, new.at + 259200000
    FROM webhooks
    WHERE webhooks.tenant = new.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
      AND (json_array_length(webhooks.events) = 0 AND new.event <> 'batch.progress'
           OR EXISTS (SELECT 1 FROM json_each(webhooks.events) WHERE value = new.event));
END;

-- Progress that is still on its way is of no use to who knows how much has ended since.
DROP TRIGGER batches_ended;
CREATE TRIGGER batches_ended AFTER UPDATE OF state ON batches
WHEN new.state IN ('completed', 'failed', 'expired', 'cancelled')
     AND old.state NOT IN ('completed', 'failed', 'expired', 'cancelled') BEGIN
    DELETE FROM delivery_attempts WHERE delivery IN
        (SELECT id FROM deliveries WHERE batch = new.id AND event = 'batch.progress' AND state = 'waiting');
    DELETE FROM deliveries WHERE batch = new.id AND event = 'batch.progress' AND state = 'waiting';
    INSERT INTO tell VALUES (new.tenant, new.webhook, 'batch.' || new.state, NULL, new.id, new.told + 1,
                             coalesce(new.completed_at, new.failed_at, new.expired_at, new.cancelled_at));
END;
