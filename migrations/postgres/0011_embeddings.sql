-- Jobs, batches and schedules of embeddings.

ALTER TABLE jobs
    DROP CONSTRAINT jobs_kind_check,
    ADD CONSTRAINT jobs_kind_check CHECK (kind IN ('chat', 'completion', 'embedding'));
ALTER TABLE batches
    DROP CONSTRAINT batches_endpoint_check,
    ADD CONSTRAINT batches_endpoint_check CHECK (endpoint IN ('chat', 'completion', 'embedding'));
ALTER TABLE schedules
    DROP CONSTRAINT schedules_endpoint_check,
    ADD CONSTRAINT schedules_endpoint_check CHECK (endpoint IN ('chat', 'completion', 'embedding'));
