//! The [`contract::Queue`] on RabbitMQ quorum queues.
