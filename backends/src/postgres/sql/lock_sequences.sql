-- Until the end of the transaction nobody else accepts or ends jobs of these sequences. Locked in the order of their
-- hashes; two sequences of one hash are one to this.
SELECT pg_advisory_xact_lock(hash)
FROM (
    SELECT DISTINCT hashtextextended(tenant || chr(31) || key, 7205) AS hash
    FROM unnest($1::text[], $2::text[]) AS asked (tenant, key)
    ORDER BY hash
) AS hashes
