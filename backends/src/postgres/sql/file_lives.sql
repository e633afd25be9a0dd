SELECT EXISTS (SELECT FROM files
               WHERE id = $2 AND tenant = $3 AND purpose = 'batch' AND emptied_at IS NULL
                 AND (expires_at IS NULL OR expires_at > store_now($1))) AS lives
