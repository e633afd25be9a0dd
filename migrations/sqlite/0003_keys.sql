-- API keys. Of the key itself there is only a hash. A revoked one stays, so that people see what became of it. Scopes
-- are words with commas between.
CREATE TABLE keys (
    id         BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    prefix     TEXT    NOT NULL UNIQUE,
    hash       BLOB    NOT NULL CHECK (length(hash) = 32),
    scopes     TEXT    NOT NULL CHECK (scopes <> ''),
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;
CREATE INDEX keys_tenant ON keys (tenant, id);
