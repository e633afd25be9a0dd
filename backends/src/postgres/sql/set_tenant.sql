-- A limit whose flag is false stays as it is.
INSERT INTO tenants AS t (tenant, requests_per_minute, tokens_per_minute, concurrent_requests, queued_jobs, weight,
                          created_at, changed_at)
VALUES ($2, $4, $6, $8, $10, coalesce($11::bigint, 1), store_now($1), store_now($1))
ON CONFLICT (tenant) DO UPDATE
SET requests_per_minute = CASE WHEN $3 THEN excluded.requests_per_minute ELSE t.requests_per_minute END,
    tokens_per_minute = CASE WHEN $5 THEN excluded.tokens_per_minute ELSE t.tokens_per_minute END,
    concurrent_requests = CASE WHEN $7 THEN excluded.concurrent_requests ELSE t.concurrent_requests END,
    queued_jobs = CASE WHEN $9 THEN excluded.queued_jobs ELSE t.queued_jobs END,
    weight = coalesce($11::bigint, t.weight),
    changed_at = excluded.changed_at
RETURNING tenant, requests_per_minute, tokens_per_minute, concurrent_requests, queued_jobs, weight, created_at, changed_at
