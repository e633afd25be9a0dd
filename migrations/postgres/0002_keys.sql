-- API keys. Of the key itself there is only a hash. A revoked one stays, so that people see what became of it.
CREATE TABLE keys (
    id         uuid        PRIMARY KEY,
    tenant     text        NOT NULL,
    name       text        NOT NULL,
    prefix     text        NOT NULL UNIQUE,
    hash       bytea       NOT NULL CHECK (length(hash) = 32),
    scopes     text[]      NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['submit', 'read', 'admin']),
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);
CREATE INDEX keys_tenant ON keys (tenant, id);
