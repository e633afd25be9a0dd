-- Those that are being written to are passed over: whoever gives jobs waits for nobody here, nor this for them.
WITH idle AS (
    SELECT release, class, tenant FROM shares
    WHERE next <= (SELECT clock FROM turns WHERE turns.release = shares.release AND turns.class = shares.class)
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
DELETE FROM shares USING idle
WHERE shares.release = idle.release AND shares.class = idle.class AND shares.tenant = idle.tenant
