UPDATE files SET emptied_at = store_now($1)
WHERE id = ANY ($2::uuid[]) AND emptied_at IS NULL
