//! The [`contract::JobStore`] in Postgres.
