UPDATE jobs
SET state = ?4, errors = ?5, losses = ?6, wake_at = NULL, lease_until = NULL, finished_at = ?7, expires_at = ?7 + keep_ms, record = ?8,
    record_ref = ?9, error = ?10, history = ?11, prompt_tokens = ?12, cached_tokens = ?13, output_tokens = ?14,
    usage_attempt = ?15, first_token_at = coalesce(?16, first_token_at)
WHERE seq = ?1 AND attempt = ?2 AND state = ?3
