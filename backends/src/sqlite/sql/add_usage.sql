UPDATE jobs
SET prompt_tokens = min(prompt_tokens + ?2, 4294967295), cached_tokens = min(cached_tokens + ?3, 4294967295),
    output_tokens = min(output_tokens + ?4, 4294967295)
WHERE id = ?1
