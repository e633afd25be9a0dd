-- The second one without an address of a tenant changes nothing, and answers the first.
INSERT INTO webhooks (id, tenant, url, events, description, secrets, created_at)
VALUES ($2, $3, $4, $5, $6, $7::jsonb, store_now($1))
ON CONFLICT (tenant) WHERE url IS NULL DO UPDATE SET tenant = excluded.tenant
RETURNING id, tenant, url, events, description, secrets::text AS secrets, created_at, disabled_at, disabled_why,
          store_now($1) AS now
