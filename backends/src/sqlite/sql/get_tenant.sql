SELECT tenant, requests_per_minute, tokens_per_minute, concurrent_requests, queued_jobs, weight, created_at, changed_at
FROM tenants
WHERE tenant = ?1
