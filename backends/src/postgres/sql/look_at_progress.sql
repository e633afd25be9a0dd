-- With a number for what is told of it, if it is news.
UPDATE batches
SET progress_at = store_now($1), progress_done = $3, told = told + (before.progress_done <> $3)::integer
FROM (SELECT id, progress_done FROM batches WHERE id = $2 FOR UPDATE) AS before
WHERE batches.id = before.id AND state IN ('in_progress', 'finalizing')
RETURNING before.progress_done <> $3 AS is_news
