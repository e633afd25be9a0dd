-- Webhooks. What they are told of is written by triggers, in the transaction that makes it so.
CREATE TABLE webhooks (
    id           uuid        PRIMARY KEY,
    tenant       text        NOT NULL,
    -- NULL for the one row of a tenant that only holds the secrets for addresses named by jobs and batches.
    url          text,
    -- Of what it is told; empty for everything.
    events       text[]      NOT NULL DEFAULT '{}',
    description  text        NOT NULL DEFAULT '',
    secrets      jsonb       NOT NULL,
    created_at   timestamptz NOT NULL,
    disabled_at  timestamptz,
    disabled_why text
);
CREATE INDEX webhooks_tenant ON webhooks (tenant, id);
CREATE UNIQUE INDEX webhooks_secret ON webhooks (tenant) WHERE url IS NULL;

CREATE TABLE deliveries (
    id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    seq         bigint      GENERATED ALWAYS AS IDENTITY,
    tenant      text        NOT NULL,
    webhook     uuid,
    url         text        NOT NULL,
    -- What shares its fate: the webhook, or the server of the address.
    destination text        NOT NULL GENERATED ALWAYS AS
                            (coalesce(webhook::text, tenant || ' ' || substring(url from '^[^/]*//[^/]*'))) STORED,
    event       text        NOT NULL,
    job         uuid,
    batch       uuid,
    sequence    integer     NOT NULL CHECK (sequence > 0),
    at          timestamptz NOT NULL,
    state       text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'failed')),
    attempts    integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- Attempts since it was last asked for.
    tries       integer     NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_at     timestamptz,
    retry_until timestamptz NOT NULL,
    ended_at    timestamptz,
    CHECK ((job IS NULL) <> (batch IS NULL)),
    CHECK ((state = 'waiting') = (next_at IS NOT NULL)),
    CHECK ((state = 'waiting') = (ended_at IS NULL))
);
CREATE INDEX deliveries_due ON deliveries (destination, next_at) WHERE state = 'waiting';
CREATE INDEX deliveries_tenant ON deliveries (tenant, seq);
CREATE INDEX deliveries_webhook ON deliveries (webhook, seq) WHERE webhook IS NOT NULL;
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE delivery_attempts (
    delivery uuid        NOT NULL,
    n        integer     NOT NULL CHECK (n > 0),
    at       timestamptz NOT NULL,
    status   integer,
    error    text,
    took_ms  bigint      NOT NULL CHECK (took_ms >= 0),
    PRIMARY KEY (delivery, n)
);

-- Whether anybody may have to be told of the job: it names an address, or its tenant had a webhook when it was accepted.
-- Jobs of which nobody is told cost nothing more than a look at this.
ALTER TABLE jobs ADD COLUMN told boolean NOT NULL DEFAULT false;
ALTER TABLE batches ADD COLUMN webhook jsonb;

-- Writes the deliveries of one event. `hook` is `{"url", "events"}` of the job or batch itself, if it has one.
CREATE FUNCTION tell(tenant text, hook jsonb, event text, job uuid, batch uuid, sequence integer, at timestamptz) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO deliveries (tenant, webhook, url, event, job, batch, sequence, at, next_at, retry_until)
    SELECT tell.tenant, targets.webhook, targets.url, tell.event, tell.job, tell.batch, tell.sequence, tell.at, tell.at,
           tell.at + interval '72 hours'
    FROM (
        SELECT NULL::uuid AS webhook, tell.hook ->> 'url' AS url
        WHERE tell.hook IS NOT NULL
          AND (jsonb_array_length(tell.hook -> 'events') = 0 OR tell.hook -> 'events' ? tell.event)
        UNION ALL
        SELECT webhooks.id, webhooks.url
        FROM webhooks
        WHERE webhooks.tenant = tell.tenant AND webhooks.url IS NOT NULL AND webhooks.disabled_at IS NULL
          AND (cardinality(webhooks.events) = 0 OR tell.event = ANY (webhooks.events))
    ) AS targets
$$;

CREATE FUNCTION tell_of_job() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF NEW.state = 'running' THEN
        PERFORM tell(NEW.tenant, NEW.webhook, 'job.started', NEW.id, NULL, 1, NEW.started_at);
    ELSE
        PERFORM tell(NEW.tenant, NEW.webhook, 'job.' || NEW.state, NEW.id, NULL, 2, NEW.finished_at);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER jobs_started AFTER UPDATE OF state ON jobs
FOR EACH ROW WHEN (NEW.told AND NEW.state = 'running' AND NEW.attempt = 1 AND OLD.attempt = 0)
EXECUTE FUNCTION tell_of_job();
CREATE TRIGGER jobs_ended AFTER UPDATE OF finished_at ON jobs
FOR EACH ROW WHEN (NEW.told AND NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
EXECUTE FUNCTION tell_of_job();

CREATE FUNCTION tell_of_batch() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM tell(NEW.tenant, NEW.webhook, 'batch.' || NEW.state, NULL, NEW.id, 1,
                 coalesce(NEW.completed_at, NEW.failed_at, NEW.expired_at, NEW.cancelled_at));
    RETURN NULL;
END
$$;
CREATE TRIGGER batches_ended AFTER UPDATE OF state ON batches
FOR EACH ROW WHEN (NEW.state IN ('completed', 'failed', 'expired', 'cancelled')
                   AND OLD.state NOT IN ('completed', 'failed', 'expired', 'cancelled'))
EXECUTE FUNCTION tell_of_batch();
