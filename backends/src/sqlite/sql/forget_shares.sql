DELETE FROM shares
WHERE (release, class, tenant) IN (
    SELECT release, class, tenant FROM shares
    WHERE next <= (SELECT clock FROM turns WHERE turns.release = shares.release AND turns.class = shares.class)
    LIMIT ?1
)
