//! The adapters of the ports: so far SQLite, the in-process queue and bus, and local files. [`open()`] builds them.
//!
//! Nothing here knows HTTP or a model. One conformance suite per port (`tests/conformance`) defines the behaviour and
//! runs over every adapter.

pub mod memory_bus;
pub mod memory_queue;
pub mod objects;
pub mod open;
pub mod postgres;
pub mod rabbitmq;
pub mod redis_bus;
pub mod sqlite;

pub use memory_bus::InProcessBus;
pub use memory_queue::InProcessQueue;
pub use objects::local_objects;
pub use open::{BackendUrls, Backends, OpenError, open};
pub use sqlite::{SqliteOpenError, SqliteOptions, SqliteStore};
