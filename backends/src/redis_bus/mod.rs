//! The [`contract::Bus`] on Redis.
