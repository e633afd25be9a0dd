SELECT id, tenant, webhook, url, event, job, batch, sequence, at, state, attempts, tries, next_at, retry_until
FROM deliveries
WHERE tenant = ?1 AND (?2 IS NULL OR webhook = ?2) AND (?3 IS NULL OR state = ?3)
  AND (?4 IS NULL OR seq < (SELECT seq FROM deliveries AS known WHERE known.id = ?4 AND known.tenant = ?1))
ORDER BY seq DESC
LIMIT ?5
