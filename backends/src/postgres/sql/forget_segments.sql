DELETE FROM segments WHERE key = ANY ($1::text[]) AND jobs = 0
