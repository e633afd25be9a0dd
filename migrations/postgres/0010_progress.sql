-- The progress of batches, told to who asks for it by name.
ALTER TABLE batches
    -- Events of it that were told.
    ADD COLUMN told          integer NOT NULL DEFAULT 0 CHECK (told >= 0),
    -- When progress was last looked at, and how many lines had ended then.
    ADD COLUMN progress_at   timestamptz,
    ADD COLUMN progress_done bigint  NOT NULL DEFAULT 0;

-- What a delivery tells, when that is not read from its subject: JSON, as it is sent.
ALTER TABLE deliveries ADD COLUMN data text;
CREATE INDEX deliveries_progress ON deliveries (batch) WHERE event = 'batch.progress' AND state = 'waiting';

CREATE OR REPLACE FUNCTION tell(tenant text, hook jsonb, event text, job uuid, batch uuid, sequence integer, at timestamptz)
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO deliveries (tenant, webhook, url, event, job, batch, sequence, at, next_at, retry_until)
    SELECT tell.tenant, targets.webhook, targets.url, tell.event, tell.job, tell.batch, tell.sequence, tell.at, tell.at,
           tell.at + interval '72 hours'
    FROM (
        SELECT NULL::uuid AS webhook, tell.hook ->> 'url' AS url
        WHERE tell.hook IS NOT NULL
          AND (jsonb_array_length(tell.hook -> 'events') = 0 AND tell.event <> 'batch.progress'
               OR tell.hook -> 'events' ? tell.event)
        UNION ALL
        SELECT webhooks.id, webhooks.url
        FROM webhooks
        WHERE webhooks.tenant = tell.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
          AND (cardinality(webhooks.events) = 0 AND tell.event <> 'batch.progress' OR tell.event = ANY (webhooks.events))
    ) AS targets
$$;

-- Progress that is still on its way is of no use to who knows how much has ended since.
CREATE FUNCTION forget_progress(batch uuid) RETURNS void
LANGUAGE sql
AS $$
    WITH forgotten AS (
        DELETE FROM deliveries
        WHERE deliveries.batch = forget_progress.batch AND event = 'batch.progress' AND state = 'waiting'
        RETURNING id
    )
    DELETE FROM delivery_attempts USING forgotten WHERE delivery_attempts.delivery = forgotten.id
$$;

CREATE OR REPLACE FUNCTION tell_of_batch() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF NEW.told > 0 THEN
        PERFORM forget_progress(NEW.id);
    END IF;
    PERFORM tell(NEW.tenant, NEW.webhook, 'batch.' || NEW.state, NULL, NEW.id, NEW.told + 1,
                 coalesce(NEW.completed_at, NEW.failed_at, NEW.expired_at, NEW.cancelled_at));
    RETURN NULL;
END
$$;
