INSERT INTO attempt_usage (job, attempt, prompt_tokens, cached_tokens, output_tokens) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (job, attempt) DO NOTHING
