INSERT INTO attempt_usage (job, attempt, prompt_tokens, cached_tokens, output_tokens, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (job, attempt) DO NOTHING
