//! The adapters of the ports: SQLite, the in-process queue and bus, and local files for one process; Postgres, RabbitMQ,
//! Redis and S3-compatible storage for many. [`open()`] builds them from URLs.
//!
//! Nothing here knows HTTP or a model. One conformance suite per port (`tests/conformance`) defines the behaviour and
//! runs over every adapter.

mod fair;
pub mod memory_bus;
pub mod memory_queue;
pub mod objects;
pub mod open;
pub mod postgres;
pub mod rabbitmq;
pub mod redis_bus;
pub mod sqlite;
mod transition;

pub use memory_bus::InProcessBus;
pub use memory_queue::InProcessQueue;
pub use objects::local_objects;
pub use open::{
    AdminOnly, Again, BackendUrls, Backends, OpenError, log_bytes, migrate, open, open_admin, open_again, scheme,
};
pub use sqlite::{SqliteOpenError, SqliteOptions, SqliteStore};
