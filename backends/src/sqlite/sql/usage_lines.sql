SELECT tenant, day, release, model, class, accepted, succeeded, failed, cancelled, expired, prompt_tokens, cached_tokens,
       output_tokens, wasted_prompt_tokens, wasted_cached_tokens, wasted_output_tokens
FROM usage_days
WHERE day BETWEEN ?1 AND ?2 AND (?4 IS NULL OR tenant = ?4)
ORDER BY day, tenant, release, model, class
LIMIT ?3
