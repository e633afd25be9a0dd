SELECT EXISTS (SELECT 1 FROM files
               WHERE id = ?1 AND tenant = ?2 AND purpose = 'batch' AND emptied_at IS NULL
                 AND (expires_at IS NULL OR expires_at > ?3)) AS lives
